//! Handles the end of a check call: decides its checks, retries them, or falls back.

use protocol::{ErrorCode, compact::BatchAnswer};

use super::{
    CheckCall,
    decode::{CallError, decode},
};
use crate::{
    active_policy::PolicyState,
    host::Host,
    metrics::Event,
    outage::{CallResult, ChargeStatus},
    request::{Admission, PendingCheck},
    time::Now,
    worker::{CallAnswer, Worker},
};

impl Worker {
    /// A check call ended; `None`: it has no complete response.
    pub(crate) fn on_checks_answered(
        &mut self,
        host: &impl Host,
        now: Now,
        call: CheckCall<PendingCheck>,
        answer: Option<&dyn CallAnswer>,
    ) {
        let asked = if call.probe { 1 } else { call.checks.len() };
        let decoded = match answer {
            Some(answer) => decode(answer, asked),
            None => Err(CallError::unknown("no answer".to_owned())),
        };
        match decoded {
            Ok(answers) => {
                if call.deadline_us.is_none() {
                    self.calls.stream.callout_answered();
                }
                self.record_call(host, now, call.probe, CallResult::Answered);
                self.apply_metadata(&answers);
                if call.probe {
                    self.requests.in_flight.look_at_breaker(now, false);
                    self.renew_slots(host, now);
                    self.retry_unsent(now);
                    // The limiter answers again: the checks that waited for the probe are sent,
                    // with the debts of the outage.
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

    /// A check call failed as a whole. Checks that were certainly not charged are retried as far as the
    /// retry budget allows; the others fall back.
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

    /// The limiter has no such domain. Without loaded limits, the request is not limited. With loaded
    /// limits, the limiter has lost them, and the request falls back.
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

    /// Applies what an answer reports beside the decisions: numbers of proxies, and the revision.
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
}
