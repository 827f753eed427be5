//! When the days, weeks, months and years of a time zone start.
//!
//! The time zone database is jiff's own, compiled in: what a limit means does not depend on the machine.
//! No I/O, no clock: time is an argument, in milliseconds since the epoch.

mod names;
mod starts;

use std::sync::LazyLock;

use algorithms::{Algorithm, CalendarUnit, CalendarWindow, Edges, Parameters, UTC, WeekStart};
use jiff::{
    Timestamp,
    tz::{TimeZone, TimeZoneDatabase},
};

pub use names::{offset, similar, zone};

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The edges of the windows around a time. A zone that the database lacks counts as UTC; [`zone`]
/// is `None` for it.
pub fn edges(zone: &str, unit: CalendarUnit, week_start: WeekStart, now_ms: u64) -> Edges {
    starts::edges(&time_zone(zone), unit, week_start, timestamp(now_ms))
}

/// The edges of a limit's windows; `None` if they are not calendar windows.
pub fn edges_of(parameters: &Parameters, now_ms: u64) -> Option<Edges> {
    let unit = parameters.rate.calendar?;
    let zone = parameters.time_zone.unwrap_or(UTC);
    let week_start = parameters.week_start.unwrap_or_default();
    Some(edges(zone, unit, week_start, now_ms))
}

/// The algorithm as it decides at this time: calendar windows have the edges around it.
#[must_use]
pub fn at(algorithm: &Algorithm, now_ms: u64) -> Algorithm {
    match edges_of(algorithm.parameters(), now_ms) {
        Some(edges) => algorithm.with_edges(edges),
        None => *algorithm,
    }
}

/// The calendar window of a time, and its zone; `None` if the windows are not calendar windows.
pub fn window_of(algorithm: &Algorithm, now_ms: u64) -> Option<(CalendarWindow, &'static str)> {
    let window = at(algorithm, now_ms).calendar_window(now_ms)?;
    Some((window, algorithm.parameters().time_zone.unwrap_or(UTC)))
}

/// A time as the clocks of a zone show it: `2026-03-29T00:00:00+01:00[Europe/Berlin]`.
pub fn local(zone: &str, ms: u64) -> String {
    timestamp(ms).to_zoned(time_zone(zone)).to_string()
}

fn time_zone(zone: &str) -> TimeZone {
    DATABASE.get(zone).unwrap_or(TimeZone::UTC)
}

/// Times after the year 9999 count as its end.
fn timestamp(ms: u64) -> Timestamp {
    let found = i64::try_from(ms).ok().map(Timestamp::from_millisecond);
    found.and_then(Result::ok).unwrap_or(Timestamp::MAX)
}
