//! The numbers of a limit that its leases follow.

use crate::{cache::BucketStatus, time::Now};

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
pub(super) const TERMS: Terms = Terms {
    cost: 1,
    ttl_us: 100_000,
    patience_us: 40_000,
    proxies: 1,
};

/// Of a bucket of which more is left.
#[cfg(test)]
pub(super) fn portion(units: u64) -> super::Portion {
    let scarce = false;
    super::Portion { units, scarce }
}

impl Terms {
    /// A part of the time that a grant lasts.
    pub(super) fn part_us(&self, of: u64) -> u64 {
        self.ttl_us / of
    }

    /// Units that are not divided any further among workers.
    pub(super) fn least_portion(&self) -> u64 {
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
    pub(super) fn whole(&self, units: u64) -> u64 {
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
