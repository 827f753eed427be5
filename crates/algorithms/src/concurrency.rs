//! Requests in flight: a slot for each request that has not ended.
//!
//! Source: "Redis in Action", J. Carlson, 2013, 6.3 (counting semaphores), with two corrections:
//! one clock decides, and a repeated take counts once.
//!
//! A slot is an id with an expiry. Its holder renews it before it expires, and frees it. Guarantee: slots
//! that never lapsed are never more than the limit. If a slot lapsed because its holder was cut off and its
//! request still runs, it is entered again, above the limit if need be; no other slot is given until fewer
//! than `limit` are held. A slot that nobody renews expires after its ttl.
//!
//! `lua/lib/concurrency.lua` is the twin.

use std::sync::Arc;

use crate::{
    Adaptive, AdaptiveState, Numbers, ParameterError, Parameters, Slot, SlotAct, SlotOp,
    integers::TIME_MAX_MS,
    quota::{Loaded, Quota, state_of},
};

/// Bound: slots of a bucket. Beyond it, a limit with more is refused when it is written.
pub(crate) const LIMIT_MAX: u64 = 100_000;
/// Bound: slots of a bucket with those that are entered again. Beyond it, further ones are not
/// entered.
const HELD_MAX: u64 = 2 * LIMIT_MAX;
/// The shortest and the longest time that a slot lives without being renewed, in milliseconds.
const TTL_MIN_MS: u64 = 100;
const TTL_MAX_MS: u64 = 86_400_000;
/// Bits of a stamp that are the holder's mark; the others are seconds since the epoch.
const MARK_BITS: u32 = 20;
/// Positions per number of [`Missing`].
const MISSING_BITS: usize = 50;
/// Slots per chunk. A write copies at most this many, and one pointer per chunk.
const CHUNK: usize = 256;

/// The id of a request at the limits on requests in flight. Its `secret` is drawn at random, below
/// 2^52, because whoever has the id can renew and free the slot.
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

/// Which of the slots to renew are gone, by their position in the check, from 0. Positions from 100
/// on are not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Missing {
    low: u64,
    high: u64,
}

/// The limit's numbers, and the id that the current request offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrency {
    /// What an adaptive limit starts with.
    limit: u64,
    ttl_ms: u64,
    adaptive: Option<Adaptive>,
    pub id: SlotId,
}

/// What is stored of a bucket: its slots and when each expires, in milliseconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConcurrencyState {
    slots: HeldSlots,
    /// The limit that was found. It stays while the limit is edited to one that is not adaptive.
    adaptive: Option<Box<AdaptiveState>>,
}

/// Slots and when each expires, in milliseconds since the epoch, in the order of their names, in
/// chunks, most of them shared with the state before the last write.
#[derive(Clone, Debug, Default)]
struct HeldSlots {
    chunks: Vec<Arc<Chunk>>,
    len: usize,
}

/// Neighbouring slots; never empty.
#[derive(Clone, Debug)]
struct Chunk {
    slots: Vec<(InFlightSlot, u64)>,
    /// The earliest and the latest expiry.
    first_ms: u64,
    last_ms: u64,
    /// When the latest of them was written: its expiry less its ttl.
    written_ms: u64,
}

/// The slots at one instant.
#[derive(Clone, Debug)]
pub(crate) struct SlotUsage {
    now_ms: u64,
    /// Those that have not expired.
    slots: HeldSlots,
    adaptive: Option<Box<AdaptiveState>>,
    /// Whether the current request has one already.
    held: bool,
    missing: Missing,
}

impl ConcurrencyState {
    /// The slots, with the time at which each expires, in milliseconds since the epoch.
    pub fn slots(&self) -> impl Iterator<Item = (InFlightSlot, u64)> {
        self.slots.iter()
    }

    /// The limit that was found, if answers came while the limit was adaptive.
    pub fn adaptive(&self) -> Option<&AdaptiveState> {
        self.adaptive.as_deref()
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
        if let Some(adaptive) = &parameters.adaptive
            && let Err(error) = adaptive.validate(limit)
        {
            return Err(ParameterError::Adaptive(error));
        }
        Ok(Self {
            limit,
            ttl_ms,
            adaptive: parameters.adaptive,
            id: SlotId {
                stamp: 0,
                secret: 0,
            },
        })
    }

    /// The limit of a bucket, in thousandths of a slot.
    fn limit_milli(&self, usage: &SlotUsage) -> u64 {
        let rule = self.adaptive.as_ref();
        rule.map_or(self.limit * 1000, |rule| {
            rule.limit_milli(usage.adaptive.as_deref(), self.limit)
        })
    }

    /// How many slots a bucket may have in use.
    fn slots_max(&self, usage: &SlotUsage) -> u64 {
        self.limit_milli(usage) / 1000
    }

    /// An adaptive limit follows a slot that is freed; called before it is.
    fn adapt(&self, usage: &mut SlotUsage, act: SlotAct) {
        let pace = match act {
            SlotAct::Answered(pace) => Some(pace),
            _ => None,
        };
        if let Some(rule) = &self.adaptive {
            let event = (usage.now_ms, usage.used(), pace);
            let state = usage.adaptive.as_deref();
            let next = AdaptiveState::after(state, rule, self.limit, event);
            usage.adaptive = Some(Box::new(next));
        }
    }

    /// The slots that a name may mean: one with the ttl that it claims, and one with the limit's own. A name may
    /// claim any ttl, so a slot that is entered has the limit's own; its holder goes on to use the name that it has.
    fn meant(&self, slot: Slot) -> [InFlightSlot; 2] {
        let named = InFlightSlot::from(slot);
        let own = InFlightSlot {
            ttl_ms: named.ttl_ms.min(self.ttl_ms),
            ..named
        };
        [named, own]
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
        self.adaptive.map_or(self.limit, |rule| rule.max)
    }

    fn window_ms(&self) -> u64 {
        self.ttl_ms
    }

    fn numbers(&self) -> Numbers {
        Numbers {
            kind: Numbers::CONCURRENCY,
            limit: self.limit(),
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
        let adaptive = state.and_then(|state| state.adaptive.clone());
        let shifted = cut.then(|| ConcurrencyState {
            slots: slots.clone(),
            adaptive: adaptive.clone(),
        });
        let usage = SlotUsage {
            now_ms,
            adaptive,
            held: slots.expiry_of(self.offered()).is_some(),
            slots,
            missing: Missing::default(),
        };
        Loaded { usage, shifted }
    }

    fn room(&self, usage: &SlotUsage) -> Option<u64> {
        match self.slots_max(usage).checked_sub(usage.used()) {
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
        let of_service = || {
            let slots = usage.slots.iter();
            slots.filter(|(slot, _)| slot.id.mark() == SlotId::SERVICE)
        };
        let units = usize::try_from(units).unwrap_or(usize::MAX);
        let expiries = of_service().map(|(_, expiry)| expiry).collect();
        // There may be 100,000: only those that are freed, or expire together with the last of them, are sorted.
        let latest = nth_of(expiries, units.saturating_sub(1)).unwrap_or(u64::MAX);
        let mut first: Vec<_> = of_service()
            .filter(|(_, expiry)| *expiry <= latest)
            .map(|(slot, expiry)| (expiry, slot.text(), slot))
            .collect();
        first.sort_unstable();
        for (_, _, slot) in first.into_iter().take(units) {
            usage.slots.remove(slot);
        }
    }

    fn wait_ms(&self, usage: &SlotUsage, cost: u64) -> u64 {
        let excess = (usage.used() + cost)
            .saturating_sub(self.slots_max(usage))
            .max(1);
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
            let [named, own] = self.meant(op.slot);
            let held = |slot: &InFlightSlot| usage.slots.expiry_of(*slot).is_some();
            let present = [named, own].into_iter().find(held);
            let slot = present.unwrap_or(own);
            match op.act {
                // A slot that is gone says nothing: so a repeated free counts once.
                SlotAct::Free(_) | SlotAct::Answered(_) if present.is_some() => {
                    self.adapt(usage, op.act);
                    changed |= usage.slots.remove(slot);
                }
                SlotAct::Free(_) | SlotAct::Answered(_) => {}
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

    /// The request was not let in, so it says nothing.
    fn refund_slot(&self, usage: &mut SlotUsage, slot: Slot, _units: u64) -> bool {
        let mut meant = self.meant(slot).into_iter();
        meant.any(|slot| usage.slots.remove(slot))
    }

    fn adaptive(&self, usage: &SlotUsage) -> (Option<u64>, Option<Box<AdaptiveState>>) {
        if self.adaptive.is_none() {
            return (None, None);
        }
        let (limit_milli, mut state) = (self.limit_milli(usage), usage.adaptive.clone());
        if let Some(state) = &mut state {
            state.limit_milli = limit_milli;
        }
        (Some(limit_milli), state)
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
        ConcurrencyState {
            slots: usage.slots,
            adaptive: usage.adaptive,
        }
    }
}

impl SlotId {
    /// Holds slots of Envoy's rate limit service, whose requests have no ids.
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

    /// The id cut to numbers that a script can hold, whoever made it.
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

impl Slot {
    /// How long the slot of a request in flight lives without being renewed, in milliseconds. The slot
    /// of a queue has a time in this field, which is later than any such duration.
    #[must_use]
    pub fn ttl_ms(self) -> Option<u64> {
        Some(self.since_ms).filter(|ms| *ms <= TTL_MAX_MS)
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

    /// The text by which Redis orders slots that expire together.
    fn text(self) -> String {
        let Self { id, ttl_ms } = self;
        format!("{}:{}:{ttl_ms}", id.stamp, id.secret)
    }
}

/// Slots of both kinds are named by four numbers.
impl From<InFlightSlot> for Slot {
    fn from(slot: InFlightSlot) -> Self {
        Self {
            start_ms: slot.id.stamp,
            parts: slot.id.secret,
            since_ms: slot.ttl_ms,
            turn: 0,
        }
    }
}

impl From<Slot> for InFlightSlot {
    fn from(name: Slot) -> Self {
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
    /// From the two numbers that a reply has in the place of a slot's name.
    #[must_use]
    pub const fn new(low: u64, high: u64) -> Self {
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

impl Chunk {
    /// `None` for no slots.
    fn new(slots: Vec<(InFlightSlot, u64)>) -> Option<Arc<Self>> {
        let expiries = || slots.iter().map(|(_, expiry)| *expiry);
        let written = slots
            .iter()
            .map(|(slot, at)| at.saturating_sub(slot.ttl_ms));
        Some(Arc::new(Self {
            first_ms: expiries().min()?,
            last_ms: expiries().max()?,
            written_ms: written.max()?,
            slots,
        }))
    }

    fn place(&self, slot: InFlightSlot) -> Result<usize, usize> {
        self.slots.binary_search_by_key(&slot, |(slot, _)| *slot)
    }

    fn begins_after(&self, slot: InFlightSlot) -> bool {
        self.slots.first().is_some_and(|(first, _)| *first > slot)
    }
}

/// The expiry at place `nth`, from 0, in ascending order.
fn nth_of(mut expiries: Vec<u64>, nth: usize) -> Option<u64> {
    (nth < expiries.len()).then(|| *expiries.select_nth_unstable(nth).1)
}

impl HeldSlots {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = (InFlightSlot, u64)> {
        self.chunks
            .iter()
            .flat_map(|chunk| chunk.slots.iter().copied())
    }

    pub fn expiry_of(&self, slot: InFlightSlot) -> Option<u64> {
        let chunk = self.chunks.get(self.chunk_of(slot))?;
        let place = chunk.place(slot).ok()?;
        chunk.slots.get(place).map(|(_, expiry)| *expiry)
    }

    /// Adds a slot, or changes its expiry.
    pub fn insert(&mut self, slot: InFlightSlot, expiry_ms: u64) {
        let at = self.chunk_of(slot);
        let mut slots = self.take(at);
        match slots.binary_search_by_key(&slot, |(slot, _)| *slot) {
            Ok(place) => {
                if let Some((_, expiry)) = slots.get_mut(place) {
                    *expiry = expiry_ms;
                }
            }
            Err(place) => {
                slots.insert(place, (slot, expiry_ms));
                self.len += 1;
            }
        }
        // Names rise with time, so a slot added at the end leaves a full chunk behind.
        let full = slots.len() > CHUNK;
        let more = full.then(|| match slots.last() {
            Some((last, _)) if *last == slot => slots.split_off(CHUNK),
            _ => slots.split_off(CHUNK / 2),
        });
        self.put(at, [Some(slots), more].into_iter().flatten());
    }

    /// Removes a slot; returns whether it was there.
    pub fn remove(&mut self, slot: InFlightSlot) -> bool {
        let at = self.chunk_of(slot);
        let Some(place) = self.chunks.get(at).and_then(|chunk| chunk.place(slot).ok()) else {
            return false;
        };
        let mut slots = self.take(at);
        slots.remove(place);
        self.len -= 1;
        self.put(at, [slots]);
        self.join(at);
        self.join(at.saturating_sub(1));
        true
    }

    /// Drops the slots that expire by `now_ms`.
    pub fn drop_expired(&mut self, now_ms: u64) {
        self.change(
            |chunk| chunk.first_ms <= now_ms,
            |(slot, expiry)| (expiry > now_ms).then_some((slot, expiry)),
        );
    }

    /// Cuts each expiry to the slot's ttl from now; returns whether any may have been later.
    pub fn cut(&mut self, now_ms: u64) -> bool {
        self.change(
            |chunk| chunk.written_ms > now_ms,
            |(slot, expiry)| Some((slot, expiry.min(now_ms + slot.ttl_ms))),
        )
    }

    /// The expiry at place `nth`, from 0, in ascending order.
    pub fn nth_expiry(&self, nth: usize) -> Option<u64> {
        if nth == 0 {
            return self.chunks.iter().map(|chunk| chunk.first_ms).min();
        }
        nth_of(self.iter().map(|(_, expiry)| expiry).collect(), nth)
    }

    pub fn last_expiry(&self) -> Option<u64> {
        self.chunks.iter().map(|chunk| chunk.last_ms).max()
    }

    /// The index of the chunk that holds a slot, or would hold it.
    fn chunk_of(&self, slot: InFlightSlot) -> usize {
        let after = self
            .chunks
            .partition_point(|chunk| !chunk.begins_after(slot));
        after.saturating_sub(1)
    }

    /// Removes the chunk at a place.
    fn take(&mut self, at: usize) -> Vec<(InFlightSlot, u64)> {
        if at >= self.chunks.len() {
            return Vec::new();
        }
        Arc::unwrap_or_clone(self.chunks.remove(at)).slots
    }

    fn put(&mut self, at: usize, slots: impl IntoIterator<Item = Vec<(InFlightSlot, u64)>>) {
        let chunks = slots.into_iter().filter_map(Chunk::new);
        self.chunks.splice(at..at, chunks);
    }

    /// Makes one chunk of two small ones.
    fn join(&mut self, at: usize) {
        let pair = self.chunks.get(at..at + 2).unwrap_or_default();
        let len: usize = pair.iter().map(|chunk| chunk.slots.len()).sum();
        if pair.len() == 2 && len <= CHUNK / 2 {
            let mut slots = self.take(at);
            slots.append(&mut self.take(at));
            self.put(at, [slots]);
        }
    }

    /// Changes or drops the slots of some chunks; returns whether there were such chunks.
    fn change(
        &mut self,
        which: impl Fn(&Chunk) -> bool,
        to: impl Fn((InFlightSlot, u64)) -> Option<(InFlightSlot, u64)>,
    ) -> bool {
        if !self.chunks.iter().any(|chunk| which(chunk)) {
            return false;
        }
        self.chunks = std::mem::take(&mut self.chunks)
            .into_iter()
            .filter_map(|chunk| {
                if which(&chunk) {
                    Chunk::new(chunk.slots.iter().copied().filter_map(&to).collect())
                } else {
                    Some(chunk)
                }
            })
            .collect();
        self.len = self.chunks.iter().map(|chunk| chunk.slots.len()).sum();
        for at in (0..self.chunks.len()).rev() {
            self.join(at);
        }
        true
    }
}

/// Compares slots, however they are divided into chunks.
impl PartialEq for HeldSlots {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for HeldSlots {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::SlotId;

    fn slot(secret: u64) -> InFlightSlot {
        InFlightSlot {
            id: SlotId { stamp: 7, secret },
            ttl_ms: 100,
        }
    }

    #[test]
    fn held_slots_behave_like_a_map_through_any_changes() {
        let mut random = 1_u64;
        let mut next = |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let (mut held, mut map) = (HeldSlots::default(), BTreeMap::<_, u64>::new());
        let mut now_ms = 1000;
        for step in 0..20_000 {
            // It grows, shrinks and grows.
            let grows = step / 5000 % 2 == 0;
            let slot = slot(next(3000));
            match next(20) {
                0 if !grows => {
                    now_ms += next(3);
                    held.drop_expired(now_ms);
                    map.retain(|_, expiry| *expiry > now_ms);
                }
                1 if next(50) == 0 => {
                    let latest_ms = now_ms + 50;
                    let ahead = map.values().any(|expiry| *expiry > latest_ms + 100);
                    assert_eq!(held.cut(latest_ms), ahead);
                    for expiry in map.values_mut() {
                        *expiry = (*expiry).min(latest_ms + 100);
                    }
                }
                2..=9 if grows => {
                    let expiry = now_ms + 1 + next(400);
                    held.insert(slot, expiry);
                    map.insert(slot, expiry);
                }
                _ => assert_eq!(held.remove(slot), map.remove(&slot).is_some()),
            }
            assert_eq!(held.expiry_of(slot), map.get(&slot).copied());
            assert_eq!(held.len(), map.len());
            if step % 100 == 0 {
                assert!(
                    held.iter()
                        .eq(map.iter().map(|(slot, expiry)| (*slot, *expiry)))
                );
                let mut expiries: Vec<u64> = map.values().copied().collect();
                expiries.sort_unstable();
                for nth in [0, 1, 7, 500] {
                    assert_eq!(held.nth_expiry(nth), expiries.get(nth).copied());
                }
                assert_eq!(held.last_expiry(), expiries.last().copied());
                assert!(held.chunks.iter().all(|chunk| chunk.slots.len() <= CHUNK));
                assert!(
                    held.chunks.len() <= 2 + map.len() / (CHUNK / 4),
                    "few are small"
                );
            }
        }
    }

    #[test]
    fn a_write_shares_what_it_does_not_change() {
        let mut held = HeldSlots::default();
        for secret in 0..10_000 {
            held.insert(slot(secret), 500);
        }
        assert_eq!(held.chunks.len(), 10_000_usize.div_ceil(CHUNK));
        let changes: [fn(&mut HeldSlots); 2] = [
            |held| held.insert(slot(10_001), 500),
            |held| assert!(held.remove(slot(5000))),
        ];
        for change in changes {
            let mut next = held.clone();
            next.drop_expired(499);
            assert!(!next.cut(400));
            change(&mut next);
            let before = |chunk: &&Arc<Chunk>| held.chunks.iter().any(|of| Arc::ptr_eq(of, chunk));
            let shared = next.chunks.iter().filter(before).count();
            assert_eq!(shared, held.chunks.len() - 1);
        }
    }
}
