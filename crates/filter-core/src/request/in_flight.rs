//! Slots of requests in flight: held until the request ends, however it ends, and renewed meanwhile.
//!
//! A request that no such limit applies to has no entry here.

mod ids;
mod orphans;
mod renew;
mod share;

use std::rc::Rc;

use algorithms::{InFlightSlot, QueueSlot, SlotAct, SlotId};
use policy::Name;
use protocol::{Answer, Free, Slot};

use crate::{
    cache::BucketKey,
    grouped::grouped,
    host::Host,
    metrics::Event,
    request::{ByStream, Extracted, LimitCheck, PendingCheck, SlotRelease},
    time::Now,
    worker::{HOLDING_MS, StreamId, Worker},
};

use ids::Ids;
pub(crate) use orphans::Orphans;
pub(crate) use share::Share;

/// A slot is renewed after this part of its ttl.
const RENEWALS: u64 = 3;
/// A renewal that failed is made again after this part of it.
const RETRIES: u64 = 12;
/// Slots of one bucket in one check, at most.
const MAX_TOGETHER: usize = protocol::MAX_FREE;

/// The slots that requests of this worker hold.
#[derive(Debug)]
pub(crate) struct InFlight {
    ids: Ids,
    held: ByStream<HeldSlots>,
    /// Of requests that ended since the last event.
    released: Vec<HeldSlots>,
    /// When the next slot is to be renewed, on the monotonic clock; `u64::MAX`: none is held.
    next_us: u64,
    /// Whether the breaker was open at the last tick.
    stopped: bool,
    pub(crate) orphans: Orphans,
}

/// The slots of one request.
#[derive(Debug, Default)]
pub(crate) struct HeldSlots {
    slots: Vec<HeldSlot>,
    /// Places in this proxy's share of a limit, taken while no limiter answered.
    pub(crate) shares: Vec<Share>,
}

/// A slot in the store.
#[derive(Clone, Debug)]
struct HeldSlot {
    limit: Name,
    slot: Slot,
    /// Its bucket, if the limit is known here.
    key: Option<BucketKey>,
    renew_us: u64,
    /// Whether the store may have it; not if this proxy's share of the limit admitted the request.
    stored: bool,
    request: Rc<Described>,
}

/// A slot, and the request that holds it if it runs.
type OfStream = (Option<StreamId>, HeldSlot);

/// What names the buckets of a request to a limiter.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) entries: Extracted,
    /// The other limits that apply, which such a check need not look at.
    pub(crate) skip: Vec<Name>,
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

    /// Releases the slots of a request that does not go on.
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

impl HeldSlots {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.shares.is_empty()
    }

    /// The slots in the answer to a check that was sent at some time.
    pub(crate) fn of(check: &PendingCheck, answer: &Answer, sent: Now) -> Self {
        let given = answer.limits.iter().filter(|limit| limit.charged > 0);
        let mut request = None;
        let slots = given.filter_map(|limit| {
            let slot = limit.slot?;
            let ttl_ms = slot.ttl_ms()?;
            let request = request.get_or_insert_with(|| Rc::new(Described::of(check)));
            Some(HeldSlot {
                key: check.key_of(&limit.name),
                limit: limit.name.clone(),
                slot,
                renew_us: sent.after_ms(ttl_ms / RENEWALS),
                stored: true,
                request: Rc::clone(request),
            })
        });
        Self {
            slots: slots.collect(),
            shares: Vec::new(),
        }
    }

    /// Whether an answer came so late that a slot may be gone before it is renewed.
    pub(crate) fn is_late(&self, now: Now) -> bool {
        self.slots.iter().any(|held| now.reached(held.renew_us))
    }
}

impl Described {
    pub(crate) fn of(check: &PendingCheck) -> Self {
        let policy = check.policy.as_ref();
        let named = check.limit_checks.iter().filter_map(|limit_check| {
            let limit = policy?.compiled.limit(limit_check.at)?;
            Some(limit.name.clone())
        });
        Self {
            entries: check.entries.clone(),
            skip: named.collect(),
        }
    }
}

impl Worker {
    /// Names the request of a check that a limit may give a slot to, or that may reserve units.
    pub(crate) fn name_request(&mut self, now: Now, check: &mut PendingCheck) {
        let limits = check.policy.as_ref().map(|policy| policy.compiled.limits());
        let gives_slots = |limit_check: &LimitCheck| {
            let limit = limits.and_then(|limits| limits.get(limit_check.at));
            limit.is_some_and(|limit| limit.gives_slots() || limit.settles())
        };
        if check.global().any(gives_slots) {
            let mark = SlotId::mark_of(self.process.proxy());
            check.slot = Some(self.requests.in_flight.ids.next(now, mark));
        }
    }

    /// Holds the slots of a request that goes on.
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

    /// Frees the slots of requests that ended: here, or with the next check call.
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

    /// Frees what a check may have taken whose answer did not come.
    pub(crate) fn free_doubtful(&mut self, now: Now, check: &PendingCheck) {
        if let Some(id) = check.slot {
            let slots = possible_slots(check, id).map(|slot| (None, slot)).collect();
            self.send_acts(now, SlotAct::Free, slots);
        }
    }

    /// Names the slots that a request would have which its proxy's shares admit, so that they are entered
    /// as soon as a limiter answers.
    pub(crate) fn name_shares(&mut self, now: Now, check: &PendingCheck, held: &mut HeldSlots) {
        if held.shares.is_empty() {
            return;
        }
        // Not the id of the check: what that may have taken is freed, and perhaps later.
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

    /// Makes checks that free, renew or enter slots, those of a bucket together.
    fn send_acts(&mut self, now: Now, act: SlotAct, slots: Vec<OfStream>) {
        // A bucket that is not known here is one of its own.
        let hash = |(_, slot): &OfStream| slot.key.map_or(slot.slot.parts, BucketKey::hash);
        let same = |(_, one): &OfStream, (_, other): &OfStream| {
            one.key.is_some() && one.key == other.key && one.limit == other.limit
        };
        for slots in grouped(slots, hash, same) {
            for together in slots.chunks(MAX_TOGETHER) {
                self.send_act(now, act, together);
            }
        }
    }

    fn send_act(&mut self, now: Now, act: SlotAct, slots: &[OfStream]) {
        let Some((_, first)) = slots.first() else {
            return;
        };
        let ttls = slots.iter().filter_map(|(_, held)| held.slot.ttl_ms());
        let release = SlotRelease {
            act,
            slots: slots.iter().map(|(_, held)| held.free(act)).collect(),
            settle: Vec::new(),
            streams: slots.iter().filter_map(|(stream, _)| *stream).collect(),
            skip: Some(first.request.skip.clone()),
            entries: first.request.entries.clone(),
            until_us: now.after_ms(ttls.max().unwrap_or(0)),
        };
        let check = PendingCheck::of_slots(release);
        if let Err(check) = self.calls.batcher.push(check) {
            self.keep_unsent(check, now);
        }
    }
}

impl HeldSlot {
    fn free(&self, act: SlotAct) -> Free {
        Free {
            limit: self.limit.clone(),
            slot: self.slot,
            units: act as u64,
        }
    }
}

/// The slots that the request of a check has if a limiter gives them under an id.
fn possible_slots(check: &PendingCheck, id: SlotId) -> impl Iterator<Item = HeldSlot> {
    let limits = check.policy.as_ref().map(|policy| &policy.compiled);
    let request = limits.map(|_| Rc::new(Described::of(check)));
    check.global().filter_map(move |limit_check| {
        let limit = limits?.limit(limit_check.at)?;
        let parameters = limit.quota.parameters();
        limit.gives_slots().then_some(HeldSlot {
            limit: limit.name.clone(),
            slot: named(id, parameters.rate.period_ms, limit.generation),
            key: Some(limit_check.key),
            renew_us: 0,
            stored: true,
            request: Rc::clone(request.as_ref()?),
        })
    })
}

/// The name of a slot as a limiter gives it.
fn named(id: SlotId, ttl_ms: u64, generation: u64) -> Slot {
    let name = QueueSlot::from(InFlightSlot { id, ttl_ms });
    Slot {
        start_ms: name.start_ms,
        parts: name.parts,
        since_ms: name.since_ms,
        turn: generation,
    }
}
