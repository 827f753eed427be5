//! One configured plugin: connects Envoy's callbacks to the state machine of filter-core.

mod stream;

use std::cell::{Cell, OnceCell, RefCell};

use filter_core::{
    BodyNeed, Call, CallAnswer, CallId, Callback, DEGRADED, Metering, Metrics, Now, Step, StreamId,
    Worker,
};

use crate::{
    context::Action,
    host::{self, HostError, HttpCall, Map, MetricKind, SharedData, headers, log, log_level},
    http::{self, HostBody, HostHeaders, HostRequest, HostResponse},
};
pub use stream::StreamEvent;
use stream::Streams;

/// One configured plugin of one VM.
///
/// Nothing borrows a cell for longer than one call of the state machine. During that call the host only
/// reads headers and shared data and allocates, so no cell is borrowed twice.
#[derive(Debug)]
pub struct Plugin {
    root_id: u32,
    sidecar: bool,
    worker: RefCell<Worker>,
    stats: RefCell<Stats>,
    /// Calls in flight, by the host's token.
    calls: RefCell<Vec<(u32, CallId)>>,
    /// Steps for the next callback of the root: see [`Plugin::defer`].
    deferred: RefCell<Vec<Step>>,
    streams: Streams,
    turn_end: TurnEnd,
    tick_ms: Cell<u32>,
    clock: Clock,
}

impl Plugin {
    pub fn new(root_id: u32, worker: Worker) -> Self {
        Self {
            root_id,
            sidecar: http::is_sidecar(),
            worker: RefCell::new(worker),
            stats: RefCell::default(),
            calls: RefCell::default(),
            deferred: RefCell::default(),
            streams: Streams::default(),
            turn_end: TurnEnd::default(),
            tick_ms: Cell::new(0),
            clock: Clock::new(),
        }
    }

    /// Starts the metrics and the ticks.
    pub fn start(&self) {
        Worker::define_metrics(&mut *self.stats.borrow_mut());
        self.adjust_ticks();
    }

    /// A request came: it continues, or it is paused until it is resumed or answered.
    /// `end`: it has no body.
    pub fn on_request(&self, id: StreamId, end: bool) -> Action {
        let request = HostRequest::read(!end);
        // Only this filter may mark a request.
        if request.has(DEGRADED) {
            let _ = headers::remove(Map::Request, DEGRADED);
        }
        let direction = self.worker.borrow().config().direction;
        if !http::is_limited(direction, self.sidecar) {
            return Action::Continue;
        }
        self.worker
            .borrow_mut()
            .on_request(&SharedData, &|| self.clock.now(), id, &request);
        let action = self.carry_out(Some((id, &request)));
        if action == Action::Pause && self.worker.borrow().body_need(id) == BodyNeed::Reads {
            return Action::PauseForBody;
        }
        action
    }

    /// A chunk of a request's body, or its trailers: it passes, or it waits for the decision.
    pub fn on_request_body(&self, id: StreamId, size: usize, end: bool) -> Action {
        let mut worker = self.worker.borrow_mut();
        if end {
            worker.on_request_end(|| self.clock.now(), id);
        }
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
        let now = self.clock.now();
        let mut worker = self.worker.borrow_mut();
        worker.on_request_read(&SharedData, now, id, request);
    }

    /// A response begins. Returns whether its body or trailers determine the cost of its request.
    pub fn on_response(&self, id: StreamId, end: bool) -> bool {
        let metering =
            self.worker
                .borrow_mut()
                .on_response(|| self.clock.now(), id, &mut HostResponse, end);
        self.is_read_on(metering)
    }

    /// A chunk of a response's body. Returns whether later chunks or trailers also matter.
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

    fn is_read_on(&self, metering: Metering) -> bool {
        if metering == Metering::Settled {
            self.send_at_turn_end();
        }
        metering == Metering::Reads
    }

    pub fn on_gone(&self, id: StreamId) {
        let now = || self.clock.now();
        let freed = self.worker.borrow_mut().on_gone(now, id);
        if freed {
            self.send_at_turn_end();
        }
    }

    /// Settled costs and freed slots are sent in one call when the turn ends, or else at a tick.
    fn send_at_turn_end(&self) {
        let _ = self.turn_end.request();
        self.adjust_ticks();
    }

    pub fn on_tick(&self) {
        self.clock.adjust();
        self.turn_end.forget();
        self.streams.cancel_given_up();
        let now = self.clock.now();
        let stats = &mut *self.stats.borrow_mut();
        self.worker.borrow_mut().on_tick(&SharedData, now, stats);
        self.carry_out(None);
    }

    pub fn on_queue_ready(&self, queue_id: u32) {
        if self.turn_end.is_reported_by(queue_id) {
            self.streams.cancel_given_up();
            self.end_turn();
            self.carry_out(None);
        }
    }

    fn adjust_ticks(&self) {
        let tick_ms = self.worker.borrow().tick_ms();
        if self.tick_ms.replace(tick_ms) != tick_ms {
            // Without ticks the plugin polls no policy, but it still decides requests.
            let _ = host::set_tick_period(tick_ms);
        }
    }
}

/// The root is deleted with its last request. Other workers free the slots that are still occupied.
impl Drop for Plugin {
    fn drop(&mut self) {
        let now = self.clock.now();
        self.worker.borrow_mut().leave(&SharedData, now);
    }
}

// --- Carries out the steps that the state machine returns.

impl Plugin {
    /// Carries out the steps of the state machine until none is left for this callback.
    ///
    /// `current` is the request whose callback is running, if any; the result is the action for that
    /// request.
    pub(super) fn carry_out(&self, current: Option<(StreamId, &HostRequest)>) -> Action {
        let (current, request) = current.unzip();
        let mut callback = current.map_or_else(Callback::of_root, Callback::of_request);
        let mut action = Action::Pause;
        let mut context = EffectiveContext::new(current.map_or(self.root_id, |stream| stream.0));
        if current.is_none() {
            self.worker.borrow_mut().put_back(self.deferred.take());
        }
        while let Some(step) = self.next_step(&mut callback) {
            match step {
                Step::Call(_) | Step::Stream(_) if current.is_some() => self.defer(step),
                Step::Call(call) => {
                    context.switch_to(self.root_id);
                    self.call(&call);
                }
                Step::Stream(step) => {
                    context.switch_to(self.root_id);
                    self.carry_out_on_stream(step);
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
                    edits.apply(&mut HostHeaders);
                    action = Action::Continue;
                }
                Step::Refuse { stream, refusal } if current == Some(stream) => {
                    context.switch_to(stream.0);
                    let grpc = request.is_some_and(HostRequest::is_grpc);
                    // This fails only for a request that is gone.
                    let _ = http::refuse(*refusal, grpc);
                }
                // Requests that no longer exist need neither step.
                Step::Continue { stream, edits } => {
                    if context.switch_to(stream.0) {
                        edits.apply(&mut HostHeaders);
                        let _ = host::resume_request();
                    }
                }
                Step::Refuse { stream, refusal } => {
                    if context.switch_to(stream.0) {
                        let _ = http::refuse(*refusal, http::waiting_is_grpc());
                    }
                }
            }
        }
        drop(context);
        self.adjust_ticks();
        action
    }

    fn next_step(&self, callback: &mut Callback) -> Option<Step> {
        self.worker.borrow_mut().poll_step(callback)
    }

    pub(super) fn end_turn(&self) {
        let now = self.clock.now();
        self.worker.borrow_mut().on_turn_end(&SharedData, now);
    }
}

// --- Calls to the limiter: the root makes them, and the host's token identifies their answers.

impl Plugin {
    pub fn on_answer(&self, token: u32, answer: Option<&dyn CallAnswer>) {
        let id = {
            let mut calls = self.calls.borrow_mut();
            let at = calls.iter().position(|(known, _)| *known == token);
            at.map(|at| calls.swap_remove(at).1)
        };
        if let Some(id) = id {
            let now = self.clock.now();
            self.worker
                .borrow_mut()
                .on_call_answer(&SharedData, now, id, answer);
            self.carry_out(None);
        }
    }

    /// Defers a call to the root's callback at the end of the turn, or else to the next tick.
    ///
    /// Envoy cancels a call with its context: a call of a request that ends early would lose the answers of
    /// other requests.
    pub(super) fn defer(&self, step: Step) {
        self.deferred.borrow_mut().push(step);
        let _ = self.turn_end.request();
    }

    /// Calls the limiter, in a callback of the root and for the root.
    pub(super) fn call(&self, call: &Call) {
        if let Ok(token) = self.dispatch(call) {
            self.calls.borrow_mut().push((token, call.id));
        } else {
            let now = self.clock.now();
            let mut worker = self.worker.borrow_mut();
            worker.on_call_refused(&SharedData, now, call.id);
        }
    }

    /// Fails for an unknown cluster, and for one without endpoints.
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
        // Envoy treats 0 ms as no timeout.
        let timeout_ms = u32::try_from(call.timeout_ms).unwrap_or(u32::MAX).max(1);
        host::call(&HttpCall {
            cluster: &limiter.cluster,
            headers: &pairs,
            body: call.body.as_deref().unwrap_or_default(),
            timeout_ms,
        })
    }
}

// --- The time of an event, from the host's two clocks.

/// Both clocks.
#[derive(Debug)]
pub struct Clock(filter_core::Clock);

impl Clock {
    pub fn new() -> Self {
        Self(filter_core::Clock::new(wall_ms(), mono_us()))
    }

    /// Adjusts to a wall clock that was set.
    pub fn adjust(&self) {
        self.0.adjust(wall_ms(), mono_us());
    }

    pub fn now(&self) -> Now {
        self.0.at(mono_us())
    }
}

fn mono_us() -> u64 {
    host::clock_ns(host::MONOTONIC).unwrap_or(0) / 1000
}

/// Milliseconds since the epoch.
fn wall_ms() -> u64 {
    host::clock_ns(host::REALTIME).unwrap_or(0) / 1_000_000
}

// --- Host calls for other contexts than the one whose callback is running.

/// The context that host calls apply to while the steps of several requests are carried out. Dropping
/// it restores the context whose callback is running.
pub struct EffectiveContext {
    own: u32,
    current: u32,
}

impl EffectiveContext {
    pub fn new(own: u32) -> Self {
        Self { own, current: own }
    }

    /// Returns whether the context still exists.
    pub fn switch_to(&mut self, context_id: u32) -> bool {
        if self.current != context_id {
            if host::set_effective_context(context_id).is_err() {
                return false;
            }
            self.current = context_id;
        }
        true
    }
}

impl Drop for EffectiveContext {
    fn drop(&mut self) {
        self.switch_to(self.own);
    }
}

// --- Envoy's stats as the state machine sees them: `wasmcustom.<name>`.
//
// Failures to write a metric are ignored: they must not affect anything else. Envoy frees no names;
// the state machine bounds how many there are.

/// The metrics defined so far, sorted by name.
#[derive(Debug, Default)]
pub struct Stats {
    ids: Vec<(Box<str>, u32)>,
}

impl Stats {
    fn id(&mut self, kind: MetricKind, name: &str) -> Option<u32> {
        let found = self.ids.binary_search_by(|(known, _)| (**known).cmp(name));
        match found {
            Ok(at) => self.ids.get(at).map(|(_, id)| *id),
            Err(at) => {
                let id = host::define_metric(kind, name).ok()?;
                self.ids.insert(at, (name.into(), id));
                Some(id)
            }
        }
    }

    fn record(&mut self, kind: MetricKind, name: &str, value: u64) {
        if let Some(id) = self.id(kind, name) {
            let _ = host::record_metric(id, value);
        }
    }
}

impl Metrics for Stats {
    fn count(&mut self, name: &str, by: u64) {
        // Defined even at 0, which Envoy refuses to add.
        if let Some(id) = self.id(MetricKind::Counter, name)
            && by > 0
        {
            let _ = host::increment_metric(id, i64::try_from(by).unwrap_or(i64::MAX));
        }
    }

    fn gauge(&mut self, name: &str, value: u64) {
        self.record(MetricKind::Gauge, name, value);
    }

    fn sample(&mut self, name: &str, value: u64) {
        self.record(MetricKind::Histogram, name, value);
    }
}

// --- The end of a turn of Envoy's event loop.
//
// Envoy delivers a value of a shared queue through the event loop of the worker that registered the
// queue: in the same turn, after all events that were ready when the turn began. No other callback
// comes at the end of a turn.

thread_local! {
    /// Queue names of deleted plugins of this VM. Envoy keeps a queue as long as any VM with this id
    /// exists, so the next plugin reuses it.
    static UNUSED: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// The shared queue of one plugin.
#[derive(Debug, Default)]
pub struct TurnEnd {
    queue: OnceCell<Queue>,
    /// Whether the end of this turn was requested. One report serves all requests that end in it.
    requested: Cell<bool>,
}

#[derive(Debug)]
struct Queue {
    id: u32,
    /// Random, so that no other worker or plugin registers it.
    name: String,
}

/// Envoy will not report the end of the turn.
#[derive(Clone, Copy, Debug)]
pub struct NotReported;

impl TurnEnd {
    /// Has Envoy call the root's `on_queue_ready` when the turn ends.
    pub fn request(&self) -> Result<(), NotReported> {
        if self.requested.get() {
            return Ok(());
        }
        let id = match self.queue.get() {
            Some(queue) => queue.id,
            // Neither a canary nor the main thread ever gets here.
            None => self.register()?,
        };
        host::enqueue(id).map_err(|_| NotReported)?;
        self.requested.set(true);
        Ok(())
    }

    /// At a tick, which begins another turn: a report that has not come by now was missed.
    pub fn forget(&self) {
        self.requested.set(false);
    }

    fn register(&self) -> Result<u32, NotReported> {
        let name = UNUSED.with_borrow_mut(Vec::pop);
        let name = name.map_or_else(random_name, Ok)?;
        let id = host::register_queue(&name).map_err(|_| NotReported)?;
        Ok(self.queue.get_or_init(|| Queue { id, name }).id)
    }

    /// Whether `on_queue_ready` for this queue reports the end of a turn that was requested here.
    pub fn is_reported_by(&self, queue_id: u32) -> bool {
        let own = self.queue.get().is_some_and(|queue| queue.id == queue_id);
        if own {
            self.forget();
        }
        own && host::dequeue(queue_id).is_ok()
    }
}

fn random_name() -> Result<String, NotReported> {
    let random = host::random().map_err(|_| NotReported)?;
    Ok(format!("rl1:turn:{:032x}", u128::from_ne_bytes(random)))
}

impl Drop for TurnEnd {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            UNUSED.with_borrow_mut(|unused| unused.push(queue.name));
        }
    }
}
