//! What the limiter said of buckets, on its way to the table.
//!
//! Nobody needs it before the limiter is away, so it is written once a tick and
//! not with every answer.

use std::collections::HashMap;

use super::BuildIdHasher;
use crate::{
    host::Host,
    table::{Place, Table, Told, Update},
    time::Now,
};

/// Buckets that are kept before they are written.
const MAX_BUCKETS: usize = 1024;

/// The newest that was said of each bucket, not written yet.
#[derive(Debug, Default)]
pub(super) struct Hearsay {
    buckets: HashMap<Place, (u64, Told), BuildIdHasher>,
}

impl Hearsay {
    /// Keeps what was said of a bucket.
    pub(super) fn add(&mut self, place: Place, generation: u64, told: Told) {
        self.buckets.insert(place, (generation, told));
    }

    /// Whether it is time to write.
    pub(super) fn is_full(&self) -> bool {
        self.buckets.len() >= MAX_BUCKETS
    }

    /// Writes everything.
    pub(super) fn write(&mut self, host: &impl Host, now: Now, table: &Table) {
        for (place, (generation, told)) in self.buckets.drain() {
            // Contended: other workers are told the same.
            let _ = table.update(host, place, generation, now, |found| {
                if found.entry.hear(told) {
                    Update::Write(())
                } else {
                    Update::Keep(())
                }
            });
        }
    }
}
