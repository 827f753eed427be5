//! Retries checks that a call left undecided.
//!
//! The worker retries a call that certainly charged nothing, perhaps at another limiter: the connection
//! was refused, or a limiter answered that it charged nothing. It never retries a call that was sent
//! and not answered, because that may have been charged.
//!
//! Retries must not overload limiters that all fail, so each retry costs a token, and each call that
//! is answered earns one.

use crate::{
    call::CheckCall,
    host::Host,
    metrics::Event,
    outage::CallResult,
    request::{Attempts, PendingCheck},
    time::Now,
    worker::Worker,
};

/// Calls that carry one check, at most, not counting those that were refused for another check.
const ATTEMPTS_MAX: u8 = 4;
/// Tokens in the budget, at most.
const RETRY_TOKENS_MAX: u8 = 8;
/// How long an answer proves that a limiter answers, in microseconds. If one of two limiters hangs and
/// Envoy still routes calls to it, the breaker opens whenever several calls to it fail together. This
/// is longer than a dozen probes take, each of which may reach the one that hangs.
const ANSWERED_LATELY_US: u64 = 10_000_000;

/// Tokens for retries.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    tokens: u8,
    answered_us: Option<u64>,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            tokens: RETRY_TOKENS_MAX,
            answered_us: None,
        }
    }
}

impl RetryBudget {
    /// A limiter answered: earns a token.
    pub(crate) fn answered(&mut self, now: Now) {
        self.tokens = self.tokens.saturating_add(1).min(RETRY_TOKENS_MAX);
        self.answered_us = Some(now.mono_us);
    }

    /// The policy arrived, so a limiter answered a poll. Until a check is answered, nothing else shows
    /// that one limiter of several works: all first checks may reach one that hangs.
    pub(crate) fn policy_received(&mut self, now: Now) {
        self.answered_us.get_or_insert(now.mono_us);
    }

    /// Whether a limiter answered within `ANSWERED_LATELY_US`. Then a limiter that fails is not the
    /// only one.
    pub(crate) fn answered_lately(&self, now: Now) -> bool {
        let ago_us = self.answered_us.map(|at| now.mono_us.saturating_sub(at));
        ago_us.is_some_and(|ago_us| ago_us <= ANSWERED_LATELY_US)
    }

    fn take(&mut self) -> bool {
        let left = self.tokens.checked_sub(1);
        self.tokens = left.unwrap_or(0);
        left.is_some()
    }
}

impl Attempts {
    /// Counts a call that carries the check.
    pub(crate) fn count(&mut self, now: Now) {
        if self.made == 0 {
            self.since_us = now.mono_us;
        }
        self.made = self.made.saturating_add(1);
    }

    /// Whether another call may carry the check.
    fn may_retry(&self, now: Now, patience_us: u64) -> bool {
        let since_us = now.mono_us.saturating_sub(self.since_us);
        self.made < ATTEMPTS_MAX && since_us <= patience_us
    }
}

impl Worker {
    /// Retries the checks of a call that failed and charged nothing. Checks that may not be retried
    /// stay in the call. The breaker counts the failures of last attempts only.
    pub(crate) fn retry_call(
        &mut self,
        host: &impl Host,
        now: Now,
        call: &mut CheckCall<PendingCheck>,
    ) {
        // Bounds the wait of each request to one and a half timeouts.
        let patience_us = self.config.limiter.timeout_ms.saturating_mul(1000) / 2;
        let may = |check: &mut PendingCheck| check.attempts.may_retry(now, patience_us);
        if call.probe || !self.calls.retry_budget.take() {
            return;
        }
        self.counts.happened(Event::CalloutRetried);
        // Other workers may have added debts meanwhile.
        self.outage.breaker.record(false, now);
        let retried = call.checks.extract_if(.., may).collect();
        self.requeue(host, now, retried);
    }

    /// Queues checks again, before all others.
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

    /// A limiter refused to read a call because of its size or content. The call is split in halves
    /// until the check at fault is alone; that one falls back, and no other check is affected.
    /// `signed`: a limiter refused it, so the limiter answers.
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

    /// Whether to search a refused call for a check at fault. Each search costs a retry token,
    /// because a limiter that refuses all calls is as good as none.
    pub(crate) fn may_be_request_fault(&mut self, too_large: bool) -> bool {
        too_large || self.calls.retry_budget.take()
    }
}
