//! Checks that come back undecided, and what may be asked once more.
//!
//! A call of which it is certain that nothing was charged is made again, to another limiter by
//! chance: where connections are refused, and where a limiter says that it charged nothing. What
//! was sent and not answered never is: it may have been charged.
//!
//! Calls that are made again must not drown limiters that are in trouble all together, so each is
//! paid for by one that was answered.

use crate::{
    call::CheckCall,
    host::Host,
    metrics::Event,
    outage::CallResult,
    request::{Attempts, PendingCheck},
    time::Now,
    worker::Worker,
};
/// Calls that carry one check, at most, unless it shares them with a check that is refused.
const ATTEMPTS_MAX: u8 = 4;
/// Calls that may be made again before another was answered.
const SAVED_MAX: u8 = 8;
/// For how long an answer tells that limiters answer, in microseconds.
const ANSWERING_US: u64 = 1_000_000;

/// What answers have earned.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    tokens: u8,
    answered_us: Option<u64>,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            tokens: SAVED_MAX,
            answered_us: None,
        }
    }
}

impl RetryBudget {
    /// A limiter decided something.
    pub(crate) fn answered(&mut self, now: Now) {
        self.tokens = self.tokens.saturating_add(1).min(SAVED_MAX);
        self.answered_us = Some(now.mono_us);
    }

    /// Whether a limiter decided something lately, so that one which does not is not all there is.
    pub(crate) fn answered_lately(&self, now: Now) -> bool {
        let ago_us = self.answered_us.map(|at| now.mono_us.saturating_sub(at));
        ago_us.is_some_and(|ago_us| ago_us <= ANSWERING_US)
    }

    fn take(&mut self) -> bool {
        let left = self.tokens.checked_sub(1);
        self.tokens = left.unwrap_or(0);
        left.is_some()
    }
}

impl Attempts {
    /// A call leaves.
    pub(crate) fn count(&mut self, now: Now) {
        if self.made == 0 {
            self.since_us = now.mono_us;
        }
        self.made = self.made.saturating_add(1);
    }

    /// Whether another call may carry it.
    fn may_follow(&self, now: Now, patience_us: u64) -> bool {
        let since_us = now.mono_us.saturating_sub(self.since_us);
        self.made < ATTEMPTS_MAX && since_us <= patience_us
    }
}

impl Worker {
    /// A call came to nothing and charged nothing: makes it again, as far as that may be. What may
    /// not is left in it. The breaker counts last attempts only.
    pub(crate) fn retry_call(
        &mut self,
        host: &impl Host,
        now: Now,
        call: &mut CheckCall<PendingCheck>,
    ) {
        // So that a request never waits for more than one timeout and a half.
        let patience_us = self.config.limiter.timeout_ms.saturating_mul(1000) / 2;
        let may = |check: &mut PendingCheck| check.attempts.may_follow(now, patience_us);
        if call.probe || !self.calls.retry_budget.take() {
            return;
        }
        self.counts.happened(Event::CalloutRetried);
        // Other workers may have admitted something by themselves meanwhile.
        self.outage.breaker.record(false, now);
        let retried = call.checks.extract_if(.., may).collect();
        self.requeue(host, now, retried);
    }

    /// What a call carried is to be asked for once more, before anything else.
    pub(crate) fn requeue(&mut self, host: &impl Host, now: Now, checks: Vec<PendingCheck>) {
        let mut waiting = Vec::with_capacity(checks.len());
        for mut check in checks {
            if let Some(shared) = self.process.shared() {
                check.restore_debts(host, now, &shared.table);
            }
            if check.stream.is_some() && !self.is_awaited(&check) {
                self.undo_unsent(&check);
            } else {
                waiting.push(check);
            }
        }
        self.calls.batcher.requeue(waiting);
    }

    /// A limiter would not read a call: for its size, or for what is in it. One check among several
    /// is found by asking for each half; one alone is decided by itself, and nobody else feels it.
    /// `signed`: a limiter said so, so there is one.
    pub(crate) fn on_batch_rejected(
        &mut self,
        host: &impl Host,
        now: Now,
        mut call: CheckCall<PendingCheck>,
        too_large: bool,
        signed: bool,
    ) {
        if signed {
            self.record_call(host, now, call.probe, CallResult::Answered);
        } else if call.probe {
            self.record_call(host, now, true, CallResult::Failed);
        }
        if call.probe {
            return self.requeue(host, now, call.checks);
        }
        if let [_] = call.checks.as_slice() {
            self.counts.happened(Event::CheckFailed);
            for check in call.checks {
                self.decide_rejected(host, now, check);
            }
            return;
        }
        if too_large {
            let bytes = call.checks.iter().map(|check| check.load().bytes).sum();
            self.calls.batcher.lower_max_bytes(bytes);
        }
        let half = call.checks.len() / 2;
        for check in &mut call.checks {
            check.attempts.batch_max = half.max(1);
        }
        self.requeue(host, now, call.checks);
    }

    /// Whether a refusal may be one request's fault: not without end, for a limiter that refuses
    /// everything is no limiter.
    pub(crate) fn may_be_request_fault(&mut self, too_large: bool) -> bool {
        too_large || self.calls.retry_budget.take()
    }
}
