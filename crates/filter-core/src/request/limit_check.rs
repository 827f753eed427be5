//! One limit in a request: the bucket, and what was decided of it so far.

use algorithms::{Algorithm, Decision, QueueSlot};
use policy::{Limit, Match, Name, OverLimit, Resolved, Scope};

use crate::{
    active_policy::ActivePolicy,
    cache::{BucketKey, BucketStatus, Role, Table},
    lease::{LeaseQuery, Reservation},
    response::QuotaStatus,
    time::Now,
};

/// One limit's part in a request.
#[derive(Debug)]
pub(crate) struct LimitCheck {
    /// The limit's position in the policy.
    pub(crate) at: usize,
    /// How it takes part.
    pub(crate) mode: Mode,
    /// The bucket.
    pub(crate) key: BucketKey,
    /// The numbers of a bucket that is decided here; `None`: the limiter decides.
    pub(crate) local: Option<Box<Algorithm>>,
    /// What the limiter last said of the bucket.
    pub(crate) status: Option<BucketStatus>,
    /// Whether there were units that the limiter is still to be told of.
    pub(crate) has_debt: bool,
    /// Those of them that this check carries.
    pub(crate) debit: u64,
    /// What was decided here.
    pub(crate) decided: Option<Taken>,
    /// Whether units granted in advance settle it.
    pub(crate) lease: LeaseUse,
    /// What the check to come asks for later requests. Rare, and large.
    pub(crate) lease_query: Option<Box<LeaseQuery>>,
}

/// Units that were granted in advance, in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseUse {
    /// None were taken.
    No,
    /// Taken, and to be put back if the request is not admitted.
    Held(Reservation),
    /// Used: it was admitted.
    Used,
}

/// A decision made here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) decision: Decision,
    /// Its slot, if it is in a queue.
    pub(crate) slot: Option<QueueSlot>,
    /// When, in milliseconds since the epoch.
    pub(crate) at_ms: u64,
}

/// How a limit takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Over it, the request is denied.
    Enforce,
    /// Over it, the request is only reported.
    Shadow,
    /// Over it, the request goes on, marked.
    Degrade,
}

impl LimitCheck {
    /// `None` for a bucket that is not limited.
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
                (Role::Proxy, Some(Box::new(*quota.algorithm())))
            }
        };
        Some(Self {
            at: found.index,
            mode: match limit.over_limit {
                _ if !found.enforced => Mode::Shadow,
                OverLimit::Degrade => Mode::Degrade,
                OverLimit::Reject | OverLimit::Queue => Mode::Enforce,
            },
            key: table
                .key(limit.name.as_str(), found.values.iter().copied())
                .in_role(role),
            local,
            status: None,
            has_debt: false,
            debit: 0,
            decided: None,
            lease: LeaseUse::No,
            lease_query: None,
        })
    }

    /// Whether the limiter is to decide.
    pub(crate) fn is_global(&self) -> bool {
        self.local.is_none() && self.lease == LeaseUse::No
    }

    /// How the client stands with a limit that was decided here.
    pub(crate) fn quota_status(&self, limit: &Limit) -> Option<QuotaStatus> {
        let (algorithm, decision) = (self.local.as_deref()?, self.decided?.decision);
        (self.mode == Mode::Enforce && !limit.hidden)
            .then(|| quota_status(limit, algorithm, &decision))
    }

    /// How the client stood with a limit when the limiter last told.
    pub(crate) fn cached_status(&self, limit: &Limit, now: Now) -> Option<QuotaStatus> {
        let status = self.status.filter(|_| !limit.hidden)?;
        let elapsed_ms = now.mono_us.saturating_sub(status.at_us) / 1000;
        Some(QuotaStatus {
            limit: limit.name.clone(),
            quota: status.limit?,
            window_ms: status.window_ms,
            remaining: status.remaining,
            reset_after_ms: status.reset_after_ms.saturating_sub(elapsed_ms),
            cost: limit.cost,
        })
    }
}

/// How a client stands after a decision made here.
pub(crate) fn quota_status(
    limit: &Limit,
    algorithm: &Algorithm,
    decision: &Decision,
) -> QuotaStatus {
    QuotaStatus {
        limit: limit.name.clone(),
        quota: algorithm.limit(),
        window_ms: algorithm.window_ms(),
        remaining: decision.remaining,
        reset_after_ms: decision.reset_after_ms,
        cost: limit.cost,
    }
}

/// The limits that deny, gathered.
#[derive(Debug, Default)]
pub(crate) struct DenyingLimits {
    pub(crate) by: Vec<(Name, bool)>,
    /// The longest wait among them.
    wait_ms: u64,
    never: bool,
}

impl DenyingLimits {
    pub(crate) fn add(&mut self, limit: &Name, hidden: bool, wait_ms: Option<u64>) {
        self.by.push((limit.clone(), !hidden));
        match wait_ms {
            Some(ms) => self.wait_ms = self.wait_ms.max(ms),
            None => self.never = true,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by.is_empty()
    }

    pub(crate) fn retry_after_ms(&self) -> Option<u64> {
        (!self.never).then_some(self.wait_ms)
    }
}
