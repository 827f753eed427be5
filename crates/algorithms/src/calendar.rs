//! Calendar windows: the days, weeks, months or years of a time zone, by their edges.
//!
//! The caller supplies the edges ([`Edges`]): this crate has no time zone data. A window is labelled by its
//! serial, the number of its local day, week, month or year. A limiter with other edges (other time zone
//! data, another zone after an edit) counts in the same window under the same label.

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

/// Windows whose edges are known: the one before the current one, the current one, and three after it.
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
