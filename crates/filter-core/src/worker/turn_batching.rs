//! When checks leave: at the end of the host's turn.
//!
//! Envoy's event loop hands over, one by one, all requests that came by now, and writes what is to
//! be written after the last of them. A call that left with the first would be on the wire no
//! sooner, and alone. So it is made when the turn ends, and takes along the checks of all.
//!
//! Nobody waits for a turn's end while the limiter is known to be away, for then nothing leaves; nor
//! on a host that once let one pass in silence.

use super::{Step, Worker};
use crate::{breaker::Gate, host::Host, time::Now};

/// After which time a turn is over whether the host says so or not, in microseconds.
const TURN_MAX_US: u64 = 20_000;

/// What the worker knows of turns.
#[derive(Debug, Default)]
pub(super) struct TurnBatching {
    /// Since when the host is to say when its turn ends.
    asked_us: Option<u64>,
    /// It was asked in vain.
    missed: bool,
    /// Whether nobody might call when checks were last to leave.
    barred: bool,
}

impl Worker {
    /// The host's turn has ended, for which there was a [`Step::AtTurnEnd`].
    pub fn on_turn_end(&mut self, host: &impl Host, now: Now) {
        self.turn_batching.asked_us = None;
        self.turn_batching.missed = false;
        self.send(host, now);
    }

    /// Lets the checks that wait leave when the host's turn ends, if it is time for a callout.
    pub(super) fn send_soon(&mut self, host: &impl Host, now: Now) {
        if !self.batcher.is_ready(now) {
            return;
        }
        let turn_batching = &mut self.turn_batching;
        if turn_batching.missed || turn_batching.barred {
            self.send(host, now);
        } else if turn_batching.asked_us.is_none() {
            turn_batching.asked_us = Some(now.mono_us);
            self.steps.push_back(Step::AtTurnEnd);
        }
    }

    /// As [`Worker::send_soon`], but now: any turn has ended that checks of before the last tick
    /// were to wait for.
    pub(super) fn send_overdue(&mut self, host: &impl Host, now: Now) {
        let asked_us = self.turn_batching.asked_us;
        if asked_us.is_some_and(|since_us| now.mono_us.saturating_sub(since_us) > TURN_MAX_US) {
            self.turn_batching.missed = true;
        }
        self.send(host, now);
    }

    /// Lets checks leave, as many callouts as it is time for.
    fn send(&mut self, host: &impl Host, now: Now) {
        while self.batcher.is_ready(now) {
            let gate = self.breaker.gate(host, now);
            self.turn_batching.barred = gate == Gate::Open;
            if gate == Gate::Open {
                for check in self.batcher.take_waiting() {
                    self.decide_unsent(host, now, check);
                }
                return;
            }
            self.send_call(host, now, gate);
        }
    }
}
