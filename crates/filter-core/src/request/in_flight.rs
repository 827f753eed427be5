//! Slots of requests in flight: held until the request ends, however it ends, and renewed meanwhile.
//!
//! Requests to which no such limit applies have no entry here.

mod acts;
mod held;
mod ids;
mod orphans;
mod renew;
mod share;

use algorithms::{SlotAct, SlotId};
use protocol::{Free, Slot};

use crate::{
    host::Host,
    metrics::Event,
    request::{ByStream, LimitCheck, PendingCheck},
    time::Now,
    worker::{HOLDING_MS, StreamId, Worker},
};

pub(crate) use held::{Described, HeldSlots};
use held::{HeldSlot, possible_slots};
use ids::Ids;
pub(crate) use orphans::Orphans;
pub(crate) use share::Share;

/// A slot is renewed after its ttl divided by this.
const RENEWALS: u64 = 3;
/// A renewal that failed is retried after the ttl divided by this.
const RETRIES: u64 = 12;
/// The slots that requests of this worker hold.
#[derive(Debug)]
pub(crate) struct InFlight {
    ids: Ids,
    held: ByStream<HeldSlots>,
    /// Slots of requests that ended since the last event.
    released: Vec<HeldSlots>,
    /// When the next slot is to be renewed, on the monotonic clock; `u64::MAX`: none is held.
    next_us: u64,
    /// Whether the breaker was open at the last tick.
    stopped: bool,
    pub(crate) orphans: Orphans,
}

impl InFlight {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self {
            ids: Ids::new(key),
            held: ByStream::default(),
            released: Vec::new(),
            next_us: u64::MAX,
            stopped: false,
            orphans: Orphans::default(),
        }
    }

    /// Whether nothing is held and nothing waits to be freed.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.released.is_empty()
    }

    /// When the next slot is to be renewed, on the monotonic clock.
    pub(crate) fn next_us(&self) -> u64 {
        self.next_us
    }

    /// Releases the slots of a request that ended; returns whether it had any.
    pub(crate) fn end(&mut self, stream: StreamId) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let held = self.held.remove(stream);
        let any = held.is_some();
        self.released.extend(held);
        any
    }

    /// Releases the slots of a request that does not continue.
    pub(crate) fn release(&mut self, held: HeldSlots) {
        if !held.is_empty() {
            self.released.push(held);
        }
    }

    fn slot(&mut self, stream: StreamId, of: &Free) -> Option<&mut HeldSlot> {
        let slots = &mut self.held.get_mut(stream)?.slots;
        let name = |slot: Slot| Slot { turn: 0, ..slot };
        slots
            .iter_mut()
            .find(|held| held.limit == of.limit && name(held.slot) == name(of.slot))
    }

    /// The places in shares that requests hold.
    fn shares(&mut self) -> impl Iterator<Item = &mut Share> {
        self.held.iter_mut().flat_map(|(_, held)| &mut held.shares)
    }
}

impl Worker {
    /// Gives the request of a check an id if a limit may give it a slot, or if it may reserve units.
    pub(crate) fn name_request(&mut self, now: Now, check: &mut PendingCheck) {
        let gives_slots = |of: &LimitCheck| of.limit.gives_slots() || of.limit.settles();
        if check.global().any(gives_slots) {
            let mark = SlotId::mark_of(self.process.proxy());
            check.slot = Some(self.requests.in_flight.ids.next(now, mark));
        }
    }

    /// Records the slots of a request that continues.
    pub(crate) fn hold_slots(&mut self, now: Now, stream: StreamId, held: HeldSlots) {
        if held.is_empty() {
            return;
        }
        let taken = held.slots.iter().filter(|slot| slot.stored).count();
        let taken = u64::try_from(taken).unwrap_or(0);
        self.counts.happened_to(Event::SlotTaken, taken);
        let in_flight = &mut self.requests.in_flight;
        let next_us = held.slots.iter().map(|slot| slot.renew_us).min();
        in_flight.next_us = in_flight.next_us.min(next_us.unwrap_or(u64::MAX));
        let next_us = in_flight.next_us;
        let before = in_flight.held.insert(stream, held);
        in_flight.released.extend(before);
        self.ticks.by(now, next_us, HOLDING_MS);
    }

    /// Frees the slots of requests that ended: in shares at once, in the store with the next check
    /// call.
    pub(crate) fn free_in_flight(&mut self, host: &impl Host, now: Now) {
        let mut slots = Vec::new();
        for held in std::mem::take(&mut self.requests.in_flight.released) {
            for share in held.shares {
                self.free_share(host, now, &share);
            }
            let stored = held.slots.into_iter().filter(|slot| slot.stored);
            slots.extend(stored.map(|slot| (None, slot)));
        }
        let freed = u64::try_from(slots.len()).unwrap_or(0);
        self.counts.happened_to(Event::SlotFreed, freed);
        self.send_acts(now, SlotAct::Free, slots);
    }

    /// Frees the slots that an unanswered check may have taken.
    pub(crate) fn free_doubtful(&mut self, now: Now, check: &PendingCheck) {
        if let Some(id) = check.slot {
            let slots = possible_slots(check, id).map(|slot| (None, slot)).collect();
            self.send_acts(now, SlotAct::Free, slots);
        }
    }

    /// Names slots for a request that was admitted by its proxy's shares, so that a limiter enters them
    /// as soon as it answers.
    pub(crate) fn name_shares(&mut self, now: Now, check: &PendingCheck, held: &mut HeldSlots) {
        if held.shares.is_empty() {
            return;
        }
        // A new id, not that of the check: the slots that the check may have taken are freed, perhaps
        // later.
        let mark = SlotId::mark_of(self.process.proxy());
        let id = self.requests.in_flight.ids.next(now, mark);
        let slots = possible_slots(check, id).filter_map(|slot| {
            let mut shares = held.shares.iter();
            shares.find(|share| slot.key.is_some_and(|key| share.is_of(key)))?;
            let ttl_ms = slot.slot.ttl_ms()?;
            Some(HeldSlot {
                renew_us: now.after_ms(ttl_ms / RENEWALS),
                stored: false,
                ..slot
            })
        });
        held.slots = slots.collect();
    }
}
