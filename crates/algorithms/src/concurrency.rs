//! Requests in flight: a slot for each request that has not ended.
//!
//! Source: "Redis in Action", J. Carlson, 2013, 6.3 (counting semaphores), with two corrections:
//! one clock decides, and a repeated take counts once.
//!
//! A slot is an id with an expiry. Its holder renews it before it expires, and frees it. Guarantee: slots
//! that never lapsed are never more than the limit. If a slot lapsed because its holder was cut off and its
//! request still runs, it is entered again, above the limit if need be; no other slot is given until fewer
//! than `limit` are held. A slot that nobody renews expires after its ttl.

mod held;
mod id;

use crate::quota::{Loaded, Quota, state_of};
use crate::{Numbers, ParameterError, Parameters, Slot, SlotAct, SlotOp, kinds};

use held::HeldSlots;
pub use id::{InFlightSlot, Missing, SlotId};

/// The most slots of a bucket.
const LIMIT_MAX: u64 = 100_000;
/// A bucket with this many slots enters none again.
const HELD_MAX: u64 = 2 * LIMIT_MAX;
/// The shortest and the longest time that a slot lives without being renewed, in milliseconds.
const TTL_MIN_MS: u64 = 100;
const TTL_MAX_MS: u64 = 86_400_000;

/// The limit's numbers, and the id that the current request offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrency {
    limit: u64,
    ttl_ms: u64,
    pub id: SlotId,
}

/// What is stored of a bucket: its slots and when each expires, in milliseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencyState {
    slots: HeldSlots,
}

/// The slots at one instant.
#[derive(Clone, Debug)]
pub(crate) struct SlotUsage {
    now_ms: u64,
    /// Those that have not expired.
    slots: HeldSlots,
    /// Whether the current request has one already.
    held: bool,
    missing: Missing,
}

impl ConcurrencyState {
    /// The slots, with the time at which each expires, in milliseconds since the epoch.
    pub fn slots(&self) -> impl Iterator<Item = (InFlightSlot, u64)> {
        self.slots.iter()
    }
}

impl FromIterator<(InFlightSlot, u64)> for ConcurrencyState {
    fn from_iter<I: IntoIterator<Item = (InFlightSlot, u64)>>(slots: I) -> Self {
        let mut state = Self::default();
        for (slot, expiry) in slots {
            state.slots.insert(slot, expiry);
        }
        state
    }
}

impl Concurrency {
    pub const fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let (limit, ttl_ms) = (parameters.rate.units, parameters.rate.period_ms);
        if limit > LIMIT_MAX {
            return Err(ParameterError::SlotsTooMany { largest: LIMIT_MAX });
        }
        if ttl_ms < TTL_MIN_MS || ttl_ms > TTL_MAX_MS {
            return Err(ParameterError::SlotTtl {
                least_ms: TTL_MIN_MS,
                largest_ms: TTL_MAX_MS,
            });
        }
        let id = SlotId {
            stamp: 0,
            secret: 0,
        };
        Ok(Self { limit, ttl_ms, id })
    }

    const fn offered(&self) -> InFlightSlot {
        InFlightSlot {
            id: self.id,
            ttl_ms: self.ttl_ms,
        }
    }
}

impl SlotUsage {
    fn used(&self) -> u64 {
        u64::try_from(self.slots.len()).unwrap_or(u64::MAX)
    }

    fn renew(&mut self, slot: InFlightSlot) {
        self.slots.insert(slot, self.now_ms + slot.ttl_ms);
    }
}

impl Quota for Concurrency {
    type Usage<'s> = SlotUsage;

    state_of!(Concurrency, ConcurrencyState);

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window_ms(&self) -> u64 {
        self.ttl_ms
    }

    fn numbers(&self) -> Numbers {
        Numbers {
            kind: kinds::CONCURRENCY,
            limit: self.limit,
            x: self.ttl_ms,
            y: self.id.stamp,
            z: self.id.secret,
        }
    }

    /// A slot keeps the ttl that its holder was given; an expiry further ahead is cut to that.
    fn load<'s>(
        &self,
        state: Option<&'s ConcurrencyState>,
        now_ms: u64,
        _ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let mut slots = state.map_or_else(HeldSlots::default, |state| state.slots.clone());
        slots.drop_expired(now_ms);
        let cut = slots.cut(now_ms);
        let shifted = cut.then(|| ConcurrencyState {
            slots: slots.clone(),
        });
        let usage = SlotUsage {
            now_ms,
            held: slots.expiry_of(self.offered()).is_some(),
            slots,
            missing: Missing::default(),
        };
        Loaded { usage, shifted }
    }

    fn room(&self, usage: &SlotUsage) -> Option<u64> {
        match self.limit.checked_sub(usage.used()) {
            None | Some(0) if usage.held => Some(1),
            room => room,
        }
    }

    /// Ignores debits: a slot that was given elsewhere is held elsewhere.
    fn charge(&self, _usage: &mut SlotUsage, _units: u64) -> bool {
        false
    }

    /// Frees slots of Envoy's rate limit service, whose requests have no ids: those that expire first.
    fn credit(&self, usage: &mut SlotUsage, units: u64) {
        let of_service = usage
            .slots
            .iter()
            .filter(|(slot, _)| slot.id.mark() == SlotId::SERVICE);
        let mut first: Vec<_> = of_service
            .map(|(slot, expiry)| (expiry, slot.text(), slot))
            .collect();
        first.sort_unstable();
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        for (_, _, slot) in first.into_iter().take(units) {
            usage.slots.remove(slot);
        }
    }

    fn wait_ms(&self, usage: &SlotUsage, cost: u64) -> u64 {
        let excess = (usage.used() + cost).saturating_sub(self.limit).max(1);
        let nth = usize::try_from(excess - 1).unwrap_or(usize::MAX);
        let expiry = usage.slots.nth_expiry(nth);
        expiry.map_or(0, |expiry| expiry - usage.now_ms)
    }

    fn reset_after_ms(&self, usage: &SlotUsage) -> u64 {
        let last = usage.slots.last_expiry();
        last.map_or(0, |expiry| expiry - usage.now_ms)
    }

    fn take(&self, usage: &mut SlotUsage, _cost: u64) -> Option<Slot> {
        usage.renew(self.offered());
        usage.held = false;
        Some(self.offered().into())
    }

    fn free(&self, usage: &mut SlotUsage, ops: &[SlotOp]) -> bool {
        let mut changed = false;
        for (position, op) in ops.iter().enumerate() {
            let named = InFlightSlot::from(op.slot);
            // A name may claim any ttl, so a slot that is entered has the limit's own; its holder goes on
            // to use the name that it has.
            let own = InFlightSlot {
                ttl_ms: named.ttl_ms.min(self.ttl_ms),
                ..named
            };
            let held = |slot: &InFlightSlot| usage.slots.expiry_of(*slot).is_some();
            let present = [named, own].into_iter().find(held);
            let slot = present.unwrap_or(own);
            match op.act {
                SlotAct::Free(_) => changed = usage.slots.remove(slot) || changed,
                SlotAct::Renew if present.is_none() => usage.missing.add(position),
                SlotAct::Enter if present.is_none() && usage.used() >= HELD_MAX => {}
                SlotAct::Renew | SlotAct::Enter => {
                    usage.renew(slot);
                    changed = true;
                }
            }
        }
        usage.held = usage.slots.expiry_of(self.offered()).is_some();
        changed
    }

    fn missing(&self, usage: &SlotUsage) -> Option<Slot> {
        let Missing { low, high } = usage.missing;
        (usage.missing != Missing::default()).then_some(Slot {
            start_ms: low,
            parts: high,
            ..Slot::default()
        })
    }

    fn save(&self, usage: SlotUsage) -> ConcurrencyState {
        ConcurrencyState { slots: usage.slots }
    }
}
