//! Combines the answers of several limits.

use policy::Name;

use crate::{Answer, LimitAnswer, Mode};

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

    /// Whether it is a denial after which the same check would pass within this time, in milliseconds.
    pub fn is_denied_for_up_to(&self, ms: u64) -> bool {
        !self.allowed && ms > 0 && { self.summary().retry_after_ms }
            .is_some_and(|wait_ms| wait_ms <= ms)
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
mod tests {
    use super::*;
    use crate::answer::tests::limit;

    #[test]
    fn the_tightest_enforced_limit_speaks_for_the_check() {
        let answer = Answer {
            allowed: false,
            limits: vec![
                LimitAnswer {
                    remaining: 5,
                    reset_after_ms: 10,
                    delay_ms: 7,
                    ..limit("a")
                },
                LimitAnswer {
                    allowed: false,
                    remaining: 3,
                    retry_after_ms: Some(40),
                    ..limit("b")
                },
                LimitAnswer {
                    allowed: false,
                    remaining: 4,
                    retry_after_ms: Some(30),
                    reset_after_ms: 90,
                    ..limit("c")
                },
                LimitAnswer {
                    limit: None,
                    remaining: 0,
                    ..limit("unlimited")
                },
                LimitAnswer {
                    mode: Mode::Shadow,
                    allowed: false,
                    remaining: 0,
                    retry_after_ms: None,
                    reset_after_ms: 1000,
                    ..limit("shadow")
                },
                LimitAnswer {
                    mode: Mode::Degrade,
                    allowed: false,
                    remaining: 0,
                    retry_after_ms: None,
                    ..limit("degrade")
                },
            ],
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
