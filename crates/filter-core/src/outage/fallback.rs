//! Decisions without the limiter, by the `on_failure` of each limit.

use std::rc::Rc;

use algorithms::{Algorithm, Decision, Slot};
use policy::{Mode, OnFailure};
use protocol::{DecidedBy, Outcome};

use super::ChargeStatus;
use crate::{
    active_policy::{ActivePolicy, FallbackBucket},
    cache::DebtSpan,
    host::Host,
    local_bucket::{LocalBucket, Start, Take},
    metrics::Event,
    request::{
        Admission, Claims, DenyingLimits, LimitCheck, LocalUnits, PendingCheck, Share, quota_status,
    },
    response::Denial,
    time::Now,
    worker::{Level, Step, Worker},
};

/// The decisions of all limits of one request.
#[derive(Debug, Default)]
struct FallbackResult {
    /// Limits with `on_failure: deny`.
    closed: DenyingLimits,
    /// Limits whose fallback bucket denies.
    exhausted: DenyingLimits,
    admission: Admission,
    claims: Claims,
}

/// One limit of a request, and the operation on its fallback bucket.
#[derive(Clone, Copy)]
struct FallbackInput<'a> {
    limit_check: &'a LimitCheck,
    take: Take,
    /// Whether other limiters answer.
    others_answer: bool,
}

/// The `Retry-After` of a limit that fails closed, in milliseconds: by then the limiter may answer.
const RETRY_CLOSED_MS: u64 = 1000;

impl Worker {
    /// Decides a request whose check was never sent.
    pub(crate) fn decide_unsent(&mut self, host: &impl Host, now: Now, mut check: PendingCheck) {
        check.attempts.others_answer = self.others_answer(now, &check.attempts);
        self.restore_settlements(&check);
        self.fall_back(host, now, check, ChargeStatus::NotCharged);
    }

    /// Decides a request that limiters refuse to read. The refusal says nothing about the limiter's
    /// health, so only the caches of this request's buckets are invalidated, to find their debts.
    pub(crate) fn decide_rejected(&mut self, host: &impl Host, now: Now, check: PendingCheck) {
        self.restore_settlements(&check);
        for LimitCheck { key, limit, .. } in &check.limit_checks {
            self.cache.invalidate(*key, limit.generation);
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
            return self.keep_unsent(check, now);
        }
        if charge == ChargeStatus::Unknown {
            self.free_unanswered(now, &check);
        }
        // Later checks must look for debts, although the breaker does not count an error of one check.
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
            return self.keep_unsent(check, now);
        }
        if let (Some(shared), ChargeStatus::NotCharged) = (self.process.shared(), charge) {
            check.restore_debts(host, now, &shared.table);
        }
        if !self.is_awaited(&check) {
            return self.undo_left(check.claims);
        }
        let Some(policy) = check.policy.clone() else {
            return self.without_policy(host, now, check);
        };
        for limit_check in check.global() {
            self.cache.queue_write(limit_check.key);
        }
        self.flush_cache(host, now);
        let Some(admission) = self.decide_by_fallback(host, now, &mut check, charge) else {
            return;
        };
        if charge == ChargeStatus::NotCharged && self.calls.retry_budget.answered_lately(now) {
            self.charge_debts_now(now, &policy, &check);
        }
        self.reporter.admitted();
        self.admit(host, now, &mut check, admission);
    }

    /// Decides all limits of a request. If one denies or cannot hold the request, refuses it and
    /// returns `None`.
    fn decide_by_fallback(
        &mut self,
        host: &impl Host,
        now: Now,
        check: &mut PendingCheck,
        charge: ChargeStatus,
    ) -> Option<Admission> {
        let mut result = FallbackResult::default();
        if check.opaque == Some(OnFailure::Deny) {
            result.closed.by.push((self.config.domain.clone(), false));
        }
        let charging = if charge == ChargeStatus::NotCharged {
            Take::ChargeAsDebt
        } else {
            Take::Charge
        };
        // Peek at all buckets before any is charged: all are charged, or none.
        for take in [Take::Peek, charging] {
            result.admission = Admission::default();
            for limit_check in check.global() {
                let input = FallbackInput {
                    limit_check,
                    take,
                    others_answer: check.attempts.others_answer,
                };
                self.decide_limit(host, now, &input, &mut result);
            }
            if let Some(denial) = result.denial() {
                check.claims.add(result.claims);
                self.deny(host, now, check, denial);
                return None;
            }
            let delay_ms = result.admission.delay_ms;
            if take == Take::Peek && delay_ms > 0 && !self.may_hold(&mut check.claims) {
                self.undo(host, now, std::mem::take(&mut check.claims));
                if let Some(stream) = check.stream {
                    self.refuse_hold(stream, check, delay_ms, Vec::new());
                }
                return None;
            }
        }
        for limit_check in check.global() {
            // No answer names the reservation, so nobody can settle it.
            if limit_check.limit.settles() {
                self.counts.unsettled(&limit_check.limit.name);
            }
        }
        self.name_shares(now, check, &mut result.claims.in_flight);
        check.claims.add(result.claims);
        Some(result.admission)
    }

    /// Charges the debts of a request at once if another limiter answers, so that other proxies see
    /// them.
    fn charge_debts_now(&mut self, now: Now, policy: &Rc<ActivePolicy>, check: &PendingCheck) {
        let mut limit_checks = self.limit_checks_of(&check.entries, policy, now);
        for limit_check in &mut limit_checks {
            limit_check.has_debt = limit_check.is_global() && limit_check.mode != Mode::Shadow;
        }
        let (policy, entries) = (Rc::clone(policy), check.entries.clone());
        self.push_background(PendingCheck::background(policy, entries, limit_checks));
    }

    /// Decides by the configuration, because no policy is loaded.
    fn without_policy(&mut self, host: &impl Host, now: Now, mut check: PendingCheck) {
        if self.config.failure_mode == OnFailure::Deny {
            let denial = Denial {
                by: vec![(self.config.domain.clone(), false)],
                source: DecidedBy::Failure,
                retry_after_ms: None,
                quota_statuses: Vec::new(),
            };
            self.undo(host, now, check.claims);
            if let Some(stream) = check.stream {
                self.refuse(stream, denial);
            }
            return;
        }
        self.counts.happened(Event::UnlimitedNoPolicy);
        if !self.outage.warned_no_policy {
            self.outage.warned_no_policy = true;
            let text = format!(
                "rate limiter: no limits of domain {} are known and no limiter answers; \
                 requests pass unlimited",
                self.config.domain
            );
            self.steps.push_back(Step::Log(Level::Warn, text));
        }
        self.admit(host, now, &mut check, Admission::default());
    }

    /// Decides one limit by its `on_failure`.
    fn decide_limit(
        &mut self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        result: &mut FallbackResult,
    ) {
        let FallbackInput {
            limit_check,
            take,
            others_answer,
        } = *input;
        let limit = &limit_check.limit;
        match limit.on_failure {
            // Shadow limits report nothing during a fallback.
            _ if limit_check.mode == Mode::Shadow => {}
            OnFailure::Allow => {
                if take != Take::Peek {
                    self.counts
                        .decided(&limit.name, Outcome::Allowed, DecidedBy::Failure);
                }
            }
            OnFailure::Deny if limit_check.mode == Mode::Enforce && !others_answer => {
                self.counts
                    .decided(&limit.name, Outcome::Denied, DecidedBy::Failure);
                result
                    .closed
                    .add(&limit.name, limit.hidden, Some(RETRY_CLOSED_MS));
            }
            OnFailure::Deny | OnFailure::Local if limit.gives_slots() => {
                self.fall_back_on_share(host, now, input, result);
            }
            OnFailure::Deny | OnFailure::Local => {
                self.fall_back_locally(host, now, input, result);
            }
        }
    }
}

impl FallbackResult {
    /// The denial, if any limit denies. An exceeded quota takes precedence over a limit that fails
    /// closed: only the quota has an exact time to retry.
    fn denial(&mut self) -> Option<Denial> {
        let (denying, source) = if !self.exhausted.is_empty() {
            (std::mem::take(&mut self.exhausted), DecidedBy::Local)
        } else if !self.closed.is_empty() {
            (std::mem::take(&mut self.closed), DecidedBy::Failure)
        } else {
            return None;
        };
        let quota_statuses = std::mem::take(&mut self.admission.quota_statuses);
        let quota_statuses = match source {
            DecidedBy::Local => quota_statuses,
            _ => Vec::new(),
        };
        Some(denying.denial(source, quota_statuses))
    }
}

// --- `on_failure: local`: a bucket of this proxy, with its share of the limit.

impl Worker {
    /// Decides one limit by its fallback bucket.
    fn fall_back_locally(
        &mut self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        result: &mut FallbackResult,
    ) {
        let limit_check = input.limit_check;
        let (limit, cost) = (&limit_check.limit, limit_check.cost);
        let decided = match limit.fallback_bucket(limit_check.status, cost, now) {
            FallbackBucket::Unlimited => return,
            FallbackBucket::Impossible => None,
            FallbackBucket::Bucket(algorithm, span) => {
                let decided = self.decide_bucket(host, now, input, &algorithm, span);
                decided.map(|(decision, slot)| {
                    // Of other buckets, the charge is a debt already.
                    if slot.is_some() && limit_check.mode == Mode::Enforce {
                        result.claims.local.push(LocalUnits {
                            key: limit_check.key,
                            generation: limit.generation,
                            algorithm: Rc::new(algorithm),
                            cost,
                            slot,
                            at_ms: now.wall_ms,
                        });
                    }
                    (algorithm, decision)
                })
            }
        };
        let fits = decided
            .as_ref()
            .is_some_and(|(_, decision)| decision.allowed);
        self.record_local(input, fits, result);
        if !fits && limit_check.mode == Mode::Enforce {
            let wait_ms = decided.as_ref().and_then(|(_, d)| d.retry_after.millis());
            result.exhausted.add(&limit.name, limit.hidden, wait_ms);
        }
        let Some((algorithm, decision)) = decided.filter(|_| limit_check.mode == Mode::Enforce)
        else {
            return;
        };
        let admission = &mut result.admission;
        admission.delay_ms = admission.delay_ms.max(decision.delay_ms);
        if !limit.hidden {
            (admission.quota_statuses).push(quota_status(limit, &algorithm, &decision, cost));
        }
    }

    /// Decides a limit on requests in flight by this proxy's share of it.
    fn fall_back_on_share(
        &mut self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        result: &mut FallbackResult,
    ) {
        let FallbackInput {
            limit_check, take, ..
        } = *input;
        let limit = &limit_check.limit;
        let quota = match limit_check.status {
            Some(status) => match status.limit {
                Some(quota) => quota,
                None => return,
            },
            None => limit.quota.algorithm().limit(),
        };
        let size = Share::size(quota, limit.proxies());
        let ttl_ms = limit.quota.parameters().rate.period_ms;
        let mut share = Share::new(limit_check.key, ttl_ms);
        let peek = take == Take::Peek;
        let taken = self
            .process
            .shared()
            .and_then(|shared| share.take(&shared.table, host, now, size, peek).ok());
        let fits = taken == Some(true);
        if fits && !peek {
            result.claims.in_flight.shares.push(share);
        }
        self.record_local(input, fits, result);
        if !fits && limit_check.mode == Mode::Enforce {
            result.exhausted.add_without_time(&limit.name, limit.hidden);
        }
    }

    /// Counts a decision of this proxy, and marks a request that is degraded.
    fn record_local(&mut self, input: &FallbackInput<'_>, fits: bool, result: &mut FallbackResult) {
        let limit = &input.limit_check.limit.name;
        let outcome = match input.limit_check.mode {
            Mode::Degrade if !fits => return result.admission.degraded.push(limit.clone()),
            Mode::Enforce if !fits => Outcome::Denied,
            _ if input.take != Take::Peek => Outcome::Allowed,
            _ => return,
        };
        self.counts.decided(limit, outcome, DecidedBy::Local);
    }

    /// Decides by the fallback bucket; `None`: contended.
    fn decide_bucket(
        &self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        algorithm: &Algorithm,
        span: DebtSpan,
    ) -> Option<(Decision, Option<Slot>)> {
        let FallbackInput {
            limit_check, take, ..
        } = *input;
        let limit = &limit_check.limit;
        let bucket = LocalBucket {
            table: &self.process.shared()?.table,
            key: limit_check.key,
            generation: limit.generation,
            algorithm,
            start: Start::Fallback {
                proxies: limit.proxies(),
                answering: self.calls.retry_budget.answered_lately(now),
                span,
            },
        };
        bucket.decide(host, now, limit_check.cost, take).ok()
    }
}
