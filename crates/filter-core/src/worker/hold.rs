//! Requests that wait for their turn in a queue, and the slots that some of them gave up.

use std::rc::Rc;

use algorithms::{Algorithm, QueueSlot};
use protocol::{Answer, Free};

use super::{
    Edits, StreamId, Worker,
    active::Active,
    case::{Case, Freeing},
};
use crate::{
    client::Shown,
    descriptor::Extracted,
    host::Host,
    local::{LocalBucket, Start},
    table::Place,
    time::Now,
};

/// Held requests, the next one last.
#[derive(Debug)]
pub(super) struct Holds {
    waiting: Vec<Held>,
    /// Each request that is held, or may have to be, has one more of these.
    places: Rc<()>,
    max: usize,
    /// Of requests that have gone lately.
    given_up: Vec<Slots>,
    /// What no limiter could be told yet: at most `max`.
    unsent: Vec<Case>,
}

/// A place for a request to be held in, until it is dropped.
#[derive(Debug)]
pub(super) struct HoldPlace(#[expect(dead_code, reason = "it is counted")] Rc<()>);

/// A request until its turn comes.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) until_us: u64,
    pub(super) stream: StreamId,
    pub(super) edits: Edits,
    pub(super) shown: Shown,
    pub(super) slots: Slots,
    #[expect(dead_code, reason = "it is there until the request is not")]
    pub(super) place: HoldPlace,
}

/// The slots of a request, to be freed if it ends before it starts.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// Of buckets that live here.
    pub(super) local: Vec<LocalSlot>,
    /// Of buckets that a limiter keeps; rare, and large.
    pub(super) global: Option<Box<GlobalSlots>>,
}

/// A slot that a queue of this proxy gave.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalSlot {
    pub(super) place: Place,
    /// Of its limit.
    pub(super) generation: u64,
    pub(super) algorithm: Algorithm,
    pub(super) cost: u64,
    pub(super) slot: QueueSlot,
    /// When, in milliseconds since the epoch.
    pub(super) at_ms: u64,
}

/// Slots that queues of a limiter gave.
#[derive(Debug)]
pub(super) struct GlobalSlots {
    policy: Rc<Active>,
    entries: Extracted,
    slots: Vec<Free>,
    /// From which moment on none of them is to come any more, in microseconds.
    until_us: u64,
}

impl Holds {
    pub(super) fn new(max: usize) -> Self {
        Self {
            waiting: Vec::new(),
            places: Rc::default(),
            max,
            given_up: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// When the turn of the next comes; `u64::MAX`: none is held.
    pub(super) fn next_us(&self) -> u64 {
        self.waiting.last().map_or(u64::MAX, |held| held.until_us)
    }

    /// A place for one more request; `None`: all are taken.
    pub(super) fn place(&self) -> Option<HoldPlace> {
        let taken = Rc::strong_count(&self.places) - 1;
        (taken < self.max).then(|| HoldPlace(Rc::clone(&self.places)))
    }

    /// Holds a request. Those that end at the same moment go on in the order they came.
    pub(super) fn add(&mut self, held: Held) {
        let at = self
            .waiting
            .partition_point(|other| other.until_us > held.until_us);
        self.waiting.insert(at, held);
    }

    /// Takes out a request whose turn has come.
    pub(super) fn next_due(&mut self, now: Now) -> Option<Held> {
        self.waiting.pop_if(|held| now.reached(held.until_us))
    }

    /// A request has gone: its slots are given up.
    pub(super) fn forget(&mut self, stream: StreamId) {
        if let Some(at) = self.waiting.iter().position(|held| held.stream == stream) {
            let held = self.waiting.remove(at);
            self.give_up(held.slots);
        }
    }

    /// Gives up the slots of a request that does not go on.
    pub(super) fn give_up(&mut self, slots: Slots) {
        if !slots.local.is_empty() || slots.global.is_some() {
            self.given_up.push(slots);
        }
    }

    /// Whether nothing is left to be given up.
    pub(super) fn is_settled(&self) -> bool {
        self.given_up.is_empty() && self.unsent.is_empty()
    }

    /// A limiter could not be told what is still to come.
    pub(super) fn keep_unsent(&mut self, mut case: Case, now: Now) {
        let Some(freeing) = &case.free else {
            return;
        };
        if freeing.until_us > now.mono_us && self.unsent.len() < self.max {
            // They left with the call.
            case.entries = freeing.entries.clone();
            self.unsent.push(case);
        }
    }
}

impl GlobalSlots {
    /// Those that an answer gave a request; `None`: none.
    pub(super) fn of(case: &Case, answer: &Answer, now: Now) -> Option<Box<Self>> {
        let (policy, entries) = (case.policy.clone()?, case.hold.entries.as_deref()?);
        let given = answer.limits.iter().filter(|limit| limit.charged > 0);
        let slots = given.clone().filter_map(|limit| {
            Some(Free {
                limit: limit.name.clone(),
                slot: limit.slot?,
                units: limit.charged,
            })
        });
        let slots: Vec<Free> = slots.collect();
        let reset_ms = given.map(|limit| limit.reset_after_ms).max()?;
        (!slots.is_empty()).then(|| {
            Box::new(Self {
                policy,
                entries: entries.clone(),
                slots,
                until_us: now.after_ms(reset_ms),
            })
        })
    }
}

impl Worker {
    /// Frees what was given up: here, or by the next call of the limiter.
    pub(super) fn free_slots(&mut self, host: &impl Host, now: Now) {
        for slots in std::mem::take(&mut self.holds.given_up) {
            for of in slots.local {
                self.free_local(host, now, &of);
            }
            if let Some(global) = slots.global {
                self.free_global(now, *global);
            }
        }
    }

    /// Lets the limiter know, if it answers again, what it could not be told before.
    pub(super) fn retry_unsent(&mut self, now: Now) {
        for case in std::mem::take(&mut self.holds.unsent) {
            let to_come = |freeing: &Freeing| freeing.until_us > now.mono_us;
            if case.free.as_deref().is_some_and(to_come)
                && let Err(case) = self.batcher.push(case)
            {
                self.holds.keep_unsent(case, now);
            }
        }
    }

    fn free_local(&self, host: &impl Host, now: Now, of: &LocalSlot) {
        let Some(shared) = &self.shared else {
            return;
        };
        let bucket = LocalBucket {
            table: &shared.table,
            place: of.place,
            generation: of.generation,
            algorithm: &of.algorithm,
            start: Start::Unused,
        };
        // Contended: the slot is lost.
        let _ = bucket.put_back(host, now, of.at_ms, of.cost, Some(of.slot));
    }

    fn free_global(&mut self, now: Now, slots: GlobalSlots) {
        let policy = slots.policy;
        let values = slots.entries.values();
        let matches = policy.compiled.matching_values(&values, now.wall_ms);
        let parts = self.parts(&matches, &policy, now);
        drop(matches);
        let case = Case {
            stream: None,
            cost: 0,
            policy: Some(Rc::clone(&policy)),
            entries: slots.entries.clone(),
            parts,
            opaque: None,
            attempts: super::case::Attempts::default(),
            hold: super::case::Hold::default(),
            free: Some(Box::new(Freeing {
                slots: slots.slots,
                entries: slots.entries,
                until_us: slots.until_us,
            })),
        };
        if let Err(case) = self.batcher.push(case) {
            self.holds.keep_unsent(case, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_on_in_the_order_of_their_turns() {
        let mut holds = Holds::new(5);
        for (stream, until_us) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 40)] {
            let place = holds.place().unwrap();
            holds.add(Held {
                until_us,
                stream: StreamId(stream),
                edits: Edits::default(),
                shown: Shown::default(),
                slots: Slots::default(),
                place,
            });
        }
        assert!(holds.place().is_none());
        holds.forget(StreamId(3));
        assert!(holds.place().is_some());
        let now = Now {
            mono_us: 30,
            wall_ms: 0,
        };
        let mut order = Vec::new();
        while let Some(held) = holds.next_due(now) {
            order.push(held.stream.0);
        }
        assert_eq!(order, [2, 4, 1]);
        assert_eq!(holds.next_us(), 40);
    }
}
