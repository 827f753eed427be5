//! One bucket with a queue, and its clock.

use algorithms::check::{Options, Part, Stored, check};
use algorithms::{Algorithm, Decision, Kind, Parameters, SlotOp};

use crate::support::part;

pub const START_MS: u64 = 1_763_000_040_000;

/// So many a second, held for so long at most.
pub fn queue_of(units: u64, max_delay_ms: u64) -> Parameters {
    Parameters {
        max_delay_ms: Some(max_delay_ms),
        ..Parameters::new(Kind::LeakyBucket, units, 1000)
    }
}

/// Twenty a second, so that slots are 50 ms apart.
pub fn queue() -> Algorithm {
    Algorithm::new(&Parameters {
        burst: Some(100),
        ..queue_of(20, 3000)
    })
    .unwrap()
}

/// Seven a second, so that slots do not start at whole milliseconds.
pub fn sevenths() -> Bucket {
    Bucket::with_parameters(&Parameters {
        burst: Some(20),
        ..queue_of(7, 2000)
    })
}

/// One request a millisecond, so that many slots can be freed one by one.
pub fn long_queue() -> (Bucket, Vec<SlotOp>) {
    let queue = Parameters {
        burst: Some(2000),
        ..queue_of(1000, 2000)
    };
    Bucket::with_parameters(&queue).filled(1000)
}

pub struct Bucket {
    pub algorithm: Algorithm,
    pub generation: u64,
    pub stored: Option<Stored>,
    pub now_ms: u64,
}

impl Bucket {
    pub fn new() -> Self {
        Self {
            algorithm: queue(),
            generation: 1,
            stored: None,
            now_ms: START_MS,
        }
    }

    pub fn with_parameters(parameters: &Parameters) -> Self {
        Self {
            algorithm: Algorithm::new(parameters).unwrap(),
            ..Self::new()
        }
    }

    /// A queue of so many requests, and their slots.
    pub fn with(requests: u64) -> (Self, Vec<SlotOp>) {
        Self::new().filled(requests)
    }

    pub fn filled(mut self, requests: u64) -> (Self, Vec<SlotOp>) {
        let slots = (0..requests).map(|_| self.take(1).1).collect();
        (self, slots)
    }

    /// When to retry a request that is denied.
    pub fn retry_after_ms(&mut self, cost: u64) -> Option<u64> {
        let (decision, _) = self.ask(cost, &[]);
        assert!(!decision.allowed);
        decision.retry_after.millis()
    }

    pub fn ask(&mut self, cost: u64, free: &[SlotOp]) -> (Decision, Option<SlotOp>) {
        let part = Part {
            generation: self.generation,
            free,
            ..part(&self.algorithm, self.stored.as_ref(), cost)
        };
        let (verdict, writes) = check(&[part], self.now_ms, Options::default()).unwrap();
        let limit = verdict.limits.first().unwrap();
        self.stored = writes.into_iter().next().unwrap().or(self.stored.take());
        let units = limit.charged;
        (
            limit.decision,
            limit.slot.map(|slot| SlotOp::free(slot, units)),
        )
    }

    /// The delay and the slot of a request that is admitted.
    pub fn take(&mut self, cost: u64) -> (u64, SlotOp) {
        let (decision, slot) = self.ask(cost, &[]);
        assert!(decision.allowed);
        (decision.delay_ms, slot.unwrap())
    }

    /// The delay of a request that arrives later.
    pub fn take_after(&mut self, later_ms: u64, cost: u64) -> u64 {
        self.now_ms += later_ms;
        self.take(cost).0
    }

    /// The delay that the next request would have after slots were freed.
    pub fn free(&mut self, slots: &[SlotOp]) -> u64 {
        self.ask(0, slots);
        let state = self.stored.as_ref().map(|stored| &stored.state);
        let asked = self.algorithm.evaluate(state, self.now_ms, 1);
        asked.leave().decision.delay_ms
    }
}
