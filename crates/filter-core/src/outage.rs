//! What happens while the limiter does not answer.
//!
//! The `breaker` stops calls, and `fallback` decides by each limit's `on_failure`. Units that are admitted
//! meanwhile are a debt, which later checks charge.

mod breaker;
mod fallback;

use filter_config::Config;
use protocol::ErrorCode;

use crate::{
    cache::{BucketEntry, Debt, DebtSpan, Table, Update},
    host::Host,
    log_line::log_line,
    metrics::Event,
    random::Random,
    request::{Attempts, LimitCheck, PendingCheck},
    time::Now,
    worker::{Level, Step, Worker},
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
            limit_check.debit = debt.units(span, now.mono_us);
            limit_check.debit_serial = debt.serial(span);
            *debt = Debt::default();
        });
    }

    /// Puts the debts back: the check was not charged.
    pub(crate) fn restore_debts(&mut self, host: &impl Host, now: Now, table: &Table) {
        let carrying = |limit_check: &LimitCheck| limit_check.debit > 0;
        self.change_debts(host, now, table, carrying, |debt, limit_check, span| {
            let span = span.labelled(limit_check.debit_serial);
            debt.add(limit_check.debit, span, now.mono_us);
        });
        for limit_check in &mut self.limit_checks {
            limit_check.debit = 0;
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
            let span = DebtSpan::from_algorithm(limit_check.limit.quota.algorithm(), now);
            let (key, generation) = (limit_check.key, limit_check.limit.generation);
            let changed = table.update::<BucketEntry, _>(host, key, generation, now, |found| {
                let before = found.entry.debt;
                change(&mut found.entry.debt, limit_check, span);
                if found.entry.debt == before {
                    Update::Keep(())
                } else {
                    Update::Write(())
                }
            });
            if changed.is_err() {
                // Contended: the next check of the bucket takes the debt if it is still there.
                limit_check.debit = 0;
            }
        }
    }
}
