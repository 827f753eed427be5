//! Calls to the limiter: the root makes them, and the host's token identifies their answers.

use std::time::Duration;

use filter_core::{Call, CallAnswer, Step};
use proxy_wasm::{hostcalls, types::Status};

use super::Plugin;
use crate::shared::SharedData;

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
    /// Envoy cancels a call with its context, and the SDK delivers the answer to the context whose
    /// callback made the call. A call made for a request that ends early would lose the answers of
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
        // Envoy treats 0 ms as no timeout.
        let timeout = Duration::from_millis(call.timeout_ms.max(1));
        let body = call.body.as_deref();
        hostcalls::dispatch_http_call(&limiter.cluster, pairs, body, Vec::new(), timeout)
    }
}
