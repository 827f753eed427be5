//! Calls to the limiter: batches of checks, and how their answers are applied.

mod answer;
mod apply_answer;
mod batcher;
mod check_call;
mod check_stream;
mod clamp;
mod decode;
mod registry;
mod retry;
mod turn_batching;

pub(crate) use batcher::Load;
pub(crate) use check_call::encode_checks;
pub(crate) use check_stream::TIMEOUT_LATE_MS;
pub(crate) use clamp::MAX_PROXIES;
pub use registry::CallId;
pub(crate) use registry::{CheckCall, InFlight};

use filter_config::LimiterConfig;

use batcher::Batcher;
use check_stream::CheckStream;
use registry::Registry;
use retry::RetryBudget;
use turn_batching::TurnBatching;

use crate::{
    metrics::Metrics,
    time::Now,
    worker::{Call, Step, Worker},
};

/// The limiter's endpoint for checks.
pub(crate) const CHECK_PATH: &str = "/v1/check";
/// The limiter's endpoint for reports.
pub(crate) const REPORT_PATH: &str = "/v1/report";
/// The limiter's endpoint for snapshots.
pub(crate) const POLICY_PATH: &str = "/v1/policy";
/// Durations of calls kept between two ticks, at most.
const MAX_SAMPLES: usize = 256;
/// How much later than its timeout a call ends if this worker was not busy, at most, in microseconds: Envoy's
/// timers have milliseconds, and the calls of a stream end at ticks.
const BUSY_US: u64 = 10_000;

/// The calls of one worker.
#[derive(Debug)]
pub(crate) struct Calls<T> {
    /// The value of `authorization` in each call.
    pub(crate) bearer: Option<String>,
    pub(crate) registry: Registry<T>,
    pub(crate) batcher: Batcher<T>,
    pub(crate) stream: CheckStream,
    pub(crate) turn: TurnBatching,
    pub(crate) retry_budget: RetryBudget,
    /// Checks that are retried at the next tick.
    pub(crate) later: Vec<T>,
    timeout_us: u64,
    durations_us: Vec<u64>,
}

impl<T> Calls<T> {
    /// Calls to the limiter, with its bearer `token`.
    pub(crate) fn new(token: Option<&str>, limiter: &LimiterConfig) -> Self {
        let timeout_ms = limiter.timeout_ms;
        Self {
            bearer: token.map(|token| format!("Bearer {token}")),
            registry: Registry::default(),
            batcher: Batcher::new(timeout_ms),
            stream: CheckStream::new(limiter.stream),
            turn: TurnBatching::default(),
            retry_budget: RetryBudget::default(),
            later: Vec::new(),
            timeout_us: timeout_ms.saturating_mul(1000),
            durations_us: Vec::new(),
        }
    }

    /// Whether no check waits or is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.batcher.is_empty() && self.later.is_empty() && self.registry.checks().is_empty()
    }

    /// Whether checks should leave now.
    pub(crate) fn is_ready(&self, now: Now) -> bool {
        self.batcher.is_ready(self.registry.checks(), now)
    }

    /// Removes a check call that should have ended long ago. Envoy ends each call, by a timeout at the
    /// latest; this bounds the wait if it ever does not.
    pub(crate) fn take_lost(&mut self, now: Now) -> Option<CheckCall<T>> {
        let lost_us = self.timeout_us.saturating_mul(2).saturating_add(1_000_000);
        self.registry.take_lost(now, lost_us)
    }

    /// How long a failed call may take so that its checks can be retried, in microseconds.
    pub(crate) fn patience_us(&self) -> u64 {
        self.timeout_us / 2
    }

    /// Whether Envoy reported the end of a call so late that this worker itself was busy: what the limiter
    /// did meanwhile is not known.
    pub(crate) fn was_busy(&self, took_us: u64) -> bool {
        took_us > self.timeout_us.saturating_add(BUSY_US)
    }

    /// Records how long a call took.
    pub(crate) fn add_duration(&mut self, now: Now, call: &CheckCall<T>) {
        if self.durations_us.len() < MAX_SAMPLES {
            let took_us = now.mono_us.saturating_sub(call.sent.mono_us);
            self.durations_us.push(took_us);
        }
    }

    /// Writes the recorded durations to the host's histogram.
    pub(crate) fn flush_durations(&mut self, metrics: &mut impl Metrics) {
        for took_us in self.durations_us.drain(..) {
            metrics.sample("rl_callout_duration_us", took_us);
        }
    }
}

impl Worker {
    /// Makes a call, with the headers that every call carries.
    pub(crate) fn call(&mut self, mut call: Call) {
        if let Some(bearer) = &self.calls.bearer {
            call.headers.push(("authorization", bearer.clone()));
        }
        self.steps.push_back(Step::Call(call));
    }
}
