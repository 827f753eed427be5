//! Fixed window counter whose windows are days, weeks, months or years of a time zone.
//!
//! Guarantee: at most N under each label, whichever edges the callers pass and however their clocks
//! step: a later label starts at 0, and under an earlier label the stored count goes on. An edit
//! that moves the zone forwards admits N once more, as a new window does; one that moves it
//! backwards keeps the count up to a day longer.

use crate::granted::{self, Granted};
use crate::integers::PRODUCT_MAX;
use crate::lease::{Lease, LeaseAsk, Settlement};
use crate::quota::{Loaded, Quota, state_of};
use crate::window::Window;
use crate::{CalendarUnit, Edges, Numbers, ParameterError, Parameters, WeekStart, kinds};

/// How many windows a state may be ahead without a clock fault: the local dates of two zones differ
/// by up to two days.
const AHEAD_MAX: u64 = 2;

/// How long a window is kept after its end: for another caller it may still be the current one.
/// Zones differ by up to 26 hours.
const LINGER_MS: u64 = 26 * 3_600_000;

/// A calendar window's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CalendarWindow {
    window: Window,
    /// The unit's code in a state, from 1.
    unit: u8,
    pub(crate) edges: Edges,
}

/// What is stored of a calendar window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CalendarWindowState {
    /// The unit: 1 days, 2 weeks from Monday, 3 months, 4 years, 5 weeks from Sunday.
    pub unit: u8,
    /// The window's label.
    pub serial: u64,
    /// When it started, in milliseconds.
    pub start_ms: u64,
    /// Units admitted in it, and units leased out.
    pub used: u64,
    /// Those that are leased out; `None`: none.
    pub granted: Option<Granted>,
}

/// A calendar window at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CalendarWindowUsage {
    asked_ms: u64,
    /// The label of the window that the instant is in; the stored one may be later.
    picked: u64,
    open: crate::CalendarWindow,
    used: u64,
    granted: Granted,
}

impl CalendarWindow {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let week_start = parameters.week_start.unwrap_or_default();
        Ok(Self {
            window: Window::counting(parameters)?,
            unit: match (parameters.rate.calendar, week_start) {
                (Some(CalendarUnit::Week), WeekStart::Monday) => 2,
                (Some(CalendarUnit::Week), WeekStart::Sunday) => 5,
                (Some(CalendarUnit::Month), _) => 3,
                (Some(CalendarUnit::Year), _) => 4,
                (Some(CalendarUnit::Day) | None, _) => 1,
            },
            edges: Edges::default(),
        })
    }

    /// How long a state is kept after [`Quota::reset_after_ms`], in milliseconds.
    pub const fn linger_ms() -> u64 {
        LINGER_MS
    }

    fn at(&self, now_ms: u64) -> crate::CalendarWindow {
        self.edges.at(now_ms, self.window.length_ms)
    }

    /// The window in which the stored count goes on if `picked` is the current one, and whether a
    /// clock was at fault; `None`: the count is past.
    fn reconcile(
        &self,
        stored: &CalendarWindowState,
        picked: crate::CalendarWindow,
    ) -> Option<(crate::CalendarWindow, bool)> {
        if stored.unit != self.unit {
            let same = (picked.start_ms..picked.end_ms).contains(&stored.start_ms);
            return same.then_some((picked, false));
        }
        match stored.serial.checked_sub(picked.serial)? {
            0 => Some((picked, false)),
            1..=AHEAD_MAX => {
                let ahead = self.edges.of(stored.serial, self.window.length_ms);
                Some((ahead, false))
            }
            _ => Some((picked, true)),
        }
    }

    fn end_after_ms(usage: &CalendarWindowUsage) -> u64 {
        usage.open.end_ms.saturating_sub(usage.asked_ms)
    }
}

impl Quota for CalendarWindow {
    type Usage<'s> = CalendarWindowUsage;

    state_of!(CalendarWindow, CalendarWindowState);

    fn limit(&self) -> u64 {
        self.window.limit
    }

    /// The length of the second known window, which is the current one.
    fn window_ms(&self) -> u64 {
        let [_, start_ms, end_ms, ..] = self.edges.starts_ms();
        match end_ms - start_ms {
            0 => self.window.length_ms,
            length_ms => length_ms,
        }
    }

    fn horizon_ms(&self) -> u64 {
        self.window.length_ms.saturating_mul(AHEAD_MAX)
    }

    fn numbers(&self) -> Numbers {
        let [first_ms, ..] = self.edges.starts_ms();
        Numbers {
            kind: kinds::CALENDAR_WINDOW,
            limit: self.window.limit,
            x: u64::from(self.unit),
            y: u64::from(self.edges.serial()),
            z: first_ms,
        }
    }

    fn lease_max_ms(&self) -> Option<u64> {
        Some(Window::lease_max_ms(self.window.length_ms))
    }

    fn load<'s>(
        &self,
        state: Option<&'s CalendarWindowState>,
        now_ms: u64,
        _ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let picked = self.at(now_ms);
        let kept = state.and_then(|stored| Some((stored, self.reconcile(stored, picked)?)));
        let fresh = CalendarWindowUsage {
            asked_ms: now_ms,
            picked: picked.serial,
            open: picked,
            used: 0,
            granted: Granted::default(),
        };
        let Some((stored, (open, faulty))) = kept else {
            return Loaded {
                usage: fresh,
                shifted: None,
            };
        };
        Loaded {
            usage: CalendarWindowUsage {
                open,
                used: stored.used,
                granted: stored.granted.unwrap_or_default(),
                ..fresh
            },
            shifted: faulty.then_some(CalendarWindowState {
                serial: open.serial,
                start_ms: open.start_ms,
                ..*stored
            }),
        }
    }

    fn room(&self, usage: &CalendarWindowUsage) -> Option<u64> {
        self.window.room(usage.used)
    }

    fn charge(&self, usage: &mut CalendarWindowUsage, units: u64) -> bool {
        let added = units.min(self.room(usage).unwrap_or(0));
        usage.used += added;
        added > 0
    }

    fn overcharge(&self, usage: &mut CalendarWindowUsage, units: u64) -> bool {
        let before = usage.used;
        usage.used = before.saturating_add(units).min(PRODUCT_MAX);
        usage.used > before
    }

    /// Ignores units of an earlier window. Units of the next one open it; a label further ahead
    /// comes from a wrong clock, and its units count in the open window.
    fn admitted(&self, usage: &mut CalendarWindowUsage, units: u64, serial: Option<u64>) -> bool {
        match serial {
            Some(serial) if serial < usage.open.serial => return false,
            Some(serial) if serial > usage.open.serial && serial == usage.picked + 1 => {
                usage.open = self.edges.of(serial, self.window.length_ms);
                usage.used = 0;
                usage.granted = Granted::default();
            }
            _ => {}
        }
        self.charge(usage, units)
    }

    fn settle(&self, usage: &mut CalendarWindowUsage, settlements: &[Settlement]) -> bool {
        let out = &mut usage.granted.current;
        granted::settle(usage.open.serial, &mut usage.used, out, settlements)
    }

    fn grant(&self, usage: &mut CalendarWindowUsage, ask: &LeaseAsk<'_>) -> Option<Lease> {
        let ttl_ms = granted::ttl_ms(ask, Self::end_after_ms(usage))?;
        let (room, epoch) = (self.room(usage), usage.open.serial);
        let lease = usage.granted.grant(ask, room, epoch, ttl_ms)?;
        usage.used += lease.units;
        Some(lease)
    }

    fn leased(&self, usage: &CalendarWindowUsage) -> u64 {
        usage.granted.current
    }

    fn credit(&self, usage: &mut CalendarWindowUsage, units: u64) {
        granted::lower(&mut usage.used, usage.granted.current, units);
    }

    fn uncount(&self, usage: &mut CalendarWindowUsage, charged_at_ms: u64, units: u64) -> u64 {
        if charged_at_ms < usage.open.start_ms {
            return 0;
        }
        granted::lower(&mut usage.used, usage.granted.current, units)
    }

    fn wait_ms(&self, usage: &CalendarWindowUsage, _cost: u64) -> u64 {
        Self::end_after_ms(usage)
    }

    fn reset_after_ms(&self, usage: &CalendarWindowUsage) -> u64 {
        if usage.used == 0 {
            0
        } else {
            Self::end_after_ms(usage)
        }
    }

    fn save(&self, usage: CalendarWindowUsage) -> CalendarWindowState {
        CalendarWindowState {
            unit: self.unit,
            serial: usage.open.serial,
            start_ms: usage.open.start_ms,
            used: usage.used,
            granted: usage.granted.kept(),
        }
    }
}
