//! The entries of a log, most of them shared with the log before the last charge.

use std::sync::Arc;

/// Entries per chunk. A charge copies fewer entries than this, and one pointer per chunk.
const CHUNK: usize = 256;

/// The admissions of one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// When, in milliseconds. Below 0 only after a shift of the time base.
    pub at_ms: i64,
    /// Units admitted up to and including this, since the log was begun.
    pub total: u64,
}

/// Admissions, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Entries {
    /// Full chunks.
    chunks: Vec<Arc<[Entry]>>,
    /// Forgotten entries of the first of them.
    skipped: usize,
    /// The newest entries: empty only if there are no entries at all.
    tail: Vec<Entry>,
    /// Units admitted before the first entry.
    base: u64,
}

impl Entries {
    pub fn new(base: u64) -> Self {
        Self {
            base,
            ..Self::default()
        }
    }

    pub fn len(&self) -> usize {
        self.chunks.len() * CHUNK + self.tail.len() - self.skipped
    }

    pub fn get(&self, at: usize) -> Option<&Entry> {
        let at = self.skipped + at;
        match self.chunks.get(at / CHUNK) {
            Some(chunk) => chunk.get(at % CHUNK),
            None => self.tail.get(at - self.chunks.len() * CHUNK),
        }
    }

    /// Units admitted before the entry at a place.
    pub fn total_before(&self, at: usize) -> u64 {
        let before = at.checked_sub(1).and_then(|before| self.get(before));
        before.map_or(self.base, |entry| entry.total)
    }

    /// The first place in a range where `holds` is false; it is true for all before.
    pub fn partition_point(
        &self,
        mut range: std::ops::Range<usize>,
        holds: impl Fn(&Entry) -> bool,
    ) -> usize {
        while !range.is_empty() {
            let middle = range.start + range.len() / 2;
            if self.get(middle).is_some_and(&holds) {
                range.start = middle + 1;
            } else {
                range.end = middle;
            }
        }
        range.start
    }

    /// The entries from a place on.
    pub fn rest(&self, first: usize) -> Self {
        let at = self.skipped + first;
        let gone = (at / CHUNK).min(self.chunks.len());
        let chunks = self.chunks.get(gone..).unwrap_or_default().to_vec();
        let skipped = at - gone * CHUNK;
        let (skipped, tail) = if chunks.is_empty() {
            (0, skipped)
        } else {
            (skipped, 0)
        };
        Self {
            base: self.total_before(first),
            skipped,
            tail: self.tail.get(tail..).unwrap_or_default().to_vec(),
            chunks,
        }
    }

    pub fn push(&mut self, entry: Entry) {
        if self.tail.len() == CHUNK {
            self.chunks.push(std::mem::take(&mut self.tail).into());
        }
        self.tail.push(entry);
    }

    pub fn newest_mut(&mut self) -> Option<&mut Entry> {
        self.tail.last_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Entry> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

/// Two logs are equal if they admitted the same, whatever was forgotten before.
impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        let units = |log: &Self, entry: &Entry| (entry.at_ms, entry.total - log.base);
        let mut pairs = self.iter().zip(other.iter());
        self.len() == other.len() && pairs.all(|(a, b)| units(self, a) == units(other, b))
    }
}

impl Eq for Entries {}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(times: std::ops::Range<i64>) -> Entries {
        let mut log = Entries::new(7);
        for at_ms in times {
            let total = log.total_before(log.len()) + 2;
            log.push(Entry { at_ms, total });
        }
        log
    }

    #[test]
    fn entries_are_found_wherever_chunks_end() {
        let log = log(0..1000);
        for first in (0..=1000).step_by(63) {
            let rest = log.rest(first);
            assert_eq!(rest.len(), 1000 - first);
            let times: Vec<i64> = rest.iter().map(|entry| entry.at_ms).collect();
            assert!(
                times
                    .iter()
                    .copied()
                    .eq(i64::try_from(first).unwrap()..1000)
            );
            assert_eq!(rest.total_before(0), 7 + 2 * u64::try_from(first).unwrap());
            for at_ms in [0, 255, 256, 700, 2000] {
                let expected = times.partition_point(|at| *at < at_ms);
                let found = rest.partition_point(0..rest.len(), |entry| entry.at_ms < at_ms);
                assert_eq!(found, expected);
            }
        }
        assert_eq!(log.rest(300), self::log(0..1000).rest(299).rest(1));
    }

    #[test]
    fn a_copy_shares_what_did_not_change() {
        let log = log(0..1000);
        let mut next = log.rest(300);
        next.push(Entry {
            at_ms: 1000,
            total: 2009,
        });
        assert_eq!(next.chunks.len(), 2);
        assert!(
            next.chunks
                .iter()
                .zip(&log.chunks[1..])
                .all(|(a, b)| Arc::ptr_eq(a, b))
        );
    }
}
