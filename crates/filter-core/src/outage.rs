//! What happens while the limiter does not answer.
//!
//! The `breaker` stops calls, `fallback` decides by each limit's `on_failure`, and `debts` are the
//! units that were admitted meanwhile and are charged later.

mod breaker;
mod charge_status;
mod debts;
mod fallback;

use filter_config::Config;

pub(crate) use breaker::{ANSWERED_LATELY_US, Breaker, CallResult, Gate};
pub(crate) use charge_status::ChargeStatus;

use crate::{
    host::Host,
    log_line::log_line,
    metrics::Event,
    random::Random,
    request::Attempts,
    time::Now,
    worker::{Level, Step, Worker},
};

/// The limiter's health, as one worker sees it.
#[derive(Debug)]
pub(crate) struct Outage {
    pub(crate) breaker: Breaker,
    pub(crate) warned_unguarded: bool,
    warned_failed_us: Option<u64>,
}

impl Outage {
    pub(crate) fn new(config: &Config, random: Random) -> Self {
        let domain = config.domain.as_str();
        Self {
            breaker: Breaker::new(domain, config.limiter.timeout_ms, random),
            warned_unguarded: false,
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
