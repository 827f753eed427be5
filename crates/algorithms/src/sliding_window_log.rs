//! Sliding window log.
//!
//! Source: "Better rate limiting with Redis sorted sets", `ClassDojo` Engineering, 2015, with two
//! corrections: a denial stores nothing, and requests of one millisecond do not collapse into one.
//!
//! Guarantee: at most N in every W, exactly. An admission at a counts at now
//! iff a > now − W.
//!
//! Entries carry a running total, so that bisection finds what is used, and when enough of it is
//! forgotten.
//!
//! `lua/lib/sliding_window_log.lua` is the twin.

use std::{ops::Range, sync::Arc};

use crate::{
    Numbers, ParameterError, Parameters,
    quota::{Loaded, Quota, state_of},
    window::Window,
};

/// Bound: entries of a log. Beyond it, a limit with more is refused when it is written.
///
/// The script's running total wraps above it.
const LIMIT_MAX: u64 = 100_000;

/// The most units that a log counts: its running total wraps above that.
const USED_MAX: u64 = 999_999;

/// How many entries may follow one that is refunded: the script rewrites the total of each.
const LATER_MAX: usize = 100;

/// Entries per chunk. A charge copies fewer entries than this, and one pointer per chunk.
const CHUNK: usize = 256;

/// A log's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindowLog {
    window: Window,
}

/// What is stored of a log: admissions, oldest first. It has no small fixed size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindowLogState {
    entries: Entries,
}

/// The admissions of one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// When, in milliseconds. Below 0 only after a shift of the time base.
    pub at_ms: i64,
    /// Units admitted up to and including this, since the log was begun.
    pub total: u64,
}

/// Admissions, oldest first, most of them shared with the log before the last charge.
#[derive(Clone, Debug, Default)]
struct Entries {
    /// Full chunks.
    chunks: Vec<Arc<[Entry]>>,
    /// Forgotten entries of the first of them.
    skipped: usize,
    /// The newest entries: empty only if there are no entries at all.
    tail: Vec<Entry>,
    /// Units admitted before the first entry.
    base: u64,
}

/// A log at one instant.
#[derive(Clone, Debug)]
pub(crate) struct LogUsage<'s> {
    asked_ms: i64,
    now_ms: i64,
    /// The entries, in the stored time base.
    entries: Option<&'s Entries>,
    /// The places of those that count.
    live: Range<usize>,
    /// Subtracted from an entry's time.
    shift_ms: i64,
    /// The total before the first live entry.
    forgotten: u64,
    /// Units added at `now_ms`.
    added: u64,
    /// Units of the last live entry that were given back.
    cut: u64,
    /// The place of an entry that some units are refunded from, and how many.
    taken: (usize, u64),
}

impl SlidingWindowLog {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let window = Window::new(parameters)?;
        if window.limit > LIMIT_MAX {
            return Err(ParameterError::RateTooLarge { largest: LIMIT_MAX });
        }
        Ok(Self { window })
    }

    const fn length_ms(&self) -> i64 {
        self.window.length_ms.cast_signed()
    }

    /// From the caller's instant until an admission at `at_ms` is forgotten.
    fn forgotten_after_ms(&self, usage: &LogUsage<'_>, at_ms: i64) -> u64 {
        u64::try_from(at_ms + self.length_ms() - usage.asked_ms).unwrap_or(0)
    }
}

impl LogUsage<'_> {
    fn used(&self) -> u64 {
        let newest = self.newest();
        newest.map_or(0, |entry| entry.total - self.forgotten - self.cut) + self.added
            - self.taken.1
    }

    fn get(&self, at: usize) -> Option<&Entry> {
        self.entries?.get(at)
    }

    fn newest(&self) -> Option<&Entry> {
        self.get(
            self.live
                .end
                .checked_sub(1)
                .filter(|at| self.live.contains(at))?,
        )
    }

    /// The place of the first live entry up to which so many units were admitted.
    fn place_of(&self, units: u64) -> usize {
        let fewer = |entry: &Entry| entry.total - self.forgotten < units;
        let place = |entries: &Entries| entries.partition_point(self.live.clone(), fewer);
        self.entries.map_or(0, place)
    }

    /// The live entries as they are stored next, without what is added now.
    fn rebased(&self) -> Entries {
        let Some(entries) = self.entries else {
            return Entries::default();
        };
        let (from, taken) = self.taken;
        if self.shift_ms == 0 && taken == 0 && self.cut == 0 && self.live.end == entries.len() {
            return entries.rest(self.live.start);
        }
        let mut before = self.forgotten;
        let mut rebased = Entries::new(before);
        for at in self.live.clone() {
            let Some(entry) = entries.get(at) else { break };
            let taken = if at >= from { taken } else { 0 };
            let cut = if at + 1 == self.live.end { self.cut } else { 0 };
            let total = entry.total - taken - cut;
            // Drops an entry that has no units left.
            if total > before {
                let at_ms = entry.at_ms - self.shift_ms;
                rebased.push(Entry { at_ms, total });
            }
            before = total;
        }
        rebased
    }
}

impl Quota for SlidingWindowLog {
    type Usage<'s> = LogUsage<'s>;

    state_of!(SlidingWindowLog, SlidingWindowLogState);

    fn limit(&self) -> u64 {
        self.window.limit
    }

    fn window_ms(&self) -> u64 {
        self.window.length_ms
    }

    fn numbers(&self) -> Numbers {
        self.window.numbers(Numbers::SLIDING_WINDOW_LOG)
    }

    fn load<'s>(
        &self,
        state: Option<&'s SlidingWindowLogState>,
        now_ms: u64,
        _ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let entries = state.map(|state| &state.entries);
        let len = entries.map_or(0, Entries::len);
        let asked_ms = now_ms.cast_signed();
        let newest = entries.and_then(|entries| entries.get(len.checked_sub(1)?));
        let newest_ms = newest.map_or(asked_ms, |entry| entry.at_ms);
        let ahead_ms = newest_ms - asked_ms;
        let shift_ms = if ahead_ms > self.length_ms() {
            ahead_ms
        } else {
            0
        };
        let now_ms = asked_ms.max(newest_ms - shift_ms);
        let horizon_ms = now_ms - self.length_ms();
        let gone = |entry: &Entry| entry.at_ms - shift_ms <= horizon_ms;
        let first = entries.map_or(0, |entries| entries.partition_point(0..len, gone));
        let usage = LogUsage {
            asked_ms,
            now_ms,
            entries,
            live: first..len,
            shift_ms,
            forgotten: entries.map_or(0, |entries| entries.total_before(first)),
            added: 0,
            cut: 0,
            taken: (0, 0),
        };
        let shifted = state.filter(|_| shift_ms > 0).map(|_| {
            // This keeps forgotten entries, too: only their times change.
            let whole = LogUsage {
                live: 0..len,
                forgotten: entries.map_or(0, |entries| entries.total_before(0)),
                ..usage.clone()
            };
            let entries = whole.rebased();
            SlidingWindowLogState { entries }
        });
        Loaded { usage, shifted }
    }

    fn room(&self, usage: &LogUsage<'_>) -> Option<u64> {
        self.window.room(usage.used())
    }

    fn charge(&self, usage: &mut LogUsage<'_>, units: u64) -> bool {
        let added = units.min(self.room(usage).unwrap_or(0));
        usage.added += added;
        added > 0
    }

    fn overcharge(&self, usage: &mut LogUsage<'_>, units: u64) -> bool {
        let added = units.min(USED_MAX.saturating_sub(usage.used()));
        usage.added += added;
        added > 0
    }

    fn credit(&self, usage: &mut LogUsage<'_>, units: u64) {
        let added = usage.added.min(units);
        usage.added -= added;
        let stored = usage.used() - usage.added;
        let left = stored.saturating_sub(units - added);
        if left == 0 {
            (usage.live.end, usage.cut) = (usage.live.start, 0);
            return;
        }
        usage.live.end = (usage.place_of(left) + 1).min(usage.live.end);
        let newest = usage.newest();
        usage.cut = newest.map_or(0, |entry| entry.total - usage.forgotten - left);
    }

    fn refund(&self, usage: &mut LogUsage<'_>, charged_at_ms: u64, units: u64) -> bool {
        let at_ms = charged_at_ms.cast_signed();
        let Some(entries) = usage.entries else {
            return false;
        };
        let place = entries.partition_point(usage.live.clone(), |entry| entry.at_ms <= at_ms);
        let Some(place) = place.checked_sub(1).filter(|at| usage.live.contains(at)) else {
            return false;
        };
        let Some(entry) = entries.get(place).filter(|entry| entry.at_ms == at_ms) else {
            return false;
        };
        let few = usage.live.end - place <= LATER_MAX + 1;
        if few {
            usage.taken = (place, units.min(entry.total - entries.total_before(place)));
        }
        few
    }

    fn wait_ms(&self, usage: &LogUsage<'_>, cost: u64) -> u64 {
        let excess = (usage.used() + cost).saturating_sub(self.window.limit);
        let enough = usage.get(usage.place_of(excess));
        let at_ms = enough.map_or(usage.now_ms, |entry| entry.at_ms - usage.shift_ms);
        self.forgotten_after_ms(usage, at_ms)
    }

    fn reset_after_ms(&self, usage: &LogUsage<'_>) -> u64 {
        match usage.newest() {
            _ if usage.added > 0 => self.forgotten_after_ms(usage, usage.now_ms),
            Some(newest) => self.forgotten_after_ms(usage, newest.at_ms - usage.shift_ms),
            None => 0,
        }
    }

    fn save(&self, usage: LogUsage<'_>) -> SlidingWindowLogState {
        let mut entries = usage.rebased();
        let newest = entries.newest_mut();
        match newest.filter(|newest| newest.at_ms == usage.now_ms) {
            Some(newest) => newest.total += usage.added,
            None if usage.added > 0 => {
                let total = entries.total_before(entries.len()) + usage.added;
                entries.push(Entry {
                    at_ms: usage.now_ms,
                    total,
                });
            }
            None => {}
        }
        SlidingWindowLogState { entries }
    }
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
        mut range: Range<usize>,
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

    fn log(times: Range<i64>) -> Entries {
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
