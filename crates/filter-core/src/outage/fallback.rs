//! Decisions without the limiter: each limit says itself what happens then.

use std::rc::Rc;

use algorithms::{Algorithm, Decision as LocalDecision, QueueSlot};
use policy::{Limit, OnFailure};
use protocol::{DecidedBy, ErrorCode, Outcome};

use crate::{
    active_policy::{ActivePolicy, FallbackBucket},
    host::Host,
    local_bucket::{LocalBucket, Start, Take},
    metrics::Event,
    request::{Admission, DenyingLimits, LimitCheck, LocalSlot, Mode, PendingCheck, quota_status},
    response::Denial,
    time::Now,
    worker::{Level, Step, Worker},
};
/// Whether a check may have been charged by the limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeStatus {
    /// It never left, or the limiter said that it charged nothing: what is admitted now will be
    /// owed.
    NotCharged,
    /// It left. What is admitted now may be charged there already, and is never charged twice.
    Unknown,
}

impl ChargeStatus {
    /// What the limiter's own error tells.
    pub(crate) fn after(code: ErrorCode) -> Self {
        match code {
            ErrorCode::Stale
            | ErrorCode::PolicyUnavailable
            | ErrorCode::StoreUntouched
            | ErrorCode::Overloaded
            | ErrorCode::Unauthorized
            | ErrorCode::InvalidRequest
            | ErrorCode::TooLarge => Self::NotCharged,
            _ => Self::Unknown,
        }
    }

    /// What Envoy tells in the place of a limiter that it could not reach. What it does not tell
    /// in these words is taken for a check that left.
    pub(crate) fn after_reply(body: &[u8]) -> Self {
        const NEVER_LEFT: [&str; 5] = [
            "no healthy upstream",
            "reset reason: remote connection failure",
            "reset reason: local connection failure",
            "reset reason: connection timeout",
            "reset reason: overflow",
        ];
        let says = |reason: &str| {
            let mut parts = body.windows(reason.len());
            parts.any(|part| part == reason.as_bytes())
        };
        if NEVER_LEFT.into_iter().any(says) {
            Self::NotCharged
        } else {
            Self::Unknown
        }
    }
}

/// What the limits of a request say together.
#[derive(Debug, Default)]
struct FallbackResult {
    /// Limits that fail closed.
    closed: DenyingLimits,
    /// Stand-ins that have nothing left.
    exhausted: DenyingLimits,
    admission: Admission,
}

/// What is asked about one limit.
#[derive(Clone, Copy)]
struct FallbackInput<'a> {
    policy: &'a ActivePolicy,
    limit_check: &'a LimitCheck,
    limit: &'a Limit,
    take: Take,
}

/// When to try a limit that fails closed again: the limiter may be back then.
const RETRY_CLOSED_MS: u64 = 1000;

impl Worker {
    /// Decides a request that the limiter was never asked about.
    pub(crate) fn decide_unsent(&mut self, host: &impl Host, now: Now, check: PendingCheck) {
        self.unreported(&check);
        self.fall_back(host, now, check, ChargeStatus::NotCharged);
    }

    /// Decides a request that no limiter reads. It is its own fault: others rely on what they
    /// know as before, and only of its own buckets is looked up what is owed.
    pub(crate) fn decide_rejected(&mut self, host: &impl Host, now: Now, check: PendingCheck) {
        self.unreported(&check);
        if let Some(policy) = &check.policy {
            for limit_check in &check.limit_checks {
                if let Some(limit) = policy.compiled.limit(limit_check.at) {
                    self.cache.invalidate(limit_check.key, limit.generation);
                }
            }
        }
        self.apply_fallback(host, now, check, ChargeStatus::NotCharged);
    }

    /// Decides a request that the limiter did not decide.
    pub(crate) fn fall_back(
        &mut self,
        host: &impl Host,
        now: Now,
        check: PendingCheck,
        charge: ChargeStatus,
    ) {
        if check.free.is_some() {
            return self.requests.holds.keep_unsent(check, now);
        }
        // What is owed from now on is looked up: an error about one check is none of the breaker's.
        self.outage.breaker.record(false, now);
        self.apply_fallback(host, now, check, charge);
    }

    fn apply_fallback(
        &mut self,
        host: &impl Host,
        now: Now,
        mut check: PendingCheck,
        charge: ChargeStatus,
    ) {
        if check.free.is_some() {
            return self.requests.holds.keep_unsent(check, now);
        }
        if let (Some(shared), ChargeStatus::NotCharged) = (self.process.shared(), charge) {
            check.restore_debts(host, now, &shared.table);
        }
        if !self.is_awaited(&check) {
            return;
        }
        let Some(policy) = check.policy.clone() else {
            return self.without_policy(host, now, check);
        };
        for limit_check in check
            .limit_checks
            .iter()
            .filter(|limit_check| limit_check.is_global())
        {
            self.cache.queue_write(limit_check.key);
        }
        self.flush_cache(host, now);
        let mut result = FallbackResult::default();
        if check.opaque == Some(OnFailure::Deny) {
            result.closed.by.push((self.config.domain.clone(), false));
        }
        let charging = if charge == ChargeStatus::NotCharged {
            Take::Owe
        } else {
            Take::Charge
        };
        // Ask all of them before anything is taken: all are charged, or none.
        for take in [Take::Peek, charging] {
            result.admission = Admission::default();
            for limit_check in check
                .limit_checks
                .iter()
                .filter(|limit_check| limit_check.is_global())
            {
                if let Some(limit) = policy.compiled.limit(limit_check.at) {
                    let input = FallbackInput {
                        policy: &policy,
                        limit_check,
                        limit,
                        take,
                    };
                    self.fallback_bucket(host, now, &input, &mut result);
                }
            }
            if let Some(denial) = result.denial() {
                self.put_back(host, now, &policy, &check.limit_checks);
                if let Some(stream) = check.stream {
                    self.record_denial(now, &policy, &check.limit_checks, &check.entries, &denial);
                    self.refuse(stream, denial);
                }
                return;
            }
            let delay_ms = result.admission.delay_ms;
            if take == Take::Peek && delay_ms > 0 && !self.may_hold(&mut check) {
                self.put_back(host, now, &policy, &check.limit_checks);
                if let Some(stream) = check.stream {
                    self.refuse_hold(stream, &check, delay_ms, Vec::new());
                }
                return;
            }
        }
        if charge == ChargeStatus::NotCharged && self.calls.retry_budget.answered_lately(now) {
            self.charge_debts_now(now, &policy, &check);
        }
        self.admit(host, now, &mut check, result.admission);
    }

    /// What was admitted here is charged at once, where another limiter answers: proxies that know
    /// as little as this one then learn of it.
    fn charge_debts_now(&mut self, now: Now, policy: &Rc<ActivePolicy>, check: &PendingCheck) {
        let values = check.entries.values();
        let matches = policy.compiled.matching_values(&values, now.wall_ms);
        let mut limit_checks = self.limit_checks(&matches, policy, now);
        for limit_check in &mut limit_checks {
            limit_check.has_debt = limit_check.is_global() && limit_check.mode != Mode::Shadow;
        }
        let (policy, entries) = (Rc::clone(policy), check.entries.clone());
        self.push_background(PendingCheck::background(policy, entries, limit_checks));
    }

    /// Nothing is known of the limits: the configuration decides.
    fn without_policy(&mut self, host: &impl Host, now: Now, mut check: PendingCheck) {
        if self.config.failure_mode == OnFailure::Deny {
            let denial = Denial {
                by: vec![(self.config.domain.clone(), false)],
                source: DecidedBy::Failure,
                retry_after_ms: None,
                quota_statuses: Vec::new(),
            };
            if let Some(stream) = check.stream {
                self.refuse(stream, denial);
            }
            return;
        }
        self.counts.happened(Event::Unguarded);
        if !self.outage.warned_unguarded {
            self.outage.warned_unguarded = true;
            let text = format!(
                "rate limiter: no limits of domain {} are known and no limiter answers; \
                 requests pass unlimited",
                self.config.domain
            );
            self.steps.push_back(Step::Log(Level::Warn, text));
        }
        self.admit(host, now, &mut check, Admission::default());
    }

    /// What one limit says without the limiter.
    fn fallback_bucket(
        &mut self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        result: &mut FallbackResult,
    ) {
        let FallbackInput {
            limit_check,
            limit,
            take,
            ..
        } = *input;
        match limit.on_failure {
            // What only reports, reports nothing now.
            _ if limit_check.mode == Mode::Shadow => {}
            OnFailure::Allow => {
                if take != Take::Peek {
                    self.counts
                        .decided(&limit.name, Outcome::Allowed, DecidedBy::Failure);
                }
            }
            OnFailure::Deny if limit_check.mode == Mode::Enforce => {
                self.counts
                    .decided(&limit.name, Outcome::Denied, DecidedBy::Failure);
                result
                    .closed
                    .add(&limit.name, limit.hidden, Some(RETRY_CLOSED_MS));
            }
            OnFailure::Deny | OnFailure::Local => {
                self.fall_back_locally(host, now, input, result);
            }
        }
    }

    fn fall_back_locally(
        &mut self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        result: &mut FallbackResult,
    ) {
        let FallbackInput {
            limit_check,
            limit,
            take,
            ..
        } = *input;
        let decided = match input
            .policy
            .fallback_bucket(limit_check.at, limit_check.status)
        {
            FallbackBucket::Unlimited => return,
            FallbackBucket::Impossible => None,
            FallbackBucket::Bucket(algorithm) => {
                let decided = self.decide_fallback(host, now, input, &algorithm);
                decided.map(|(decision, slot)| {
                    let slots = &mut result.admission.slots.local;
                    slots.extend(
                        slot.filter(|_| limit_check.mode == Mode::Enforce)
                            .map(|slot| LocalSlot {
                                key: limit_check.key,
                                generation: limit.generation,
                                algorithm,
                                cost: limit.cost,
                                slot,
                                at_ms: now.wall_ms,
                            }),
                    );
                    (algorithm, decision)
                })
            }
        };
        let fits = decided
            .as_ref()
            .is_some_and(|(_, decision)| decision.allowed);
        match limit_check.mode {
            Mode::Degrade if !fits => result.admission.degraded.push(limit.name.clone()),
            Mode::Enforce if !fits => {
                let wait_ms = decided.as_ref().and_then(|(_, d)| d.retry_after.millis());
                result.exhausted.add(&limit.name, limit.hidden, wait_ms);
                self.counts
                    .decided(&limit.name, Outcome::Denied, DecidedBy::Local);
            }
            _ if take != Take::Peek => {
                self.counts
                    .decided(&limit.name, Outcome::Allowed, DecidedBy::Local);
            }
            _ => {}
        }
        let Some((algorithm, decision)) = decided.filter(|_| limit_check.mode == Mode::Enforce)
        else {
            return;
        };
        let admission = &mut result.admission;
        admission.delay_ms = admission.delay_ms.max(decision.delay_ms);
        if !limit.hidden {
            admission
                .quota_statuses
                .push(quota_status(limit, &algorithm, &decision));
        }
    }

    /// `None`: other workers were always faster.
    fn decide_fallback(
        &self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        algorithm: &Algorithm,
    ) -> Option<(LocalDecision, Option<QueueSlot>)> {
        let FallbackInput {
            policy,
            limit_check,
            limit,
            take,
        } = *input;
        let bucket = LocalBucket {
            table: &self.process.shared()?.table,
            key: limit_check.key,
            generation: limit.generation,
            algorithm,
            start: Start::Share {
                proxies: policy.proxies(limit_check.at),
                answering: self.calls.retry_budget.answered_lately(now),
            },
        };
        bucket.decide(host, now, limit.cost, take).ok()
    }
}

impl FallbackResult {
    /// The reason to refuse, if there is one. A limit that fails closed is not a quota exceeded,
    /// so where both are, the quota is told: it says when to come back.
    fn denial(&mut self) -> Option<Denial> {
        let (denying, source) = if !self.exhausted.is_empty() {
            (std::mem::take(&mut self.exhausted), DecidedBy::Local)
        } else if !self.closed.is_empty() {
            (std::mem::take(&mut self.closed), DecidedBy::Failure)
        } else {
            return None;
        };
        let quota_statuses = std::mem::take(&mut self.admission.quota_statuses);
        Some(Denial {
            retry_after_ms: denying.retry_after_ms(),
            by: denying.by,
            source,
            quota_statuses: if source == DecidedBy::Local {
                quota_statuses
            } else {
                Vec::new()
            },
        })
    }
}
