//! The denials of buckets in memory, where limits have penalties.

use std::collections::HashMap;

use algorithms::{Denials, Penalty};

use super::sweep::Sweep;

/// Denials of at most `max` buckets; those of further buckets are not counted.
#[derive(Debug)]
pub(super) struct Penalties {
    /// By bucket, with the time at which they expire, in milliseconds since the epoch.
    held: HashMap<String, (Denials, u64)>,
    sweep: Sweep,
}

impl Penalties {
    pub(super) fn new(max: usize) -> Self {
        Self {
            held: HashMap::new(),
            sweep: Sweep::new(max),
        }
    }

    pub(super) fn get(&self, bucket: &str) -> Option<&Denials> {
        self.held.get(bucket).map(|(denials, _)| denials)
    }

    pub(super) fn store(&mut self, bucket: &str, penalty: &Penalty, denials: Denials, now_ms: u64) {
        let new = usize::from(!self.held.contains_key(bucket));
        if self.sweep.is_due(self.held.len() + new, now_ms) {
            self.held.retain(|_, (_, until_ms)| *until_ms > now_ms);
            self.sweep.done(self.held.len(), now_ms);
        }
        if self.held.len() + new <= self.sweep.max {
            let until_ms = penalty.forgotten_at_ms(&denials);
            self.held.insert(bucket.to_owned(), (denials, until_ms));
        }
    }

    /// Ends the penalties of buckets, and forgets their denials.
    pub(super) fn remove(&mut self, which: impl Fn(&str) -> bool) {
        self.held.retain(|bucket, _| !which(bucket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENALTY: Penalty = Penalty {
        after: 3,
        within_ms: 60_000,
        for_ms: 900_000,
    };

    fn count(of: &mut Penalties, bucket: usize, now_ms: u64) {
        let denials = Denials {
            since_ms: now_ms,
            count: 1,
            until_ms: 0,
        };
        of.store(&bucket.to_string(), &PENALTY, denials, now_ms);
    }

    #[test]
    fn a_full_store_counts_only_known_buckets_and_sweeps_once_a_second() {
        let mut penalties = Penalties::new(2000);
        for bucket in 0..3000 {
            count(&mut penalties, bucket, 1000);
        }
        assert_eq!(penalties.held.len(), 2000);
        count(&mut penalties, 0, 60_500);
        assert_eq!(penalties.get("0").unwrap().since_ms, 60_500);
        // None has expired yet.
        count(&mut penalties, 2500, 60_500);
        assert_eq!(penalties.held.len(), 2000);
        // Nearly all have now, but the last sweep was half a second ago.
        count(&mut penalties, 2500, 61_000);
        assert_eq!(penalties.get("2500"), None);
        count(&mut penalties, 2500, 61_500);
        assert!(penalties.get("2500").is_some());
        assert_eq!(penalties.held.len(), 2);
    }
}
