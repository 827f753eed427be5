//! Fixed window counter.
//!
//! Source: common practice (Redis `INCR` with `EXPIRE`); described in
//! "Scaling your API with rate limiters", Stripe, 2017.
//!
//! Guarantee: at most N in each window, hence at most 2N in any W.
//!
//! Windows start at multiples of W since the epoch, or at the first admission
//! that finds none open.
//!
//! `lua/lib/fixed_window.lua` is the twin.

use crate::integers::PRODUCT_MAX;
use crate::lease::{Lease, LeaseRequest, Settlement};
use crate::quota::{Loaded, Quota, state_of};
use crate::window::{self, Granted, Window};
use crate::{Align, Numbers, ParameterError, Parameters};

/// A fixed window's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindow {
    window: Window,
    align: Align,
}

/// What is stored of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindowState {
    /// When the window started, in milliseconds.
    pub start_ms: u64,
    /// Units admitted in it, and units leased out.
    pub used: u64,
    /// Those that are leased out; `None`: none.
    pub granted: Option<Granted>,
}

/// A fixed window at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FixedWindowUsage {
    asked_ms: u64,
    start_ms: u64,
    used: u64,
    granted: Granted,
}

impl FixedWindow {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let align = parameters.align.unwrap_or_default();
        Ok(Self {
            window: Window::counting(parameters)?,
            align,
        })
    }

    /// The start of the window open at `now_ms`, and whether a stored count that started at
    /// `start_ms` belongs to it. To an aligned window it does if that holds `start_ms`, so a count
    /// survives an edit of W only in the window it belongs to.
    const fn open_at(&self, now_ms: u64, start_ms: u64) -> (u64, bool) {
        match self.align {
            Align::Epoch => {
                let current_ms = self.window.aligned_start_ms(now_ms);
                (current_ms, start_ms >= current_ms)
            }
            Align::FirstRequest if now_ms - start_ms < self.window.length_ms => (start_ms, true),
            Align::FirstRequest => (now_ms, false),
        }
    }

    const fn end_after_ms(&self, usage: &FixedWindowUsage) -> u64 {
        usage.start_ms + self.window.length_ms - usage.asked_ms
    }
}

impl Quota for FixedWindow {
    type Usage<'s> = FixedWindowUsage;

    state_of!(FixedWindow, FixedWindowState);

    fn limit(&self) -> u64 {
        self.window.limit
    }

    fn window_ms(&self) -> u64 {
        self.window.length_ms
    }

    fn numbers(&self) -> Numbers {
        self.window.numbers(match self.align {
            Align::Epoch => Numbers::FIXED_WINDOW_EPOCH,
            Align::FirstRequest => Numbers::FIXED_WINDOW_FIRST_REQUEST,
        })
    }

    fn lease_max_ms(&self) -> Option<u64> {
        Some(Window::lease_max_ms(self.window.length_ms))
    }

    fn load<'s>(
        &self,
        state: Option<&'s FixedWindowState>,
        now_ms: u64,
        _ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let stored = state.copied().unwrap_or(FixedWindowState {
            start_ms: now_ms,
            used: 0,
            granted: None,
        });
        let (start_ms, shifted) = self.window.reconcile(stored.start_ms, now_ms);
        let (open_ms, same) = self.open_at(now_ms.max(start_ms), start_ms);
        // Units leased from another window need not be tracked any more.
        let granted = stored.granted.filter(|_| same);
        let usage = FixedWindowUsage {
            asked_ms: now_ms,
            start_ms: open_ms,
            used: if same { stored.used } else { 0 },
            granted: granted.unwrap_or_default(),
        };
        Loaded {
            usage,
            shifted: shifted.then_some(FixedWindowState { start_ms, ..stored }),
        }
    }

    fn room(&self, usage: &FixedWindowUsage) -> Option<u64> {
        self.window.room(usage.used)
    }

    fn charge(&self, usage: &mut FixedWindowUsage, units: u64) -> bool {
        let added = units.min(self.room(usage).unwrap_or(0));
        usage.used += added;
        added > 0
    }

    fn overcharge(&self, usage: &mut FixedWindowUsage, units: u64) -> bool {
        let before = usage.used;
        usage.used = before.saturating_add(units).min(PRODUCT_MAX);
        usage.used > before
    }

    fn settle(&self, usage: &mut FixedWindowUsage, settlements: &[Settlement]) -> bool {
        let out = &mut usage.granted.current;
        window::settle(usage.start_ms, &mut usage.used, out, settlements)
    }

    fn grant(&self, usage: &mut FixedWindowUsage, request: &LeaseRequest<'_>) -> Option<Lease> {
        let ttl_ms = window::grant_ttl_ms(request, self.end_after_ms(usage))?;
        let (room, epoch) = (self.room(usage), usage.start_ms);
        let lease = usage.granted.grant(request, room, epoch, ttl_ms)?;
        usage.used += lease.units;
        Some(lease)
    }

    fn leased(&self, usage: &FixedWindowUsage) -> u64 {
        usage.granted.current
    }

    fn credit(&self, usage: &mut FixedWindowUsage, units: u64) {
        window::lower(&mut usage.used, usage.granted.current, units);
    }

    fn uncount(&self, usage: &mut FixedWindowUsage, charged_at_ms: u64, units: u64) -> u64 {
        if charged_at_ms < usage.start_ms {
            return 0;
        }
        window::lower(&mut usage.used, usage.granted.current, units)
    }

    fn wait_ms(&self, usage: &FixedWindowUsage, _cost: u64) -> u64 {
        self.end_after_ms(usage)
    }

    fn reset_after_ms(&self, usage: &FixedWindowUsage) -> u64 {
        if usage.used == 0 {
            0
        } else {
            self.end_after_ms(usage)
        }
    }

    fn save(&self, usage: FixedWindowUsage) -> FixedWindowState {
        FixedWindowState {
            start_ms: usage.start_ms,
            used: usage.used,
            granted: usage.granted.kept(),
        }
    }
}
