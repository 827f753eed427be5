//! Deduplication of keys: SCAN may return the same key more than once.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

/// Hashes of the keys seen so far: eight bytes for each key. Two of a million keys collide with a
/// probability of one in thirty million; then the second is dropped.
#[derive(Default)]
pub struct KeyDedup {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl KeyDedup {
    /// Adds a key; `true` if it is new.
    pub fn insert(&mut self, key: &str) -> bool {
        self.hashes.insert(self.hasher.hash_one(key))
    }

    /// The number of distinct keys.
    pub fn distinct(&self) -> u64 {
        u64::try_from(self.hashes.len()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_new_once() {
        let mut seen = KeyDedup::default();
        assert!(seen.insert("a") && seen.insert("b") && !seen.insert("a"));
        assert_eq!(seen.distinct(), 2);
    }
}
