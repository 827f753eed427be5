//! The overrides of one limit, by bucket.

use std::{collections::HashMap, sync::Arc};

use crate::{Name, Override, bucket_hash};

/// Found by the bucket's hash; the values decide between those that share one.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    by_hash: Arc<HashMap<u64, Vec<Override>>>,
    count: usize,
    /// There are more, which the limiter knows.
    elsewhere: bool,
}

impl Overrides {
    pub(super) fn new(limit: &Name, overrides: Vec<Override>) -> Self {
        let count = overrides.len();
        let mut by_hash: HashMap<u64, Vec<Override>> = HashMap::with_capacity(count);
        for found in overrides {
            let hash = bucket_hash(limit, &found.values);
            by_hash.entry(hash).or_default().push(found);
        }
        Self {
            by_hash: Arc::new(by_hash),
            count,
            elsewhere: false,
        }
    }

    pub(super) fn get<V: AsRef<[u8]>>(
        &self,
        limit: &Name,
        values: &[Option<V>],
    ) -> Option<&Override> {
        if self.count == 0 {
            return None;
        }
        let same = |found: &&Override| {
            let mut pairs = found.values.iter().zip(values);
            found.values.len() == values.len()
                && pairs.all(|(a, b)| a.as_deref() == b.as_ref().map(AsRef::as_ref))
        };
        let candidates = self.by_hash.get(&bucket_hash(limit, values))?;
        candidates.iter().find(same)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Override> {
        self.by_hash.values().flatten()
    }

    pub(super) fn any(&self) -> bool {
        self.count > 0 || self.elsewhere
    }

    pub(super) fn set_elsewhere(&mut self, elsewhere: bool) {
        self.elsewhere = elsewhere;
    }
}
