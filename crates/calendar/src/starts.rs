//! The instants at which windows start, and their labels.

use algorithms::{CalendarUnit, Edges, WINDOWS_KNOWN, WeekStart};
use jiff::{
    Span, Timestamp,
    civil::Date,
    tz::{AmbiguousOffset, TimeZone},
};

/// The day with the number 1, a Monday.
const FIRST_DAY: Date = Date::constant(1, 1, 1);

pub(crate) fn edges(
    zone: &TimeZone,
    unit: CalendarUnit,
    week_start: WeekStart,
    now: Timestamp,
) -> Edges {
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
