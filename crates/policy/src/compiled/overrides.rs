//! The overrides of one limit, by bucket.

use std::sync::Arc;

use crate::{Name, Override, bucket_hash, hash::Positions};

/// Found by the bucket's hash, which is not keyed: who writes overrides is trusted, and who asks
/// for them puts nothing in.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    list: Arc<[Override]>,
    by_hash: Arc<Positions>,
    /// There are more, which the limiter knows.
    elsewhere: bool,
}

impl Overrides {
    pub(super) fn new(limit: &Name, overrides: Vec<Override>) -> Self {
        Self::by(|found| bucket_hash(limit, &found.values), overrides)
    }

    fn by(hash: impl Fn(&Override) -> u64, overrides: Vec<Override>) -> Self {
        let mut by_hash = Positions::default();
        for (at, found) in overrides.iter().enumerate() {
            by_hash.add(hash(found), at);
        }
        Self {
            list: overrides.into(),
            by_hash: Arc::new(by_hash),
            elsewhere: false,
        }
    }

    pub(super) fn get<V: AsRef<[u8]>>(
        &self,
        limit: &Name,
        values: &[Option<V>],
    ) -> Option<&Override> {
        if self.list.is_empty() {
            return None;
        }
        let same = |found: &&Override| {
            let mut pairs = found.values.iter().zip(values);
            found.values.len() == values.len()
                && pairs.all(|(a, b)| a.as_deref() == b.as_ref().map(AsRef::as_ref))
        };
        let positions = self.by_hash.of(bucket_hash(limit, values));
        positions.filter_map(|at| self.list.get(at)).find(same)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Override> {
        self.list.iter()
    }

    pub(super) fn any(&self) -> bool {
        !self.list.is_empty() || self.elsewhere
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
        let overrides = Overrides::by(|_| hash, vec![of("bob"), of("alice"), of("carol")]);
        assert_eq!(overrides.iter().count(), 3);
        assert_eq!(overrides.get(&limit, &[Some("alice")]), Some(&of("alice")));
        // The hash of others leads elsewhere, except to what collided with it.
        let overrides = Overrides::by(|_| hash, vec![of("bob")]);
        assert_eq!(overrides.get(&limit, &[Some("alice")]), None);
    }
}
