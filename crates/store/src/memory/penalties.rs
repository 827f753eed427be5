//! The denials of buckets in memory, where limits have penalties.

use std::collections::HashMap;

use algorithms::{Denials, Penalty};

/// Below this many the store does not look for those that say nothing any longer.
const SWEEP_MIN: usize = 1024;

/// Of at most `max` buckets; those of further ones are not counted.
#[derive(Debug)]
pub(super) struct Penalties {
    /// By bucket, with the time in milliseconds since the epoch from which they say nothing.
    held: HashMap<String, (Denials, u64)>,
    max: usize,
    /// The number at which those are looked for.
    sweep_at: usize,
}

impl Penalties {
    pub(super) fn new(max: usize) -> Self {
        Self {
            held: HashMap::new(),
            max,
            sweep_at: SWEEP_MIN.min(max),
        }
    }

    pub(super) fn get(&self, bucket: &str) -> Option<&Denials> {
        self.held.get(bucket).map(|(denials, _)| denials)
    }

    pub(super) fn store(&mut self, bucket: &str, penalty: &Penalty, denials: Denials, now_ms: u64) {
        if self.held.len() >= self.sweep_at {
            self.held.retain(|_, (_, until_ms)| *until_ms > now_ms);
            self.sweep_at = (self.held.len() * 2).max(SWEEP_MIN).min(self.max);
        }
        if self.held.len() < self.max || self.held.contains_key(bucket) {
            let until_ms = penalty.forgotten_at_ms(&denials);
            self.held.insert(bucket.to_owned(), (denials, until_ms));
        }
    }

    /// Ends the penalties of buckets, and forgets their denials.
    pub(super) fn remove(&mut self, which: impl Fn(&str) -> bool) {
        self.held.retain(|bucket, _| !which(bucket));
    }
}
