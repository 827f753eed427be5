//! The answer to a check, independent of its encoding.

use algorithms::{LimitVerdict, Reservation};
use policy::{Compiled, Limit, Mode, Name, Revision};
use serde::{Deserialize, Serialize};

/// The decision on one check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The revision that decided.
    pub revision: Revision,
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// Whether every enforcing limit allowed it.
    pub allowed: bool,
    /// One entry per matching limit, in the order of the policy.
    pub limits: Vec<LimitAnswer>,
    /// For a [`ServiceCheck`](crate::ServiceCheck): how many entries of `limits` each descriptor has,
    /// in order.
    pub parts: Vec<usize>,
}

/// The answer of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitAnswer {
    /// The limit.
    pub name: Name,
    /// The limit's generation; caches drop state of older ones.
    pub generation: u64,
    /// Values of the limit's `per` entries, `None` where the request had none.
    pub bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// How it takes part.
    pub mode: Mode,
    /// The quota in units: capacity or N, of an adaptive limit what it is now; `None`: unlimited.
    pub limit: Option<u64>,
    /// The time, in milliseconds, in which an empty quota refills completely.
    pub window_ms: u64,
    /// Not to be shown to clients.
    pub hidden: bool,
    /// What it decided. Of the penalty the compact encoding has only the remaining time, JSON only whether
    /// there is one. No encoding has `leased`, `reserved`, `limit_milli` and `adaptive`.
    pub verdict: LimitVerdict,
    /// Units of this check that are to be settled when the response has ended.
    pub reservation: Option<Reservation>,
}

// --- How decisions are counted: their outcome, and what made them.

/// The outcome of a check at one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
    /// The answer of a limit that lets everything pass, and of which nothing is known beside its name.
    pub fn new(name: Name) -> Self {
        Self {
            name,
            generation: 0,
            bucket: Vec::new(),
            mode: Mode::Enforce,
            limit: None,
            window_ms: 0,
            hidden: false,
            reservation: None,
            verdict: LimitVerdict::default(),
        }
    }

    /// What the limit decided.
    pub fn outcome(&self) -> Outcome {
        Outcome::new(self.verdict.decision.allowed, self.mode)
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

// --- Combines the answers of several limits.

/// The decision on a check for its caller. Only enforced limits count, except in `would_deny` and
/// `degraded_by`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary<'a> {
    /// The least of the limits' remaining units; `None` if nothing is limited.
    pub remaining: Option<u64>,
    /// Milliseconds until the same check would pass: 0 if it did, else the longest of the denying
    /// limits' waits; `None`: never.
    pub retry_after_ms: Option<u64>,
    /// Milliseconds until all its buckets are unused.
    pub reset_after_ms: u64,
    /// Milliseconds for which to hold the request: the longest of its queues' delays.
    pub delay_ms: u64,
    /// The limits that deny it.
    pub denied_by: Vec<&'a Name>,
    /// The limits that would deny it if they were enforced.
    pub would_deny: Vec<&'a Name>,
    /// The limits that mark it as degraded.
    pub degraded_by: Vec<&'a Name>,
}

impl Answer {
    /// Combines the limits' answers.
    pub fn summary(&self) -> Summary<'_> {
        let mut summary = Summary {
            retry_after_ms: Some(0),
            ..Summary::default()
        };
        for limit in &self.limits {
            summary.add(limit);
        }
        summary
    }

    /// Whether it is a denial that a caller who waits for so many milliseconds does not take for an answer: the
    /// same check may pass within that time.
    pub fn is_repeated(&self, policy: &Compiled, patience_ms: u64) -> bool {
        let wait_ms = || self.wait_ms(policy, 0);
        !self.allowed && patience_ms > 0 && wait_ms().is_some_and(|ms| ms <= patience_ms)
    }

    /// Milliseconds after which such a caller sends a denied check again; `None`: it never passes. A slot of a
    /// request in flight may be freed at any moment, so it is looked for after `slot_ms` at most.
    pub fn wait_ms(&self, policy: &Compiled, slot_ms: u64) -> Option<u64> {
        let gives_slots =
            |limit: &LimitAnswer| policy.named(&limit.name).is_some_and(Limit::gives_slots);
        let denying = |limit: &&LimitAnswer| limit.outcome() == Outcome::Denied;
        let mut waits = self.limits.iter().filter(denying).map(|limit| {
            let ms = limit.verdict.decision.retry_after.millis()?;
            Some(if gives_slots(limit) {
                ms.min(slot_ms)
            } else {
                ms
            })
        });
        waits.try_fold(0, |longest, wait| Some(wait?.max(longest)))
    }
}

impl<'a> Summary<'a> {
    fn add(&mut self, limit: &'a LimitAnswer) {
        let list = match limit.mode {
            Mode::Enforce => &mut self.denied_by,
            Mode::Shadow => &mut self.would_deny,
            Mode::Degrade => &mut self.degraded_by,
        };
        let decision = &limit.verdict.decision;
        if !decision.allowed {
            list.push(&limit.name);
        }
        if limit.mode != Mode::Enforce {
            return;
        }
        if limit.limit.is_some() {
            let least = self.remaining.unwrap_or(u64::MAX).min(decision.remaining);
            self.remaining = Some(least);
        }
        if !decision.allowed {
            let wait_ms = decision.retry_after.millis();
            let longer = |(a, b): (u64, u64)| a.max(b);
            self.retry_after_ms = self.retry_after_ms.zip(wait_ms).map(longer);
        }
        self.reset_after_ms = self.reset_after_ms.max(decision.reset_after_ms);
        self.delay_ms = self.delay_ms.max(decision.delay_ms);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An answer that allows, with arbitrary numbers.
    pub(crate) fn limit(name: &str) -> LimitAnswer {
        let mut answer = LimitAnswer::new(name.parse().unwrap());
        (answer.limit, answer.window_ms) = (Some(20), 2000);
        answer.verdict.decision.remaining = 20;
        answer
    }
}

#[cfg(test)]
mod outcome_tests {
    use super::{tests::limit, *};

    #[test]
    fn only_an_enforced_limit_denies() {
        for (allowed, mode, outcome) in [
            (true, Mode::Enforce, Outcome::Allowed),
            (false, Mode::Enforce, Outcome::Denied),
            (false, Mode::Shadow, Outcome::WouldDeny),
            (false, Mode::Degrade, Outcome::Degraded),
        ] {
            let mut answer = limit("a");
            (answer.mode, answer.verdict.decision.allowed) = (mode, allowed);
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

#[cfg(test)]
mod summary_tests {
    use super::{tests::limit, *};
    use algorithms::{Decision, RetryAfter};

    fn decided(name: &str, decision: Decision) -> LimitAnswer {
        let mut answer = limit(name);
        answer.verdict.decision = decision;
        answer
    }

    fn denied(name: &str, remaining: u64, retry_after_ms: Option<u64>) -> LimitAnswer {
        let decision = Decision {
            allowed: false,
            remaining,
            retry_after: RetryAfter::from_millis(retry_after_ms),
            ..Decision::default()
        };
        decided(name, decision)
    }

    #[test]
    fn the_tightest_enforced_limit_speaks_for_the_check() {
        let allowed = Decision {
            remaining: 5,
            reset_after_ms: 10,
            delay_ms: 7,
            ..Decision::default()
        };
        let (a, b) = (decided("a", allowed), denied("b", 3, Some(40)));
        let mut c = denied("c", 4, Some(30));
        c.verdict.decision.reset_after_ms = 90;
        let mut shadow = denied("shadow", 0, None);
        shadow.mode = Mode::Shadow;
        shadow.verdict.decision.reset_after_ms = 1000;
        let mut degrade = denied("degrade", 0, None);
        degrade.mode = Mode::Degrade;
        let mut unlimited = decided("unlimited", Decision::default());
        unlimited.limit = None;
        let answer = Answer {
            allowed: false,
            limits: vec![a, b, c, unlimited, shadow, degrade],
            ..Answer::default()
        };
        let summary = answer.summary();
        assert_eq!(summary.remaining, Some(3));
        assert_eq!(summary.retry_after_ms, Some(40));
        assert_eq!(summary.reset_after_ms, 90);
        assert_eq!(summary.delay_ms, 7);
        let names = |list: &[&Name]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&summary.denied_by), ["b", "c"]);
        assert_eq!(names(&summary.would_deny), ["shadow"]);
        assert_eq!(names(&summary.degraded_by), ["degrade"]);
    }

    #[test]
    fn one_limit_that_never_passes_removes_the_retry_after() {
        for limits in [
            vec![denied("a", 0, None), denied("b", 0, Some(5))],
            vec![denied("a", 0, Some(5)), denied("b", 0, None)],
        ] {
            let answer = Answer {
                limits,
                ..Answer::default()
            };
            assert_eq!(answer.summary().retry_after_ms, None);
        }
        assert_eq!(Answer::default().summary().retry_after_ms, Some(0));
        assert_eq!(Answer::default().summary().remaining, None);
    }
}
