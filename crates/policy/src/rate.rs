//! Rates, as people write them.

use std::fmt;

use algorithms::{CalendarUnit, Kind, Parameters, Rate};
use documents::{Duration, UnitError, parse_digits, parse_duration, unit_ms};

/// A rate `N/P`, where P is a unit or a number of them, or a day, week, month or year of the calendar.
pub fn parse_rate(text: &str) -> Result<Rate, UnitError> {
    let (units, period) = text.split_once('/').ok_or(UnitError::Rate)?;
    let units = parse_digits(units).ok_or(UnitError::Rate)?;
    let calendar = CalendarUnit::ALL.into_iter();
    if let Some(unit) = { calendar }.find(|unit| unit.name() == period) {
        return Ok(Rate::in_each(units, unit));
    }
    let period_ms = match unit_ms(period) {
        Some(ms) => ms,
        None => parse_duration(period).map_err(|error| match error {
            UnitError::Period => UnitError::Period,
            _ => other_word(units, period).map_or(UnitError::Rate, UnitError::RateUnit),
        })?,
    };
    if period_ms == 0 {
        return Err(UnitError::Period);
    }
    Ok(Rate::new(units, period_ms))
}

/// The rate that was meant by one with another program's word for a unit.
fn other_word(units: u64, period: &str) -> Option<String> {
    let unit = match period {
        "sec" | "second" | "seconds" => "s",
        "min" | "minute" | "minutes" => "m",
        "hr" | "hour" | "hours" => "h",
        _ => return None,
    };
    Some(format!("{units}/{unit}"))
}

/// A rate as people write it: `10/s`, `5/1500ms`, `10000/day`.
#[derive(Clone, Copy, Debug)]
pub struct RateText(pub Rate);

impl fmt::Display for RateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(unit) = self.0.calendar {
            return write!(f, "{}/{}", self.0.units, unit.name());
        }
        let period = Duration(self.0.period_ms).to_string();
        let unit = period
            .strip_prefix('1')
            .filter(|unit| unit_ms(unit).is_some());
        write!(f, "{}/{}", self.0.units, unit.unwrap_or(&period))
    }
}

/// How much a limit allows, as people write it: a rate, or `10 in flight`.
#[derive(Clone, Copy, Debug)]
pub struct AmountText<'q>(pub &'q Parameters);

impl fmt::Display for AmountText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(parameters) = self;
        match parameters.kind {
            Kind::Concurrency => write!(f, "{} in flight", parameters.rate.units),
            _ => RateText(parameters.rate).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for (text, units, period_ms, written) in [
            ("10/s", 10, 1000, "10/s"),
            ("100/1m", 100, 60_000, "100/m"),
            ("5/1500ms", 5, 1500, "5/1500ms"),
            ("3/60000ms", 3, 60_000, "3/m"),
            ("0/d", 0, 86_400_000, "0/d"),
            ("7/10m", 7, 600_000, "7/10m"),
        ] {
            let rate = parse_rate(text).unwrap();
            assert_eq!((rate.units, rate.period_ms), (units, period_ms), "{text}");
            assert_eq!(RateText(rate).to_string(), written);
        }
    }

    #[test]
    fn a_calendar_day_is_not_24_hours() {
        for (text, unit) in [
            ("10000/day", CalendarUnit::Day),
            ("7/week", CalendarUnit::Week),
            ("0/month", CalendarUnit::Month),
            ("1/year", CalendarUnit::Year),
        ] {
            let rate = parse_rate(text).unwrap();
            assert_eq!(rate.calendar, Some(unit));
            assert_eq!(RateText(rate).to_string(), text);
        }
        assert_eq!(parse_rate("10/d").unwrap().calendar, None);
    }

    #[test]
    fn an_invalid_rate_is_refused() {
        for text in [
            "", "10", "/s", "10/", "10 per s", "10/ s", "-1/s", "+1/s", "1.5/s", "10/5", "10/w",
            "10/days", "10/1day", "10/2week", "10/Day", "10/s/s", "1e3/s", "１/s",
        ] {
            assert_eq!(parse_rate(text), Err(UnitError::Rate), "{text}");
        }
        assert_eq!(parse_rate("1/0s"), Err(UnitError::Period));
        for (text, meant) in [("10/min", "10/m"), ("10/hour", "10/h"), ("5/second", "5/s")] {
            let error = parse_rate(text).unwrap_err();
            assert_eq!(error, UnitError::RateUnit(meant.to_owned()));
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("did you mean `{meant}`?"))
            );
        }
        assert_eq!(parse_rate("1/99999999999999999d"), Err(UnitError::Period));
    }
}
