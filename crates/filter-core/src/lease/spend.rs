//! Settles or releases the leased units of requests.

use std::rc::Rc;

use policy::{Limit, Mode};

use crate::{
    active_policy::ActivePolicy,
    lease::Terms,
    request::{Extracted, LeaseUse, LimitCheck},
    response::QuotaStatus,
    time::Now,
    worker::Worker,
};

/// A descriptor of the bucket, for lease queries that are sent without a request.
#[derive(Debug)]
pub(crate) struct LeaseDescriptor {
    pub(super) policy: Rc<ActivePolicy>,
    /// The limit's index in the policy.
    pub(super) at: usize,
    pub(super) entries: Extracted,
}

impl Worker {
    /// Settles the units of an admitted request as spent.
    pub(crate) fn spend(&mut self, policy: &ActivePolicy, limit_checks: &mut [LimitCheck]) {
        for limit_check in limit_checks {
            if let (LeaseUse::Reserved(reservation), Some(limit)) =
                (limit_check.lease, policy.compiled.limit(limit_check.at))
            {
                limit_check.lease = LeaseUse::Spent;
                if let Some(worker_lease) = self.leases.find(limit_check.key, limit.generation) {
                    worker_lease.spend(reservation, limit.cost);
                }
            }
        }
    }

    /// Releases the units of a request that is not admitted.
    pub(crate) fn cancel_units(&mut self, policy: &ActivePolicy, limit_checks: &[LimitCheck]) {
        for limit_check in limit_checks {
            if let (LeaseUse::Reserved(reservation), Some(limit)) =
                (limit_check.lease, policy.compiled.limit(limit_check.at))
                && let Some(worker_lease) = self.leases.find(limit_check.key, limit.generation)
            {
                worker_lease.release(reservation, limit.cost);
            }
        }
    }

    /// The client's quota at a leased limit: the units that the limiter reported as left, plus the
    /// leased units that this worker has or last saw.
    pub(crate) fn leased_status(
        &mut self,
        limit_check: &LimitCheck,
        limit: &Limit,
        now: Now,
    ) -> Option<QuotaStatus> {
        let worker_lease = self.leases.find(limit_check.key, limit.generation)?;
        let status = worker_lease.status.filter(|_| !limit.hidden)?;
        let known = status.remaining.saturating_add(worker_lease.shared);
        let quota = status.limit?;
        let elapsed_ms = now.mono_us.saturating_sub(status.at_us) / 1000;
        Some(QuotaStatus {
            limit: limit.name.clone(),
            quota,
            window_ms: status.window_ms,
            remaining: known.saturating_add(worker_lease.grant.units).min(quota),
            reset_after_ms: Some(status.reset_after_ms.saturating_sub(elapsed_ms)),
            cost: limit.cost,
            denies: false,
        })
    }

    /// The lease terms of a limit; `None`: it has none.
    pub(super) fn terms(&self, policy: &ActivePolicy, at: usize) -> Option<Terms> {
        let limit = policy.compiled.limit(at)?;
        let ttl_ms = limit.lease_ttl_ms?;
        Some(Terms {
            cost: limit.cost.max(1),
            ttl_us: ttl_ms.saturating_mul(1000),
            patience_us: self.config.limiter.timeout_ms.saturating_mul(2000),
            proxies: policy.proxies(at),
        })
    }
}

/// The limit, if leased units may settle it and have not yet.
pub(super) fn leased<'p>(policy: &'p ActivePolicy, limit_check: &LimitCheck) -> Option<&'p Limit> {
    let limit = policy.compiled.limit(limit_check.at)?;
    (limit.lease_ttl_ms.is_some() && limit_check.is_global() && limit_check.mode == Mode::Enforce)
        .then_some(limit)
}
