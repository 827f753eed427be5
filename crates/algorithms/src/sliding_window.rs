//! Sliding window counter: two aligned counts, the older one weighted.
//!
//! Source: "How we built rate limiting capable of scaling to millions of
//! domains", Cloudflare, 2017.
//!
//! Guarantee: the estimate cur + prev·(W − e)/W, e being the time into the current window, never
//! passes N. It is compared exactly, never rounded: prev·(W − e) + (cur + cost)·W <= N·W. As prev
//! may date from a larger limit, the code avoids that product and compares the quotient, rounded
//! up.
//!
//! `lua/lib/sliding_window.lua` is the twin.

use crate::integers::{PRODUCT_MAX, scale_up};
use crate::lease::{Lease, LeaseRequest, Settlement};
use crate::quota::{Loaded, Quota, state_of};
use crate::window::{self, Granted, Window};
use crate::{Numbers, ParameterError, Parameters};

/// A sliding window counter's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    window: Window,
}

/// What is stored of a sliding window counter.
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
    /// Units of the two windows that are leased out; `None`: none.
    pub granted: Option<Granted>,
}

/// A sliding window counter at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlidingWindowUsage {
    asked_ms: u64,
    /// The start of the current aligned window.
    start_ms: u64,
    /// From that start to now.
    elapsed_ms: u64,
    current: u64,
    previous: u64,
    granted: Granted,
}

impl SlidingWindow {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        Ok(Self {
            window: Window::new(parameters)?,
        })
    }

    /// The counts as they stand in the window that starts at `current_ms`. After an edit of W
    /// they are kept only if they belong to that window.
    fn counts(&self, state: &SlidingWindowState, current_ms: u64) -> (u64, u64, Granted) {
        let granted = state.granted.unwrap_or_default();
        if state.start_ms >= current_ms {
            (state.current, state.previous, granted)
        } else if state.length_ms == self.window.length_ms
            && state.start_ms + state.length_ms >= current_ms
        {
            (0, state.current, granted.rolled())
        } else {
            (0, 0, Granted::default())
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
    type Usage<'s> = SlidingWindowUsage;

    state_of!(SlidingWindow, SlidingWindowState);

    fn limit(&self) -> u64 {
        self.window.limit
    }

    fn window_ms(&self) -> u64 {
        self.window.length_ms
    }

    fn numbers(&self) -> Numbers {
        self.window.numbers(Numbers::SLIDING_WINDOW)
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
        let stored = state.copied().unwrap_or(SlidingWindowState {
            start_ms: now_ms,
            current: 0,
            previous: 0,
            length_ms: self.window.length_ms,
            granted: None,
        });
        let (newest_ms, shifted) = self.window.reconcile(stored.start_ms, now_ms);
        let stored = SlidingWindowState {
            start_ms: newest_ms,
            ..stored
        };
        let clamped_ms = now_ms.max(newest_ms);
        let start_ms = self.window.aligned_start_ms(clamped_ms);
        let (current, previous, granted) = self.counts(&stored, start_ms);
        let usage = SlidingWindowUsage {
            asked_ms: now_ms,
            start_ms,
            elapsed_ms: clamped_ms - start_ms,
            current,
            previous,
            granted,
        };
        Loaded {
            usage,
            shifted: shifted.then_some(stored),
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

    fn overcharge(&self, usage: &mut SlidingWindowUsage, units: u64) -> bool {
        let before = usage.current;
        let most = PRODUCT_MAX / self.window.length_ms;
        usage.current = before.saturating_add(units).min(most).max(before);
        usage.current > before
    }

    fn settle(&self, usage: &mut SlidingWindowUsage, settlements: &[Settlement]) -> bool {
        let (start_ms, granted) = (usage.start_ms, &mut usage.granted);
        let out = &mut granted.current;
        let current = window::settle(start_ms, &mut usage.current, out, settlements);
        let Some(before_ms) = start_ms.checked_sub(self.window.length_ms) else {
            return current;
        };
        let out = &mut granted.previous;
        window::settle(before_ms, &mut usage.previous, out, settlements) || current
    }

    fn grant(&self, usage: &mut SlidingWindowUsage, request: &LeaseRequest<'_>) -> Option<Lease> {
        let end_after_ms = usage.start_ms + self.window.length_ms - usage.asked_ms;
        let ttl_ms = window::grant_ttl_ms(request, end_after_ms)?;
        let (room, epoch) = (self.room(usage), usage.start_ms);
        let lease = usage.granted.grant(request, room, epoch, ttl_ms)?;
        usage.current += lease.units;
        Some(lease)
    }

    fn leased(&self, usage: &SlidingWindowUsage) -> u64 {
        usage.granted.current
    }

    fn credit(&self, usage: &mut SlidingWindowUsage, units: u64) {
        let Granted {
            current, previous, ..
        } = usage.granted;
        let taken = window::lower(&mut usage.current, current, units);
        window::lower(&mut usage.previous, previous, units - taken);
    }

    fn uncount(&self, usage: &mut SlidingWindowUsage, charged_at_ms: u64, units: u64) -> u64 {
        let (count, out) = if charged_at_ms >= usage.start_ms {
            (&mut usage.current, usage.granted.current)
        } else if charged_at_ms + self.window.length_ms >= usage.start_ms {
            (&mut usage.previous, usage.granted.previous)
        } else {
            return 0;
        };
        window::lower(count, out, units)
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
            granted: usage.granted.kept(),
        }
    }
}
