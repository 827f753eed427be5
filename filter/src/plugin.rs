//! Between Envoy's callbacks and the state machine.

use std::{
    cell::{Cell, RefCell},
    time::{Duration, UNIX_EPOCH},
};

use filter_core::{
    BodyNeed, Call, CallAnswer, CallId, Edits, Metering, Now, Step, StreamId, Worker,
};
use proxy_wasm::{
    hostcalls,
    types::{Action, MapType, Status},
};

use crate::{
    effective_context::EffectiveContext,
    host::{clock, headers, stream},
    log::{log, log_level},
    pause,
    request::{self, HostBody, HostRequest},
    response::{self, HostResponse},
    shared::SharedData,
    stats::Stats,
    turn::TurnEnd,
};

/// The header that marks a request for its upstream.
const DEGRADED: &str = "x-ratelimit-degraded";

/// One configured plugin of one VM.
///
/// No borrow of a cell lasts longer than one call of the state machine, during which the host only
/// reads headers and shared data and allocates; so none is ever borrowed twice.
#[derive(Debug)]
pub struct Plugin {
    root_id: u32,
    sidecar: bool,
    worker: RefCell<Worker>,
    stats: RefCell<Stats>,
    /// Calls in flight, by the host's token.
    calls: RefCell<Vec<(u32, CallId)>>,
    /// Calls for the next callback of the root: see [`Plugin::defer`].
    deferred: RefCell<Vec<Call>>,
    turn_end: TurnEnd,
    tick_ms: Cell<u32>,
    /// How far the wall clock is ahead of the monotonic one, in milliseconds, as of the last tick.
    epoch_ms: Cell<u64>,
}

impl Plugin {
    pub fn new(root_id: u32, worker: Worker) -> Self {
        Self {
            root_id,
            sidecar: request::is_sidecar(),
            worker: RefCell::new(worker),
            stats: RefCell::default(),
            calls: RefCell::default(),
            deferred: RefCell::default(),
            turn_end: TurnEnd::default(),
            tick_ms: Cell::new(0),
            epoch_ms: Cell::new(epoch_ms()),
        }
    }

    /// Starts the ticks.
    pub fn start(&self) {
        self.adjust_ticks();
    }

    /// A request came: it continues, or it is paused until it is resumed or answered.
    /// `end`: it has no body.
    pub fn on_request(&self, id: StreamId, end: bool) -> Action {
        let request = HostRequest::read(!end);
        // Only this filter may mark a request.
        if request.has(DEGRADED) {
            let _ = headers::remove(MapType::HttpRequestHeaders, DEGRADED);
        }
        let direction = self.worker.borrow().config().direction;
        if !request::is_limited(direction, self.sidecar) {
            return Action::Continue;
        }
        let now = self.now();
        self.worker
            .borrow_mut()
            .on_request(&SharedData, now, id, &request);
        let action = self.carry_out(Some((id, &request)));
        if action == Action::Pause && self.worker.borrow().body_need(id) == BodyNeed::Reads {
            pause::for_body();
        }
        action
    }

    /// A chunk of a request's body, or its trailers: it passes, or it waits for the decision.
    pub fn on_request_body(&self, id: StreamId, size: usize, end: bool) -> Action {
        let mut worker = self.worker.borrow_mut();
        let need = worker.on_request_body(id, size, end, &HostBody);
        drop(worker);
        match need {
            BodyNeed::None => Action::Continue,
            BodyNeed::Reads | BodyNeed::Waits => Action::Pause,
            BodyNeed::Read => {
                let request = HostRequest::read(false);
                self.decide_read(id, &request);
                self.carry_out(Some((id, &request)))
            }
        }
    }

    fn decide_read(&self, id: StreamId, request: &HostRequest) {
        let now = self.now();
        let mut worker = self.worker.borrow_mut();
        worker.on_request_read(&SharedData, now, id, request);
    }

    /// A response begins; returns whether what follows says what its request costs.
    pub fn on_response(&self, id: StreamId, end: bool) -> bool {
        let metering = self
            .worker
            .borrow_mut()
            .on_response(id, &mut HostResponse, end);
        self.is_read_on(metering)
    }

    /// A chunk of a response's body; returns whether what follows matters, too.
    pub fn on_response_body(&self, id: StreamId, size: usize, end: bool) -> bool {
        let mut worker = self.worker.borrow_mut();
        let metering = worker.on_response_body(id, size, end, &HostResponse);
        drop(worker);
        self.is_read_on(metering)
    }

    pub fn on_response_trailers(&self, id: StreamId) {
        let mut worker = self.worker.borrow_mut();
        let metering = worker.on_response_trailers(id, &HostResponse);
        drop(worker);
        self.is_read_on(metering);
    }

    /// What a request cost whose response ended is sent when the turn ends, together with others; or
    /// at a tick.
    fn is_read_on(&self, metering: Metering) -> bool {
        if metering == Metering::Settled {
            let _ = self.turn_end.request();
            self.adjust_ticks();
        }
        metering == Metering::Reads
    }

    pub fn on_gone(&self, id: StreamId) {
        let freed = self.worker.borrow_mut().on_gone(id);
        if freed {
            // What it held is freed when the turn ends, together with what others did; or at a tick.
            let _ = self.turn_end.request();
            self.adjust_ticks();
        }
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

    pub fn on_queue_ready(&self, queue_id: u32) {
        if self.turn_end.is_reported_by(queue_id) {
            self.end_turn();
            self.carry_out(None);
        }
    }

    /// Carries out the steps of the state machine until there is none left.
    ///
    /// `current` is the request whose callback is running, if it is a request's; then the result is
    /// what becomes of that request.
    fn carry_out(&self, current: Option<(StreamId, &HostRequest)>) -> Action {
        let (current, request) = current.unzip();
        let mut action = Action::Pause;
        let mut context = EffectiveContext::new(current.map_or(self.root_id, |stream| stream.0));
        if current.is_none() {
            for call in self.deferred.take() {
                self.call(&call);
            }
        }
        while let Some(step) = self.next_step() {
            match step {
                Step::Call(call) if current.is_some() => self.defer(call),
                Step::Call(call) => {
                    context.switch_to(self.root_id);
                    self.call(&call);
                }
                Step::AtTurnEnd => {
                    if self.turn_end.request().is_err() {
                        self.end_turn();
                    }
                }
                Step::DecideWithoutBody(stream) => {
                    if context.switch_to(stream.0) {
                        self.decide_read(stream, &HostRequest::read(false));
                    }
                }
                Step::Log(level, text) => log(log_level(level), &text),
                Step::Continue { stream, edits } if current == Some(stream) => {
                    context.switch_to(stream.0);
                    mark(&edits);
                    action = Action::Continue;
                }
                Step::Refuse { stream, refusal } if current == Some(stream) => {
                    context.switch_to(stream.0);
                    let grpc = request.is_some_and(HostRequest::is_grpc);
                    // This fails only for a request that is gone.
                    let _ = response::refuse(refusal, grpc);
                }
                // A request that is gone needs neither.
                Step::Continue { stream, edits } => {
                    if context.switch_to(stream.0) {
                        mark(&edits);
                        let _ = stream::resume_request();
                    }
                }
                Step::Refuse { stream, refusal } => {
                    if context.switch_to(stream.0) {
                        let _ = response::refuse(refusal, request::waiting_is_grpc());
                    }
                }
            }
        }
        drop(context);
        self.adjust_ticks();
        action
    }

    fn next_step(&self) -> Option<Step> {
        self.worker.borrow_mut().poll_step()
    }

    /// Leaves a call to the root's callback at the end of the turn, or else at the next tick.
    ///
    /// Envoy ends a call with the context that it is made for, and the SDK gives the answer to the
    /// context in whose callback it was made: a request that ends early would take the answers of
    /// others with it.
    fn defer(&self, call: Call) {
        self.deferred.borrow_mut().push(call);
        let _ = self.turn_end.request();
    }

    /// Calls the limiter, in a callback of the root and for the root.
    fn call(&self, call: &Call) {
        if let Ok(token) = self.dispatch(call) {
            self.calls.borrow_mut().push((token, call.id));
        } else {
            let now = self.now();
            let mut worker = self.worker.borrow_mut();
            worker.on_call_refused(&SharedData, now, call.id);
        }
    }

    fn end_turn(&self) {
        let now = self.now();
        self.worker.borrow_mut().on_turn_end(&SharedData, now);
    }

    /// Fails with `BadArgument` for an unknown cluster, and with `InternalFailure` for one without
    /// endpoints.
    fn dispatch(&self, call: &Call) -> Result<u32, Status> {
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
        // Envoy takes 0 ms for no timeout at all.
        let timeout = Duration::from_millis(call.timeout_ms.max(1));
        let body = call.body.as_deref();
        hostcalls::dispatch_http_call(&limiter.cluster, pairs, body, Vec::new(), timeout)
    }

    fn adjust_ticks(&self) {
        let tick_ms = self.worker.borrow().tick_ms();
        if self.tick_ms.replace(tick_ms) != tick_ms {
            // Without ticks nothing is polled, but requests are still decided.
            let _ = hostcalls::set_tick_period(Duration::from_millis(tick_ms.into()));
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

/// The root ends with its last request. Slots that are still to be freed are left to other workers.
impl Drop for Plugin {
    fn drop(&mut self) {
        let now = self.now();
        self.worker.borrow_mut().leave(&SharedData, now);
    }
}

/// Milliseconds from the start of the monotonic clock back to the epoch.
fn epoch_ms() -> u64 {
    let wall = hostcalls::get_current_time().unwrap_or(UNIX_EPOCH);
    let wall_ms = wall
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_millis());
    let mono_ms = clock::monotonic_ns().unwrap_or(0) / 1_000_000;
    let wall_ms = u64::try_from(wall_ms.unwrap_or(0)).unwrap_or(0);
    wall_ms.saturating_sub(mono_ms)
}

fn mark(edits: &Edits) {
    if let Some(limits) = &edits.degraded {
        let _ = headers::set(MapType::HttpRequestHeaders, DEGRADED, limits.as_bytes());
    }
}
