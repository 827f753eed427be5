//! What takes limits out of force: exemptions, requests that no limit applies to, and pauses.

use documents::Name;

use crate::Matcher;

/// Requests that none of a domain's limits applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exemption {
    /// Unique among the domain's exemptions.
    pub name: Name,
    /// All of them have to hold for certain ([`Matcher::holds_surely`]); there is at least one.
    pub matchers: Vec<Matcher>,
}

/// The kill switch of a limit or of a whole domain: until it ends, the limit counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pause {
    /// When it ends on its own, in milliseconds since the epoch; `None`: never.
    pub until_ms: Option<u64>,
}

impl Pause {
    /// The meaning of `paused: false`: not paused, or no longer.
    pub const OVER: Self = Self { until_ms: Some(0) };

    /// Whether it holds at a time in milliseconds since the epoch.
    pub fn holds(self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until_ms| now_ms < until_ms)
    }

    /// The one that ends later, of a limit's pause and its domain's: both have started already.
    pub fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(a), Some(b)) => Some(Self {
                until_ms: a.until_ms.zip(b.until_ms).map(|(a, b)| a.max(b)),
            }),
            (one, other) => one.or(other),
        }
    }
}
