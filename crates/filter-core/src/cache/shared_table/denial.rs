//! Denials that still hold.

use policy::Penalty;
use protocol::LimitAnswer;

use crate::{
    codec::{Put, Reader},
    time::Now,
};

/// A denial of the limiter that still holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CachedDenial {
    /// Until when it is cached.
    pub(crate) until_us: u64,
    /// The least cost that was denied; a smaller one may pass. A penalty denies them all.
    pub(crate) least_cost: u64,
    /// When to retry by the limiter's answer, which may be later than the denial is cached;
    /// `u64::MAX`: never.
    pub(crate) retry_at_us: u64,
    /// When the answer with the penalty arrived; 0: there is none.
    pub(crate) penalty_us: u64,
}

impl CachedDenial {
    /// The longest that a denial is cached, unless by a penalty.
    pub(crate) const MAX_MS: u64 = 1000;
    /// The longest that a denial by a queue is cached: a request that leaves frees its slot.
    pub(crate) const QUEUE_MS: u64 = 100;

    /// A denial with a `retry_after_ms`, counted from the moment its check was sent. The limiter
    /// read its clock later, but in whole milliseconds, so a millisecond less is never too long.
    /// `most_ms`, at most [`Self::MAX_MS`], bounds how long it is cached.
    pub(crate) fn new(sent: Now, retry_after_ms: Option<u64>, most_ms: u64, cost: u64) -> Self {
        let sure_ms = retry_after_ms.map_or(u64::MAX, |ms| ms.saturating_sub(1));
        let cached_ms = sure_ms.min(most_ms);
        Self {
            until_us: sent.after_ms(cached_ms),
            least_cost: cost,
            retry_at_us: retry_after_ms.map_or(u64::MAX, |ms| sent.after_ms(ms)),
            penalty_us: 0,
        }
    }

    /// The denial of a penalized bucket, to the end of its penalty, after `last`. That may name a later
    /// retry: the answer may be one to a report, which costs nothing and so waits for the penalty alone.
    pub(crate) fn penalty(
        now: Now,
        sent: Now,
        answer: &LimitAnswer,
        last: Option<CachedDenial>,
    ) -> Self {
        let denial = Self::new(sent, answer.retry_after_ms, answer.penalty.left_ms, 0);
        let needed_us = last.map(|last| last.retry_at_us);
        let needed_us = needed_us.filter(|at_us| *at_us != u64::MAX).unwrap_or(0);
        Self {
            retry_at_us: denial.retry_at_us.max(needed_us),
            penalty_us: now.mono_us,
            ..denial
        }
    }

    pub(crate) fn is_penalty(&self) -> bool {
        self.penalty_us > 0
    }

    /// Whether it is a penalty that the answer to a check sent at `sent` cannot have ended: the check may
    /// have been decided before the penalty began.
    pub(crate) fn outlasts(&self, sent: Now, now: Now) -> bool {
        self.penalty_us > sent.mono_us && !now.reached(self.until_us)
    }

    /// Whether the denial still holds for a cost, at a limit with this penalty. A denial that claims to
    /// hold longer than possible was written by another plugin, and is ignored.
    pub(crate) fn denies(&self, cost: u64, now: Now, penalty: Option<Penalty>) -> bool {
        let left_ms = now.millis_until(self.until_us);
        let most_ms = match penalty {
            Some(penalty) if self.is_penalty() => penalty.for_ms,
            _ => Self::MAX_MS,
        };
        (1..=most_ms).contains(&left_ms) && cost >= self.least_cost
    }

    /// When to retry, in milliseconds from now; `None`: never.
    pub(crate) fn retry_after_ms(&self, now: Now) -> Option<u64> {
        (self.retry_at_us != u64::MAX).then(|| now.millis_until(self.retry_at_us))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.until_us);
        out.put_u64(self.least_cost);
        out.put_u64(self.retry_at_us);
        if self.is_penalty() {
            out.put_u64(self.penalty_us);
        }
    }

    /// Reads a denial, or one by a penalty.
    pub(super) fn read(reader: &mut Reader<'_>, penalty: bool) -> Option<Self> {
        Some(Self {
            until_us: reader.u64()?,
            least_cost: reader.u64()?,
            retry_at_us: reader.u64()?,
            penalty_us: if penalty { reader.u64()? } else { 0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::at;

    const PENALTY: Option<Penalty> = Some(Penalty {
        after: 10,
        within_ms: 60_000,
        for_ms: 900_000,
    });

    fn penalty(until_ms: u64) -> CachedDenial {
        CachedDenial {
            penalty_us: 2000,
            ..CachedDenial::new(at(1), Some(until_ms), until_ms, 0)
        }
    }

    #[test]
    fn a_penalty_denies_every_cost_to_its_end() {
        let denial = penalty(900_000);
        for cost in [0, 1, u64::MAX] {
            assert!(denial.denies(cost, at(2), PENALTY));
            assert!(denial.denies(cost, at(899_999), PENALTY));
            assert!(!denial.denies(cost, at(900_000), PENALTY));
        }
    }

    #[test]
    fn a_cached_penalty_longer_than_the_limits_own_does_not_deny() {
        let hour = penalty(3_600_000);
        assert!(!hour.denies(1, at(2), PENALTY));
        assert!(!penalty(900_000).denies(1, at(2), None));
        let denial = CachedDenial::new(at(1), None, 900_000, 1);
        assert!(!denial.denies(1, at(2), PENALTY), "no penalty");
    }
}
