//! A check: the limits that apply to a request, their decisions so far, and what a limiter is to decide.

use std::sync::Arc;

use algorithms::{Algorithm, Decision, SlotId, SlotOp};
use policy::{Limit, Match, Mode, Name, OnFailure, OverLimit, Scope};
use protocol::{Answer, Debit, DecidedBy, LeaseRequest, LimitCost, LimitRequest};

#[cfg(test)]
use filter_config::Source;
#[cfg(test)]
use policy::Compiled;

#[cfg(test)]
use super::Bare;
use super::{Claims, Extracted, Measured, RequestDescriptor};
use crate::{
    active_policy::{ActiveLimit, ActivePolicy},
    cache::{BucketAt, BucketStatus, Role, Table},
    call::Load,
    host::Now,
    lease::LeaseQuery,
    response::{Denial, QuotaStatus},
    worker::StreamId,
};

/// One limit that applies to a request.
#[derive(Debug)]
pub(crate) struct LimitCheck {
    pub(crate) limit: Arc<ActiveLimit>,
    /// What happens over the limit.
    pub(crate) mode: Mode,
    /// Units that the request costs.
    pub(crate) cost: u64,
    /// Units that a limiter is asked for: of a reserve more, since an override may let the bucket hold more.
    pub(crate) asked: u64,
    /// The bucket in the shared table.
    pub(crate) bucket: BucketAt,
    /// The parameters of a bucket of this proxy; `None`: the bucket is in the store.
    pub(crate) local: Option<Arc<Algorithm>>,
    /// The bucket's state in the limiter's last answer.
    pub(crate) status: Option<BucketStatus>,
    /// Whether the shared table has a debt of the bucket.
    pub(crate) has_debt: bool,
    /// The units of debt that this check charges.
    pub(crate) debit: Option<Debit>,
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
                let quota = policy
                    .compiled
                    .quota_for(found.index, &found.values, now.wall_ms)?;
                (Role::Proxy, Some(Arc::new(quota)))
            }
        };
        Some(Self {
            limit: Arc::clone(policy.limit(found.index)?),
            mode: found.mode(),
            cost: limit.cost,
            asked: limit.cost,
            bucket: table
                .key(
                    (limit.name.as_str(), limit.generation),
                    found.values.iter().copied(),
                )
                .in_role(role)
                .at(limit.generation_of(&found.values)),
            local,
            status: None,
            has_debt: false,
            debit: None,
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

    /// How long a queue of this proxy delays the request, in milliseconds.
    pub(crate) fn delay_ms(&self) -> u64 {
        let queue = self.local.is_some() && self.mode == Mode::Enforce;
        let decided = self.decided.filter(|_| queue);
        decided.map_or(0, |decision| decision.delay_ms)
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
        status.quota_status(now, &self.limit.name, self.cost, 0)
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
    /// The status of the first of them that has its own.
    deny_status: Option<u16>,
}

impl DenyingLimits {
    /// The first of the limits that has a `deny_status` decides that of the reply.
    pub(crate) fn answer_with(&mut self, deny_status: Option<u16>) {
        self.deny_status = self.deny_status.or(deny_status);
    }

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
            deny_status: self.deny_status,
            quota_statuses,
        }
    }
}

// --- A check that waits for the limiter, or for a decision without it.

/// A check, and the decisions about its request so far.
#[derive(Debug)]
pub(crate) struct PendingCheck {
    /// The request that waits for the answer; `None` if none does.
    pub(crate) stream: Option<StreamId>,
    /// How many requests it charges: one, or none for a check that only carries lease queries,
    /// debts or freed slots.
    pub(crate) cost: u64,
    /// The policy that was matched; `None`: none was loaded.
    pub(crate) policy: Option<Arc<ActivePolicy>>,
    /// The request's descriptor.
    pub(crate) entries: Extracted,
    /// The limits that apply, in the order of the policy.
    pub(crate) limit_checks: Vec<LimitCheck>,
    /// The fallback if a limit may match that only the limiter can evaluate.
    pub(crate) opaque: Option<OnFailure>,
    /// Whether the request is a HEAD, so that its response has no body.
    pub(crate) head: bool,
    /// What the request says to adaptive limits when it ends.
    pub(crate) measured: Measured,
    /// When the queues of this proxy gave it slots, on the monotonic clock.
    pub(crate) queued_us: u64,
    /// The calls that carried it so far.
    pub(crate) attempts: Attempts,
    pub(crate) claims: Claims,
    pub(crate) hold: Hold,
    /// The request's id, if a limit may give it a slot.
    pub(crate) slot: Option<SlotId>,
    /// The slots that it frees, renews or enters, and what it settles. Such a check does nothing else.
    pub(crate) free: Option<Box<SlotRelease>>,
}

/// What a limit that the limiter need not check adds to a call, in bytes.
const BYTES_A_LIMIT: usize = 3;

/// The calls that carried a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempts {
    /// How many there were.
    pub(crate) made: u8,
    /// When the first of them was sent, on the monotonic clock.
    pub(crate) since_us: u64,
    /// Checks in a call with this one, at most: half as many after each call that was refused.
    pub(crate) batch_max: usize,
    /// Whether other limiters answer, so that `on_failure: deny` denies nothing: set when the check is
    /// left undecided.
    pub(crate) others_answer: bool,
}

impl Default for Attempts {
    fn default() -> Self {
        Self {
            made: 0,
            since_us: 0,
            batch_max: Load::ANY,
            others_answer: false,
        }
    }
}

/// Whether a queue may delay the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Hold {
    /// None may.
    #[default]
    Never,
    /// It has a permit.
    Permitted,
    /// No permit was left: the request continues at once or is refused.
    Barred,
}

/// What a check does about slots and reserved units of one request, or of several in the same buckets. It charges
/// nothing.
#[derive(Debug)]
pub(crate) struct SlotRelease {
    pub(crate) request: Arc<RequestDescriptor>,
    /// What it does, by limit.
    pub(crate) limits: Vec<LimitRequest>,
    /// The requests that hold the slots, in their order, if they still run.
    pub(crate) streams: Vec<StreamId>,
    /// When the slots have passed, on the monotonic clock.
    pub(crate) until_us: u64,
}

impl SlotRelease {
    /// Whether all it does to slots is to free them.
    pub(crate) fn frees(&self) -> bool {
        let mut slots = self.limits.iter().flat_map(|of| &of.slots);
        slots.all(|op| op.act.frees())
    }

    /// The slots of queues in an answer; `None`: there are none.
    pub(crate) fn from_answer(
        check: &PendingCheck,
        answer: &Answer,
        now: Now,
        request: Option<&Arc<RequestDescriptor>>,
    ) -> Option<Box<Self>> {
        if check.policy.is_none() || check.hold == Hold::Never {
            return None;
        }
        let given = answer.limits.iter().filter(|of| of.verdict.charged > 0);
        let limits = given.clone().filter_map(|limit| {
            let slot = limit.verdict.slot.filter(|slot| slot.ttl_ms().is_none())?;
            Some(LimitRequest {
                slots: vec![SlotOp::free(slot, limit.verdict.charged)],
                ..LimitRequest::new(limit.name.clone())
            })
        });
        let limits: Vec<_> = limits.collect();
        let resets_ms = given.map(|limit| limit.verdict.decision.reset_after_ms);
        let until_us = now.after_ms(resets_ms.max()?);
        let request = request.filter(|_| !limits.is_empty())?;
        Some(Box::new(Self {
            request: Arc::clone(request),
            limits,
            streams: Vec::new(),
            until_us,
        }))
    }

    /// What the check says about limits: it skips those that apply to the request.
    fn limit_requests(&self) -> Vec<LimitRequest> {
        let skip = &self.request.skip;
        let others = { skip.iter() }.filter(|name| self.limits.iter().all(|of| of.limit != **name));
        let others = others.map(|name| LimitRequest::new(name.clone()));
        let mut requests: Vec<_> = others.chain(self.limits.iter().cloned()).collect();
        for request in &mut requests {
            request.skip = skip.contains(&request.limit);
        }
        requests
    }
}

impl PendingCheck {
    /// A check with nothing but these. Once, because it is large.
    #[inline(never)]
    fn of(
        policy: Option<Arc<ActivePolicy>>,
        entries: Extracted,
        limit_checks: Vec<LimitCheck>,
    ) -> Self {
        Self {
            stream: None,
            cost: 0,
            policy,
            entries,
            limit_checks,
            opaque: None,
            head: false,
            measured: Measured::default(),
            queued_us: 0,
            attempts: Attempts::default(),
            claims: Claims::default(),
            hold: Hold::default(),
            slot: None,
            free: None,
        }
    }

    /// The check of a request.
    pub(crate) fn new(
        stream: StreamId,
        policy: Option<Arc<ActivePolicy>>,
        entries: Extracted,
        limit_checks: Vec<LimitCheck>,
        opaque: Option<OnFailure>,
    ) -> Self {
        Self {
            stream: Some(stream),
            cost: 1,
            opaque,
            ..Self::of(policy, entries, limit_checks)
        }
    }

    /// The check of a request that has only what the configuration supplies, with all limits of a file that match.
    #[cfg(test)]
    pub(crate) fn of_limits(text: &str, sources: &[(Name, Source)], now: Now) -> Self {
        let compiled = Compiled::new(limits_file::read("limits.yaml", text.as_bytes()).unwrap());
        let policy = Arc::new(ActivePolicy::new(compiled, sources, None));
        let entries = policy.plan.extract(&Bare);
        let table = Table::new("shop", 16, [7; 16]);
        let matches =
            { policy.compiled.matching_values(&|key| entries.at(key), 0) }.unwrap_or_default();
        let limit_checks = { matches.iter() }
            .map(|found| LimitCheck::new(found, &policy, &table, now).unwrap())
            .collect();
        Self::new(
            StreamId(0),
            Some(policy),
            entries.clone(),
            limit_checks,
            None,
        )
    }

    /// A check that charges no request and that no request waits for. It carries lease queries, debts or
    /// denials.
    pub(crate) fn background(
        policy: Arc<ActivePolicy>,
        entries: Extracted,
        limit_checks: Vec<LimitCheck>,
    ) -> Self {
        Self::of(Some(policy), entries, limit_checks)
    }

    /// A check of the same buckets that charges nothing and that no request waits for.
    pub(crate) fn peek(&self) -> Self {
        Self::of(self.policy.clone(), self.entries.clone(), Vec::new())
    }

    /// A check about slots.
    pub(crate) fn of_slots(release: SlotRelease) -> Self {
        let entries = release.request.entries.clone();
        Self {
            free: Some(Box::new(release)),
            ..Self::of(None, entries, Vec::new())
        }
    }

    /// Whether a limit that is known here gives slots to requests in flight.
    pub(crate) fn gives_slots(&self, limit: &Name) -> bool {
        self.find(limit)
            .is_some_and(|limit_check| limit_check.limit.gives_slots())
    }

    /// The limits that the limiter decides.
    pub(crate) fn global(&self) -> impl Iterator<Item = &LimitCheck> {
        self.limit_checks.iter().filter(|limit| limit.is_global())
    }

    /// What the check adds to a call.
    pub(crate) fn load(&self) -> Load {
        Load {
            bytes: self.entries.len() + BYTES_A_LIMIT * self.limit_checks.len(),
            batch_max: self.attempts.batch_max,
        }
    }

    /// What the check says about single limits.
    pub(crate) fn limit_requests(&self) -> Vec<LimitRequest> {
        if let Some(release) = &self.free {
            return release.limit_requests();
        }
        let mut requests = Vec::new();
        for of in &self.limit_checks {
            let nothing = self.cost == 0 && of.debit.is_none() && of.denied == 0;
            let priced = self.cost > 0 && of.is_global() && of.limit.pricing.is_some();
            let lease = of.lease_query.as_deref().map(|query| LeaseRequest {
                want: query.want,
                settle: query.settle.by_epoch(),
            });
            // Decided here already, or nothing to decide.
            let skip = nothing || !of.is_global();
            if !(skip || priced || of.debit.is_some() || of.denied > 0 || lease.is_some()) {
                continue;
            }
            requests.push(LimitRequest {
                skip,
                // The others cost a fixed number.
                cost: priced.then(|| LimitCost {
                    units: of.asked,
                    reserve: of.limit.settles(),
                }),
                debit: of.debit,
                lease,
                denied: of.denied,
                ..LimitRequest::new(of.limit.name.clone())
            });
        }
        requests
    }

    /// Whether the request reserves units until its response ends.
    pub(crate) fn reserves(&self) -> bool {
        self.global().any(|of| of.limit.settles())
    }

    /// The limit of that name, if it is known here.
    pub(crate) fn find(&self, limit: &Name) -> Option<&LimitCheck> {
        self.limit_checks.iter().find(|of| of.limit.name == *limit)
    }

    /// How long the queues of this proxy still delay the request, in milliseconds.
    pub(crate) fn delay_ms(&self, now: Now) -> u64 {
        let delays = self.limit_checks.iter().map(LimitCheck::delay_ms);
        let waited_ms = now.mono_us.saturating_sub(self.queued_us) / 1000;
        delays.max().unwrap_or(0).saturating_sub(waited_ms)
    }

    /// Whether a queue may delay the request.
    pub(crate) fn may_be_held(&self) -> bool {
        let holds = |of: &LimitCheck| {
            let queue = of.limit.over_limit == OverLimit::Queue && of.mode == Mode::Enforce;
            queue && of.is_global() || of.delay_ms() > 0
        };
        self.policy.is_none() || self.opaque.is_some() || self.limit_checks.iter().any(holds)
    }

    /// The limits that can delay the request.
    pub(crate) fn queues(&self) -> impl Iterator<Item = &ActiveLimit> {
        let enforced = self.limit_checks.iter();
        let limits = enforced.filter(|of| of.mode == Mode::Enforce);
        let limits = limits.map(|of| &*of.limit);
        limits.filter(|limit| limit.over_limit == OverLimit::Queue)
    }
}
