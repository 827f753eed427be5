//! Which of a million keys came already.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
};

/// Eight bytes a key in place of the key. That two of a million keys hash alike has a chance of one
/// in thirty million; the second is then taken for the first.
#[derive(Default)]
pub struct Seen {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Seen {
    /// Whether this is the first time that the key comes.
    pub fn first_time(&mut self, key: &str) -> bool {
        self.hashes.insert(self.hasher.hash_one(key))
    }

    /// How many came.
    pub fn count(&self) -> u64 {
        u64::try_from(self.hashes.len()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_for_the_first_time_once() {
        let mut seen = Seen::default();
        assert!(seen.first_time("a") && seen.first_time("b") && !seen.first_time("a"));
        assert_eq!(seen.count(), 2);
    }
}
