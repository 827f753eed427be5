//! What envoyproxy/ratelimit is configured with.

use documents::{Choice, Place};

/// The limits of one domain, or a part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitConfig {
    /// The domain.
    pub domain: String,
    /// Where the domain stands, if it was read from a file.
    pub place: Option<Place>,
    /// The descriptors at the top.
    pub descriptors: Vec<Descriptor>,
}

/// A key, perhaps with a value, and what it leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The key of the entry.
    pub key: String,
    /// Its value, with a `*` at the end for whatever starts so; empty: any value.
    pub value: String,
    /// Where it stands, if it was read from a file.
    pub place: Option<Place>,
    /// `rate_limit`.
    pub rate_limit: Option<RateLimit>,
    /// A request over the limit passes, and is counted.
    pub shadow_mode: bool,
    /// A request over the limit passes as long as another such limit has something left.
    pub quota_mode: bool,
    /// The values that a wildcard matches share one bucket.
    pub share_threshold: bool,
    /// The descriptors below.
    pub descriptors: Vec<Descriptor>,
}

/// How much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// What `replaces` of others names.
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
    /// So many requests in each unit of time.
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
    /// The length, as a limits file writes it: envoyproxy/ratelimit's month has 30 days, and its
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
    /// `key`, or `key_value`: what envoyproxy/ratelimit distinguishes the descriptors of one list
    /// by, and names its statistics with.
    pub(crate) fn composite_key(&self) -> String {
        if self.value.is_empty() {
            self.key.clone()
        } else {
            format!("{}_{}", self.key, self.value)
        }
    }
}
