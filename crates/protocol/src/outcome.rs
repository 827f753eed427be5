//! How decisions are counted: their outcome, and what made them.

use policy::Mode;

use crate::LimitAnswer;

/// The outcome of a check at one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// It fits.
    Allowed,
    /// Over it, and denied.
    Denied,
    /// Over a limit that is only reported.
    WouldDeny,
    /// Over a limit that marks requests.
    Degraded,
}

/// What decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DecidedBy {
    /// A limiter.
    Limiter,
    /// A proxy, by leased units.
    Lease,
    /// A proxy, by a cached denial.
    DenyCache,
    /// A proxy, by the precheck of a global bucket.
    Precheck,
    /// A proxy, by a bucket of its own.
    Proxy,
    /// A proxy without a limiter, by its share of the limit.
    Local,
    /// A proxy: the request lacks an entry of the limit's `per`.
    Missing,
    /// A proxy without a limiter, by the limit's `on_failure`.
    Failure,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Allowed, Self::Denied, Self::WouldDeny, Self::Degraded];

    /// The outcome at a limit that allows a request or not: only an enforced limit denies.
    pub fn new(allowed: bool, mode: Mode) -> Self {
        match (allowed, mode) {
            (true, _) => Self::Allowed,
            (false, Mode::Enforce) => Self::Denied,
            (false, Mode::Shadow) => Self::WouldDeny,
            (false, Mode::Degrade) => Self::Degraded,
        }
    }

    /// The word in metrics and records.
    pub fn word(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::WouldDeny => "would_deny",
            Self::Degraded => "degraded",
        }
    }

    /// The outcome that a word names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.word() == word)
    }
}

impl LimitAnswer {
    /// What the limit decided.
    pub fn outcome(&self) -> Outcome {
        Outcome::new(self.allowed, self.mode)
    }
}

impl DecidedBy {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Limiter,
        Self::Lease,
        Self::DenyCache,
        Self::Precheck,
        Self::Proxy,
        Self::Local,
        Self::Missing,
        Self::Failure,
    ];

    /// The word in metrics, records and response code details.
    pub fn word(self) -> &'static str {
        match self {
            Self::Limiter => "limiter",
            Self::Lease => "lease",
            Self::DenyCache => "deny_cache",
            Self::Precheck => "precheck",
            Self::Proxy => "proxy",
            Self::Local => "local",
            Self::Missing => "missing",
            Self::Failure => "failure",
        }
    }

    /// The source that a word names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|by| by.word() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer::tests::limit;

    #[test]
    fn only_an_enforced_limit_denies() {
        for (allowed, mode, outcome) in [
            (true, Mode::Enforce, Outcome::Allowed),
            (false, Mode::Enforce, Outcome::Denied),
            (false, Mode::Shadow, Outcome::WouldDeny),
            (false, Mode::Degrade, Outcome::Degraded),
        ] {
            let answer = LimitAnswer {
                mode,
                allowed,
                ..limit("a")
            };
            assert_eq!(answer.outcome(), outcome);
        }
    }

    #[test]
    fn words_round_trip() {
        for outcome in Outcome::ALL {
            assert_eq!(Outcome::from_word(outcome.word()), Some(outcome));
        }
        for by in DecidedBy::ALL {
            assert_eq!(DecidedBy::from_word(by.word()), Some(by));
        }
        assert_eq!(Outcome::from_word("perhaps"), None);
    }
}
