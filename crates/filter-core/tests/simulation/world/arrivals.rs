//! Checks that others overtake, and checks that arrive twice.

use filter_core::Call;

use super::{Event, World, network::synthesised};

/// The longest delay of a check that others overtake, in microseconds.
const OVERTAKEN_US: u64 = 60_000;

/// A check in transit.
pub struct Arrival {
    envoy: usize,
    /// The worker that receives the answer; `None`: it no longer exists.
    worker: Option<usize>,
    call: Call,
    sent_us: u64,
}

impl Arrival {
    /// An Envoy died, and receives no answer.
    pub(super) fn caller_died(&mut self, envoy: usize) {
        self.worker = self.worker.filter(|_| self.envoy != envoy);
    }
}

impl World {
    /// Sometimes delays a check behind others; returns whether it did. Another check may arrive twice.
    pub(super) fn is_overtaken(&mut self, envoy: usize, worker: usize, call: &Call) -> bool {
        let (delayed, repeated) = (self.faults.delayed, self.faults.repeated);
        if delayed + repeated == 0 || call.path != "/v1/check" {
            return false;
        }
        if self.chance.percent(repeated) {
            self.deliver_later(envoy, None, call);
        }
        let overtaken = self.chance.percent(delayed);
        if overtaken {
            self.deliver_later(envoy, Some(worker), call);
        }
        overtaken
    }

    fn deliver_later(&mut self, envoy: usize, worker: Option<usize>, call: &Call) {
        let after_us = self.chance.below(OVERTAKEN_US);
        let timeout_us = call.timeout_ms * 1000;
        if let Some(worker) = worker.filter(|_| after_us >= timeout_us) {
            let timed_out = Event::Answer {
                envoy,
                worker,
                id: call.id,
                answer: Some(synthesised("504", "response timeout")),
            };
            self.schedule(timeout_us, timed_out);
        }
        let arrival = Arrival {
            envoy,
            worker: worker.filter(|_| after_us < timeout_us),
            call: call.clone(),
            sent_us: self.now_us,
        };
        self.schedule(after_us, Event::Arrival(arrival));
    }

    /// The limiter receives a check later than it was sent.
    pub(super) fn arrive(&mut self, arrival: &Arrival) {
        let (envoy, call) = (arrival.envoy, &arrival.call);
        let timeout_us = arrival.sent_us + call.timeout_ms * 1000;
        let left_us = timeout_us.saturating_sub(self.now_us);
        let (after_us, answer) = self.answered(envoy, call, left_us);
        if let Some(worker) = arrival.worker {
            let id = call.id;
            let answer = Event::Answer {
                envoy,
                worker,
                id,
                answer,
            };
            self.schedule(after_us, answer);
        }
    }
}
