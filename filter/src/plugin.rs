//! Between Envoy's callbacks and the state machine.

use std::cell::{Cell, RefCell};

use filter_core::{Call, CallAnswer, CallId, Edits, Level, Now, Step, StreamId, Worker};

use crate::{
    host::{
        HostError, callout, clock,
        headers::{self, Map},
        log, stream,
    },
    request::{self, HostRequest},
    response::{self, HostResponse},
    shared::SharedData,
    stats::Stats,
    turn::Turn,
};

/// The header that marks a request for its upstream.
const DEGRADED: &str = "x-ratelimit-degraded";

/// One plugin of one VM.
///
/// No borrow of a cell lasts longer than one call of the state machine, during which the host
/// only reads headers and shared data; so none is ever borrowed twice.
#[derive(Debug)]
pub struct Plugin {
    root_id: u32,
    sidecar: bool,
    worker: RefCell<Worker>,
    stats: RefCell<Stats>,
    /// Calls in flight, by the host's token.
    calls: RefCell<Vec<(u32, CallId)>>,
    turn: Turn,
    tick_ms: Cell<u32>,
    /// What the wall clock is ahead of the monotonic one, in milliseconds, as of the last tick.
    epoch_ms: Cell<u64>,
}

/// What becomes of the request whose callback is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not decided yet.
    Waits,
    /// It goes on.
    GoesOn,
    /// It was answered here.
    Answered,
}

impl Plugin {
    pub fn new(root_id: u32, worker: Worker) -> Self {
        Self {
            root_id,
            sidecar: request::is_sidecar(),
            worker: RefCell::new(worker),
            stats: RefCell::default(),
            calls: RefCell::default(),
            turn: Turn::default(),
            tick_ms: Cell::new(0),
            epoch_ms: Cell::new(epoch_ms()),
        }
    }

    /// Asks for ticks.
    pub fn start(&self) {
        self.adjust_ticks();
    }

    pub fn on_request(&self, id: StreamId) -> Verdict {
        let request = HostRequest::read();
        // Only this filter may mark a request.
        if request.has(DEGRADED) {
            let _ = headers::remove(Map::Request, DEGRADED);
        }
        let direction = self.worker.borrow().config().direction;
        if !request::is_meant(direction, self.sidecar) {
            return Verdict::GoesOn;
        }
        let now = self.now();
        self.worker
            .borrow_mut()
            .on_request(&SharedData, now, id, &request);
        self.carry_out(Some((id, &request)))
    }

    pub fn on_response(&self, id: StreamId) {
        self.worker.borrow_mut().on_response(id, &mut HostResponse);
    }

    pub fn on_gone(&self, id: StreamId) {
        self.worker.borrow_mut().on_gone(id);
    }

    pub fn on_tick(&self) {
        self.epoch_ms.set(epoch_ms());
        let now = self.now();
        let stats = &mut *self.stats.borrow_mut();
        self.worker.borrow_mut().on_tick(&SharedData, now, stats);
        self.carry_out(None);
    }

    pub fn on_answer(&self, token: u32, answer: Option<&impl CallAnswer>) {
        let id = {
            let mut calls = self.calls.borrow_mut();
            let at = calls.iter().position(|(known, _)| *known == token);
            at.map(|at| calls.swap_remove(at).1)
        };
        if let Some(id) = id {
            let now = self.now();
            self.worker
                .borrow_mut()
                .on_call_answer(&SharedData, now, id, answer);
            self.carry_out(None);
        }
    }

    pub fn on_queue_ready(&self, queue: u32) {
        if self.turn.has_ended(queue) {
            self.end_turn();
            self.carry_out(None);
        }
    }

    /// Does what the state machine says, until it says nothing any more.
    ///
    /// `current` is the request whose callback is running, if it is one's: it is not resumed but
    /// simply not stopped.
    fn carry_out(&self, current: Option<(StreamId, &HostRequest)>) -> Verdict {
        let (current, request) = current.unzip();
        let mut verdict = Verdict::Waits;
        let mut speaker = Speaker::new(current.map_or(self.root_id, |stream| stream.0));
        while let Some(step) = self.next_step() {
            match step {
                Step::Call(call) => self.call(&call, &mut speaker),
                Step::AtTurnEnd => self.wait_for_turn_end(&mut speaker),
                Step::Log(level, text) => log::write(level.into(), &text),
                Step::Continue { stream, edits } if current == Some(stream) => {
                    speaker.becomes(stream.0);
                    mark(&edits);
                    verdict = Verdict::GoesOn;
                }
                Step::Refuse { stream, refusal } if current == Some(stream) => {
                    speaker.becomes(stream.0);
                    // Envoy has no reply to give only if the request is gone.
                    let grpc = request.is_some_and(HostRequest::is_grpc);
                    let _ = response::refuse(refusal, grpc);
                    verdict = Verdict::Answered;
                }
                // A request that has gone meanwhile needs nothing any more.
                Step::Continue { stream, edits } => {
                    if speaker.becomes(stream.0) {
                        mark(&edits);
                        let _ = stream::resume_request();
                    }
                }
                Step::Refuse { stream, refusal } => {
                    if speaker.becomes(stream.0) {
                        let _ = response::refuse(refusal, request::waiting_is_grpc());
                    }
                }
            }
        }
        drop(speaker);
        self.adjust_ticks();
        verdict
    }

    fn next_step(&self) -> Option<Step> {
        self.worker.borrow_mut().poll_step()
    }

    /// Calls the limiter, in the name of the root context: a call that a request makes ends with
    /// it, and takes the answers of others along.
    fn call(&self, call: &Call, speaker: &mut Speaker) {
        speaker.becomes(self.root_id);
        if let Ok(token) = self.dispatch(call) {
            self.calls.borrow_mut().push((token, call.id));
        } else {
            let now = self.now();
            let mut worker = self.worker.borrow_mut();
            worker.on_call_refused(&SharedData, now, call.id);
        }
    }

    fn wait_for_turn_end(&self, speaker: &mut Speaker) {
        speaker.becomes(self.root_id);
        if self.turn.tell_end().is_err() {
            self.end_turn();
        }
    }

    fn end_turn(&self) {
        let now = self.now();
        self.worker.borrow_mut().on_turn_end(&SharedData, now);
    }

    fn dispatch(&self, call: &Call) -> Result<u32, HostError> {
        let worker = self.worker.borrow();
        let limiter = &worker.config().limiter;
        let mut pairs = Vec::with_capacity(8);
        pairs.push((":method", call.method));
        pairs.push((":path", call.path.as_str()));
        pairs.push((":authority", limiter.authority.as_str()));
        pairs.extend(
            call.headers
                .iter()
                .map(|(name, value)| (*name, value.as_str())),
        );
        let body = call.body.as_deref().unwrap_or_default();
        callout::dispatch(&limiter.cluster, &pairs, body, call.timeout_ms)
    }

    fn adjust_ticks(&self) {
        let tick_ms = self.worker.borrow().tick_ms();
        if self.tick_ms.replace(tick_ms) != tick_ms {
            // Without ticks nothing is polled, but requests are still decided.
            let _ = clock::set_tick_period_ms(tick_ms);
        }
    }

    fn now(&self) -> Now {
        let mono_us = clock::monotonic_ns().unwrap_or(0) / 1000;
        Now {
            mono_us,
            wall_ms: self.epoch_ms.get().saturating_add(mono_us / 1000),
        }
    }
}

/// In whose name host calls are made while the steps of several requests are carried out. An
/// answer resumes many: each is spoken for in turn, and only after the last the one whose callback
/// is running.
struct Speaker {
    own: u32,
    current: u32,
}

impl Speaker {
    fn new(own: u32) -> Self {
        Self { own, current: own }
    }

    /// Speaks for a context from now on, unless it has gone.
    fn becomes(&mut self, context: u32) -> bool {
        if self.current != context {
            if stream::set_effective_context(context).is_err() {
                return false;
            }
            self.current = context;
        }
        true
    }
}

impl Drop for Speaker {
    fn drop(&mut self) {
        self.becomes(self.own);
    }
}

/// Milliseconds from the beginning of the monotonic clock back to the epoch.
fn epoch_ms() -> u64 {
    let wall_ns = clock::wall_ns().unwrap_or(0);
    let mono_ns = clock::monotonic_ns().unwrap_or(0);
    wall_ns.saturating_sub(mono_ns) / 1_000_000
}

fn mark(edits: &Edits) {
    if let Some(limits) = &edits.degraded {
        let _ = headers::set(Map::Request, DEGRADED, limits.as_bytes());
    }
}

impl From<Level> for log::Level {
    fn from(level: Level) -> Self {
        match level {
            Level::Info => Self::Info,
            Level::Warn => Self::Warn,
        }
    }
}
