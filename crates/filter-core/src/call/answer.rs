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
            Ok(answers) => self.on_checks_decided(host, now, call, answers),
            Err(CallError::UnknownDomain) => {
                self.record_call(
                    host,
                    now,
                    call.probe,
                    CallResult::Answered { decides: false },
                );
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
            Err(CallError::Failed {
                why,
                charge,
                signed,
            }) => {
                self.warn_failed(now, &why);
                if signed && call.deadline_us.is_some() && self.calls.stream.is_open() {
                    self.leave_stream(now, "the limiter failed");
                }
                self.fail_check_call(host, now, call, charge, signed);
            }
        }
    }

    /// Each check of a call has an answer, or an error of its own.
    fn on_checks_decided(
        &mut self,
        host: &impl Host,
        now: Now,
        call: CheckCall<PendingCheck>,
        answers: BatchAnswer,
    ) {
        if call.deadline_us.is_none() {
            self.calls.stream.callout_answered();
        }
        // Errors of single checks say nothing about other limiters.
        let decides = answers.results.iter().any(Result::is_ok);
        let answered = CallResult::Answered { decides };
        self.record_call(host, now, call.probe, answered);
        self.apply_metadata(&answers);
        if call.probe {
            self.requests.in_flight.look_at_breaker(now, false);
            self.renew_slots(host, now);
            self.retry_unsent(now);
            // The limiter answers again: the checks that waited for the probe are sent,
            // with the debts of the outage.
            return self.requeue(host, now, call.checks);
        }
        self.calls.retry_budget.answered(now, decides);
        for (check, result) in call.checks.into_iter().zip(answers.results) {
            match result {
                Ok(answer) => self.apply_answer(host, now, call.sent, check, answer),
                Err(code) => self.check_failed(host, now, check, code),
            }
        }
    }

    /// As [`Worker::fail_check_call`], where no limiter answered that it cannot decide.
    pub(crate) fn on_check_call_failed(
        &mut self,
        host: &impl Host,
        now: Now,
        call: CheckCall<PendingCheck>,
        charge: ChargeStatus,
    ) {
        self.fail_check_call(host, now, call, charge, false);
    }

    /// A check call failed as a whole. Checks that were certainly not charged are retried as far as the
    /// retry budget allows; the others fall back. `answered`: a limiter answered with an error.
    fn fail_check_call(
        &mut self,
        host: &impl Host,
        now: Now,
        mut call: CheckCall<PendingCheck>,
        charge: ChargeStatus,
        answered: bool,
    ) {
        if charge == ChargeStatus::NotCharged {
            self.retry_call(host, now, &mut call, answered);
            if call.checks.is_empty() {
                return;
            }
        }
        let failure = self.failure(now, call.sent);
        self.record_call(host, now, call.probe, failure);
        for mut check in call.checks {
            if call.probe {
                self.decide_unsent(host, now, check);
            } else {
                // One that has lost its store says so at once, before another one can answer.
                check.attempts.others_answer = self.others_answer(now, &check.attempts)
                    || (answered && self.calls.retry_budget.is_answered_now(now));
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
        } else {
            self.undo_left(check.claims);
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
