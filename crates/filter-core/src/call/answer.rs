//! Answers on their way back: what was decided, and what is remembered of it.

use policy::{Name, OverLimit};
use protocol::{Answer, DecidedBy, ErrorCode, LimitAnswer, Mode, Outcome, compact::BatchAnswer};

use crate::{
    active_policy::PolicyState,
    cache::{BucketEntry, BucketStatus, CachedDenial, Update, worker_cache},
    call::clamp::clamp,
    call::decode::read,
    call::{CheckCall, decode::CallError},
    host::Host,
    metrics::Event,
    outage::{CallResult, ChargeStatus},
    request::{Admission, DenyingLimits, LimiterSlots, PendingCheck, Slots, Stream},
    response::{Denial, QuotaStatus},
    time::Now,
    worker::{CallAnswer, Worker},
};
impl Worker {
    /// The answers to a batch of checks.
    pub(crate) fn on_checks_answered(
        &mut self,
        host: &impl Host,
        now: Now,
        call: CheckCall<PendingCheck>,
        answer: Option<&impl CallAnswer>,
    ) {
        let asked = if call.probe { 1 } else { call.checks.len() };
        let read = match answer {
            Some(answer) => read(answer, asked),
            None => Err(CallError::unknown("no answer".to_owned())),
        };
        match read {
            Ok(answers) => {
                self.record_call(host, now, call.probe, CallResult::Answered);
                self.apply_metadata(&answers);
                if call.probe {
                    self.retry_unsent(now);
                    // Now the checks that waited for it are asked for, and with them goes what was
                    // admitted meanwhile.
                    return self.requeue(host, now, call.checks);
                }
                self.calls.retry_budget.answered(now);
                for (check, result) in call.checks.into_iter().zip(answers.results) {
                    match result {
                        Ok(answer) => self.apply_answer(host, now, call.sent, check, answer),
                        Err(code) => self.check_failed(host, now, check, code),
                    }
                }
            }
            Err(CallError::UnknownDomain) => {
                self.record_call(host, now, call.probe, CallResult::Answered);
                self.policy.poller.poll_soon();
                for check in call.checks {
                    self.unlimited(host, now, check);
                }
            }
            Err(CallError::Refused {
                why,
                too_large,
                signed,
            }) if self.may_be_request_fault(too_large) => {
                self.warn_failed(now, &why);
                self.on_batch_rejected(host, now, call, too_large, signed);
            }
            Err(CallError::Refused { why, .. }) => {
                self.warn_failed(now, &why);
                self.on_check_call_failed(host, now, call, ChargeStatus::NotCharged);
            }
            Err(CallError::Failed { why, charge }) => {
                self.warn_failed(now, &why);
                self.on_check_call_failed(host, now, call, charge);
            }
        }
    }

    /// A batch that came to nothing.
    pub(crate) fn on_check_call_failed(
        &mut self,
        host: &impl Host,
        now: Now,
        mut call: CheckCall<PendingCheck>,
        charge: ChargeStatus,
    ) {
        if charge == ChargeStatus::NotCharged {
            self.retry_call(host, now, &mut call);
            if call.checks.is_empty() {
                return;
            }
        }
        self.record_call(host, now, call.probe, CallResult::Failed);
        for check in call.checks {
            if call.probe {
                self.decide_unsent(host, now, check);
            } else {
                self.fall_back(host, now, check, charge);
            }
        }
    }

    /// The limiter has no such domain: nothing limits a request, unless there are limits here. Then
    /// it is the limiter that lost them.
    fn unlimited(&mut self, host: &impl Host, now: Now, mut check: PendingCheck) {
        if check.policy.is_some() {
            self.decide_unsent(host, now, check);
        } else if self.is_awaited(&check) {
            self.admit(host, now, &mut check, Admission::default());
        }
    }

    fn check_failed(&mut self, host: &impl Host, now: Now, check: PendingCheck, code: ErrorCode) {
        if code == ErrorCode::UnknownDomain {
            return self.unlimited(host, now, check);
        }
        self.counts.happened(Event::CheckFailed);
        self.fall_back(host, now, check, ChargeStatus::after(code));
    }

    /// What an answer tells beside the decisions.
    fn apply_metadata(&mut self, answers: &BatchAnswer) {
        if let PolicyState::Limits(policy) = &self.policy.state {
            for (limit, proxies) in &answers.proxies {
                policy.set_proxies(limit.as_str(), *proxies);
            }
            if *policy.compiled.revision() == answers.revision {
                return;
            }
        }
        self.policy.poller.poll_soon();
    }

    /// The decision on one check.
    fn apply_answer(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        mut check: PendingCheck,
        mut answer: Answer,
    ) {
        if check.free.is_some() {
            return;
        }
        clamp(&check, &mut answer);
        self.apply_grants(host, now, sent, &mut check, &mut answer);
        let mut slots = Slots {
            global: LimiterSlots::of(&check, &answer, now),
            ..Slots::default()
        };
        for limit in &answer.limits {
            if check.cost > 0 {
                self.count_answer(limit);
            }
            self.cache_answer(host, now, sent, &check, limit);
        }
        if !self.is_awaited(&check) {
            // Its client has left. What it was charged stays charged, but for its slots.
            self.requests.holds.release_slots(slots);
            if let Some(policy) = &check.policy {
                self.cancel_units(policy, &check.limit_checks);
            }
            return;
        }
        if answer.allowed {
            let admission = Admission {
                quota_statuses: quota_statuses(&check, &answer),
                degraded: degraded(&answer),
                delay_ms: longest_delay(&answer),
                slots: std::mem::take(&mut slots),
            };
            return self.admit(host, now, &mut check, admission);
        }
        self.requests.holds.release_slots(slots);
        if let Some(policy) = check.policy.clone() {
            self.put_back(host, now, &policy, &check.limit_checks);
        }
        if check.hold.barred {
            self.counts.happened(Event::HoldFull);
        }
        let mut denying = DenyingLimits::default();
        let enforcing = answer
            .limits
            .iter()
            .filter(|limit| limit.mode == Mode::Enforce);
        for limit in enforcing.filter(|limit| !limit.allowed) {
            denying.add(&limit.name, limit.hidden, limit.retry_after_ms);
        }
        let denial = Denial {
            retry_after_ms: denying.retry_after_ms(),
            by: denying.by,
            source: DecidedBy::Limiter,
            quota_statuses: quota_statuses(&check, &answer),
        };
        if let Some(stream) = check.stream {
            self.refuse(stream, denial);
        }
    }

    /// Whether somebody still waits for the decision on a check.
    pub(crate) fn is_awaited(&self, check: &PendingCheck) -> bool {
        let stream = check
            .stream
            .and_then(|stream| self.requests.streams.get(stream));
        matches!(stream, Some(Stream::Waiting))
    }

    fn count_answer(&mut self, limit: &LimitAnswer) {
        let decision = match (limit.allowed, limit.mode) {
            (true, _) => Outcome::Allowed,
            (false, Mode::Enforce) => Outcome::Denied,
            (false, Mode::Shadow) => Outcome::WouldDeny,
            (false, Mode::Degrade) => Outcome::Degraded,
        };
        self.counts
            .decided(&limit.name, decision, DecidedBy::Limiter);
    }

    /// Remembers what the limiter said of one bucket: denials at once, for the next request; what
    /// is left by and by, for the day it cannot be asked.
    fn cache_answer(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        check: &PendingCheck,
        answer: &LimitAnswer,
    ) {
        let (Some(shared), Some(policy)) = (self.process.shared(), &check.policy) else {
            return;
        };
        let named = |at: usize| {
            policy
                .compiled
                .limit(at)
                .filter(|limit| limit.name == answer.name)
        };
        let found = check
            .limit_checks
            .iter()
            .find_map(|limit_check| Some((limit_check, named(limit_check.at)?)));
        let Some((limit_check, limit)) = found.filter(|(limit_check, _)| limit_check.is_global())
        else {
            return;
        };
        // No place to wait in is the request's own trouble, not the bucket's.
        let barred = check.hold.barred && limit.over_limit == OverLimit::Queue;
        if answer.mode == Mode::Shadow || barred {
            return;
        }
        let status = BucketStatus::new(now, answer);
        let (key, generation) = (limit_check.key, answer.generation);
        if answer.allowed || answer.mode != Mode::Enforce {
            let failing = self.outage.breaker.failed_lately(now);
            if self.cache.store_status(key, generation, status, failing) {
                worker_cache::write_status(host, now, &shared.table, key, generation, status);
            }
            return;
        }
        // Units of a leased limit come back when others return them.
        let most_ms = match (limit.lease_ttl_ms, limit.over_limit) {
            (Some(ttl_ms), _) => (ttl_ms / 4).min(CachedDenial::MAX_MS),
            // Slots of a queue when their requests leave.
            (None, OverLimit::Queue) => CachedDenial::QUEUE_MS,
            _ => CachedDenial::MAX_MS,
        };
        let denial = CachedDenial::new(sent, answer.retry_after_ms, most_ms, limit.cost);
        self.cache.store_denial(key, generation, status, denial);
        // Contended: other workers are told the same.
        let _ = shared
            .table
            .update::<BucketEntry, _>(host, key, generation, now, |found| {
                found.entry.update_status(status);
                found.entry.denial = Some(denial);
                Update::Write(())
            });
    }
}

/// How the client stands with every limit that it may know of.
fn quota_statuses(check: &PendingCheck, answer: &Answer) -> Vec<QuotaStatus> {
    let quotas = answer.limits.iter();
    let quotas = quotas.filter(|limit| limit.mode == Mode::Enforce && !limit.hidden);
    let quota_statuses = quotas.filter_map(|limit| {
        Some(QuotaStatus {
            limit: limit.name.clone(),
            quota: limit.limit?,
            window_ms: limit.window_ms,
            remaining: limit.remaining,
            reset_after_ms: limit.reset_after_ms,
            cost: check.cost_of(&limit.name),
        })
    });
    quota_statuses.collect()
}

fn degraded(answer: &Answer) -> Vec<Name> {
    let over = answer
        .limits
        .iter()
        .filter(|limit| !limit.allowed && limit.mode == Mode::Degrade);
    over.map(|limit| limit.name.clone()).collect()
}

fn longest_delay(answer: &Answer) -> u64 {
    let enforcing = answer
        .limits
        .iter()
        .filter(|limit| limit.mode == Mode::Enforce);
    enforcing.map(|limit| limit.delay_ms).max().unwrap_or(0)
}
