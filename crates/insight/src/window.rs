//! The calendar window of a time, as people read it: in the limit's own time zone.

use std::fmt;

use policy::Quota;
use serde::Serialize;

/// A window between local midnights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// What it is: day, week, month or year.
    pub unit: &'static str,
    /// The zone, as the time zone database spells it.
    pub time_zone: &'static str,
    /// Its first instant, by the clocks there: `2026-03-29T00:00:00+01:00[Europe/Berlin]`.
    pub starts: String,
    /// The first instant of the next one.
    pub ends: String,
}

impl Window {
    /// The window of a limit's numbers at a time; `None` if it is not a calendar window.
    pub fn of(quota: &Quota, now_ms: u64) -> Option<Self> {
        let (window, time_zone) = calendar::window_of(quota.algorithm(), now_ms)?;
        Some(Self {
            unit: quota.parameters().rate.calendar?.name(),
            time_zone,
            starts: calendar::local(time_zone, window.start_ms),
            ends: calendar::local(time_zone, window.end_ms),
        })
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            unit, starts, ends, ..
        } = self;
        write!(f, "the {unit} from {starts} to {ends}")
    }
}
