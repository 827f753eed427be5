//! One request on its way through the limits that match it.

use std::rc::Rc;

use algorithms::{Algorithm, Decision, QueueSlot};
use policy::{Limit, Match, Name, OnFailure, OverLimit, Resolved, Scope};
use protocol::{Debit, Free, LeaseRequest};

use super::{ActivePolicy, StreamId, hold::HoldPermit};
use crate::{
    batcher::Load,
    descriptor::Extracted,
    lease::{LeaseQuery, Reservation},
    response::QuotaStatus,
    shared_table::{BucketKey, BucketStatus, Role, Table},
    time::Now,
};

/// What is known of a request.
#[derive(Debug)]
pub(super) struct PendingCheck {
    /// Who waits for the decision; nobody where all limits are only reported.
    pub(super) stream: Option<StreamId>,
    /// How many requests it stands for: one, or none where the limiter is only asked for units
    /// and told what became of others.
    pub(super) cost: u64,
    /// The policy it was matched against; `None`: none was known.
    pub(super) policy: Option<Rc<ActivePolicy>>,
    /// Its entries.
    pub(super) entries: Extracted,
    /// Its limits, in the order of the policy.
    pub(super) limit_checks: Vec<LimitCheck>,
    /// What to do without the limiter, where a limit may match that only the limiter can read.
    pub(super) opaque: Option<OnFailure>,
    /// What became of its calls so far.
    pub(super) attempts: Attempts,
    /// What it needs if a queue makes it wait.
    pub(super) hold: Hold,
    /// What it frees. It asks nothing else then.
    pub(super) free: Option<Box<SlotRelease>>,
}

/// How often a limiter was asked for a decision, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempts {
    /// Calls that left with it.
    pub(super) made: u8,
    /// When the first of them left, on the monotonic clock.
    pub(super) since_us: u64,
    /// Checks in a call with it, at most: half as many each time that one was refused.
    pub(super) batch_max: usize,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            made: 0,
            since_us: 0,
            batch_max: Load::ANY,
        }
    }
}

/// What a request needs that a queue may make wait.
#[derive(Debug, Default)]
pub(super) struct Hold {
    /// Where it would.
    pub(super) permit: Option<HoldPermit>,
    /// All places are taken: it goes on at once, or not at all.
    pub(super) barred: bool,
    /// Its entries, for the day it gives up its slot: the check takes the others along.
    pub(super) entries: Option<Box<Extracted>>,
}

/// Slots of queues that a request gave up.
#[derive(Debug)]
pub(super) struct SlotRelease {
    pub(super) slots: Vec<Free>,
    /// The entries of the request, should they have to be sent again.
    pub(super) entries: Extracted,
    /// From which moment on none of them is to come any more, in microseconds.
    pub(super) until_us: u64,
}

/// One limit's part in a request.
#[derive(Debug)]
pub(super) struct LimitCheck {
    /// The limit's position in the policy.
    pub(super) at: usize,
    /// How it takes part.
    pub(super) mode: Mode,
    /// The bucket.
    pub(super) key: BucketKey,
    /// The numbers of a bucket that is decided here; `None`: the limiter decides.
    pub(super) local: Option<Box<Algorithm>>,
    /// What the limiter last said of the bucket.
    pub(super) status: Option<BucketStatus>,
    /// Whether there were units that the limiter is still to be told of.
    pub(super) has_debt: bool,
    /// Those of them that this check carries.
    pub(super) debit: u64,
    /// What was decided here.
    pub(super) decided: Option<Taken>,
    /// Whether units granted in advance settle it.
    pub(super) lease: LeaseUse,
    /// What the check to come asks for later requests. Rare, and large.
    pub(super) lease_query: Option<Box<LeaseQuery>>,
}

/// Units that were granted in advance, in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseUse {
    /// None were taken.
    No,
    /// Taken, and to be put back if the request is not admitted.
    Held(Reservation),
    /// Used: it was admitted.
    Used,
}

/// A decision made here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) decision: Decision,
    /// Its slot, if it is in a queue.
    pub(super) slot: Option<QueueSlot>,
    /// When, in milliseconds since the epoch.
    pub(super) at_ms: u64,
}

/// How a limit takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Over it, the request is denied.
    Enforce,
    /// Over it, the request is only reported.
    Shadow,
    /// Over it, the request goes on, marked.
    Degrade,
}

impl PendingCheck {
    /// A check of the same buckets that charges nothing and that nobody waits for.
    pub(super) fn peek(&self) -> Self {
        Self {
            stream: None,
            cost: 0,
            policy: self.policy.clone(),
            entries: self.entries.clone(),
            limit_checks: Vec::new(),
            opaque: None,
            attempts: Attempts::default(),
            hold: Hold::default(),
            free: None,
        }
    }

    /// What it adds to a call.
    pub(super) fn load(&self) -> Load {
        Load {
            bytes: self.entries.len(),
            batch_max: self.attempts.batch_max,
        }
    }

    /// The limits that need not be checked any more.
    pub(super) fn settled(&self) -> Vec<Name> {
        let settled = |limit_check: &&LimitCheck| {
            (self.cost == 0 && limit_check.debit == 0) || !limit_check.is_global()
        };
        self.limits_of(self.limit_checks.iter().filter(settled))
            .map(|(_, limit)| limit.name.clone())
            .collect()
    }

    /// What was admitted before without the limiter.
    pub(super) fn debits(&self) -> Vec<Debit> {
        let owing = self
            .limit_checks
            .iter()
            .filter(|limit_check| limit_check.debit > 0);
        let debits = self.limits_of(owing).map(|(limit_check, limit)| Debit {
            limit: limit.name.clone(),
            units: limit_check.debit,
        });
        debits.collect()
    }

    /// What is asked for later requests, and told of earlier ones.
    pub(super) fn leases(&self) -> Vec<LeaseRequest> {
        let queries =
            self.limits_of(self.limit_checks.iter())
                .filter_map(|(limit_check, limit)| {
                    let lease_query = limit_check.lease_query.as_deref()?;
                    Some(LeaseRequest {
                        limit: limit.name.clone(),
                        want: lease_query.want,
                        settle: lease_query.settle.to_vec(),
                    })
                });
        queries.collect()
    }

    /// Units that a request takes from a limit.
    pub(super) fn cost_of(&self, limit: &Name) -> u64 {
        let mut limits = self.limits_of(self.limit_checks.iter());
        let found = limits.find(|(_, found)| found.name == *limit);
        found.map_or(1, |(_, limit)| limit.cost)
    }

    fn limits_of<'c>(
        &'c self,
        limit_checks: impl Iterator<Item = &'c LimitCheck>,
    ) -> impl Iterator<Item = (&'c LimitCheck, &'c Limit)> {
        let policy = self.policy.as_ref();
        limit_checks.filter_map(move |limit_check| {
            Some((limit_check, policy?.compiled.limit(limit_check.at)?))
        })
    }

    /// Whether a queue may make it wait.
    pub(super) fn may_be_held(&self) -> bool {
        let mut limits = self.limits_of(self.limit_checks.iter());
        let holds = |(limit_check, limit): (&LimitCheck, &Limit)| {
            let delay_ms = limit_check
                .decided
                .map_or(0, |taken| taken.decision.delay_ms);
            let queue = limit.over_limit == OverLimit::Queue && limit_check.mode == Mode::Enforce;
            queue && (limit_check.is_global() || delay_ms > 0)
        };
        self.policy.is_none() || self.opaque.is_some() || limits.any(holds)
    }

    /// The limits that can hold a request; `true` for those that clients may know of.
    pub(super) fn queues(&self) -> Vec<(Name, bool)> {
        let limits = self.limits_of(self.limit_checks.iter());
        limits
            .filter(|(_, limit)| limit.over_limit == OverLimit::Queue)
            .map(|(_, limit)| (limit.name.clone(), !limit.hidden))
            .collect()
    }
}

impl LimitCheck {
    /// `None` for a bucket that is not limited.
    pub(super) fn new(
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
    pub(super) fn is_global(&self) -> bool {
        self.local.is_none() && self.lease == LeaseUse::No
    }

    /// How the client stands with a limit that was decided here.
    pub(super) fn quota_status(&self, limit: &Limit) -> Option<QuotaStatus> {
        let (algorithm, decision) = (self.local.as_deref()?, self.decided?.decision);
        (self.mode == Mode::Enforce && !limit.hidden)
            .then(|| quota_status(limit, algorithm, &decision))
    }

    /// How the client stood with a limit when the limiter last told.
    pub(super) fn cached_status(&self, limit: &Limit, now: Now) -> Option<QuotaStatus> {
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
pub(super) fn quota_status(
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
pub(super) struct DenyingLimits {
    pub(super) by: Vec<(Name, bool)>,
    /// The longest wait among them.
    wait_ms: u64,
    never: bool,
}

impl DenyingLimits {
    pub(super) fn add(&mut self, limit: &Name, hidden: bool, wait_ms: Option<u64>) {
        self.by.push((limit.clone(), !hidden));
        match wait_ms {
            Some(ms) => self.wait_ms = self.wait_ms.max(ms),
            None => self.never = true,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by.is_empty()
    }

    pub(super) fn retry_after_ms(&self) -> Option<u64> {
        (!self.never).then_some(self.wait_ms)
    }
}
