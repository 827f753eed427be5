//! Measures how many units of a bucket one worker needs, and decides when leasing pays.

use super::Terms;
use crate::time::Now;

/// Requests in a lease time at which a worker starts to query for units, and below which it stops. The
/// second is lower, so that a demand in between does not switch back and forth.
type Threshold = (u64, u64);
/// For checks that have a call to themselves, which costs many times as much as the check.
const ALONE: Threshold = (4, 3);
/// For checks that share calls, where a grant saves only the check: a grant costs as much as three or
/// four checks.
const TOGETHER: Threshold = (8, 4);
/// From this many checks in a call, they count as sharing it.
const SHARED_CALL: usize = 4;
/// For a bucket that is nearly used up: units stranded on one worker are denied to others, and grants
/// are small.
const SCARCE: Threshold = (32, 16);
/// The bucket is nearly used up if less than this many times the worker's demand in a lease time is
/// left.
const LITTLE: u64 = 32;

/// The demand of one worker for units of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    since_us: u64,
    /// Units since then.
    seen: u64,
    /// Units in the previous lease time.
    before: u64,
    /// Whether leasing paid at the last request.
    pays: bool,
    /// Whether the bucket was nearly used up.
    pub(super) scarce: bool,
}

impl Demand {
    /// Counts units that a request needs.
    pub(super) fn add(&mut self, units: u64) {
        self.seen = self.seen.saturating_add(units);
    }

    /// Units needed within a lease time. Assumes that the demand of the previous lease time was evenly
    /// distributed.
    #[inline(never)]
    pub(super) fn in_ttl(&mut self, now: Now, ttl_us: u64) -> u64 {
        let elapsed_us = now.mono_us.saturating_sub(self.since_us);
        if elapsed_us >= ttl_us {
            self.before = part(self.seen, ttl_us, elapsed_us);
            (self.since_us, self.seen) = (now.mono_us, 0);
            return self.before;
        }
        let earlier = part(self.before, ttl_us - elapsed_us, ttl_us);
        self.seen.saturating_add(earlier)
    }

    /// Counts a request that found no leased units. Returns the units needed within a lease time if
    /// leasing pays, with so many checks per call and `left` units in the bucket.
    pub(super) fn record_miss(
        &mut self,
        now: Now,
        terms: &Terms,
        checks_per_call: usize,
        left: Option<u64>,
    ) -> Option<u64> {
        // First drops the demand that is older than a lease time.
        let before = self.in_ttl(now, terms.ttl_us);
        self.add(terms.cost);
        let needed = before.saturating_add(terms.cost);
        self.scarce = left.is_some_and(|left| left < needed.saturating_mul(LITTLE));
        let (start, keep) = if self.scarce {
            SCARCE
        } else if checks_per_call < SHARED_CALL {
            ALONE
        } else {
            TOGETHER
        };
        let least = if self.pays { keep } else { start };
        self.pays = needed >= terms.cost.saturating_mul(least);
        self.pays.then_some(needed)
    }
}

/// `units` times `share` of `whole`.
fn part(units: u64, share: u64, whole: u64) -> u64 {
    units.saturating_mul(share) / whole.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::at;

    const TERMS: Terms = Terms {
        cost: 2,
        ..super::super::terms::TERMS
    };

    #[test]
    fn demand_counts_the_units_needed_within_one_lease_ttl() {
        let mut demand = Demand::default();
        for _ in 0..10 {
            demand.add(1);
        }
        assert_eq!(demand.in_ttl(at(99), 100_000), 10);
        assert_eq!(demand.in_ttl(at(100), 100_000), 10);
        demand.add(1);
        assert_eq!(
            demand.in_ttl(at(150), 100_000),
            6,
            "half of them were before"
        );
        // Spread over a longer time, the same units are a smaller demand.
        assert_eq!(demand.in_ttl(at(1100), 100_000), 0);
        assert_eq!(demand.in_ttl(at(1300), 100_000), 0);
    }

    /// The number of the request at which leasing begins, with one request every `every_ms`
    /// milliseconds.
    fn begins(checks_per_call: usize, every_ms: u64) -> Option<u64> {
        let mut demand = Demand::default();
        (1..=50).find(|n| {
            demand
                .record_miss(at(1000 + n * every_ms), &TERMS, checks_per_call, None)
                .is_some()
        })
    }

    #[test]
    fn leasing_begins_when_a_grant_repays_its_cost() {
        assert_eq!(
            [1, 3, 4, 30].map(|checks_per_call| begins(checks_per_call, 1)),
            [4, 4, 8, 8].map(Some)
        );
        assert_eq!(
            [20, 60].map(|every_ms| begins(1, every_ms)),
            [Some(4), None]
        );
        assert_eq!(
            [10, 15].map(|every_ms| begins(30, every_ms)),
            [Some(8), None]
        );
    }

    #[test]
    fn leasing_a_scarce_bucket_needs_more_demand() {
        let queries = |requests: u64, left: u64| {
            let mut demand = Demand::default();
            for _ in 1..requests {
                demand.record_miss(at(1000), &TERMS, 1, Some(left));
            }
            demand
                .record_miss(at(1000), &TERMS, 1, Some(left))
                .is_some()
        };
        // Two units each.
        assert!(queries(10, 640), "32 times as much is left");
        assert!(!queries(10, 639));
        assert!(!queries(31, 0));
        assert!(queries(32, 0));
    }

    #[test]
    fn leasing_continues_down_to_half_the_demand_that_starts_it() {
        let mut demand = Demand::default();
        let mut queries = |from_ms: u64, every_ms: u64| {
            let times = (1..=40).map(|n| from_ms + n * every_ms);
            times
                .filter(|ms| demand.record_miss(at(*ms), &TERMS, 30, None).is_some())
                .count()
        };
        assert_eq!(queries(1000, 18), 0);
        assert_eq!(queries(2000, 10), 33);
        assert_eq!(queries(2400, 18), 40);
        assert_eq!(queries(3120, 40), 3, "until it is known");
        assert_eq!(queries(6000, 18), 0, "once over, it begins as before");
    }
}
