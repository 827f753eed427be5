//! Secrets that nobody can guess: ids of requests at the limits on requests in flight, and the key of the
//! seals of reservations.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use algorithms::SlotId;

use crate::clock::wall_ms;

/// A new id, for the holder with this [mark](SlotId::new). Nobody can guess it: its secret is a count
/// under a keyed hash whose key the system drew at random.
pub fn new_slot_id(mark: u64) -> SlotId {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    SlotId::new(wall_ms() / 1000, mark, KEY.hash_one(count))
}

/// A key of 256 bits as text, from hashes whose keys the system drew at random.
pub(crate) fn random_key() -> String {
    let hash = |count: u64| format!("{:016x}", RandomState::new().hash_one(count));
    (0..4).map(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_are_long() {
        let keys: std::collections::HashSet<String> = (0..100).map(|_| random_key()).collect();
        assert_eq!(keys.len(), 100);
        assert!(keys.iter().all(|key| key.len() == 64));
    }

    #[test]
    fn ids_differ_and_name_their_holder() {
        let ids: std::collections::HashSet<SlotId> = (0..1000).map(|_| new_slot_id(7)).collect();
        assert_eq!(ids.len(), 1000);
        assert!(
            ids.iter()
                .all(|id| id.mark() == 7 && id.at_s() > 1_700_000_000)
        );
    }
}
