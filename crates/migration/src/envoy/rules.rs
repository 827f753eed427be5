//! The configuration of envoyproxy/ratelimit.

use documents::{Choice, Place};

/// The limits of one domain, or a part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitConfig {
    /// The domain.
    pub domain: String,
    /// The position of the domain, if it was read from a file.
    pub place: Option<Place>,
    /// The descriptors at the top.
    pub descriptors: Vec<Descriptor>,
}

/// A key, perhaps with a value, its limit and the descriptors below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The key of the entry.
    pub key: String,
    /// Its value; each `*` matches any text, and an empty value matches any value.
    pub value: String,
    /// Its position, if it was read from a file.
    pub place: Option<Place>,
    /// `rate_limit`.
    pub rate_limit: Option<RateLimit>,
    /// A request over the limit passes, and is counted.
    pub shadow_mode: bool,
    /// A request over the limit passes as long as another such limit has units left.
    pub quota_mode: bool,
    /// The values that a wildcard matches share one bucket.
    pub share_threshold: bool,
    /// The descriptors below.
    pub descriptors: Vec<Descriptor>,
}

/// The limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The name by which `replaces` of other limits refers to it.
    pub name: String,
    /// The limits that this one suppresses.
    pub replaces: Vec<String>,
    /// The number.
    pub quota: Quota,
}

/// A rate, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Not limited.
    Unlimited,
    /// This many requests in each unit of time.
    Rate {
        /// The number.
        requests: u32,
        /// The unit.
        unit: Unit,
    },
}

/// The length of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Unit {
    /// The length, as a limits file writes it. In envoyproxy/ratelimit a month has 30 days and a
    /// year 365.
    pub fn period(self) -> &'static str {
        match self {
            Self::Second => "s",
            Self::Minute => "m",
            Self::Hour => "h",
            Self::Day => "d",
            Self::Week => "7d",
            Self::Month => "30d",
            Self::Year => "365d",
        }
    }
}

impl Choice for Unit {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];
}

impl Descriptor {
    /// `key` or `key_value`: envoyproxy/ratelimit distinguishes the descriptors of one list by it,
    /// and uses it in the names of statistics.
    pub(crate) fn composite_key(&self) -> String {
        if self.value.is_empty() {
            self.key.clone()
        } else {
            format!("{}_{}", self.key, self.value)
        }
    }
}
