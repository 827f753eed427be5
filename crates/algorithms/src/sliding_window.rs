//! Sliding window counter: two aligned counts, the older one weighted.
//!
//! Source: "How we built rate limiting capable of scaling to millions of
//! domains", Cloudflare, 2017.
//!
//! Guarantee: the estimate cur + prev·(W − e)/W, e being the time into the
//! current window, never passes N. It is compared exactly, never rounded:
//! prev·(W − e) + (cur + cost)·W <= N·W. As prev may date from a larger limit,
//! that product is not built; what is compared is the quotient, rounded up.

use crate::integers::scale_up;
use crate::lease::{Lease, LeaseAsk, Settlement};
use crate::quota::{Loaded, Quota};
use crate::window::Window;
use crate::{Numbers, ParameterError, Parameters, State, kinds};

/// A sliding window counter's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    window: Window,
}

/// What a sliding window counter remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindowState {
    /// When the later window started, in milliseconds.
    pub start_ms: u64,
    /// Units admitted in it.
    pub current: u64,
    /// Units admitted in the one before.
    pub previous: u64,
    /// The length of a window when this was written, in milliseconds.
    pub length_ms: u64,
}

/// A sliding window counter at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindowUsage {
    asked_ms: u64,
    /// The start of the aligned window of now.
    start_ms: u64,
    /// From that start to now.
    elapsed_ms: u64,
    current: u64,
    previous: u64,
}

impl SlidingWindow {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        Ok(Self {
            window: Window::new(parameters)?,
        })
    }

    /// The counts as they stand in the window that starts at `current_ms`. After an edit of W
    /// they are kept only if they belong to that window.
    const fn counts(&self, state: &SlidingWindowState, current_ms: u64) -> (u64, u64) {
        if state.start_ms >= current_ms {
            (state.current, state.previous)
        } else if state.length_ms == self.window.length_ms
            && state.start_ms + state.length_ms >= current_ms
        {
            (0, state.current)
        } else {
            (0, 0)
        }
    }

    /// What is used, rounded up.
    fn estimate(&self, usage: &SlidingWindowUsage) -> u64 {
        let length_ms = self.window.length_ms;
        let overlap_ms = length_ms - usage.elapsed_ms;
        usage
            .current
            .saturating_add(scale_up(overlap_ms, usage.previous, length_ms))
    }

    /// The earliest time into a window at which `previous` weighs at most `room`.
    const fn elapsed_until(&self, previous: u64, room: u64) -> u64 {
        let length_ms = self.window.length_ms;
        match (room * length_ms).checked_div(previous) {
            Some(overlap_ms) => length_ms.saturating_sub(overlap_ms),
            None => 0,
        }
    }
}

impl Quota for SlidingWindow {
    type State = SlidingWindowState;
    type Usage<'s> = SlidingWindowUsage;

    fn own(state: &State) -> Option<&SlidingWindowState> {
        match state {
            State::SlidingWindow(state) => Some(state),
            _ => None,
        }
    }

    fn wrap(state: SlidingWindowState) -> State {
        State::SlidingWindow(state)
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
        self.window.numbers(kinds::SLIDING_WINDOW)
    }

    fn lease_max_ms(&self) -> Option<u64> {
        Some(Window::lease_max_ms(self.window.length_ms))
    }

    fn load<'s>(
        &self,
        state: Option<&'s SlidingWindowState>,
        now_ms: u64,
        _ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let remembered = state.copied().unwrap_or(SlidingWindowState {
            start_ms: now_ms,
            current: 0,
            previous: 0,
            length_ms: self.window.length_ms,
        });
        let (newest_ms, shifted) = self.window.reconcile(remembered.start_ms, now_ms);
        let remembered = SlidingWindowState {
            start_ms: newest_ms,
            ..remembered
        };
        let clamped_ms = now_ms.max(newest_ms);
        let start_ms = self.window.aligned_start_ms(clamped_ms);
        let (current, previous) = self.counts(&remembered, start_ms);
        let usage = SlidingWindowUsage {
            asked_ms: now_ms,
            start_ms,
            elapsed_ms: clamped_ms - start_ms,
            current,
            previous,
        };
        Loaded {
            usage,
            shifted: shifted.then_some(remembered),
        }
    }

    fn room(&self, usage: &SlidingWindowUsage) -> Option<u64> {
        self.window.room(self.estimate(usage))
    }

    fn charge(&self, usage: &mut SlidingWindowUsage, units: u64) -> bool {
        let added = units.min(self.room(usage).unwrap_or(0));
        usage.current += added;
        added > 0
    }

    fn settle(&self, usage: &mut SlidingWindowUsage, settlements: &[Settlement]) -> bool {
        let before = (usage.current, usage.previous);
        for settlement in settlements {
            if settlement.epoch == usage.start_ms {
                usage.current = usage.current.saturating_sub(settlement.returned);
            } else if settlement.epoch.checked_add(self.window.length_ms) == Some(usage.start_ms) {
                usage.previous = usage.previous.saturating_sub(settlement.returned);
            }
        }
        (usage.current, usage.previous) != before
    }

    fn grant(&self, usage: &mut SlidingWindowUsage, ask: &LeaseAsk<'_>) -> Option<Lease> {
        let end_after_ms = usage.start_ms + self.window.length_ms - usage.asked_ms;
        let lease = Window::lease(ask, self.room(usage), usage.start_ms, end_after_ms)?;
        usage.current += lease.units;
        Some(lease)
    }

    fn credit(&self, usage: &mut SlidingWindowUsage, units: u64) {
        let current = usage.current.min(units);
        usage.current -= current;
        usage.previous = usage.previous.saturating_sub(units - current);
    }

    fn take_back(&self, usage: &mut SlidingWindowUsage, charged_at_ms: u64, units: u64) -> bool {
        let count = if charged_at_ms >= usage.start_ms {
            &mut usage.current
        } else if charged_at_ms + self.window.length_ms >= usage.start_ms {
            &mut usage.previous
        } else {
            return false;
        };
        let taken = units.min(*count);
        *count -= taken;
        taken > 0
    }

    fn wait_ms(&self, usage: &SlidingWindowUsage, cost: u64) -> u64 {
        let left = self.window.limit - cost;
        let into_ms = match left.checked_sub(usage.current) {
            Some(room) => self.elapsed_until(usage.previous, room),
            None => self.window.length_ms + self.elapsed_until(usage.current, left),
        };
        usage.start_ms + into_ms - usage.asked_ms
    }

    fn reset_after_ms(&self, usage: &SlidingWindowUsage) -> u64 {
        let length_ms = self.window.length_ms;
        let into_ms = match (usage.current, usage.previous) {
            (0, 0) => return 0,
            (0, _) => length_ms,
            _ => 2 * length_ms,
        };
        usage.start_ms + into_ms - usage.asked_ms
    }

    fn save(&self, usage: SlidingWindowUsage) -> SlidingWindowState {
        SlidingWindowState {
            start_ms: usage.start_ms,
            current: usage.current,
            previous: usage.previous,
            length_ms: self.window.length_ms,
        }
    }
}
