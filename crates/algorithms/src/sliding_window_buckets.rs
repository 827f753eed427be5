//! Sliding window of sub-windows: a log at the resolution of W/n.
//!
//! Source: "Rolling rate limiter" in the Redis e-book of Josiah Carlson,
//! "Introduction to rate limiting with Redis", part 2.
//!
//! Guarantee: strict counts sub-windows [cur − n, cur], so at most N in every
//! W; loose counts [cur − n + 1, cur], so at most N in every W − W/n.

use crate::integers::TIME_MAX_MS;
use crate::lease::{Lease, LeaseAsk, Settlement};
use crate::quota::{Loaded, Quota};
use crate::window::Window;
use crate::{Numbers, ParameterError, Parameters, State, kinds};

/// The most sub-windows of a window.
const SUB_WINDOWS_MAX: u64 = 1000;

/// The numbers of a window of sub-windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindowBuckets {
    window: Window,
    sub_windows: u64,
    strict: bool,
}

/// What sub-windows remember. It has no small fixed size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindowBucketsState {
    /// The length of a sub-window when this was written, in milliseconds.
    width_ms: i64,
    /// The sub-windows with admissions, oldest first.
    counts: Vec<SubWindow>,
}

/// One sub-window, from `index`·width to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SubWindow {
    index: i64,
    used: u64,
}

/// Sub-windows at one instant.
#[derive(Clone, Debug)]
pub(crate) struct SubWindowsUsage {
    asked_ms: i64,
    /// The sub-window of now.
    current: i64,
    /// Those that count, oldest first.
    live: Vec<SubWindow>,
    /// Whether they were written in today's width, so that an index names the same sub-window.
    as_written: bool,
}

impl SlidingWindowBuckets {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let window = Window::new(parameters)?;
        let sub_windows = parameters
            .sub_windows
            .ok_or(ParameterError::SubWindowsMissing)?;
        let nearest = nearest_divisor(window.length_ms, sub_windows);
        if nearest != sub_windows {
            return Err(ParameterError::SubWindows { nearest });
        }
        Ok(Self {
            window,
            sub_windows,
            strict: parameters.strict.unwrap_or(true),
        })
    }

    /// W/n, in milliseconds.
    const fn width_ms(&self) -> i64 {
        (self.window.length_ms / self.sub_windows).cast_signed()
    }

    /// How many sub-windows an admission counts for, its own included.
    const fn span(&self) -> i64 {
        self.sub_windows.cast_signed() + if self.strict { 1 } else { 0 }
    }

    /// From the caller's instant until a sub-window is forgotten.
    fn forgotten_after_ms(&self, usage: &SubWindowsUsage, index: i64) -> u64 {
        u64::try_from((index + self.span()) * self.width_ms() - usage.asked_ms).unwrap_or(0)
    }

    /// The sub-windows that count at `current`, in today's width: each count belongs to the
    /// sub-window in which its own started.
    fn live(&self, state: &SlidingWindowBucketsState, current: i64) -> Vec<SubWindow> {
        let mut live: Vec<SubWindow> = Vec::with_capacity(state.counts.len() + 1);
        for count in &state.counts {
            let index = (count.index * state.width_ms).div_euclid(self.width_ms());
            match live.last_mut() {
                _ if index <= current - self.span() => {}
                Some(last) if last.index == index => last.used += count.used,
                _ => live.push(SubWindow {
                    index,
                    used: count.used,
                }),
            }
        }
        live
    }
}

impl SubWindowsUsage {
    fn used(&self) -> u64 {
        self.live.iter().map(|sub_window| sub_window.used).sum()
    }

    fn add(&mut self, units: u64) {
        match self.live.last_mut() {
            Some(last) if last.index == self.current => last.used += units,
            _ => self.live.push(SubWindow {
                index: self.current,
                used: units,
            }),
        }
    }
}

impl SlidingWindowBucketsState {
    /// The start of the newest sub-window.
    fn newest_ms(&self) -> Option<i64> {
        self.counts
            .last()
            .map(|newest| newest.index * self.width_ms)
    }

    /// The same counts with the newest in the sub-window of `now_ms`.
    fn shifted(&self, now_ms: i64) -> Self {
        let newest = self.counts.last().map_or(0, |newest| newest.index);
        let by = newest - now_ms.div_euclid(self.width_ms);
        let shift = |count: &SubWindow| SubWindow {
            index: count.index - by,
            ..*count
        };
        Self {
            width_ms: self.width_ms,
            counts: self.counts.iter().map(shift).collect(),
        }
    }
}

impl Quota for SlidingWindowBuckets {
    type State = SlidingWindowBucketsState;
    type Usage<'s> = SubWindowsUsage;

    fn own(state: &State) -> Option<&SlidingWindowBucketsState> {
        match state {
            State::SlidingWindowBuckets(state) => Some(state),
            _ => None,
        }
    }

    fn wrap(state: SlidingWindowBucketsState) -> State {
        State::SlidingWindowBuckets(state)
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
        let kind = if self.strict {
            kinds::SLIDING_WINDOW_BUCKETS_STRICT
        } else {
            kinds::SLIDING_WINDOW_BUCKETS_LOOSE
        };
        Numbers {
            y: self.sub_windows,
            ..self.window.numbers(kind)
        }
    }

    fn lease_max_ms(&self) -> Option<u64> {
        let width_ms = self.width_ms().unsigned_abs();
        Some(Window::lease_max_ms(width_ms))
    }

    fn load<'s>(
        &self,
        state: Option<&'s SlidingWindowBucketsState>,
        now_ms: u64,
        _ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let asked_ms = now_ms.min(TIME_MAX_MS).cast_signed();
        let ahead_ms = state
            .and_then(SlidingWindowBucketsState::newest_ms)
            .unwrap_or(0)
            - asked_ms;
        let shifted = state
            .filter(|_| ahead_ms > self.window.length_ms.cast_signed())
            .map(|state| state.shifted(asked_ms));
        let state = shifted.as_ref().or(state);
        let newest_ms = state
            .and_then(SlidingWindowBucketsState::newest_ms)
            .unwrap_or(0);
        let current = asked_ms.max(newest_ms).div_euclid(self.width_ms());
        let live = state.map_or_else(Vec::new, |state| self.live(state, current));
        let as_written = state.is_none_or(|state| state.width_ms == self.width_ms());
        Loaded {
            usage: SubWindowsUsage {
                asked_ms,
                current,
                live,
                as_written,
            },
            shifted,
        }
    }

    fn room(&self, usage: &SubWindowsUsage) -> Option<u64> {
        self.window.room(usage.used())
    }

    fn charge(&self, usage: &mut SubWindowsUsage, units: u64) -> bool {
        let added = units.min(self.room(usage).unwrap_or(0));
        if added > 0 {
            usage.add(added);
        }
        added > 0
    }

    fn settle(&self, usage: &mut SubWindowsUsage, settlements: &[Settlement]) -> bool {
        let mut changed = false;
        for settlement in settlements {
            let start_ms = settlement.epoch.cast_signed();
            let named = |s: &&mut SubWindow| s.index.checked_mul(self.width_ms()) == Some(start_ms);
            if let Some(sub_window) = usage.live.iter_mut().find(named) {
                let returned = settlement.returned.min(sub_window.used);
                sub_window.used -= returned;
                changed |= returned > 0;
            }
        }
        changed
    }

    fn grant(&self, usage: &mut SubWindowsUsage, ask: &LeaseAsk<'_>) -> Option<Lease> {
        let start_ms = usage.current * self.width_ms();
        let end_ms = start_ms + self.width_ms();
        let end_after_ms = u64::try_from(end_ms - usage.asked_ms).unwrap_or(0);
        let epoch = u64::try_from(start_ms).ok()?;
        let lease = Window::lease(ask, self.room(usage), epoch, end_after_ms)?;
        usage.add(lease.units);
        Some(lease)
    }

    fn credit(&self, usage: &mut SubWindowsUsage, units: u64) {
        let mut left = units;
        for sub_window in usage.live.iter_mut().rev() {
            let credited = left.min(sub_window.used);
            sub_window.used -= credited;
            left -= credited;
        }
    }

    fn take_back(&self, usage: &mut SubWindowsUsage, charged_at_ms: u64, units: u64) -> bool {
        let index = charged_at_ms.cast_signed().div_euclid(self.width_ms());
        let charged = usage.live.iter_mut().find(|count| count.index == index);
        let Some(charged) = charged.filter(|_| usage.as_written) else {
            return false;
        };
        charged.used = charged.used.saturating_sub(units);
        usage.live.retain(|count| count.used > 0);
        true
    }

    fn wait_ms(&self, usage: &SubWindowsUsage, cost: u64) -> u64 {
        let mut excess = (usage.used() + cost).saturating_sub(self.window.limit);
        for sub_window in &usage.live {
            excess = excess.saturating_sub(sub_window.used);
            if excess == 0 {
                return self.forgotten_after_ms(usage, sub_window.index);
            }
        }
        0
    }

    fn reset_after_ms(&self, usage: &SubWindowsUsage) -> u64 {
        // What was returned leaves a count of 0.
        let mut used = usage.live.iter().rev().filter(|count| count.used > 0);
        used.next()
            .map_or(0, |newest| self.forgotten_after_ms(usage, newest.index))
    }

    fn save(&self, usage: SubWindowsUsage) -> SlidingWindowBucketsState {
        SlidingWindowBucketsState {
            width_ms: self.width_ms(),
            counts: usage.live,
        }
    }
}

/// The divisor of `length_ms` within range that is nearest to `wanted`; the smaller of two.
fn nearest_divisor(length_ms: u64, wanted: u64) -> u64 {
    (1..=SUB_WINDOWS_MAX)
        .filter(|n| length_ms.is_multiple_of(*n))
        .min_by_key(|n| n.abs_diff(wanted))
        .unwrap_or(1)
}
