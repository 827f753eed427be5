//! The policy in force, with what is derived from it once.

use std::cell::Cell;

use algorithms::{Algorithm, Parameters, Rate};
use filter_config::Source;
use policy::{Compiled, Entries, Limit, Name, OnFailure};
use protocol::ALL_LIMITS;

use crate::{
    cache::BucketStatus,
    call::MAX_PROXIES,
    local_bucket::{Share, precheck},
    request::Plan,
};

/// The domain's limits as far as this worker has them.
#[derive(Clone, Debug, Default)]
pub(crate) enum PolicyState {
    /// No snapshot has been loaded: the limiter decides every request.
    #[default]
    Unknown,
    /// The limiter has no such domain: there are no limits.
    NoLimits,
    /// These limits.
    Limits(std::rc::Rc<ActivePolicy>),
}

/// A compiled policy, with the number of proxies that share each limit.
#[derive(Debug)]
pub(crate) struct ActivePolicy {
    pub(crate) compiled: Compiled,
    pub(crate) plan: Plan,
    prechecks: Vec<Option<Algorithm>>,
    /// Proxies that use each limit, as limiters last reported; 0: never.
    proxies: Vec<Cell<u64>>,
    /// Proxies of the domain, for limits without a report of their own.
    all_proxies: Cell<u64>,
}

/// The values of a request, as the policy crate looks them up.
struct Values<'a>(&'a [Name], &'a [Option<&'a [u8]>]);

impl Entries for Values<'_> {
    fn get(&self, key: &str) -> Option<&[u8]> {
        let mut pairs = self.0.iter().zip(self.1);
        pairs.find(|(name, _)| name.as_str() == key)?.1.as_deref()
    }
}

impl ActivePolicy {
    pub(crate) fn new(compiled: Compiled, sources: &[(Name, Source)]) -> Self {
        let of = |limit: &Limit| precheck(limit.quota.parameters(), limit.precheck_percent?);
        Self {
            plan: Plan::new(compiled.needed_keys(), sources),
            prechecks: compiled.limits().iter().map(of).collect(),
            proxies: vec![Cell::new(0); compiled.limits().len()],
            all_proxies: Cell::new(1),
            compiled,
        }
    }

    /// Stores the number of proxies that use a limit, as a limiter reports it.
    pub(crate) fn set_proxies(&self, limit: &str, count: u64) {
        if limit == ALL_LIMITS {
            return self.all_proxies.set(count);
        }
        let at = self.compiled.position(limit);
        if let Some(slot) = at.and_then(|at| self.proxies.get(at)) {
            slot.set(count.min(MAX_PROXIES));
        }
    }

    /// Copies the numbers of proxies from the policy before this one.
    pub(crate) fn inherit_proxies(&self, before: &Self) {
        self.all_proxies.set(before.all_proxies.get());
        for (limit, count) in before.compiled.limits().iter().zip(&before.proxies) {
            self.set_proxies(limit.name.as_str(), count.get());
        }
    }

    /// The proxies that share a limit during an outage: `fleet_size`, or as reported.
    pub(crate) fn proxies(&self, at: usize) -> u64 {
        let status = self.proxies.get(at).map(Cell::get);
        let status = status.filter(|status| *status > 0);
        let limit = self.compiled.limit(at);
        let written = limit.and_then(|limit| limit.fleet_size);
        written
            .or(status)
            .unwrap_or_else(|| self.all_proxies.get())
            .max(1)
    }

    /// The bucket in front of a global limit, if it has one.
    pub(crate) fn precheck(&self, at: usize) -> Option<&Algorithm> {
        self.prechecks.get(at)?.as_ref()
    }

    /// The bucket that replaces a global one while no limiter answers.
    pub(crate) fn fallback_bucket(
        &self,
        at: usize,
        status: Option<BucketStatus>,
    ) -> FallbackBucket {
        let Some(limit) = self.compiled.limit(at) else {
            return FallbackBucket::Unlimited;
        };
        let parameters = match status {
            Some(BucketStatus { limit: None, .. }) => return FallbackBucket::Unlimited,
            Some(BucketStatus { limit: Some(0), .. }) => return FallbackBucket::Impossible,
            Some(status) => resolved(limit, status),
            None => *limit.quota.parameters(),
        };
        let share = Share {
            proxies: self.proxies(at),
            cost: limit.cost,
        };
        // If no algorithm accepts the reported numbers, the limit's own are used.
        let own = || share.of(limit.quota.parameters());
        let algorithm = share.of(&parameters).or_else(own);
        algorithm.map_or(FallbackBucket::Impossible, FallbackBucket::Bucket)
    }

    /// The strictest `on_failure` among the limits that only the limiter can read and that may
    /// match; `None` if there is none.
    pub(crate) fn opaque(&self, values: &[Option<&[u8]>]) -> Option<OnFailure> {
        if self.compiled.opaque().is_empty() {
            return None;
        }
        let values = Values(self.compiled.needed_keys(), values);
        let mut strictest = None;
        for limit in self.compiled.opaque() {
            if limit.may_match(&values) {
                let closed = limit.on_failure == Some(OnFailure::Deny);
                if closed || strictest.is_none() {
                    strictest = limit.on_failure.or(Some(OnFailure::Local));
                }
            }
        }
        strictest
    }
}

/// The numbers of a fallback bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FallbackBucket {
    /// A bucket with these numbers.
    Bucket(Algorithm),
    /// The bucket is not limited.
    Unlimited,
    /// No exact numbers exist, or the quota is 0: everything is denied.
    Impossible,
}

/// The parameters of a bucket by the limiter's report, which includes overrides. Snapshots do not.
fn resolved(limit: &Limit, status: BucketStatus) -> Parameters {
    let algorithm = limit.quota.algorithm();
    let written = *algorithm.parameters();
    match status.limit {
        Some(units) if units > 0 && status.window_ms > 0 && status.differs_from(algorithm) => {
            Parameters {
                rate: Rate {
                    units,
                    period_ms: status.window_ms,
                },
                burst: written.burst.map(|_| units),
                ..written
            }
        }
        _ => written,
    }
}
