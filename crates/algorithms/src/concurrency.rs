//! Requests in flight: a slot for each request that has not ended.
//!
//! Source: "Redis in Action", J. Carlson, 2013, 6.3 (counting semaphores), with its mistakes mended:
//! one clock, and a repeated take counts once.
//!
//! A slot is an id with an expiry. Its holder renews it before that, and frees it. Guarantee: slots
//! that never lapsed are never more than the limit. One that lapsed, because its holder was cut off,
//! and still runs is entered again above the limit, and until fewer than `limit` are held no other is
//! taken. A slot that nobody renews is gone after its ttl.

use std::collections::BTreeMap;

use crate::integers::TIME_MAX_MS;
use crate::quota::{Loaded, Quota};
use crate::{Freed, Numbers, ParameterError, Parameters, QueueSlot, State, kinds};

/// The most slots of a bucket.
const LIMIT_MAX: u64 = 100_000;
/// Slots of a bucket beyond which none is entered again.
const HELD_MAX: u64 = 2 * LIMIT_MAX;
/// The shortest and the longest time that a slot lives without being renewed, in milliseconds.
const TTL_MIN_MS: u64 = 100;
const TTL_MAX_MS: u64 = 86_400_000;
/// Bits of a stamp that are the holder's mark; the others are seconds since the epoch.
const MARK_BITS: u32 = 20;
/// Positions of one of the two numbers of [`Missing`].
const MISSING_BITS: usize = 50;

/// The limit's numbers, and the id that the current request offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrency {
    limit: u64,
    ttl_ms: u64,
    pub id: SlotId,
}

/// The id of a request at the limits on requests in flight. Whoever makes one draws `secret` at
/// random, below 2^52: a slot is renewed and freed by whoever has its id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// When the request came, in seconds since the epoch, and who holds the slot: see
    /// [`SlotId::new`].
    pub stamp: u64,
    /// Random.
    pub secret: u64,
}

/// The name of a slot: its id, and the ttl that its holder was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InFlightSlot {
    /// The request's id.
    pub id: SlotId,
    /// How long the slot lives without being renewed, in milliseconds.
    pub ttl_ms: u64,
}

/// What becomes of a slot; the [units](Freed::units) of its name in [`Ask::free`](crate::Ask::free).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotAct {
    /// It is given back. Doing so again changes nothing.
    Free = 1,
    /// It lives another ttl; if it is gone, it is [missing](Missing).
    Renew = 2,
    /// It is missing, and its request still runs: it is held again, above the limit if need be.
    Enter = 3,
}

/// Which of the slots to renew are gone, by their position among those of the check, from 0; of
/// those beyond 100 nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Missing {
    low: u64,
    high: u64,
}

/// What is stored of a bucket: its slots and when each expires, in milliseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencyState {
    slots: BTreeMap<InFlightSlot, u64>,
}

/// The slots at one instant.
#[derive(Clone, Debug)]
pub(crate) struct SlotUsage {
    now_ms: u64,
    /// Those that have not expired.
    slots: BTreeMap<InFlightSlot, u64>,
    /// Whether the current request has one already.
    held: bool,
    missing: Missing,
}

impl SlotId {
    /// Holds slots that came through Envoy's rate limit service, which names none.
    pub const SERVICE: u64 = 0;
    /// Holds slots of programs that call the limiter.
    pub const PROGRAM: u64 = 1;
    /// Marks of holders are below this.
    pub const MARKS: u64 = 1 << MARK_BITS;

    /// An id made at a time, in seconds since the epoch, by the holder with a mark.
    #[must_use]
    pub const fn new(at_s: u64, mark: u64, random: u64) -> Self {
        Self {
            stamp: ((at_s & 0xffff_ffff) << MARK_BITS) | (mark % Self::MARKS),
            secret: random & TIME_MAX_MS,
        }
    }

    /// The mark of a proxy by its name.
    #[must_use]
    pub fn mark_of(proxy: &str) -> u64 {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = proxy.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        (hash ^ (hash >> 32)) % (Self::MARKS - 2) + 2
    }

    /// As a script can take it, whoever made it.
    #[must_use]
    pub const fn bounded(self) -> Self {
        Self {
            stamp: self.stamp & TIME_MAX_MS,
            secret: self.secret & TIME_MAX_MS,
        }
    }

    /// The mark of its holder.
    #[must_use]
    pub const fn mark(self) -> u64 {
        self.stamp % Self::MARKS
    }

    /// When it was made, in seconds since the epoch.
    #[must_use]
    pub const fn at_s(self) -> u64 {
        self.stamp >> MARK_BITS
    }
}

impl InFlightSlot {
    /// Whether a bucket may have such a slot.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.id.stamp <= TIME_MAX_MS
            && self.id.secret <= TIME_MAX_MS
            && self.ttl_ms >= TTL_MIN_MS
            && self.ttl_ms <= TTL_MAX_MS
    }

    /// As Redis orders slots that expire together.
    fn text(self) -> String {
        let Self { id, ttl_ms } = self;
        format!("{}:{}:{ttl_ms}", id.stamp, id.secret)
    }
}

/// Slots of both kinds are named by four numbers.
impl From<InFlightSlot> for QueueSlot {
    fn from(slot: InFlightSlot) -> Self {
        Self {
            start_ms: slot.id.stamp,
            parts: slot.id.secret,
            since_ms: slot.ttl_ms,
            turn: 0,
        }
    }
}

impl From<QueueSlot> for InFlightSlot {
    fn from(name: QueueSlot) -> Self {
        Self {
            id: SlotId {
                stamp: name.start_ms,
                secret: name.parts,
            },
            ttl_ms: name.since_ms,
        }
    }
}

impl Missing {
    /// From the numbers of a slot's name, in whose place a reply has them.
    #[must_use]
    pub const fn of(low: u64, high: u64) -> Self {
        Self { low, high }
    }

    /// Whether the slot at a position is missing.
    #[must_use]
    pub const fn contains(self, position: usize) -> bool {
        if position < MISSING_BITS {
            self.low >> position & 1 == 1
        } else if position < 2 * MISSING_BITS {
            self.high >> (position - MISSING_BITS) & 1 == 1
        } else {
            false
        }
    }

    const fn add(&mut self, position: usize) {
        if position < MISSING_BITS {
            self.low |= 1 << position;
        } else if position < 2 * MISSING_BITS {
            self.high |= 1 << (position - MISSING_BITS);
        }
    }
}

impl ConcurrencyState {
    /// The slots, with the time at which each expires, in milliseconds since the epoch.
    pub fn slots(&self) -> impl Iterator<Item = (InFlightSlot, u64)> {
        self.slots.iter().map(|(slot, expiry)| (*slot, *expiry))
    }
}

impl FromIterator<(InFlightSlot, u64)> for ConcurrencyState {
    fn from_iter<I: IntoIterator<Item = (InFlightSlot, u64)>>(slots: I) -> Self {
        let slots = slots.into_iter().collect();
        Self { slots }
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
    type State = ConcurrencyState;
    type Usage<'s> = SlotUsage;

    fn own(state: &State) -> Option<&ConcurrencyState> {
        match state {
            State::Concurrency(state) => Some(state),
            _ => None,
        }
    }

    fn wrap(state: ConcurrencyState) -> State {
        State::Concurrency(state)
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn window_ms(&self) -> u64 {
        self.ttl_ms
    }

    fn horizon_ms(&self) -> u64 {
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
        let stored = state.into_iter().flat_map(ConcurrencyState::slots);
        let live = stored.filter(|(_, expiry)| *expiry > now_ms);
        let mut cut = false;
        let slots: BTreeMap<_, _> = live
            .map(|(slot, expiry)| {
                let latest = now_ms + slot.ttl_ms;
                cut = cut || expiry > latest;
                (slot, expiry.min(latest))
            })
            .collect();
        let shifted = cut.then(|| ConcurrencyState {
            slots: slots.clone(),
        });
        let usage = SlotUsage {
            now_ms,
            held: slots.contains_key(&self.offered()),
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

    /// What was admitted elsewhere is held elsewhere.
    fn charge(&self, _usage: &mut SlotUsage, _units: u64) -> bool {
        false
    }

    /// Frees slots of Envoy's rate limit service, which names none: those that expire first.
    fn credit(&self, usage: &mut SlotUsage, units: u64) {
        let of_service = usage
            .slots
            .iter()
            .filter(|(slot, _)| slot.id.mark() == SlotId::SERVICE);
        let mut first: Vec<_> = of_service
            .map(|(slot, expiry)| (*expiry, slot.text(), *slot))
            .collect();
        first.sort_unstable();
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        for (_, _, slot) in first.into_iter().take(units) {
            usage.slots.remove(&slot);
        }
    }

    /// A slot is freed by its name.
    fn refund(&self, _usage: &mut SlotUsage, _charged_at_ms: u64, _units: u64) -> bool {
        false
    }

    fn wait_ms(&self, usage: &SlotUsage, cost: u64) -> u64 {
        let excess = (usage.used() + cost).saturating_sub(self.limit).max(1);
        let mut expiries: Vec<u64> = usage.slots.values().copied().collect();
        expiries.sort_unstable();
        let nth = usize::try_from(excess - 1).unwrap_or(usize::MAX);
        let expiry = expiries.get(nth).copied();
        expiry.map_or(0, |expiry| expiry - usage.now_ms)
    }

    fn reset_after_ms(&self, usage: &SlotUsage) -> u64 {
        let last = usage.slots.values().max();
        last.map_or(0, |expiry| expiry - usage.now_ms)
    }

    fn take(&self, usage: &mut SlotUsage, _cost: u64) -> Option<QueueSlot> {
        usage.renew(self.offered());
        usage.held = false;
        Some(self.offered().into())
    }

    fn free(&self, usage: &mut SlotUsage, freed: &[Freed]) -> bool {
        let mut changed = false;
        for (position, freed) in freed.iter().enumerate() {
            let slot = InFlightSlot::from(freed.slot);
            let present = usage.slots.contains_key(&slot);
            if freed.units == SlotAct::Free as u64 {
                changed = usage.slots.remove(&slot).is_some() || changed;
            } else if freed.units == SlotAct::Renew as u64 && !present {
                usage.missing.add(position);
            } else if freed.units == SlotAct::Renew as u64
                || freed.units == SlotAct::Enter as u64 && (present || usage.used() < HELD_MAX)
            {
                usage.renew(slot);
                changed = true;
            }
        }
        usage.held = usage.slots.contains_key(&self.offered());
        changed
    }

    fn missing(&self, usage: &SlotUsage) -> Option<QueueSlot> {
        let Missing { low, high } = usage.missing;
        (usage.missing != Missing::default()).then_some(QueueSlot {
            start_ms: low,
            parts: high,
            ..QueueSlot::default()
        })
    }

    fn save(&self, usage: SlotUsage) -> ConcurrencyState {
        ConcurrencyState { slots: usage.slots }
    }
}
