//! End-of-turn batching: checks that arrive in one turn of the event loop leave together.
//!
//! In one turn, Envoy's event loop delivers all requests that have arrived, and writes to its
//! connections after the last of them. So a call made with the first request leaves no sooner than one
//! made at the end of the turn, which carries the checks of all.
//!
//! The worker sends at once while the breaker is open, because then no check leaves, and after the host
//! missed an end-of-turn callback.

use crate::{
    host::Host,
    outage::Gate,
    time::Now,
    worker::{Step, Worker},
};

/// The longest duration of a turn, in microseconds. After that, a tick proves that the turn has ended.
const TURN_MAX_US: u64 = 20_000;

/// The state of end-of-turn batching.
#[derive(Debug, Default)]
pub(crate) struct TurnBatching {
    /// When the worker requested the callback that is due.
    requested_us: Option<u64>,
    /// Whether the host missed the last callback.
    missed: bool,
    /// Whether the breaker was open at the last attempt to send.
    barred: bool,
}

impl Worker {
    /// The turn ended for which the worker emitted a [`Step::AtTurnEnd`].
    pub fn on_turn_end(&mut self, host: &impl Host, now: Now) {
        self.calls.turn.requested_us = None;
        self.calls.turn.missed = false;
        self.free_slots(host, now);
        self.send(host, now);
    }

    /// Sends the checks that are ready at the end of this turn.
    pub(crate) fn send_soon(&mut self, host: &impl Host, now: Now) {
        if !self.calls.is_ready(now) {
            return;
        }
        let turn = &mut self.calls.turn;
        if turn.missed || turn.barred {
            self.send(host, now);
        } else if turn.requested_us.is_none() {
            turn.requested_us = Some(now.mono_us);
            self.steps.push_back(Step::AtTurnEnd);
        }
    }

    /// At a tick: sends the checks that are ready. The turn that they arrived in is over.
    pub(crate) fn send_overdue(&mut self, host: &impl Host, now: Now) {
        let requested_us = self.calls.turn.requested_us;
        if requested_us.is_some_and(|since_us| now.mono_us.saturating_sub(since_us) > TURN_MAX_US) {
            self.calls.turn.missed = true;
        }
        self.send(host, now);
    }

    /// Sends as many calls as are ready; with an open breaker, decides the checks without the limiter.
    fn send(&mut self, host: &impl Host, now: Now) {
        while self.calls.is_ready(now) {
            let gate = self.outage.breaker.gate(host, now);
            self.calls.turn.barred = gate == Gate::Open;
            if gate == Gate::Open {
                for check in self.calls.batcher.take_waiting() {
                    self.decide_unsent(host, now, check);
                }
                return;
            }
            self.send_checks(host, now, gate);
        }
    }
}
