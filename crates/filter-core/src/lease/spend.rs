//! Leased limits: the terms of their leases, and what their clients see.

use std::rc::Rc;

use policy::Mode;

use crate::{
    active_policy::{ActiveLimit, ActivePolicy},
    lease::Terms,
    request::{Extracted, LimitCheck},
    response::QuotaStatus,
    time::Now,
    worker::Worker,
};

/// A descriptor of the bucket, for lease queries that are sent without a request.
#[derive(Debug)]
pub(crate) struct LeaseDescriptor {
    pub(super) policy: Rc<ActivePolicy>,
    pub(super) limit: Rc<ActiveLimit>,
    pub(super) entries: Extracted,
}

impl Worker {
    /// The client's quota at a leased limit: the units that the limiter reported as left, plus the
    /// leased units that this worker has or last saw.
    pub(crate) fn leased_status(
        &mut self,
        limit_check: &LimitCheck,
        now: Now,
    ) -> Option<QuotaStatus> {
        let limit = &limit_check.limit;
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
    pub(super) fn terms(&self, limit: &ActiveLimit) -> Option<Terms> {
        let ttl_ms = limit.lease_ttl_ms?;
        Some(Terms {
            cost: limit.cost.max(1),
            ttl_us: ttl_ms.saturating_mul(1000),
            patience_us: self.config.limiter.timeout_ms.saturating_mul(2000),
            proxies: limit.proxies(),
        })
    }
}

/// Whether leased units may settle a limit, and have not yet.
pub(super) fn is_leasable(of: &LimitCheck) -> bool {
    of.limit.lease_ttl_ms.is_some() && of.is_global() && of.mode == Mode::Enforce
}
