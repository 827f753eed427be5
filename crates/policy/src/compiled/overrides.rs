//! The overrides of one limit, by bucket.

use std::{collections::HashMap, sync::Arc};

use crate::{Name, Override, bucket_hash, hash::Hashed};

/// Found by the bucket's hash, which is not keyed: who writes overrides is trusted, and who asks
/// for them puts nothing in.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    by_hash: Arc<HashMap<u64, Override, Hashed>>,
    /// Those whose hash another has already. There are none, as a rule.
    collided: Vec<Override>,
    /// There are more, which the limiter knows.
    elsewhere: bool,
}

impl Overrides {
    pub(super) fn new(limit: &Name, overrides: Vec<Override>) -> Self {
        let hashed = overrides.into_iter().map(|found| {
            let hash = bucket_hash(limit, &found.values);
            (hash, found)
        });
        Self::of_hashed(hashed)
    }

    fn of_hashed(overrides: impl ExactSizeIterator<Item = (u64, Override)>) -> Self {
        let mut by_hash = HashMap::with_capacity_and_hasher(overrides.len(), Hashed::default());
        let mut collided = Vec::new();
        for (hash, found) in overrides {
            if let Some(other) = by_hash.insert(hash, found) {
                collided.push(other);
            }
        }
        Self {
            by_hash: Arc::new(by_hash),
            collided,
            elsewhere: false,
        }
    }

    pub(super) fn get<V: AsRef<[u8]>>(
        &self,
        limit: &Name,
        values: &[Option<V>],
    ) -> Option<&Override> {
        if self.by_hash.is_empty() {
            return None;
        }
        let same = |found: &&Override| {
            let mut pairs = found.values.iter().zip(values);
            found.values.len() == values.len()
                && pairs.all(|(a, b)| a.as_deref() == b.as_ref().map(AsRef::as_ref))
        };
        let found = self.by_hash.get(&bucket_hash(limit, values));
        found
            .filter(same)
            .or_else(|| self.collided.iter().find(same))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Override> {
        self.by_hash.values().chain(&self.collided)
    }

    pub(super) fn any(&self) -> bool {
        !self.by_hash.is_empty() || self.elsewhere
    }

    pub(super) fn set_elsewhere(&mut self, elsewhere: bool) {
        self.elsewhere = elsewhere;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OverrideQuota;

    #[test]
    fn buckets_of_the_same_hash_are_told_apart() {
        let limit: Name = "a".parse().unwrap();
        let of = |user: &str| Override {
            values: vec![Some(user.as_bytes().to_vec())],
            quota: OverrideQuota::Unlimited,
            until_ms: None,
        };
        let hash = bucket_hash(&limit, &[Some("alice")]);
        let all = [(hash, of("bob")), (hash, of("alice")), (hash, of("carol"))];
        let overrides = Overrides::of_hashed(all.into_iter());
        assert_eq!(overrides.iter().count(), 3);
        assert_eq!(overrides.get(&limit, &[Some("alice")]), Some(&of("alice")));
        // The hash of others leads elsewhere, except to what collided with it.
        let of_alice = [(hash, of("bob"))];
        let overrides = Overrides::of_hashed(of_alice.into_iter());
        assert_eq!(overrides.get(&limit, &[Some("alice")]), None);
    }
}
