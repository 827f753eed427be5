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
    outage::{ANSWERED_LATELY_US, CallResult},
    request::{Attempts, PendingCheck},
    time::Now,
    worker::{HOLDING_MS, Worker},
};

/// Bound: calls for one check. Beyond it, it is decided without the limiter.
const ATTEMPTS_MAX: u8 = 4;
/// Bound: retries before another call was answered. Beyond it, failed checks are decided without
/// the limiter.
const RETRY_TOKENS_MAX: u8 = 8;
/// How recent an answer shows that another limiter answers while calls fail, in microseconds: as long as
/// the breaker would be open.
const ANSWERED_NOW_US: u64 = 250_000;
/// Calls that may carry a check before its retries wait for ticks, while others answer. A limiter that
/// answers with errors does so at once, and Envoy needs a moment to eject it.
const AT_ONCE: u8 = 2;

/// Tokens for retries.
#[derive(Debug)]
pub(crate) struct RetryBudget {
    tokens: u8,
    answered_us: Option<u64>,
    /// When a check was last decided; 0: never.
    checked_us: u64,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            tokens: RETRY_TOKENS_MAX,
            answered_us: None,
            checked_us: 0,
        }
    }
}

impl RetryBudget {
    /// A limiter answered: earns a token. `decides`: at least one check.
    pub(crate) fn answered(&mut self, now: Now, decides: bool) {
        self.tokens = self.tokens.saturating_add(1).min(RETRY_TOKENS_MAX);
        self.answered_us = Some(now.mono_us);
        if decides {
            self.checked_us = now.mono_us;
        }
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

    /// Whether a check was decided after this time.
    pub(crate) fn answered_since(&self, us: u64) -> bool {
        self.checked_us > us
    }

    /// Whether checks are being decided.
    pub(crate) fn is_answered_now(&self, now: Now) -> bool {
        self.answered_since(now.mono_us.saturating_sub(ANSWERED_NOW_US))
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

    /// Whether its first call was sent so lately that another one may carry it.
    fn is_early(&self, now: Now, patience_us: u64) -> bool {
        now.mono_us.saturating_sub(self.since_us) <= patience_us
    }
}

impl Worker {
    /// Retries the checks of a call that failed and charged nothing. Checks that may not be retried
    /// stay in the call. The breaker counts the failures of last attempts only. `answered`: a limiter
    /// answered with an error.
    pub(crate) fn retry_call(
        &mut self,
        host: &impl Host,
        now: Now,
        call: &mut CheckCall<PendingCheck>,
        answered: bool,
    ) {
        if call.probe {
            return;
        }
        // Bounds the wait of each request to one and a half timeouts.
        let patience_us = self.calls.patience_us();
        let (mut later, mut retried) = (Vec::new(), Vec::new());
        if answered && self.calls.retry_budget.is_answered_now(now) {
            // Another limiter has a store. One call at each tick does not overload this one, so these
            // retries cost no token.
            let waits = |check: &mut PendingCheck| {
                check.attempts.made >= AT_ONCE && check.attempts.is_early(now, patience_us)
            };
            later.extend(call.checks.extract_if(.., waits));
        }
        let may = |check: &mut PendingCheck| {
            check.attempts.made < ATTEMPTS_MAX && check.attempts.is_early(now, patience_us)
        };
        if !call.checks.is_empty() && self.calls.retry_budget.take() {
            retried.extend(call.checks.extract_if(.., may));
        }
        if later.is_empty() && retried.is_empty() {
            return;
        }
        self.counts.happened(Event::CalloutRetried);
        // Other workers may have added debts meanwhile.
        self.outage.breaker.record(false, now);
        if !later.is_empty() {
            let later = self.still_awaited(host, now, later);
            self.calls.later.extend(later);
            self.ticks.by(now, 0, HOLDING_MS);
        }
        self.requeue(host, now, retried);
    }

    /// Queues checks again, before all others.
    pub(crate) fn requeue(&mut self, host: &impl Host, now: Now, checks: Vec<PendingCheck>) {
        let waiting = self.still_awaited(host, now, checks);
        self.calls.batcher.requeue(waiting);
    }

    /// Undoes what a call did to its checks, and drops those whose clients left.
    fn still_awaited(
        &mut self,
        host: &impl Host,
        now: Now,
        checks: Vec<PendingCheck>,
    ) -> Vec<PendingCheck> {
        let mut waiting = Vec::with_capacity(checks.len());
        for mut check in checks {
            if let Some(shared) = self.process.shared() {
                check.restore_debts(host, now, &shared.table);
            }
            if check.stream.is_some() && !self.is_awaited(&check) {
                self.undo_unsent(check);
            } else {
                waiting.push(check);
            }
        }
        waiting
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
            self.record_call(
                host,
                now,
                call.probe,
                CallResult::Answered { decides: false },
            );
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
