//! The parameters of a limit that its leases use.

use crate::{cache::BucketStatus, time::Now};

/// The smallest portion that a worker takes of a shared lease, in requests: an update of shared data
/// costs almost as much as a check.
const LEAST_PORTION: u64 = 8;

/// A proxy queries for at most the units left in the bucket, divided by the number of proxies and by
/// this: units stranded on one proxy are denied to others. (The limiter's own bound on a grant is
/// larger.)
const SHARES: u64 = 12;

/// The parameters of a limit that its leases use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Units one request takes, at least 1.
    pub(crate) cost: u64,
    /// The lease time, in microseconds.
    pub(crate) ttl_us: u64,
    /// How long the answer to a query may take, in microseconds.
    pub(crate) patience_us: u64,
    /// The proxies that share the limit's buckets.
    pub(crate) proxies: u64,
}

/// The terms in tests.
#[cfg(test)]
pub(super) const TERMS: Terms = Terms {
    cost: 1,
    ttl_us: 100_000,
    patience_us: 40_000,
    proxies: 1,
};

/// A portion of a bucket that is not nearly used up.
#[cfg(test)]
pub(super) fn portion(units: u64) -> super::Portion {
    let scarce = false;
    super::Portion { units, scarce }
}

impl Terms {
    /// A fraction of the lease time.
    pub(super) fn part_us(&self, of: u64) -> u64 {
        self.ttl_us / of
    }

    /// The smallest portion, in units.
    pub(super) fn least_portion(&self) -> u64 {
        self.cost.saturating_mul(LEAST_PORTION)
    }

    /// The first query, if so much is needed within a lease time: half of it, or the smallest
    /// portion.
    pub(crate) fn first_want(&self, needed: u64) -> u64 {
        needed.min(self.least_portion()).max(needed / 2)
    }

    /// The largest query, by the limiter's last answer. An old answer has no meaning: a new window may
    /// have begun, or other proxies may have used up the bucket.
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

    /// Rounds down to whole requests.
    pub(super) fn whole(&self, units: u64) -> u64 {
        units - units % self.cost.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::at;

    #[test]
    fn each_proxy_requests_at_most_a_small_share_of_what_is_left() {
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
