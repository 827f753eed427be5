//! Durations, as people write them.

use std::fmt;

/// Units with their length in milliseconds, longest first.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];

/// Why a text is not a rate or a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// Not of the form N/P.
    #[error("a rate is units per period, like 10/s, 100/1m, 5/1500ms or 10000/day")]
    Rate,
    /// Of that form, with another word for a unit; what was meant.
    #[error(
        "did you mean `{0}`? a period is ms, s, m, h or d, a number of them, or day, week, month or year"
    )]
    RateUnit(String),
    /// A number without a unit, or with an unknown one.
    #[error("a duration is a whole number and one of ms, s, m, h, d: 250ms, 3s, 1m")]
    Duration,
    /// Zero, or more than can be counted.
    #[error("a period is at least 1ms, and short enough to be counted in milliseconds")]
    Period,
}

/// Digits only: no sign, no blanks, no separators.
pub fn parse_digits(text: &str) -> Option<u64> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// Milliseconds of a duration like `1500ms` or `3s`.
pub fn parse_duration(text: &str) -> Result<u64, UnitError> {
    let at = text
        .find(|c: char| !c.is_ascii_digit())
        .ok_or(UnitError::Duration)?;
    let (digits, unit) = text.split_at_checked(at).ok_or(UnitError::Duration)?;
    let number = parse_digits(digits).ok_or(UnitError::Duration)?;
    number
        .checked_mul(unit_ms(unit).ok_or(UnitError::Duration)?)
        .ok_or(UnitError::Period)
}

/// Milliseconds of a unit: `ms`, `s`, `m`, `h` or `d`.
pub fn unit_ms(text: &str) -> Option<u64> {
    UNITS
        .iter()
        .find(|(name, _)| *name == text)
        .map(|(_, ms)| *ms)
}

/// A duration in its largest whole unit: `90s`, `1m`, `0ms`.
#[derive(Clone, Copy, Debug)]
pub struct Duration(pub u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, ms) = UNITS
            .into_iter()
            .find(|(_, ms)| self.0 > 0 && self.0.is_multiple_of(*ms))
            .unwrap_or(("ms", 1));
        write!(f, "{}{unit}", self.0 / ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written() {
        for (text, ms, written) in [
            ("250ms", 250, "250ms"),
            ("3s", 3000, "3s"),
            ("3000ms", 3000, "3s"),
            ("24h", 86_400_000, "1d"),
            ("0ms", 0, "0ms"),
        ] {
            assert_eq!(parse_duration(text), Ok(ms));
            assert_eq!(Duration(ms).to_string(), written);
        }
        for text in ["", "3", "s", "3 s", "3.5s", "3sec"] {
            assert_eq!(parse_duration(text), Err(UnitError::Duration), "{text}");
        }
    }
}
