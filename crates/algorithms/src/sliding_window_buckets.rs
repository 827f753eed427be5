//! Sliding window of sub-windows: a log at the resolution of W/n.
//!
//! Source: "Rolling rate limiter" in the Redis e-book of Josiah Carlson,
//! "Introduction to rate limiting with Redis", part 2.
//!
//! Guarantee: strict counts sub-windows [cur − n, cur], so at most N in every
//! W; loose counts [cur − n + 1, cur], so at most N in every W − W/n.
//!
//! `lua/lib/sliding_window_buckets.lua` is the twin.

use crate::{
    Numbers, ParameterError, Parameters,
    integers::{PRODUCT_MAX, TIME_MAX_MS},
    lease::{Lease, LeaseRequest, Settlement},
    quota::{Loaded, Quota, state_of},
    window::{self, Granted, Window},
};

/// Bound: sub-windows of a bucket. Beyond it, refused when it is written.
const SUB_WINDOWS_MAX: u64 = 1000;

/// The numbers of a window of sub-windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindowBuckets {
    window: Window,
    sub_windows: u64,
    strict: bool,
}

/// What is stored of sub-windows. It has no small fixed size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindowBucketsState {
    /// The length of a sub-window when this was written, in milliseconds.
    width_ms: i64,
    /// The sub-windows with admissions, oldest first.
    counts: Vec<SubWindow>,
    /// Units of two of them that are leased out; `None`: none.
    granted: Option<GrantedOf>,
}

/// One sub-window, from `index`·width to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SubWindow {
    index: i64,
    used: u64,
}

/// Units leased out of two sub-windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GrantedOf {
    /// The sub-window of the newest grant.
    index: i64,
    /// The one that had the newest grant before.
    before: i64,
    units: Granted,
}

/// Sub-windows at one instant.
#[derive(Clone, Debug)]
pub(crate) struct SubWindowsUsage {
    asked_ms: i64,
    /// The current sub-window.
    current: i64,
    /// Those that count, oldest first.
    live: Vec<SubWindow>,
    /// Whether they were written with the current width, so that an index names the same sub-window.
    as_written: bool,
    granted: GrantedOf,
}

impl GrantedOf {
    /// Outstanding units of a sub-window.
    const fn out(&self, index: i64) -> u64 {
        if index == self.index {
            self.units.current
        } else if index == self.before {
            self.units.previous
        } else {
            0
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
        let shift_granted = |granted: GrantedOf| GrantedOf {
            index: granted.index - by,
            before: granted.before - by,
            ..granted
        };
        Self {
            width_ms: self.width_ms,
            counts: self.counts.iter().map(shift).collect(),
            granted: self.granted.map(shift_granted),
        }
    }

    /// What remains after a reset: leased units.
    pub(crate) fn reset(&self) -> Option<Self> {
        let granted = self.granted?;
        let units = granted.units.after_reset()?;
        let (index, used) = (granted.index, units.current);
        Some(Self {
            counts: vec![SubWindow { index, used }],
            granted: Some(GrantedOf { units, ..granted }),
            ..*self
        })
    }
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

    /// The sub-windows that count at `current`, in the current width. The count of a sub-window of
    /// another width goes to the one in which that started.
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

impl Quota for SlidingWindowBuckets {
    type Usage<'s> = SubWindowsUsage;

    state_of!(SlidingWindowBuckets, SlidingWindowBucketsState);

    fn limit(&self) -> u64 {
        self.window.limit
    }

    fn window_ms(&self) -> u64 {
        self.window.length_ms
    }

    fn numbers(&self) -> Numbers {
        let kind = if self.strict {
            Numbers::SLIDING_WINDOW_BUCKETS_STRICT
        } else {
            Numbers::SLIDING_WINDOW_BUCKETS_LOOSE
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
        let granted = state.filter(|_| as_written).and_then(|state| state.granted);
        Loaded {
            usage: SubWindowsUsage {
                asked_ms,
                current,
                live,
                as_written,
                granted: granted.unwrap_or_default(),
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

    fn overcharge(&self, usage: &mut SubWindowsUsage, units: u64) -> bool {
        let added = units.min(PRODUCT_MAX.saturating_sub(usage.used()));
        if added > 0 {
            usage.add(added);
        }
        added > 0
    }

    fn settle(&self, usage: &mut SubWindowsUsage, settlements: &[Settlement]) -> bool {
        let GrantedOf {
            index,
            before,
            units,
        } = &mut usage.granted;
        let mut changed = false;
        for sub_window in &mut usage.live {
            let out = if sub_window.index == *index {
                &mut units.current
            } else if sub_window.index == *before {
                &mut units.previous
            } else {
                continue;
            };
            let start_ms = u64::try_from(sub_window.index * self.width_ms());
            let epoch = start_ms.unwrap_or(u64::MAX);
            changed |= window::settle(epoch, &mut sub_window.used, out, settlements);
        }
        changed
    }

    fn grant(&self, usage: &mut SubWindowsUsage, request: &LeaseRequest<'_>) -> Option<Lease> {
        let start_ms = usage.current * self.width_ms();
        let end_ms = start_ms + self.width_ms();
        let end_after_ms = u64::try_from(end_ms - usage.asked_ms).unwrap_or(0);
        // Sub-windows before the epoch have no name to settle by.
        let epoch = u64::try_from(start_ms).ok()?;
        let ttl_ms = window::grant_ttl_ms(request, end_after_ms)?;
        let (room, granted) = (self.room(usage), &mut usage.granted);
        if granted.index != usage.current {
            *granted = GrantedOf {
                index: usage.current,
                before: granted.index,
                units: granted.units.rolled(),
            };
        }
        let lease = granted.units.grant(request, room, epoch, ttl_ms)?;
        usage.add(lease.units);
        Some(lease)
    }

    fn leased(&self, usage: &SubWindowsUsage) -> u64 {
        usage.granted.out(usage.current)
    }

    fn credit(&self, usage: &mut SubWindowsUsage, units: u64) {
        let mut left = units;
        for sub_window in usage.live.iter_mut().rev() {
            let out = usage.granted.out(sub_window.index);
            left -= window::lower(&mut sub_window.used, out, left);
        }
    }

    fn refund(&self, usage: &mut SubWindowsUsage, charged_at_ms: u64, units: u64) -> bool {
        let taken = self.uncount(usage, charged_at_ms, units) > 0;
        usage.live.retain(|count| count.used > 0 || !taken);
        taken
    }

    fn uncount(&self, usage: &mut SubWindowsUsage, charged_at_ms: u64, units: u64) -> u64 {
        let index = charged_at_ms.cast_signed().div_euclid(self.width_ms());
        let charged = usage.live.iter_mut().find(|count| count.index == index);
        let Some(charged) = charged.filter(|_| usage.as_written) else {
            return 0;
        };
        window::lower(&mut charged.used, usage.granted.out(index), units)
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
        // Returned units can leave a count of 0.
        let mut used = usage.live.iter().rev().filter(|count| count.used > 0);
        used.next()
            .map_or(0, |newest| self.forgotten_after_ms(usage, newest.index))
    }

    fn save(&self, mut usage: SubWindowsUsage) -> SlidingWindowBucketsState {
        if usage.live.is_empty() {
            usage.add(0); // as the script, which has to store something
        }
        SlidingWindowBucketsState {
            width_ms: self.width_ms(),
            counts: usage.live,
            granted: usage.granted.units.kept().map(|_| usage.granted),
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
