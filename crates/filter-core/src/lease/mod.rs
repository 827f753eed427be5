//! Units of a bucket that were granted in advance, and are spent without asking.
//!
//! A limit with `lease` is asked now and then for more units than a request
//! takes. What is granted goes into a [`SharedLease`] that all workers of the process
//! share, and from there in portions into the [`WorkerLeases`] of each, so that most
//! requests touch nothing but their own worker's memory. The store has counted
//! the units as used already; what keeps the limit is that each of them is used
//! once and in time. So a unit is in one place only: moves between places are
//! one compare-and-swap, and whatever fails, is pushed out or belongs to an
//! earlier generation is dropped, which wastes units and never makes any.
//!
//! The limiter is told what became of units ([`Settlements`]) at most once, by
//! whoever takes the tally out of the pool. A tally that is lost costs the
//! bucket a little of its rate for two lease times, and nothing else.

mod demand;
mod settlements;
mod shared_lease;
mod worker_lease;

pub(crate) use settlements::Settlements;
pub(crate) use shared_lease::{LeaseQuery, SharedLease, SharedView};
pub(crate) use worker_lease::{Portion, Reservation, WorkerLease, WorkerLeases};

use protocol::Lease;

use crate::{shared_table::BucketStatus, time::Now};

/// Units of one grant, in one place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// What the limiter knows the grant by.
    pub(crate) epoch: u64,
    /// From when on they may not be used, on the monotonic clock.
    pub(crate) deadline_us: u64,
    /// How many there are.
    pub(crate) units: u64,
}

impl Grant {
    /// What came with an answer. Time counts from the *sending* of the call: the limiter read its
    /// clock some time after that, and nobody knows when. A millisecond less, as it reads whole
    /// ones, and the window may end that much sooner; and a thousandth less, as no two clocks run
    /// at the same speed.
    pub(crate) fn new(lease: Lease, sent: Now) -> Self {
        let sure_us = lease.ttl_ms.saturating_sub(1).saturating_mul(999);
        Self {
            epoch: lease.epoch,
            deadline_us: sent.mono_us.saturating_add(sure_us),
            units: lease.units,
        }
    }

    /// Whether its units may not be used any more.
    pub(crate) fn is_over(&self, now: Now) -> bool {
        now.reached(self.deadline_us)
    }

    /// Whether both are of one grant.
    fn is_of(&self, epoch: u64, deadline_us: u64) -> bool {
        self.epoch == epoch && self.deadline_us == deadline_us
    }
}

/// The least that a worker takes of what is shared, in requests: a look at that costs as much as the
/// better part of a check.
const LEAST_PORTION: u64 = 8;

/// How many parts what is left of a bucket is divided into for each proxy, of which one is asked for
/// at most. What one has at hand when a burst has used the bucket up, the last requests at others do
/// not get. (The limiter's own parts, which it gives whoever asks, are larger.)
const SHARES: u64 = 12;

/// The numbers of a limit that its leases follow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Units one request takes, at least 1.
    pub(crate) cost: u64,
    /// The time that a grant lasts, in microseconds.
    pub(crate) ttl_us: u64,
    /// How long an answer may take, in microseconds.
    pub(crate) patience_us: u64,
    /// The proxies that share its buckets.
    pub(crate) proxies: u64,
}

/// Of a limit whose leases tests follow.
#[cfg(test)]
const TERMS: Terms = Terms {
    cost: 1,
    ttl_us: 100_000,
    patience_us: 40_000,
    proxies: 1,
};

/// Of a bucket of which more is left.
#[cfg(test)]
fn portion(units: u64) -> Portion {
    let scarce = false;
    Portion { units, scarce }
}

impl Terms {
    /// A part of the time that a grant lasts.
    fn part_us(&self, of: u64) -> u64 {
        self.ttl_us / of
    }

    /// Units that are not divided any further among workers.
    fn least_portion(&self) -> u64 {
        self.cost.saturating_mul(LEAST_PORTION)
    }

    /// What to ask for where nothing was to be had, if so much is needed in the time of a grant:
    /// half of it, unless that is little.
    pub(crate) fn first_want(&self, needed: u64) -> u64 {
        needed.min(self.least_portion()).max(needed / 2)
    }

    /// The most to ask for, by what the limiter has just said of the bucket. After a while that says
    /// nothing any more: a window is new, or others have used it up.
    pub(crate) fn most(&self, now: Now, status: Option<BucketStatus>) -> u64 {
        let Some(status) = status else {
            return u64::MAX;
        };
        if now.reached(status.at_us.saturating_add(self.part_us(4))) {
            return status.limit.unwrap_or(u64::MAX);
        }
        let parts = self.proxies.max(1).saturating_mul(SHARES);
        status.remaining.checked_div(parts).unwrap_or(0)
    }

    /// The units of whole requests in so many.
    fn whole(&self, units: u64) -> u64 {
        units - units % self.cost.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::at;

    #[test]
    fn of_a_bucket_each_proxy_asks_for_a_small_part_of_what_is_left() {
        let status = BucketStatus {
            at_us: 0,
            limit: Some(1000),
            window_ms: 1000,
            remaining: 500,
            reset_after_ms: 1,
        };
        let most = |ms, proxies, status| Terms { proxies, ..TERMS }.most(at(ms), status);
        assert_eq!(most(24, 1, Some(status)), 41);
        assert_eq!(most(24, 5, Some(status)), 8);
        assert_eq!(most(25, 5, Some(status)), 1000, "it was said long ago");
        assert_eq!(most(12, 5, None), u64::MAX, "nobody has said");
    }
}
