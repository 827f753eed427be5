//! What happens while the limiter does not answer.
//!
//! The `breaker` stops calls, and each limit's `on_failure` decides. Units that are admitted
//! meanwhile are a debt, which later checks charge.

mod breaker;

use std::sync::Arc;

use filter_config::Config;
use policy::{Mode, OnFailure};
use protocol::{Debit, DecidedBy, ErrorCode, Outcome};

use crate::{
    active_policy::{ActivePolicy, FallbackBucket},
    cache::{BucketEntry, Debt, DebtSpan, Table, Update},
    host::{Host, Now, Random},
    local_bucket::{Start, Take},
    metrics::Event,
    request::{
        Admission, Attempts, Claims, DenyingLimits, LimitCheck, LocalUnits, PendingCheck,
        ShareSlot, quota_status,
    },
    response::Denial,
    worker::{Edits, Level, Step, StreamId, Worker, log_line},
};

pub(crate) use breaker::{ANSWERED_LATELY_US, Breaker, CallResult, Gate};

/// The limiter's health, as one worker sees it.
#[derive(Debug)]
pub(crate) struct Outage {
    pub(crate) breaker: Breaker,
    pub(crate) warned_no_policy: bool,
    warned_failed_us: Option<u64>,
}

impl Outage {
    pub(crate) fn new(config: &Config, random: Random) -> Self {
        let domain = config.domain.as_str();
        Self {
            breaker: Breaker::new(domain, config.limiter.timeout_ms, random),
            warned_no_policy: false,
            warned_failed_us: None,
        }
    }
}

impl Worker {
    /// Reports the outcome of a check call to the breaker and to the metrics.
    pub(crate) fn record_call(
        &mut self,
        host: &impl Host,
        now: Now,
        probe: bool,
        result: CallResult,
    ) {
        let gate = if probe { Gate::Probe } else { Gate::Closed };
        let answering = self.calls.retry_budget.answered_lately(now);
        self.outage
            .breaker
            .report(host, now, gate, result, answering);
        self.counts.happened(match result {
            CallResult::Answered { .. } => Event::CalloutAnswered,
            CallResult::Failed | CallResult::OneFailed => Event::CalloutFailed,
        });
    }

    /// What a failed call tells the breaker.
    pub(crate) fn failure(&self, now: Now, sent: Now) -> CallResult {
        let took_us = now.mono_us.saturating_sub(sent.mono_us);
        let blameless = took_us <= self.calls.patience_us() || self.calls.was_busy(took_us);
        if blameless && self.calls.retry_budget.is_answered_now(now) {
            CallResult::OneFailed
        } else {
            CallResult::Failed
        }
    }

    /// Whether other limiters answer although the calls that carried a check failed, or although the
    /// breaker is open.
    pub(crate) fn others_answer(&self, now: Now, attempts: &Attempts) -> bool {
        let answered_since = |us| self.calls.retry_budget.answered_since(us);
        (attempts.made > 0 && answered_since(attempts.since_us))
            || self.outage.breaker.others_are_answered(now)
    }

    /// Logs why a call failed, at most once in ten seconds.
    pub(crate) fn warn_failed(&mut self, now: Now, why: &str) {
        const EVERY_US: u64 = 10_000_000;
        let warned_us = self.outage.warned_failed_us;
        if warned_us.is_none_or(|at_us| now.mono_us.saturating_sub(at_us) >= EVERY_US) {
            self.outage.warned_failed_us = Some(now.mono_us);
            let text = format!(
                "rate limiter: a call of {} failed: {}",
                self.config.limiter.cluster,
                log_line(why)
            );
            self.steps.push_back(Step::Log(Level::Warn, text));
        }
    }
}

// --- Whether an undecided check may have been charged.

/// Whether an undecided check was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChargeStatus {
    /// It was not: it was never sent, or the limiter answered that it charged nothing. Units admitted
    /// now become a debt.
    NotCharged,
    /// It may have been: it was sent. It is never charged again.
    Unknown,
}

impl ChargeStatus {
    /// The charge status after an error of the limiter.
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

    /// The charge status after a response that Envoy made in place of the limiter's. Unless it
    /// contains one of these reasons, the check may have been sent.
    pub(crate) fn after_reply(body: &[u8]) -> Self {
        const NOT_SENT: [&str; 5] = [
            "no healthy upstream",
            "reset reason: remote connection failure",
            "reset reason: local connection failure",
            "reset reason: connection timeout",
            "reset reason: overflow",
        ];
        let contains = |reason: &str| {
            let mut parts = body.windows(reason.len());
            parts.any(|part| part == reason.as_bytes())
        };
        if NOT_SENT.into_iter().any(contains) {
            Self::NotCharged
        } else {
            Self::Unknown
        }
    }
}

// --- Moves debts from the shared table into the checks that follow an outage.

impl PendingCheck {
    /// Moves the debts of the check's buckets into the check, which charges them once. If calls were
    /// `failing` recently, another worker may have added debts since this worker last read the table.
    pub(crate) fn take_debts(&mut self, host: &impl Host, now: Now, table: &Table, failing: bool) {
        // A background check charges only the debts that it was made for.
        let failing = failing && self.cost > 0;
        let owing =
            |limit_check: &LimitCheck| (limit_check.has_debt || failing) && limit_check.is_global();
        self.change_debts(host, now, table, owing, |debt, limit_check, span| {
            let (units, serial) = (debt.units(span, now.mono_us), debt.serial(span));
            limit_check.debit = (units > 0).then_some(Debit { units, serial });
            *debt = Debt::default();
        });
    }

    /// Puts the debts back: the check was not charged.
    pub(crate) fn restore_debts(&mut self, host: &impl Host, now: Now, table: &Table) {
        let carrying = |limit_check: &LimitCheck| limit_check.debit.is_some();
        self.change_debts(host, now, table, carrying, |debt, limit_check, span| {
            if let Some(Debit { units, serial }) = limit_check.debit {
                debt.add(units, span.labelled(serial), now.mono_us);
            }
        });
        for limit_check in &mut self.limit_checks {
            limit_check.debit = None;
        }
    }

    fn change_debts(
        &mut self,
        host: &impl Host,
        now: Now,
        table: &Table,
        concerns: impl Fn(&LimitCheck) -> bool,
        mut change: impl FnMut(&mut Debt, &mut LimitCheck, DebtSpan),
    ) {
        for limit_check in self
            .limit_checks
            .iter_mut()
            .filter(|limit_check| concerns(limit_check))
        {
            let span = DebtSpan::from_algorithm(&limit_check.limit.quota, now);
            let bucket = limit_check.bucket;
            let changed = table.update::<BucketEntry, _>(host, bucket, now, |found| {
                let before = found.entry.debt;
                change(&mut found.entry.debt, limit_check, span);
                Update::new(found.entry.debt != before, ())
            });
            if changed.is_err() {
                // Contended: the next check of the bucket takes the debt if it is still there.
                limit_check.debit = None;
            }
        }
    }
}

// --- Decisions without the limiter, by the `on_failure` of each limit.

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
        for limit_check in &check.limit_checks {
            self.cache.invalidate(limit_check.bucket);
        }
        self.apply_fallback(host, now, check, ChargeStatus::NotCharged);
    }

    /// Decides a request that got no answer, or an error. If it was charged, no answer names its
    /// reservation, so nobody can settle that.
    pub(crate) fn fall_back_unanswered(
        &mut self,
        host: &impl Host,
        now: Now,
        check: PendingCheck,
        charge: ChargeStatus,
    ) {
        // Not the checks that settle costs and free slots: they reserve nothing.
        if charge == ChargeStatus::Unknown && check.stream.is_some() {
            for limit_check in check.global().filter(|of| of.limit.settles()) {
                self.counts.unsettled(&limit_check.limit.name);
            }
        }
        self.fall_back(host, now, check, charge);
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
        if charge == ChargeStatus::NotCharged {
            check.restore_debts(host, now, &self.process.table);
        }
        if !self.is_awaited(&check) {
            return self.undo_left(check.claims);
        }
        let Some(policy) = check.policy.clone() else {
            return self.without_policy(host, now, check);
        };
        for limit_check in check.global() {
            self.cache.queue_write(limit_check.bucket.key);
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
                self.refuse_hold(host, now, check, delay_ms);
                return None;
            }
        }
        self.name_shares(now, check, &mut result.claims.in_flight);
        check.claims.add(result.claims);
        Some(result.admission)
    }

    /// Charges the debts of a request at once if another limiter answers, so that other proxies see
    /// them.
    fn charge_debts_now(&mut self, now: Now, policy: &Arc<ActivePolicy>, check: &PendingCheck) {
        let mut limit_checks = self.limit_checks_of(&check.entries, policy, now);
        for limit_check in &mut limit_checks {
            limit_check.has_debt = limit_check.is_global() && limit_check.mode != Mode::Shadow;
        }
        let (policy, entries) = (Arc::clone(policy), check.entries.clone());
        self.push_background(PendingCheck::background(policy, entries, limit_checks));
    }

    /// The denial of every request, if `failure_mode` is `deny`.
    fn denial_of_failure_mode(&self) -> Option<Denial> {
        (self.config.failure_mode == OnFailure::Deny).then(|| Denial {
            by: vec![(self.config.domain.clone(), false)],
            deny_status: None,
            source: DecidedBy::Failure,
            retry_after_ms: None,
            quota_statuses: Vec::new(),
        })
    }

    /// Decides a request by `failure_mode` alone, for a host that lost the worker which had it.
    pub fn decide_by_failure_mode(&mut self, stream: StreamId) {
        match self.denial_of_failure_mode() {
            Some(denial) => self.refuse(stream, denial),
            None => self.pass(stream, Edits::default(), Vec::new()),
        }
    }

    /// Decides by the configuration, because no policy is loaded.
    fn without_policy(&mut self, host: &impl Host, now: Now, mut check: PendingCheck) {
        if let Some(denial) = self.denial_of_failure_mode() {
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
                let start = Start::Fallback {
                    proxies: limit.proxies(),
                    answering: self.calls.retry_budget.answered_lately(now),
                    span,
                };
                let bucket = self.local_bucket(limit_check, &algorithm, start);
                // Contended: it does not fit.
                let decided = bucket.decide(host, now, cost, input.take).ok();
                decided.map(|(decision, slot)| {
                    // Of other buckets, the charge is a debt already.
                    if slot.is_some() && limit_check.mode == Mode::Enforce {
                        let units = LocalUnits::new(limit_check, Arc::new(algorithm), slot, now);
                        result.claims.local.push(units);
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
            result.exhausted.answer_with(limit.deny_status);
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
            // What an adaptive limit starts with.
            None => limit.quota.parameters().rate.units,
        };
        let size = ShareSlot::size(quota, limit.proxies());
        let ttl_ms = limit.quota.parameters().rate.period_ms;
        let mut share = ShareSlot::new(limit_check.bucket.key, ttl_ms);
        let peek = take == Take::Peek;
        let fits = share.take(&self.process.table, host, now, size, peek) == Ok(true);
        if fits && !peek {
            result.claims.in_flight.shares.push(share);
        }
        self.record_local(input, fits, result);
        if !fits && limit_check.mode == Mode::Enforce {
            result.exhausted.add_without_time(&limit.name, limit.hidden);
            result.exhausted.answer_with(limit.deny_status);
        }
    }

    /// Counts a decision of this proxy, and marks a request that is degraded.
    fn record_local(&mut self, input: &FallbackInput<'_>, fits: bool, result: &mut FallbackResult) {
        let limit = &input.limit_check.limit.name;
        let outcome = match input.limit_check.mode {
            Mode::Enforce if !fits => Outcome::Denied,
            _ if input.take == Take::Peek => return,
            Mode::Degrade if !fits => {
                result.admission.degraded.push(limit.clone());
                Outcome::Degraded
            }
            _ => Outcome::Allowed,
        };
        self.counts.decided(limit, outcome, DecidedBy::Local);
    }
}
