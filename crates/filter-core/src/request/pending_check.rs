//! One request on its way through the limits that match it.

use std::rc::Rc;

use policy::{Limit, Name, OnFailure, OverLimit};
use protocol::{Debit, Free, LeaseRequest};

use crate::{
    active_policy::ActivePolicy,
    call::Load,
    request::{Extracted, HoldPermit, LimitCheck, Mode},
    worker::StreamId,
};
/// What is known of a request.
#[derive(Debug)]
pub(crate) struct PendingCheck {
    /// Who waits for the decision; nobody where all limits are only reported.
    pub(crate) stream: Option<StreamId>,
    /// How many requests it stands for: one, or none where the limiter is only asked for units
    /// and told what became of others.
    pub(crate) cost: u64,
    /// The policy it was matched against; `None`: none was known.
    pub(crate) policy: Option<Rc<ActivePolicy>>,
    /// Its entries.
    pub(crate) entries: Extracted,
    /// Its limits, in the order of the policy.
    pub(crate) limit_checks: Vec<LimitCheck>,
    /// What to do without the limiter, where a limit may match that only the limiter can read.
    pub(crate) opaque: Option<OnFailure>,
    /// What became of its calls so far.
    pub(crate) attempts: Attempts,
    /// What it needs if a queue makes it wait.
    pub(crate) hold: Hold,
    /// What it frees. It asks nothing else then.
    pub(crate) free: Option<Box<SlotRelease>>,
}

/// How often a limiter was asked for a decision, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempts {
    /// Calls that left with it.
    pub(crate) made: u8,
    /// When the first of them left, on the monotonic clock.
    pub(crate) since_us: u64,
    /// Checks in a call with it, at most: half as many each time that one was refused.
    pub(crate) batch_max: usize,
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
pub(crate) struct Hold {
    /// Where it would.
    pub(crate) permit: Option<HoldPermit>,
    /// All places are taken: it goes on at once, or not at all.
    pub(crate) barred: bool,
    /// Its entries, for the day it gives up its slot: the check takes the others along.
    pub(crate) entries: Option<Box<Extracted>>,
}

/// Slots of queues that a request gave up.
#[derive(Debug)]
pub(crate) struct SlotRelease {
    pub(crate) slots: Vec<Free>,
    /// The entries of the request, should they have to be sent again.
    pub(crate) entries: Extracted,
    /// From which moment on none of them is to come any more, in microseconds.
    pub(crate) until_us: u64,
}

impl PendingCheck {
    /// The check of a request.
    pub(crate) fn new(
        stream: StreamId,
        policy: Option<Rc<ActivePolicy>>,
        entries: Extracted,
        limit_checks: Vec<LimitCheck>,
        opaque: Option<OnFailure>,
    ) -> Self {
        Self {
            stream: Some(stream),
            cost: 1,
            policy,
            entries,
            limit_checks,
            opaque,
            attempts: Attempts::default(),
            hold: Hold::default(),
            free: None,
        }
    }

    /// A check that charges no request and that none waits for. It carries lease queries, debts or
    /// freed slots.
    pub(crate) fn background(
        policy: Rc<ActivePolicy>,
        entries: Extracted,
        limit_checks: Vec<LimitCheck>,
    ) -> Self {
        Self {
            stream: None,
            cost: 0,
            policy: Some(policy),
            entries,
            limit_checks,
            opaque: None,
            attempts: Attempts::default(),
            hold: Hold::default(),
            free: None,
        }
    }

    /// A check of the same buckets that charges nothing and that no request waits for.
    pub(crate) fn peek(&self) -> Self {
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
    pub(crate) fn load(&self) -> Load {
        Load {
            bytes: self.entries.len(),
            batch_max: self.attempts.batch_max,
        }
    }

    /// The limits that need not be checked any more.
    pub(crate) fn settled(&self) -> Vec<Name> {
        let settled = |limit_check: &&LimitCheck| {
            (self.cost == 0 && limit_check.debit == 0) || !limit_check.is_global()
        };
        self.limits_of(self.limit_checks.iter().filter(settled))
            .map(|(_, limit)| limit.name.clone())
            .collect()
    }

    /// What was admitted before without the limiter.
    pub(crate) fn debits(&self) -> Vec<Debit> {
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
    pub(crate) fn leases(&self) -> Vec<LeaseRequest> {
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
    pub(crate) fn cost_of(&self, limit: &Name) -> u64 {
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
    pub(crate) fn may_be_held(&self) -> bool {
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
    pub(crate) fn queues(&self) -> Vec<(Name, bool)> {
        let limits = self.limits_of(self.limit_checks.iter());
        limits
            .filter(|(_, limit)| limit.over_limit == OverLimit::Queue)
            .map(|(_, limit)| (limit.name.clone(), !limit.hidden))
            .collect()
    }
}
