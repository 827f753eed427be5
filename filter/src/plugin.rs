//! One configured plugin: connects Envoy's callbacks to the state machine of filter-core.

mod calls;
mod clock;
mod steps;
mod stream;

use std::{
    cell::{Cell, RefCell},
    time::Duration,
};

use filter_core::{BodyNeed, CallId, Metering, Step, StreamId, Worker};
use proxy_wasm::{
    hostcalls,
    types::{Action, MapType},
};

use crate::{
    host::headers,
    pause,
    request::{self, HostBody, HostRequest},
    response::HostResponse,
    shared::SharedData,
    stats::Stats,
    turn::TurnEnd,
};
use clock::Clock;
use stream::Streams;

/// The header that marks a request for its upstream.
const DEGRADED: &str = "x-ratelimit-degraded";

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
            sidecar: request::is_sidecar(),
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
            let _ = headers::remove(MapType::HttpRequestHeaders, DEGRADED);
        }
        let direction = self.worker.borrow().config().direction;
        if !request::is_limited(direction, self.sidecar) {
            return Action::Continue;
        }
        let now = self.clock.now();
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
        let now = self.clock.now();
        let mut worker = self.worker.borrow_mut();
        worker.on_request_read(&SharedData, now, id, request);
    }

    /// A response begins. Returns whether its body or trailers determine the cost of its request.
    pub fn on_response(&self, id: StreamId, end: bool) -> bool {
        let metering = self
            .worker
            .borrow_mut()
            .on_response(id, &mut HostResponse, end);
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
        let freed = self.worker.borrow_mut().on_gone(id);
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
            let _ = hostcalls::set_tick_period(Duration::from_millis(tick_ms.into()));
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
