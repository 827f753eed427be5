//! The check stream: a gRPC stream to a limiter whose messages are check calls.
//!
//! For a callout Envoy sets up a request and reads headers one by one; a message of an open stream
//! needs neither. A stream only replaces callouts that work: the worker opens it beside a callout,
//! sends checks on it once the limiter accepts calls, and gives it up when an answer is late, the
//! limiter fails, or anything unexpected arrives. Then checks are callouts again, and the worker opens no stream until a
//! callout was answered.
//!
//! A call that was sent and not answered may have been charged, as with a callout. A limiter that shuts
//! down gracefully announces it first, and answers all calls that it receives until this side closes
//! the stream.

use protocol::{API_HEADER, API_VERSION, StreamAnswer, StreamCall};

use super::CheckCall;
use crate::{
    host::Host,
    log_line::log_line,
    metrics::Event,
    request::PendingCheck,
    time::Now,
    worker::{CallAnswer, Level, Step, StreamStep, Worker},
};

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
        }
    }

    /// Whether calls go by it.
    pub(crate) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// A callout was answered.
    pub(crate) fn callout_answered(&mut self) {
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
    pub(crate) fn open_stream(&mut self, now: Now) {
        if !self.calls.stream.may_open(now) {
            return;
        }
        self.calls.stream.become_now(State::Opening, now);
        let bearer = self.calls.bearer.clone();
        self.steps.push_back(Step::Stream(StreamStep::Open(bearer)));
    }

    /// Sends a call as a message of the stream.
    pub(crate) fn send_on_stream(&mut self, now: Now, checks: Vec<PendingCheck>, body: &[u8]) {
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
    pub(crate) fn leave_stream(&mut self, now: Now, why: &'static str) {
        self.calls.stream.become_now(State::Leaving(why), now);
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
