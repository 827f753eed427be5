//! Fixed window counter whose windows are days, weeks, months or years of a time zone.
//!
//! Guarantee: at most N under each label, whichever edges the callers pass and however their clocks
//! step: a later label starts at 0, and under an earlier label the stored count goes on. An edit
//! that moves the zone forwards admits N once more, as a new window does; one that moves it
//! backwards keeps the count up to a day longer.
//!
//! The caller supplies the edges ([`Edges`]): this crate has no time zone data. A window is labelled
//! by its serial, the number of its local day, week, month or year. A limiter with other edges (other
//! time zone data, another zone after an edit) counts in the same window under the same label.
//!
//! `lua/lib/calendar_window.lua` is the twin.

use crate::{
    Numbers, ParameterError, Parameters,
    integers::PRODUCT_MAX,
    lease::{Lease, LeaseRequest, Settlement},
    quota::{Loaded, Quota, state_of},
    window::{self, Granted, Window},
};

/// How many windows a state may be ahead without a clock fault: the local dates of two zones differ
/// by up to two days.
const AHEAD_MAX: u64 = 2;

/// How long a window is kept after its end: for another caller it may still be the current one.
/// Zones differ by up to 26 hours.
const LINGER_MS: u64 = 26 * 3_600_000;

/// A calendar unit, which a rate may name instead of a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From local midnight to local midnight.
    Day,
    /// Seven local days.
    Week,
    /// From the first of a month to that of the next.
    Month,
    /// From the first of January to the next.
    Year,
}

impl CalendarUnit {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Year];

    /// The name in a limits file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The length of a window beyond the edges that are known, in milliseconds: 24 hours, or 7, 30 or
    /// 365 times that.
    pub const fn nominal_ms(self) -> u64 {
        let days = match self {
            Self::Day => 1,
            Self::Week => 7,
            Self::Month => 30,
            Self::Year => 365,
        };
        days * 86_400_000
    }
}

/// The first day of a week.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeekStart {
    /// As in ISO 8601.
    #[default]
    Monday,
    /// As in North America.
    Sunday,
}

/// The time zone of a limit that names none.
pub const UTC: &str = "UTC";

/// Bound: windows of a calendar limit whose edges are sent. Beyond it, a store answers `stale`; at
/// a proxy windows of nominal length follow.
///
/// The one before the current one, the current one, and three after it.
pub const WINDOWS_KNOWN: usize = 5;

/// The edges of consecutive windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Edges {
    serial: u32,
    first_ms: u64,
    /// In seconds: no zone changes its clocks within one.
    lengths_s: [u32; WINDOWS_KNOWN],
}

/// One window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CalendarWindow {
    /// Its label.
    pub serial: u64,
    /// When it starts, in milliseconds.
    pub start_ms: u64,
    /// When it ends, in milliseconds.
    pub end_ms: u64,
}

/// A calendar window's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CalendarFixedWindow {
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
    open: CalendarWindow,
    used: u64,
    granted: Granted,
}

impl Edges {
    /// Windows from the label `serial` on: the starts of all of them, and the end of the last.
    /// Starts are in whole seconds and never decrease.
    pub fn new(serial: u32, starts_ms: [u64; WINDOWS_KNOWN + 1]) -> Self {
        let mut lengths_s = [0; WINDOWS_KNOWN];
        let ends = starts_ms.iter().skip(1);
        for ((length, start), end) in lengths_s.iter_mut().zip(&starts_ms).zip(ends) {
            let seconds = end.saturating_sub(*start) / 1000;
            *length = u32::try_from(seconds).unwrap_or(u32::MAX);
        }
        let [first_ms, ..] = starts_ms;
        Self {
            serial,
            first_ms,
            lengths_s,
        }
    }

    /// The label of the first window.
    pub const fn serial(&self) -> u32 {
        self.serial
    }

    /// The starts of the windows, and the end of the last, in milliseconds.
    pub fn starts_ms(&self) -> [u64; WINDOWS_KNOWN + 1] {
        let mut starts = [self.first_ms; WINDOWS_KNOWN + 1];
        let mut start_ms = self.first_ms;
        for (start, length_s) in starts.iter_mut().skip(1).zip(self.lengths_s) {
            start_ms = start_ms.saturating_add(u64::from(length_s) * 1000);
            *start = start_ms;
        }
        starts
    }

    /// Whether a store may decide at this time: it is in one of the first three windows. A state
    /// may be two windows ahead, and its end must be known, too.
    pub fn cover(&self, now_ms: u64) -> bool {
        let [first_ms, _, _, end_ms, ..] = self.starts_ms();
        (first_ms..end_ms).contains(&now_ms)
    }

    /// The window of a time; the first window for an earlier time. Windows after the known ones
    /// have `length_ms`, which is not 0.
    pub fn at(&self, now_ms: u64, length_ms: u64) -> CalendarWindow {
        let starts = self.starts_ms();
        let [.., end_ms] = starts;
        let nth = if let Some(beyond_ms) = now_ms.checked_sub(end_ms) {
            WINDOWS_KNOWN as u64 + beyond_ms / length_ms
        } else {
            let later = starts.iter().skip(1);
            later.take_while(|start| **start <= now_ms).map(|_| 1).sum()
        };
        self.nth(nth, length_ms)
    }

    /// The window of a label; the first, for one before it.
    pub fn of(&self, serial: u64, length_ms: u64) -> CalendarWindow {
        self.nth(serial.saturating_sub(u64::from(self.serial)), length_ms)
    }

    /// The edges of longer windows: each joins `windows` of these, at least 1. Windows that are not
    /// known have `length_ms`.
    #[must_use]
    pub fn grouped(&self, windows: u64, length_ms: u64) -> Self {
        if windows <= 1 {
            return *self;
        }
        let own = u64::from(self.serial);
        let first = ((own + 1) / windows).saturating_sub(1);
        let start_ms = |nth: u64| {
            let serial = (first + nth).saturating_mul(windows);
            match own.checked_sub(serial) {
                Some(before) => {
                    let before_ms = before.saturating_mul(length_ms);
                    self.first_ms.saturating_sub(before_ms)
                }
                None => self.of(serial, length_ms).start_ms,
            }
        };
        let serial = u32::try_from(first).unwrap_or(u32::MAX);
        Self::new(serial, [0, 1, 2, 3, 4, 5].map(start_ms))
    }

    /// The same windows, moved by `to_ms - from_ms`.
    #[must_use]
    pub const fn moved(&self, from_ms: u64, to_ms: u64) -> Self {
        let first_ms = self.first_ms.saturating_add(to_ms);
        Self {
            first_ms: first_ms.saturating_sub(from_ms),
            ..*self
        }
    }

    fn nth(&self, nth: u64, length_ms: u64) -> CalendarWindow {
        let starts = self.starts_ms();
        let start_ms = |nth: u64| {
            let known = usize::try_from(nth).ok().and_then(|at| starts.get(at));
            known.copied().unwrap_or_else(|| {
                let [.., end_ms] = starts;
                let beyond = (nth - WINDOWS_KNOWN as u64).saturating_mul(length_ms);
                end_ms.saturating_add(beyond)
            })
        };
        CalendarWindow {
            serial: u64::from(self.serial).saturating_add(nth),
            start_ms: start_ms(nth),
            end_ms: start_ms(nth.saturating_add(1)),
        }
    }
}

impl CalendarFixedWindow {
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

    fn at(&self, now_ms: u64) -> CalendarWindow {
        self.edges.at(now_ms, self.window.length_ms)
    }

    /// The window in which the stored count goes on if `picked` is the current one, and whether a
    /// clock was at fault; `None`: the count is past.
    fn reconcile(
        &self,
        stored: &CalendarWindowState,
        picked: CalendarWindow,
    ) -> Option<(CalendarWindow, bool)> {
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

impl Quota for CalendarFixedWindow {
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
            kind: Numbers::CALENDAR_WINDOW,
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
        window::settle(usage.open.serial, &mut usage.used, out, settlements)
    }

    fn grant(&self, usage: &mut CalendarWindowUsage, request: &LeaseRequest<'_>) -> Option<Lease> {
        let ttl_ms = window::grant_ttl_ms(request, Self::end_after_ms(usage))?;
        let (room, epoch) = (self.room(usage), usage.open.serial);
        let lease = usage.granted.grant(request, room, epoch, ttl_ms)?;
        usage.used += lease.units;
        Some(lease)
    }

    fn leased(&self, usage: &CalendarWindowUsage) -> u64 {
        usage.granted.current
    }

    fn credit(&self, usage: &mut CalendarWindowUsage, units: u64) {
        window::lower(&mut usage.used, usage.granted.current, units);
    }

    fn uncount(&self, usage: &mut CalendarWindowUsage, charged_at_ms: u64, units: u64) -> u64 {
        if charged_at_ms < usage.open.start_ms {
            return 0;
        }
        window::lower(&mut usage.used, usage.granted.current, units)
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
