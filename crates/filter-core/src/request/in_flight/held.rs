//! The slots of one request, from the answer to its check, and the descriptor of their buckets.

use std::rc::Rc;

use algorithms::{InFlightSlot, QueueSlot, SlotAct, SlotId};
use policy::Name;
use protocol::{Answer, Free, Slot};

use super::{RENEWALS, Share};
use crate::{
    cache::BucketKey,
    request::{Extracted, PendingCheck},
    time::Now,
};

/// The slots of one request.
#[derive(Debug, Default)]
pub(crate) struct HeldSlots {
    pub(super) slots: Vec<HeldSlot>,
    /// Places in this proxy's share of a limit, taken while no limiter answered.
    pub(crate) shares: Vec<Share>,
}

/// A slot in the store.
#[derive(Clone, Debug)]
pub(super) struct HeldSlot {
    pub(super) limit: Name,
    pub(super) slot: Slot,
    /// Its bucket, if the limit is known here.
    pub(super) key: Option<BucketKey>,
    pub(super) renew_us: u64,
    /// Whether the store may have it; false if this proxy's share of the limit admitted the request.
    pub(super) stored: bool,
    pub(super) request: Rc<Described>,
}

/// What names the buckets of a request to a limiter.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) entries: Extracted,
    /// The other limits that apply, which a check about slots skips.
    pub(crate) skip: Vec<Name>,
}

impl HeldSlots {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.shares.is_empty()
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.slots.extend(more.slots);
        self.shares.extend(more.shares);
    }

    /// The slots in the answer to a check that was sent at `sent`.
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

    /// Whether the answer came so late that a slot may expire before it is renewed.
    pub(crate) fn is_late(&self, now: Now) -> bool {
        self.slots.iter().any(|held| now.reached(held.renew_us))
    }
}

impl Described {
    pub(crate) fn of(check: &PendingCheck) -> Self {
        let known = check.limit_checks.iter();
        Self {
            entries: check.entries.clone(),
            skip: known.map(|of| of.limit.name.clone()).collect(),
        }
    }
}

impl HeldSlot {
    pub(super) fn free(&self, act: SlotAct) -> Free {
        Free {
            limit: self.limit.clone(),
            slot: self.slot,
            units: act as u64,
        }
    }
}

/// The slots that a check's request has if its limits give it slots under this id.
pub(super) fn possible_slots(check: &PendingCheck, id: SlotId) -> impl Iterator<Item = HeldSlot> {
    let request = Rc::new(Described::of(check));
    let giving = check.global().filter(|of| of.limit.gives_slots());
    giving.map(move |limit_check| {
        let limit = &limit_check.limit;
        let ttl_ms = limit.quota.parameters().rate.period_ms;
        HeldSlot {
            limit: limit.name.clone(),
            slot: named(id, ttl_ms, limit.generation),
            key: Some(limit_check.key),
            renew_us: 0,
            stored: true,
            request: Rc::clone(&request),
        }
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
