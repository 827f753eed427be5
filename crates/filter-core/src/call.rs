//! Calls to the limiter: those in flight, and the check stream. `send` batches checks, and `answer` applies their
//! answers.

mod answer;
mod send;

use answer::RetryBudget;
use filter_config::LimiterConfig;
use protocol::{API_HEADER, API_VERSION, StreamAnswer, StreamCall};
use send::{Batcher, TurnBatching};

use crate::{
    host::{Host, Now},
    metrics::{Event, Metrics},
    request::PendingCheck,
    worker::{Call, CallAnswer, Level, Step, StreamStep, Worker, log_line},
};

pub(crate) use answer::MAX_PROXIES;
pub(crate) use send::{Load, encode_checks};

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
    fn is_ready(&self, now: Now) -> bool {
        self.batcher.is_ready(self.registry.checks(), now)
    }

    /// Removes a check call that should have ended long ago. Envoy ends each call, by a timeout at the
    /// latest; this bounds the wait if it ever does not.
    pub(crate) fn take_lost(&mut self, now: Now) -> Option<CheckCall<T>> {
        let lost_us = self.timeout_us.saturating_mul(2).saturating_add(1_000_000);
        self.registry.take_lost(now, lost_us)
    }

    /// How long a check call may take until the host itself was busy, in microseconds.
    fn busy_us(&self) -> u64 {
        self.timeout_us.saturating_add(BUSY_US)
    }

    /// How long a failed call may take so that its checks can be retried, in microseconds.
    pub(crate) fn patience_us(&self) -> u64 {
        self.timeout_us / 2
    }

    /// Whether Envoy reported the end of a call so late that this worker itself was busy: what the limiter
    /// did meanwhile is not known.
    pub(crate) fn was_busy(&self, took_us: u64) -> bool {
        took_us > self.busy_us()
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
    /// Posts a message to a limiter; the call takes no less than `least_ms`.
    pub(crate) fn post(
        &mut self,
        id: CallId,
        path: &str,
        media_type: &str,
        body: Vec<u8>,
        least_ms: u64,
    ) {
        self.call(Call {
            id,
            method: "POST",
            path: path.to_owned(),
            headers: vec![("content-type", media_type.to_owned())],
            body: Some(body),
            timeout_ms: least_ms.max(self.config.limiter.timeout_ms),
        });
    }

    /// Makes a call, with the headers that every call carries.
    pub(crate) fn call(&mut self, mut call: Call) {
        if let Some(bearer) = &self.calls.bearer {
            call.headers.push(("authorization", bearer.clone()));
        }
        self.steps.push_back(Step::Call(Box::new(call)));
    }
}

// --- The calls in flight, by id: what each of them is for.

/// Bound: bytes of a message of a check stream. Beyond it, the stream ends; callouts follow.
///
/// Many times what the largest batch needs.
pub const MAX_MESSAGE: u32 = 1 << 20;

/// One call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(u32);

/// What a call in flight is for.
#[derive(Debug)]
pub(crate) enum InFlight<T> {
    /// A poll of the policy.
    Poll,
    /// A report.
    Report,
    /// Frees of slots that a deleted worker left.
    LeftoverFrees,
    /// A batch of checks.
    Checks(CheckCall<T>),
}

/// Checks that share a call.
#[derive(Debug)]
pub(crate) struct CheckCall<T> {
    pub(crate) id: CallId,
    pub(crate) sent: Now,
    /// Whether the call only tests if the limiter answers. The checks follow once it does.
    pub(crate) probe: bool,
    /// When it times out, if it is on the check stream: Envoy times only callouts.
    pub(crate) deadline_us: Option<u64>,
    pub(crate) checks: Vec<T>,
}

/// All calls in flight: at most one poll and one report, and as many check calls as the batcher
/// starts.
#[derive(Debug)]
pub(crate) struct Registry<T> {
    last_id: u32,
    poll: Option<CallId>,
    report: Option<(CallId, Now)>,
    leftover_frees: Vec<CallId>,
    checks: Vec<CheckCall<T>>,
}

impl<T> Default for Registry<T> {
    fn default() -> Self {
        Self {
            last_id: 0,
            poll: None,
            report: None,
            leftover_frees: Vec::new(),
            checks: Vec::new(),
        }
    }
}

impl CallId {
    /// The number that names the call on the check stream.
    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

impl<T> Registry<T> {
    /// Registers a poll. An answer to the poll before it is ignored from now on.
    pub(crate) fn start_poll(&mut self) -> CallId {
        let id = self.new_id();
        self.poll = Some(id);
        id
    }

    /// Registers a report. An answer to the report before it is ignored from now on.
    pub(crate) fn start_report(&mut self, now: Now) -> CallId {
        let id = self.new_id();
        self.report = Some((id, now));
        id
    }

    /// Registers a check call.
    fn start_checks(&mut self, now: Now, probe: bool, checks: Vec<T>) -> CallId {
        let id = self.new_id();
        self.checks.push(CheckCall {
            id,
            sent: now,
            probe,
            deadline_us: None,
            checks,
        });
        id
    }

    /// Registers a check call on the stream.
    fn start_streamed(&mut self, now: Now, deadline_us: u64, checks: Vec<T>) -> CallId {
        let id = self.start_checks(now, false, checks);
        if let Some(call) = self.checks.last_mut() {
            call.deadline_us = Some(deadline_us);
        }
        id
    }

    /// The call on the stream that an answer names.
    pub(crate) fn streamed(&self, id: u32) -> Option<CallId> {
        let streamed = self.checks.iter().filter(|call| call.deadline_us.is_some());
        let mut streamed = streamed.map(|call| call.id);
        streamed.find(|call| call.0 == id)
    }

    /// How many calls are on the stream.
    fn streamed_calls(&self) -> usize {
        let streamed = self.checks.iter();
        streamed.filter(|call| call.deadline_us.is_some()).count()
    }

    /// Takes out a call on the stream.
    fn take_streamed(&mut self) -> Option<CheckCall<T>> {
        self.take_streamed_if(|_| true)
    }

    /// Takes out a call on the stream that timed out, or that was sent later than `now` by a broken
    /// clock.
    fn take_expired(&mut self, now: Now) -> Option<CheckCall<T>> {
        self.take_streamed_if(|call| {
            now.mono_us < call.sent.mono_us
                || call.deadline_us.is_some_and(|at_us| at_us <= now.mono_us)
        })
    }

    fn take_streamed_if(&mut self, is_it: impl Fn(&CheckCall<T>) -> bool) -> Option<CheckCall<T>> {
        let mut calls = self.checks.iter();
        let at = calls.position(|call| call.deadline_us.is_some() && is_it(call))?;
        Some(self.checks.remove(at))
    }

    /// When the next call on the stream times out.
    pub(crate) fn next_deadline_us(&self) -> u64 {
        let deadlines = self.checks.iter().filter_map(|call| call.deadline_us);
        deadlines.min().unwrap_or(u64::MAX)
    }

    /// Registers a call that frees slots which a deleted worker left.
    pub(crate) fn start_leftover_frees(&mut self) -> CallId {
        let id = self.new_id();
        self.leftover_frees.push(id);
        id
    }

    /// Takes all check calls in flight.
    pub(crate) fn take_checks(&mut self) -> Vec<CheckCall<T>> {
        std::mem::take(&mut self.checks)
    }

    /// When the report in flight was sent.
    pub(crate) fn report_sent(&self) -> Option<Now> {
        self.report.map(|(_, sent)| sent)
    }

    /// The check calls in flight, the oldest first.
    pub(crate) fn checks(&self) -> &[CheckCall<T>] {
        &self.checks
    }

    /// Whether something waits for a call.
    fn has(&self, id: CallId) -> bool {
        let once = [self.poll, self.report.map(|(report, _)| report)];
        let mut others = self.leftover_frees.iter().copied();
        once.contains(&Some(id))
            || others.any(|call| call == id)
            || self.checks.iter().any(|call| call.id == id)
    }

    /// Takes out a call that ended; `None` if nothing waits for it any more.
    pub(crate) fn finish(&mut self, id: CallId) -> Option<InFlight<T>> {
        if self.poll.take_if(|poll| *poll == id).is_some() {
            return Some(InFlight::Poll);
        }
        if self.report.take_if(|(report, _)| *report == id).is_some() {
            return Some(InFlight::Report);
        }
        if let Some(at) = self
            .leftover_frees
            .iter()
            .position(|leftover_frees| *leftover_frees == id)
        {
            self.leftover_frees.swap_remove(at);
            return Some(InFlight::LeftoverFrees);
        }
        let at = self.checks.iter().position(|call| call.id == id)?;
        Some(InFlight::Checks(self.checks.remove(at)))
    }

    /// Takes out the oldest check call if it was sent more than `lost_us` ago.
    pub(crate) fn take_lost(&mut self, now: Now, lost_us: u64) -> Option<CheckCall<T>> {
        let first = self.checks.first()?;
        (now.mono_us.saturating_sub(first.sent.mono_us) > lost_us).then(|| self.checks.remove(0))
    }

    fn new_id(&mut self) -> CallId {
        // 0 names no call on the stream.
        self.last_id = self.last_id.wrapping_add(1).max(1);
        CallId(self.last_id)
    }
}

// --- The check stream: a gRPC stream to a limiter whose messages are check calls.
//
// For a callout Envoy sets up a request and reads headers one by one; a message of an open stream
// needs neither. A stream only replaces callouts that work: the worker opens it beside a callout,
// sends checks on it once the limiter accepts calls, and gives it up when an answer is late, the
// limiter fails, or anything unexpected arrives. Then checks are callouts again, and the worker opens no stream until a
// callout was answered.
//
// A call that was sent and not answered may have been charged, as with a callout. A limiter that shuts
// down gracefully announces it first, and answers all calls that it receives until this side closes
// the stream.

/// How long a limiter may take to open a stream, and to end one that this side closed.
const PATIENCE_US: u64 = 1_000_000;
/// The gRPC status of a stream that was refused over HTTP/1.1, or by a program without check streams; limiters
/// refuse streams over HTTP/2 with others.
const UNIMPLEMENTED: u32 = 12;
/// After a failure the next stream is opened this much later; each further failure doubles it.
const RETRY_MIN_US: u64 = 1_000_000;
/// Bound: microseconds until a check stream is opened again after failures. Beyond it, callouts are
/// used meanwhile.
const RETRY_MAX_US: u64 = 64_000_000;
/// The least time between ticks while calls are on the stream: a timeout is at most this late.
pub(crate) const TIMEOUT_LATE_MS: u64 = 5;

/// The state of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no stream.
    Closed,
    /// The limiter has not yet announced that it accepts calls.
    Opening,
    /// It accepts calls.
    Open,
    /// It accepts no further calls; the limiter answers those in flight.
    Ending,
    /// For this reason no further calls are sent; other answers may still arrive.
    Leaving(&'static str),
}

/// The stream of one worker.
#[derive(Debug)]
pub(crate) struct CheckStream {
    /// Whether the configuration enables it.
    enabled: bool,
    state: State,
    /// When it entered this state.
    since_us: u64,
    /// When the limiter opened it.
    opened_us: u64,
    /// When the next one may be opened.
    retry_at_us: u64,
    retry_after_us: u64,
    /// Whether a callout was answered since the last stream failed.
    answered: bool,
    /// Whether one was refused, as a cluster without HTTP/2 does.
    refused: bool,
}

impl CheckStream {
    pub(crate) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            state: State::Closed,
            since_us: 0,
            opened_us: 0,
            retry_at_us: 0,
            retry_after_us: RETRY_MIN_US,
            // The policy arrived by a callout.
            answered: true,
            refused: false,
        }
    }

    /// Whether one was refused, as a cluster without HTTP/2 does.
    pub(crate) fn was_refused(&self) -> bool {
        self.refused
    }

    /// Whether calls go by it.
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// A callout was answered.
    fn callout_answered(&mut self) {
        self.answered = true;
    }

    fn may_open(&self, now: Now) -> bool {
        // Without a clock no call would time out.
        self.enabled
            && now.mono_us > 0
            && self.state == State::Closed
            && self.answered
            && now.mono_us >= self.retry_at_us
    }

    fn become_now(&mut self, state: State, now: Now) {
        self.state = state;
        self.since_us = now.mono_us;
    }

    /// Whether opening or ending the stream takes too long.
    fn is_overdue(&self, now: Now) -> bool {
        matches!(self.state, State::Opening | State::Ending)
            && now.mono_us.saturating_sub(self.since_us) > PATIENCE_US
    }

    fn failed(&mut self, now: Now) {
        self.state = State::Closed;
        self.answered = false;
        self.retry_at_us = now.mono_us.saturating_add(self.retry_after_us);
        self.retry_after_us = self.retry_after_us.saturating_mul(2).min(RETRY_MAX_US);
    }

    /// The limiter ended the stream gracefully: the next one opens at once, unless this one was
    /// short-lived.
    fn ended(&mut self, now: Now) {
        let answered = self.answered;
        let lasted = now.mono_us.saturating_sub(self.opened_us) > PATIENCE_US;
        self.failed(now);
        self.answered = answered;
        if lasted {
            self.retry_at_us = now.mono_us;
            self.retry_after_us = RETRY_MIN_US;
        }
    }
}

impl Worker {
    /// Opens a stream if the configuration and the last failures permit one.
    fn open_stream(&mut self, now: Now) {
        if !self.calls.stream.may_open(now) {
            return;
        }
        self.calls.stream.become_now(State::Opening, now);
        let bearer = self.calls.bearer.clone();
        self.steps.push_back(Step::Stream(StreamStep::Open(bearer)));
    }

    /// Sends a call as a message of the stream.
    fn send_on_stream(&mut self, now: Now, checks: Vec<PendingCheck>, body: &[u8]) {
        let deadline_us = now.after_ms(self.config.limiter.timeout_ms);
        let registry = &mut self.calls.registry;
        let id = registry.start_streamed(now, deadline_us, checks);
        let call = StreamCall {
            id: id.number(),
            body,
        };
        let send = StreamStep::Send(id, call.encode());
        self.steps.push_back(Step::Stream(send));
        self.counts.happened(Event::StreamCall);
        self.ticks.by(now, deadline_us, TIMEOUT_LATE_MS);
    }

    /// A message of the limiter on the stream.
    pub fn on_stream_message(&mut self, host: &impl Host, now: Now, message: &[u8]) {
        let Some(answer) = StreamAnswer::decode(message) else {
            return self.stream_failed(host, now, "an invalid message");
        };
        let state = self.calls.stream.state;
        if answer == StreamAnswer::OPEN && state == State::Opening {
            self.counts.happened(Event::StreamOpened);
            self.calls.stream.become_now(State::Open, now);
            self.calls.stream.opened_us = now.mono_us;
        } else if answer == StreamAnswer::ENDING && matches!(state, State::Opening | State::Open) {
            self.calls.stream.become_now(State::Ending, now);
            self.steps.push_back(Step::Stream(StreamStep::Close));
        } else if let Some(id) = self.calls.registry.streamed(answer.id) {
            let answer = StreamedAnswer::new(answer);
            self.on_call_answer(host, now, id, Some(&answer));
            if !matches!(self.calls.stream.state, State::Leaving(_)) {
                self.calls.stream.retry_after_us = RETRY_MIN_US;
            }
        } else if !matches!(state, State::Leaving(_)) {
            self.stream_failed(host, now, "an answer to no call in flight");
        }
    }

    /// The stream ended. `grpc_status` is that of the limiter, or Envoy's where the connection broke.
    pub fn on_stream_closed(&mut self, host: &impl Host, now: Now, grpc_status: u32) {
        match self.calls.stream.state {
            State::Closed => {}
            State::Ending if self.calls.registry.streamed_calls() == 0 => {
                self.calls.stream.ended(now);
            }
            State::Opening if grpc_status == UNIMPLEMENTED => {
                let why = "`\"stream\": true` needs a limiter over HTTP/2: set \
                           `explicit_http_config: {http2_protocol_options: {}}` for a cluster that speaks HTTP/1.1";
                self.stream_failed(host, now, why);
                self.calls.stream.refused = true;
                self.share_entries(host);
            }
            _ => self.stream_failed(host, now, &format!("gRPC status {grpc_status}")),
        }
    }

    /// Gives the stream up. What it was sent may have been charged.
    pub fn stream_failed(&mut self, host: &impl Host, now: Now, why: &str) {
        self.cancel_stream(now, why);
        while let Some(call) = self.calls.registry.take_streamed() {
            self.unanswered(host, now, call);
        }
        self.send_soon(host, now);
    }

    /// At a tick: fails calls whose answers are late, and a stream that does not open or end in time.
    pub(crate) fn expire_streamed(&mut self, host: &impl Host, now: Now) {
        while let Some(call) = self.calls.registry.take_expired(now) {
            self.leave_stream(now, "an answer came too late");
            self.unanswered(host, now, call);
        }
        let stream = &self.calls.stream;
        if stream.is_overdue(now) {
            let why = if stream.state == State::Opening {
                "it was not opened in time"
            } else {
                "it was not ended in time"
            };
            self.stream_failed(host, now, why);
        } else if let State::Leaving(why) = stream.state
            && self.calls.registry.streamed_calls() == 0
        {
            self.cancel_stream(now, why);
        }
    }

    /// Sends nothing more on the stream, and gives it up once nothing is in flight on it. What is sent
    /// next, retries included, goes by callouts, which may reach another limiter.
    fn leave_stream(&mut self, now: Now, why: &'static str) {
        self.calls.stream.become_now(State::Leaving(why), now);
    }

    /// When what requests wait for is overdue, on the monotonic clock: a check call has timed out, a delay is over, a body
    /// did not come, and the tick or the answer that is to say so is late. `u64::MAX`: none waits.
    pub fn overdue_us(&self) -> u64 {
        let (calls, requests) = (&self.calls, &self.requests);
        let sent = calls.registry.checks.first().map(|call| call.sent.mono_us);
        let failed = calls.later.first().map(|check| check.attempts.since_us);
        let waits = [
            sent.map(|us| us.saturating_add(calls.timeout_us + 1)),
            failed.map(|us| us.saturating_add(calls.patience_us())),
            Some(requests.holds.next_us()),
            Some(requests.bodies.next_us()),
        ];
        let first_us = waits.into_iter().flatten().min().unwrap_or(u64::MAX);
        first_us.saturating_add(BUSY_US)
    }

    /// Ends the waits that are overdue; answers of calls that are come too late from now on. For a host that ticks and
    /// answers by another thread than that of the requests.
    pub fn end_overdue(&mut self, host: &impl Host, now: Now) {
        self.end_waits(now);
        let later = std::mem::take(&mut self.calls.later);
        self.requeue(host, now, later);
        while let Some(call) = self.calls.registry.take_lost(now, self.calls.busy_us()) {
            if call.deadline_us.is_some() {
                self.leave_stream(now, "an answer came too late");
            }
            self.unanswered(host, now, call);
        }
        self.send_soon(host, now);
    }

    /// Whether anybody waits for a call.
    pub fn is_in_flight(&self, id: CallId) -> bool {
        self.calls.registry.has(id)
    }

    fn unanswered(&mut self, host: &impl Host, now: Now, call: CheckCall<PendingCheck>) {
        self.calls.add_duration(now, &call);
        self.on_checks_answered(host, now, call, None);
    }

    fn cancel_stream(&mut self, now: Now, why: &str) {
        self.calls.stream.failed(now);
        self.counts.happened(Event::StreamFailed);
        self.steps.push_back(Step::Stream(StreamStep::Cancel));
        let text = format!(
            "rate limiter: the stream to {} failed, checks are callouts meanwhile: {}",
            self.config.limiter.cluster,
            log_line(why)
        );
        // Each attempt logs this at most once, and attempts become rare.
        self.steps.push_back(Step::Log(Level::Warn, text));
    }
}

/// An answer on the stream, presented as that of a callout.
struct StreamedAnswer<'m> {
    status: String,
    body: &'m [u8],
}

impl<'m> StreamedAnswer<'m> {
    fn new(answer: StreamAnswer<'m>) -> Self {
        Self {
            status: answer.status.to_string(),
            body: answer.body,
        }
    }
}

impl CallAnswer for StreamedAnswer<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        match name {
            ":status" => Some(self.status.as_bytes()),
            // The path of the stream names the version.
            API_HEADER => Some(API_VERSION.as_bytes()),
            _ => None,
        }
    }

    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        (self.body.len() <= max_len).then(|| self.body.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::at;

    #[test]
    fn an_id_names_one_call_until_it_ends() {
        let mut registry = Registry::default();
        let poll = registry.start_poll();
        let checks = registry.start_checks(at(1), false, vec![7]);
        let report = registry.start_report(at(2));
        assert!(matches!(registry.finish(poll), Some(InFlight::Poll)));
        assert!(matches!(registry.finish(report), Some(InFlight::Report)));
        let Some(InFlight::Checks(call)) = registry.finish(checks) else {
            panic!("it is in flight");
        };
        assert_eq!((call.checks, call.sent), (vec![7], at(1)));
        for id in [poll, checks, report] {
            assert!(registry.finish(id).is_none());
        }
    }

    #[test]
    fn a_poll_that_was_replaced_is_not_answered_any_more() {
        let mut registry = Registry::<()>::default();
        let given_up = registry.start_poll();
        let poll = registry.start_poll();
        assert!(registry.finish(given_up).is_none());
        assert!(registry.finish(poll).is_some());
    }

    #[test]
    fn a_call_that_the_host_never_ends_is_taken_out() {
        let mut registry = Registry::default();
        let id = registry.start_checks(at(0), false, vec![0]);
        assert!(registry.take_lost(at(1040), 1_040_000).is_none());
        assert_eq!(registry.take_lost(at(1041), 1_040_000).unwrap().checks, [0]);
        assert!(registry.finish(id).is_none());
    }
}
