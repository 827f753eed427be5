//! Requests that are admitted by units granted in advance.
//!
//! `draw` takes them, first from what this worker has at hand and then from what all of them share;
//! `granted` takes in what the limiter grants, `tend` looks after what is left over.

use std::rc::Rc;

use policy::Limit;

use crate::{
    active_policy::ActivePolicy,
    lease::Terms,
    request::{Extracted, LeaseUse, LimitCheck, Mode},
    response::QuotaStatus,
    time::Now,
    worker::Worker,
};
/// A request by which the limiter can be told of a bucket after it has gone.
#[derive(Debug)]
pub(crate) struct LeaseDescriptor {
    pub(super) policy: Rc<ActivePolicy>,
    /// The limit's position.
    pub(super) at: usize,
    pub(super) entries: Extracted,
}

impl Worker {
    /// What was taken for a request that is admitted was used.
    pub(crate) fn spend(&mut self, policy: &ActivePolicy, limit_checks: &mut [LimitCheck]) {
        for limit_check in limit_checks {
            if let (LeaseUse::Held(reservation), Some(limit)) =
                (limit_check.lease, policy.compiled.limit(limit_check.at))
            {
                limit_check.lease = LeaseUse::Used;
                if let Some(worker_lease) = self.leases.find(limit_check.key, limit.generation) {
                    worker_lease.spend(reservation, limit.cost);
                }
            }
        }
    }

    /// What was taken for a request that is not admitted was not used.
    pub(crate) fn cancel_units(&mut self, policy: &ActivePolicy, limit_checks: &[LimitCheck]) {
        for limit_check in limit_checks {
            if let (LeaseUse::Held(reservation), Some(limit)) =
                (limit_check.lease, policy.compiled.limit(limit_check.at))
                && let Some(worker_lease) = self.leases.find(limit_check.key, limit.generation)
            {
                worker_lease.put_back(reservation, limit.cost);
            }
        }
    }

    /// How a client stands with a limit whose units were granted in advance: what the limiter said
    /// was left, and what of the grants this worker knows of.
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
            reset_after_ms: status.reset_after_ms.saturating_sub(elapsed_ms),
            cost: limit.cost,
        })
    }

    /// The numbers that the leases of the limit at a position follow; `None`: it has none.
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

/// The limit of a part that may be settled by units granted in advance, and is not yet.
pub(super) fn leased<'p>(policy: &'p ActivePolicy, limit_check: &LimitCheck) -> Option<&'p Limit> {
    let limit = policy.compiled.limit(limit_check.at)?;
    (limit.lease_ttl_ms.is_some() && limit_check.is_global() && limit_check.mode == Mode::Enforce)
        .then_some(limit)
}
