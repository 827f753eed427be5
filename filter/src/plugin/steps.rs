//! Carries out the steps that the state machine returns.

use filter_core::{Callback, Edits, Step, StreamId};
use proxy_wasm::types::{Action, MapType};

use super::{DEGRADED, Plugin};
use crate::{
    effective_context::EffectiveContext,
    host::{headers, stream},
    log::{log, log_level},
    request::{self, HostRequest},
    response,
    shared::SharedData,
};

/// Request headers by which a client may get a part of a body, or the body in a form that the filter does
/// not read. A service may ignore each of them, so no client depends on it.
const CHOOSES_BODY: [&str; 7] = [
    "range",
    "if-range",
    "a-im",
    "accept-charset",
    "grpc-accept-encoding",
    "connect-accept-encoding",
    "sec-websocket-extensions",
];

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
                    edit(&edits);
                    action = Action::Continue;
                }
                Step::Refuse { stream, refusal } if current == Some(stream) => {
                    context.switch_to(stream.0);
                    let grpc = request.is_some_and(HostRequest::is_grpc);
                    // This fails only for a request that is gone.
                    let _ = response::refuse(refusal, grpc);
                }
                // Requests that no longer exist need neither step.
                Step::Continue { stream, edits } => {
                    if context.switch_to(stream.0) {
                        edit(&edits);
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

    fn next_step(&self, callback: &mut Callback) -> Option<Step> {
        self.worker.borrow_mut().poll_step(callback)
    }

    pub(super) fn end_turn(&self) {
        let now = self.clock.now();
        self.worker.borrow_mut().on_turn_end(&SharedData, now);
    }
}

fn edit(edits: &Edits) {
    const REQUEST: MapType = MapType::HttpRequestHeaders;
    if let Some(limits) = &edits.degraded {
        let _ = headers::set(REQUEST, DEGRADED, limits.as_bytes());
    }
    if edits.needs.body {
        let _ = headers::set(REQUEST, "accept-encoding", b"identity");
        for name in CHOOSES_BODY {
            let _ = headers::remove(REQUEST, name);
        }
        // With other methods, these guard against lost updates.
        let method = headers::get(REQUEST, ":method");
        if matches!(method.as_deref(), Some(b"GET" | b"HEAD")) {
            for name in ["if-none-match", "if-modified-since"] {
                let _ = headers::remove(REQUEST, name);
            }
        }
    }
    if edits.needs.trailers {
        let _ = headers::set(REQUEST, "te", b"trailers");
    }
}
