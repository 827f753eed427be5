//! Checks that come back undecided, and what may be asked once more.
//!
//! A call of which it is certain that nothing was charged is made again, to another limiter by
//! chance: where connections are refused, and where a limiter says that it charged nothing. What
//! was sent and not answered never is: it may have been charged.
//!
//! Calls that are made again must not drown limiters that are in trouble all together, so each is
//! paid for by one that was answered.

use super::{
    Worker,
    case::{Attempts, Case},
};
use crate::{batcher::Flight, breaker::CallResult, host::Host, metrics::Event, time::Now};

/// Calls that carry one check, at most, unless it shares them with a check that is refused.
const ATTEMPTS_MAX: u8 = 4;
/// Calls that may be made again before another was answered.
const SAVED_MAX: u8 = 8;
/// For how long an answer tells that limiters answer, in microseconds.
const ANSWERING_US: u64 = 1_000_000;

/// What answers have earned.
#[derive(Debug)]
pub(super) struct Retries {
    saved: u8,
    answered_us: Option<u64>,
}

impl Default for Retries {
    fn default() -> Self {
        Self {
            saved: SAVED_MAX,
            answered_us: None,
        }
    }
}

impl Retries {
    /// A limiter decided something.
    pub(super) fn answered(&mut self, now: Now) {
        self.saved = self.saved.saturating_add(1).min(SAVED_MAX);
        self.answered_us = Some(now.mono_us);
    }

    /// Whether a limiter decided something lately, so that one which does not is not all there is.
    pub(super) fn is_answering(&self, now: Now) -> bool {
        let ago_us = self.answered_us.map(|at| now.mono_us.saturating_sub(at));
        ago_us.is_some_and(|ago_us| ago_us <= ANSWERING_US)
    }

    fn take(&mut self) -> bool {
        let left = self.saved.checked_sub(1);
        self.saved = left.unwrap_or(0);
        left.is_some()
    }
}

impl Attempts {
    /// A call leaves.
    pub(super) fn left(&mut self, now: Now) {
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
    pub(super) fn try_again(&mut self, host: &impl Host, now: Now, flight: &mut Flight<Case>) {
        // So that a request never waits for more than one timeout and a half.
        let patience_us = self.config.limiter.timeout_ms.saturating_mul(1000) / 2;
        let may = |case: &mut Case| case.attempts.may_follow(now, patience_us);
        if flight.probe || !self.retries.take() {
            return;
        }
        self.counts.happened(Event::CalloutRetried);
        // Other workers may have admitted something by themselves meanwhile.
        self.breaker.note(false, now);
        let again = flight.checks.extract_if(.., may).collect();
        self.ask_again(host, now, again);
    }

    /// What a call carried is to be asked for once more, before anything else.
    pub(super) fn ask_again(&mut self, host: &impl Host, now: Now, cases: Vec<Case>) {
        let mut again = Vec::with_capacity(cases.len());
        for mut case in cases {
            if let Some(shared) = &self.shared {
                case.give_back_owed(host, now, &shared.table);
            }
            if case.stream.is_some() && !self.is_awaited(&case) {
                self.undo(&case);
            } else {
                again.push(case);
            }
        }
        self.batcher.again(again);
    }

    /// A limiter would not read a call: for its size, or for what is in it. One check among several
    /// is found by asking for each half; one alone is decided by itself, and nobody else feels it.
    /// `signed`: a limiter said so, so there is one.
    pub(super) fn land_refused(
        &mut self,
        host: &impl Host,
        now: Now,
        mut flight: Flight<Case>,
        too_large: bool,
        signed: bool,
    ) {
        if signed {
            self.report(host, now, flight.probe, CallResult::Answered);
        } else if flight.probe {
            self.report(host, now, true, CallResult::Failed);
        }
        if flight.probe {
            return self.ask_again(host, now, flight.checks);
        }
        if let [_] = flight.checks.as_slice() {
            self.counts.happened(Event::CheckFailed);
            for case in flight.checks {
                self.decide_alone(host, now, case);
            }
            return;
        }
        if too_large {
            let bytes = flight.checks.iter().map(|case| case.load().bytes).sum();
            self.batcher.was_too_large(bytes);
        }
        let half = flight.checks.len() / 2;
        for case in &mut flight.checks {
            case.attempts.batch_max = half.max(1);
        }
        self.ask_again(host, now, flight.checks);
    }

    /// Whether a refusal may be one request's fault: not without end, for a limiter that refuses
    /// everything is no limiter.
    pub(super) fn may_be_its_own_fault(&mut self, too_large: bool) -> bool {
        too_large || self.retries.take()
    }
}
