//! Sliding window log.
//!
//! Source: "Better rate limiting with Redis sorted sets",
//! `ClassDojo` Engineering, 2015, with its mistakes mended: nothing is remembered of a
//! denial, and requests of one millisecond do not collapse into one.
//!
//! Guarantee: at most N in every W, exactly. An admission at a counts at now
//! iff a > now − W.
//!
//! Entries carry a running total, so that what is used, and when enough of it
//! is forgotten, are found by bisection.

use crate::quota::{Loaded, Quota};
use crate::window::Window;
use crate::{Numbers, ParameterError, Parameters, State, kinds};

/// The largest N, and so the most entries of a log. The script's running total wraps above it.
const LIMIT_MAX: u64 = 100_000;

/// A log's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindowLog {
    window: Window,
}

/// What a log remembers: admissions, oldest first. It has no small fixed size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlidingWindowLogState {
    entries: Vec<Entry>,
}

/// The admissions of one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    /// When, in milliseconds. Below 0 only after a shift of the time base.
    at_ms: i64,
    /// Units admitted up to and including this.
    total: u64,
}

/// A log at one instant.
#[derive(Clone, Debug)]
pub(crate) struct LogUsage<'s> {
    asked_ms: i64,
    now_ms: i64,
    /// Entries that count, in the stored time base.
    live: &'s [Entry],
    /// What to take off an entry's time.
    shift_ms: i64,
    /// The total before the first live entry.
    forgotten: u64,
    /// Units added at `now_ms`.
    added: u64,
    /// Units of the last live entry that were given back.
    cut: u64,
    /// The place in `live` of an entry that some units are taken back from, and how many.
    taken: (usize, u64),
}

/// The entries that may have come after a charge that is taken back: the script rewrites the total
/// of each.
const LATER_MAX: usize = 100;

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
        self.live
            .last()
            .map_or(0, |entry| entry.total - self.forgotten - self.cut)
            + self.added
            - self.taken.1
    }
}

impl SlidingWindowLogState {
    fn shifted(&self, by_ms: i64) -> Self {
        let shift = |entry: &Entry| Entry {
            at_ms: entry.at_ms - by_ms,
            ..*entry
        };
        Self {
            entries: self.entries.iter().map(shift).collect(),
        }
    }
}

impl Quota for SlidingWindowLog {
    type State = SlidingWindowLogState;
    type Usage<'s> = LogUsage<'s>;

    fn own(state: &State) -> Option<&SlidingWindowLogState> {
        match state {
            State::SlidingWindowLog(state) => Some(state),
            _ => None,
        }
    }

    fn wrap(state: SlidingWindowLogState) -> State {
        State::SlidingWindowLog(state)
    }

    fn limit(&self) -> u64 {
        self.window.limit
    }

    fn window_ms(&self) -> u64 {
        self.window.length_ms
    }

    fn horizon_ms(&self) -> u64 {
        self.window.length_ms
    }

    fn numbers(&self) -> Numbers {
        self.window.numbers(kinds::SLIDING_WINDOW_LOG)
    }

    fn load<'s>(
        &self,
        state: Option<&'s SlidingWindowLogState>,
        now_ms: u64,
        _ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let entries = state.map_or(&[][..], |state| state.entries.as_slice());
        let asked_ms = now_ms.cast_signed();
        let newest_ms = entries.last().map_or(asked_ms, |entry| entry.at_ms);
        let ahead_ms = newest_ms - asked_ms;
        let shift_ms = if ahead_ms > self.length_ms() {
            ahead_ms
        } else {
            0
        };
        let now_ms = asked_ms.max(newest_ms - shift_ms);
        let horizon_ms = now_ms - self.length_ms();
        let first = entries.partition_point(|entry| entry.at_ms - shift_ms <= horizon_ms);
        let (gone, live) = entries.split_at(first);
        let forgotten = gone.last().map_or(0, |entry| entry.total);
        let usage = LogUsage {
            asked_ms,
            now_ms,
            live,
            shift_ms,
            forgotten,
            added: 0,
            cut: 0,
            taken: (0, 0),
        };
        let shifted = state
            .filter(|_| shift_ms > 0)
            .map(|state| state.shifted(shift_ms));
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

    fn credit(&self, usage: &mut LogUsage<'_>, units: u64) {
        let added = usage.added.min(units);
        usage.added -= added;
        let stored = usage.used() - usage.added;
        let left = stored.saturating_sub(units - added);
        if left == 0 {
            (usage.live, usage.cut) = (&[], 0);
            return;
        }
        let whole = usage
            .live
            .partition_point(|entry| entry.total - usage.forgotten < left);
        let (live, _) = usage.live.split_at((whole + 1).min(usage.live.len()));
        usage.live = live;
        usage.cut = live
            .last()
            .map_or(0, |entry| entry.total - usage.forgotten - left);
    }

    fn take_back(&self, usage: &mut LogUsage<'_>, charged_at_ms: u64, units: u64) -> bool {
        let at_ms = charged_at_ms.cast_signed();
        let (mut before, mut found) = (usage.forgotten, None);
        for (i, entry) in usage.live.iter().enumerate() {
            if entry.at_ms == at_ms {
                found = Some((i, units.min(entry.total - before)));
            }
            before = entry.total;
        }
        match found.filter(|(i, _)| usage.live.len() - i <= LATER_MAX + 1) {
            Some(taken) => {
                usage.taken = taken;
                true
            }
            None => false,
        }
    }

    fn wait_ms(&self, usage: &LogUsage<'_>, cost: u64) -> u64 {
        let excess = (usage.used() + cost).saturating_sub(self.window.limit);
        let enough = usage
            .live
            .partition_point(|entry| entry.total - usage.forgotten < excess);
        let at_ms = usage
            .live
            .get(enough)
            .map_or(usage.now_ms, |entry| entry.at_ms - usage.shift_ms);
        self.forgotten_after_ms(usage, at_ms)
    }

    fn reset_after_ms(&self, usage: &LogUsage<'_>) -> u64 {
        match usage.live.last() {
            _ if usage.added > 0 => self.forgotten_after_ms(usage, usage.now_ms),
            Some(newest) => self.forgotten_after_ms(usage, newest.at_ms - usage.shift_ms),
            None => 0,
        }
    }

    fn save(&self, usage: LogUsage<'_>) -> SlidingWindowLogState {
        let (from, taken) = usage.taken;
        let rebased = usage.live.iter().enumerate().map(|(i, entry)| Entry {
            at_ms: entry.at_ms - usage.shift_ms,
            total: entry.total - usage.forgotten - if i >= from { taken } else { 0 },
        });
        let mut entries: Vec<Entry> = rebased.collect();
        if let Some(newest) = entries.last_mut() {
            newest.total -= usage.cut;
        }
        if taken > 0 {
            // An entry that nothing is left of is none.
            let mut before = 0;
            entries.retain(|entry| entry.total > std::mem::replace(&mut before, entry.total));
        }
        let total = usage.used();
        match entries.last_mut() {
            Some(newest) if newest.at_ms == usage.now_ms => newest.total = total,
            _ if usage.added > 0 => entries.push(Entry {
                at_ms: usage.now_ms,
                total,
            }),
            _ => {}
        }
        SlidingWindowLogState { entries }
    }
}
