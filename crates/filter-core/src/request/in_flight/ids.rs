//! Ids of requests, which nobody else can guess.

use std::hash::Hasher;

use algorithms::SlotId;
use siphasher::sip::SipHasher13;

use crate::time::Now;

/// A counter, hashed with a key.
#[derive(Debug)]
pub(super) struct Ids {
    key: [u8; 16],
    count: u64,
}

impl Ids {
    /// Ids under a random key of this worker's own.
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self { key, count: 0 }
    }

    /// The next id, of a holder with this mark.
    pub(super) fn next(&mut self, now: Now, mark: u64) -> SlotId {
        self.count = self.count.wrapping_add(1);
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u64(self.count);
        SlotId::new(now.wall_ms / 1000, mark, hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_ids_differ_between_requests_and_between_workers() {
        let now = Now {
            mono_us: 0,
            wall_ms: 1_763_000_000_123,
        };
        let ids = |key| {
            let mut ids = Ids::new([key; 16]);
            (0..100).map(move |_| ids.next(now, 9)).collect::<Vec<_>>()
        };
        let mut all = ids(1);
        all.extend(ids(2));
        assert!(
            all.iter()
                .all(|id| id.mark() == 9 && id.at_s() == 1_763_000_000)
        );
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200);
    }
}
