//! The answer to a check, independent of its encoding.

use algorithms::{AdaptiveStatus, Lease, Reservation, Reserved, Slot};
use policy::{Compiled, Limit, Mode, Name, PenaltyStatus, Revision};
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
    /// Whether the cost fits this limit, whatever the others said.
    pub allowed: bool,
    /// Units taken from the bucket by this check.
    pub charged: u64,
    /// The quota in units: capacity or N, of an adaptive limit what it is now; `None`: unlimited.
    pub limit: Option<u64>,
    /// The time, in milliseconds, in which an empty quota refills completely.
    pub window_ms: u64,
    /// Units left after this decision.
    pub remaining: u64,
    /// 0 if allowed; `None`: never.
    pub retry_after_ms: Option<u64>,
    /// The time until the bucket is unused, in milliseconds.
    pub reset_after_ms: u64,
    /// How long an admitted request is held, in milliseconds.
    pub delay_ms: u64,
    /// Not to be shown to clients.
    pub hidden: bool,
    /// The surplus granted; `None`: none was granted or wanted.
    pub lease: Option<Lease>,
    /// The slot that a queue gave the request, or that it holds in flight; [`SlotAct`](crate::SlotAct)
    /// says what may be done with it. If nothing was charged and slots were renewed: which of them are missing, encoded as
    /// `algorithms::Missing`.
    pub slot: Option<Slot>,
    /// Units of this check that are to be settled when the response has ended.
    pub reservation: Option<Reservation>,
    /// What the check reserved and settled. No encoding has it.
    pub reserved: Reserved,
    /// The penalty of the bucket. The compact encoding has only its remaining time, JSON only whether
    /// there is one.
    pub penalty: PenaltyStatus,
    /// An adaptive limit as its bucket has it. No encoding has it.
    pub adaptive: Option<Box<AdaptiveStatus>>,
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
            allowed: true,
            charged: 0,
            limit: None,
            window_ms: 0,
            remaining: 0,
            retry_after_ms: Some(0),
            reset_after_ms: 0,
            delay_ms: 0,
            hidden: false,
            lease: None,
            slot: None,
            reservation: None,
            reserved: Reserved::default(),
            penalty: PenaltyStatus::default(),
            adaptive: None,
        }
    }

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
        let denying = |limit: &&LimitAnswer| limit.mode == Mode::Enforce && !limit.allowed;
        let mut waits = self.limits.iter().filter(denying).map(|limit| {
            let ms = limit.retry_after_ms?;
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
        if !limit.allowed {
            list.push(&limit.name);
        }
        if limit.mode != Mode::Enforce {
            return;
        }
        if limit.limit.is_some() {
            let least = self.remaining.unwrap_or(u64::MAX).min(limit.remaining);
            self.remaining = Some(least);
        }
        if !limit.allowed {
            let longer = |(a, b): (u64, u64)| a.max(b);
            self.retry_after_ms = self.retry_after_ms.zip(limit.retry_after_ms).map(longer);
        }
        self.reset_after_ms = self.reset_after_ms.max(limit.reset_after_ms);
        self.delay_ms = self.delay_ms.max(limit.delay_ms);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// An answer that allows, with arbitrary numbers.
    pub(crate) fn limit(name: &str) -> LimitAnswer {
        LimitAnswer {
            limit: Some(20),
            window_ms: 2000,
            remaining: 20,
            ..LimitAnswer::new(name.parse().unwrap())
        }
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
            (answer.mode, answer.allowed) = (mode, allowed);
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

    #[test]
    fn the_tightest_enforced_limit_speaks_for_the_check() {
        let [mut a, mut b, mut c] = ["a", "b", "c"].map(limit);
        (a.remaining, a.reset_after_ms, a.delay_ms) = (5, 10, 7);
        (b.allowed, b.remaining, b.retry_after_ms) = (false, 3, Some(40));
        (c.allowed, c.remaining, c.retry_after_ms) = (false, 4, Some(30));
        c.reset_after_ms = 90;
        let of_mode = |name, mode| LimitAnswer {
            mode,
            allowed: false,
            remaining: 0,
            retry_after_ms: None,
            ..limit(name)
        };
        let mut shadow = of_mode("shadow", Mode::Shadow);
        shadow.reset_after_ms = 1000;
        let degrade = of_mode("degrade", Mode::Degrade);
        let mut unlimited = limit("unlimited");
        (unlimited.limit, unlimited.remaining) = (None, 0);
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
        let denied = |name, retry_after_ms| LimitAnswer {
            allowed: false,
            retry_after_ms,
            ..limit(name)
        };
        for limits in [
            vec![denied("a", None), denied("b", Some(5))],
            vec![denied("a", Some(5)), denied("b", None)],
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
