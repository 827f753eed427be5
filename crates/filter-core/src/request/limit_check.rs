//! One limit that applies to a request: its bucket, and its decision so far.

use std::rc::Rc;

use algorithms::{Algorithm, Decision};
use policy::{Limit, Match, Mode, Name, Resolved, Scope};
use protocol::DecidedBy;

use crate::{
    active_policy::{ActiveLimit, ActivePolicy},
    cache::{BucketKey, BucketStatus, Role, Table},
    lease::LeaseQuery,
    response::{Denial, QuotaStatus},
    time::Now,
};

/// One limit that applies to a request.
#[derive(Debug)]
pub(crate) struct LimitCheck {
    pub(crate) limit: Rc<ActiveLimit>,
    /// What happens over the limit.
    pub(crate) mode: Mode,
    /// Units that the request costs.
    pub(crate) cost: u64,
    /// The bucket's key in the shared table.
    pub(crate) key: BucketKey,
    /// The parameters of a bucket of this proxy; `None`: the bucket is in the store.
    pub(crate) local: Option<Rc<Algorithm>>,
    /// The bucket's state in the limiter's last answer.
    pub(crate) status: Option<BucketStatus>,
    /// Whether the shared table has a debt of the bucket.
    pub(crate) has_debt: bool,
    /// The units of debt that this check charges.
    pub(crate) debit: u64,
    /// The label of the calendar window in which the debt was admitted.
    pub(crate) debit_serial: Option<u64>,
    /// How many denials by this worker's caches the check reports. Of a request that the caches deny: 1
    /// if a penalty counts the denial.
    pub(crate) denied: u64,
    /// The decision of a local bucket.
    pub(crate) decided: Option<Decision>,
    /// Whether leased units decide the limit.
    pub(crate) leased: bool,
    /// The lease query that the check carries. Boxed: rare and large.
    pub(crate) lease_query: Option<Box<LeaseQuery>>,
}

impl LimitCheck {
    /// A limit that matches; `None`: an override makes the bucket unlimited.
    pub(crate) fn new(
        found: &Match<'_, '_>,
        policy: &ActivePolicy,
        table: &Table,
        now: Now,
    ) -> Option<Self> {
        let limit = found.limit;
        let (role, local) = match limit.scope {
            Scope::Global => (Role::Global, None),
            Scope::Proxy => {
                let resolved = policy
                    .compiled
                    .quota_for(found.index, &found.values, now.wall_ms);
                let Resolved::Quota(quota) = resolved? else {
                    return None;
                };
                (Role::Proxy, Some(Rc::new(*quota.algorithm())))
            }
        };
        Some(Self {
            limit: Rc::clone(policy.limit(found.index)?),
            mode: found.mode(),
            cost: limit.cost,
            key: table
                .key(limit.name.as_str(), found.values.iter().copied())
                .in_role(role),
            local,
            status: None,
            has_debt: false,
            debit: 0,
            debit_serial: None,
            denied: 0,
            decided: None,
            leased: false,
            lease_query: None,
        })
    }

    /// Whether the limiter decides.
    pub(crate) fn is_global(&self) -> bool {
        self.local.is_none() && !self.leased
    }

    /// Whether the unused bucket would allow the request, by the limiter's last answer.
    pub(crate) fn fits_when_unused(&self) -> bool {
        let limit = self.status.and_then(|status| status.limit);
        limit.is_some_and(|limit| self.cost <= limit)
    }

    /// The client's quota at a limit that was decided here.
    pub(crate) fn quota_status(&self) -> Option<QuotaStatus> {
        let (algorithm, decision) = (self.local.as_deref()?, self.decided?);
        (self.mode == Mode::Enforce && !self.limit.hidden)
            .then(|| quota_status(&self.limit, algorithm, &decision, self.cost))
    }

    /// The client's quota by the limiter's last answer.
    pub(crate) fn cached_status(&self, now: Now) -> Option<QuotaStatus> {
        let status = self.status.filter(|_| !self.limit.hidden)?;
        let elapsed_ms = now.mono_us.saturating_sub(status.at_us) / 1000;
        Some(QuotaStatus {
            limit: self.limit.name.clone(),
            quota: status.limit?,
            window_ms: status.window_ms,
            remaining: status.remaining,
            reset_after_ms: Some(status.reset_after_ms.saturating_sub(elapsed_ms)),
            cost: self.cost,
            denies: false,
        })
    }
}

/// The client's quota after a decision of a local bucket.
pub(crate) fn quota_status(
    limit: &Limit,
    algorithm: &Algorithm,
    decision: &Decision,
    cost: u64,
) -> QuotaStatus {
    QuotaStatus {
        limit: limit.name.clone(),
        quota: algorithm.limit(),
        window_ms: algorithm.window_ms(),
        remaining: decision.remaining,
        reset_after_ms: Some(decision.reset_after_ms),
        cost,
        denies: false,
    }
}

/// The limits that deny a request.
#[derive(Debug, Default)]
pub(crate) struct DenyingLimits {
    pub(crate) by: Vec<(Name, bool)>,
    /// The longest wait among them, in milliseconds.
    wait_ms: u64,
    /// Those at which waiting does not help.
    never: Vec<Name>,
    /// Whether the wait is known.
    timed: bool,
}

impl DenyingLimits {
    pub(crate) fn add(&mut self, limit: &Name, hidden: bool, wait_ms: Option<u64>) {
        self.by.push((limit.clone(), !hidden));
        match wait_ms {
            Some(ms) => (self.wait_ms, self.timed) = (self.wait_ms.max(ms), true),
            None => self.never.push(limit.clone()),
        }
    }

    /// A limit on requests in flight has no known wait: a slot may be freed at any moment.
    pub(crate) fn add_without_time(&mut self, limit: &Name, hidden: bool) {
        self.by.push((limit.clone(), !hidden));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by.is_empty()
    }

    /// The denial of the request. `quota_statuses` may be of other limits, too.
    pub(crate) fn denial(self, source: DecidedBy, mut quota_statuses: Vec<QuotaStatus>) -> Denial {
        for status in &mut quota_statuses {
            status.denies = self.by.iter().any(|(name, _)| *name == status.limit);
            status.reset_after_ms =
                (status.reset_after_ms).filter(|_| !self.never.contains(&status.limit));
        }
        Denial {
            retry_after_ms: (self.never.is_empty() && self.timed).then_some(self.wait_ms),
            by: self.by,
            source,
            quota_statuses,
        }
    }
}
