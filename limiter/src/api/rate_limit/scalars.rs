//! Numbers and units in these messages, also as proto3's JSON writes them.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, de::Error};

/// `google.protobuf.UInt64Value`
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UInt64Value {
    #[prost(uint64, tag = "1")]
    pub(super) value: u64,
}

/// `envoy.type.v3.RateLimitUnit`, and with the same numbers `RateLimitResponse.RateLimit.Unit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Unit {
    Unknown = 0,
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

/// The units with their names in JSON and their lengths in milliseconds.
pub(super) const UNITS: [(Unit, &str, u64); 7] = [
    (Unit::Second, "SECOND", 1000),
    (Unit::Minute, "MINUTE", 60_000),
    (Unit::Hour, "HOUR", 3_600_000),
    (Unit::Day, "DAY", 86_400_000),
    (Unit::Week, "WEEK", 7 * 86_400_000),
    (Unit::Month, "MONTH", 30 * 86_400_000),
    (Unit::Year, "YEAR", 365 * 86_400_000),
];

/// A number, or a number as text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Number<'t> {
    Number(u64),
    #[serde(borrow)]
    Text(Cow<'t, str>),
}

impl Number<'_> {
    fn value(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
        }
    }
}

/// A `uint32`.
pub(super) fn number<'d, D: Deserializer<'d>>(from: D) -> Result<u32, D::Error> {
    let value = Number::deserialize(from)?.value();
    let value = value.and_then(|value| u32::try_from(value).ok());
    value.ok_or_else(|| D::Error::custom("expected a number from 0 to 4294967295"))
}

/// A `google.protobuf.UInt64Value`; null means absent.
pub(super) fn wrapped<'d, D: Deserializer<'d>>(from: D) -> Result<Option<UInt64Value>, D::Error> {
    let Some(number) = Option::<Number<'_>>::deserialize(from)? else {
        return Ok(None);
    };
    let value = number.value();
    let value = value.ok_or_else(|| D::Error::custom("expected a number, or a text of one"))?;
    Ok(Some(UInt64Value { value }))
}

/// A unit by its name or number.
pub(super) fn unit<'d, D: Deserializer<'d>>(from: D) -> Result<i32, D::Error> {
    let number = match Number::deserialize(from)? {
        Number::Number(number) => i32::try_from(number).ok(),
        Number::Text(text) => {
            let mut units = UNITS.iter();
            let found = units.find(|(_, name, _)| *name == text);
            found.map(|(unit, ..)| i32::from(*unit))
        }
    };
    number
        .ok_or_else(|| D::Error::custom("expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"))
}
