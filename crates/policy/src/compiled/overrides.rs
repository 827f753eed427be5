//! The overrides of one limit, by bucket.

use std::sync::Arc;

use documents::Name;

use crate::{Override, bucket_hash};

/// Overrides per shard: adding one copies a shard.
const SHARD: usize = 64;

/// Overrides by the bucket's hash. The hash is not keyed: authors of overrides are trusted, and
/// lookups add nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    /// Empty, or a power of two of them.
    shards: Vec<Arc<Shard>>,
    /// Whether there are more, which only the limiter has.
    elsewhere: bool,
}

/// Overrides by their hashes, in order. Several may share one.
type Shard = Box<[(u64, Override)]>;

/// Adds an override where it belongs: a shard is short, and code that sorts is 5 KB of the filter.
fn insert(shard: &mut Vec<(u64, Override)>, hash: u64, found: Override) {
    let at = shard.partition_point(|(other, _)| *other <= hash);
    shard.insert(at, (hash, found));
}

impl Overrides {
    pub(super) fn new(limit: &Name, overrides: Vec<Override>) -> Self {
        Self::by(|found| bucket_hash(limit, &found.values), overrides)
    }

    fn by(hash: impl Fn(&Override) -> u64, overrides: Vec<Override>) -> Self {
        let mut shards = Vec::new();
        if !overrides.is_empty() {
            let count = (overrides.len() / SHARD).next_power_of_two();
            shards.resize_with(count, Vec::new);
        }
        for found in overrides {
            let hash = hash(&found);
            let at = place(hash, shards.len());
            if let Some(shard) = shards.get_mut(at) {
                insert(shard, hash, found);
            }
        }
        Self {
            shards: shards
                .into_iter()
                .map(|shard| Arc::new(shard.into()))
                .collect(),
            elsewhere: false,
        }
    }

    pub(super) fn get<V: AsRef<[u8]>>(
        &self,
        limit: &Name,
        values: &[Option<V>],
    ) -> Option<&Override> {
        if self.shards.is_empty() {
            return None;
        }
        let same = |found: &&Override| {
            let mut pairs = found.values.iter().zip(values);
            found.values.len() == values.len()
                && pairs.all(|(a, b)| a.as_deref() == b.as_ref().map(AsRef::as_ref))
        };
        let hash = bucket_hash(limit, values);
        let shard = self.shards.get(place(hash, self.shards.len()))?;
        let first = shard.partition_point(|(other, _)| *other < hash);
        let of_hash = shard.iter().skip(first);
        let of_hash = of_hash.take_while(|(other, _)| *other == hash);
        of_hash.map(|(_, found)| found).find(same)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Override> {
        let all = self.shards.iter().flat_map(|shard| shard.iter());
        all.map(|(_, found)| found)
    }

    pub(super) fn any(&self) -> bool {
        self.elsewhere || self.iter().next().is_some()
    }

    /// Sets the override of one bucket, or removes it. Clones that share shards with this one do not change.
    pub(super) fn set(&mut self, limit: &Name, values: &[Option<Vec<u8>>], to: Option<Override>) {
        let hash = bucket_hash(limit, values);
        let at = place(hash, self.shards.len());
        let old = self.shards.get(at).map_or(&[][..], |shard| &***shard);
        if old.len() > 8 * SHARD || self.shards.is_empty() {
            let all = self.iter().filter(|found| found.values != values);
            let all: Vec<Override> = all.cloned().chain(to).collect();
            self.shards = Self::new(limit, all).shards;
            return;
        }
        let others = old.iter().filter(|(_, found)| found.values != values);
        let mut next = others.cloned().collect();
        if let Some(to) = to {
            insert(&mut next, hash, to);
        }
        if let Some(shard) = self.shards.get_mut(at) {
            *shard = Arc::new(next.into());
        }
    }

    pub(super) fn set_elsewhere(&mut self, elsewhere: bool) {
        self.elsewhere = elsewhere;
    }
}

/// Which of so many shards has the buckets of a hash.
fn place(hash: u64, shards: usize) -> usize {
    let bits = usize::try_from(hash >> 32 & 0xff_ffff).unwrap_or(0);
    bits & shards.saturating_sub(1)
}

#[cfg(test)]
mod tests;
