//! Slots of requests in flight: held until the request ends, however it ends, and renewed meanwhile.
//!
//! Requests to which no such limit applies have no entry here.

use std::{hash::Hasher, sync::Arc};

use algorithms::{InFlightSlot, Missing, Slot, SlotAct, SlotId, SlotOp};
use policy::Name;
use protocol::Answer;
use siphasher::sip::SipHasher13;

use crate::{
    cache::{BucketEntry, BucketKey, LocalState, Role, Room, Table, Update},
    call::{CHECK_PATH, CallId, encode_checks},
    host::{Change, Contended, Host, Now, Put, Reader, update},
    metrics::Event,
    request::{ByStream, Extracted, LimitCheck, PendingCheck, SlotRelease, grouped},
    worker::{CallAnswer, HOLDING_MS, StreamId, Worker},
};

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
    pub(crate) leftover_frees: LeftoverFrees,
}

impl InFlight {
    pub(crate) fn new(key: [u8; 16]) -> Self {
        Self {
            ids: Ids::new(key),
            held: ByStream::default(),
            released: Vec::new(),
            next_us: u64::MAX,
            stopped: false,
            leftover_frees: LeftoverFrees::default(),
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

    fn slot(&mut self, stream: StreamId, limit: &Name, of: Slot) -> Option<&mut HeldSlot> {
        let slots = &mut self.held.get_mut(stream)?.slots;
        let name = |slot: Slot| Slot { turn: 0, ..slot };
        slots
            .iter_mut()
            .find(|held| held.limit == *limit && name(held.slot) == name(of))
    }

    /// The slots of shares that requests hold.
    fn shares(&mut self) -> impl Iterator<Item = &mut ShareSlot> {
        self.held.iter_mut().flat_map(|(_, held)| &mut held.shares)
    }
}

impl Worker {
    /// Gives the request of a check an id if a limit may give it a slot, or if it may reserve units.
    pub(crate) fn name_request(&mut self, now: Now, check: &mut PendingCheck) {
        let gives_slots = |of: &LimitCheck| of.limit.gives_slots() || of.limit.settles();
        if check.global().any(gives_slots) {
            let mark = SlotId::mark_of(&self.process.proxy);
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
        self.send_slot_ops(now, SlotAct::Free(1), slots);
    }

    /// Frees the slots that an unanswered check may have taken.
    pub(crate) fn free_unanswered(&mut self, now: Now, check: &PendingCheck) {
        if let Some(id) = check.slot {
            let slots = possible_slots(check, id).map(|slot| (None, slot)).collect();
            self.send_slot_ops(now, SlotAct::Free(1), slots);
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
        let mark = SlotId::mark_of(&self.process.proxy);
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

// --- Ids of requests, which nobody else can guess.

/// A counter, hashed with a key.
#[derive(Debug)]
struct Ids {
    key: [u8; 16],
    count: u64,
}

impl Ids {
    /// Ids under a random key of this worker's own.
    pub(super) fn new(key: [u8; 16]) -> Self {
        Self { key, count: 0 }
    }

    /// The next id, of a holder with this mark.
    pub(super) fn next(&mut self, now: Now, mark: u64) -> SlotId {
        self.count = self.count.wrapping_add(1);
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write_u64(self.count);
        SlotId::new(now.wall_ms / 1000, mark, hasher.finish())
    }
}

// --- The slots of one request, from the answer to its check, and the descriptor of their buckets.

/// The slots of one request.
#[derive(Debug, Default)]
pub(crate) struct HeldSlots {
    slots: Vec<HeldSlot>,
    /// Slots in this proxy's share of a limit, taken while no limiter answered.
    pub(crate) shares: Vec<ShareSlot>,
}

/// A slot in the store.
#[derive(Clone, Debug)]
struct HeldSlot {
    pub(super) limit: Name,
    pub(super) slot: Slot,
    /// Its bucket, if the limit is known here.
    pub(super) key: Option<BucketKey>,
    renew_us: u64,
    /// Whether the store may have it; false if this proxy's share of the limit admitted the request.
    pub(super) stored: bool,
    pub(super) request: Arc<RequestDescriptor>,
}

/// What names the buckets of a request to a limiter.
#[derive(Debug)]
pub(crate) struct RequestDescriptor {
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
    pub(crate) fn from_answer(check: &PendingCheck, answer: &Answer, sent: Now) -> Self {
        let given = answer.limits.iter().filter(|limit| limit.charged > 0);
        let mut request = None;
        let slots = given.filter_map(|limit| {
            let slot = limit.slot?;
            let ttl_ms = slot.ttl_ms()?;
            let request =
                request.get_or_insert_with(|| Arc::new(RequestDescriptor::from_check(check)));
            Some(HeldSlot {
                key: check.find(&limit.name).map(|of| of.key),
                limit: limit.name.clone(),
                slot,
                renew_us: sent.after_ms(ttl_ms / RENEWALS),
                stored: true,
                request: Arc::clone(request),
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

impl RequestDescriptor {
    pub(crate) fn from_check(check: &PendingCheck) -> Self {
        let known = check.limit_checks.iter();
        Self {
            entries: check.entries.clone(),
            skip: known.map(|of| of.limit.name.clone()).collect(),
        }
    }
}

impl HeldSlot {
    pub(super) fn op(&self, act: SlotAct) -> (Name, SlotOp) {
        let slot = self.slot;
        (self.limit.clone(), SlotOp { slot, act })
    }
}

/// The slots that a check's request has if its limits give it slots under this id.
fn possible_slots(check: &PendingCheck, id: SlotId) -> impl Iterator<Item = HeldSlot> {
    let request = Arc::new(RequestDescriptor::from_check(check));
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
            request: Arc::clone(&request),
        }
    })
}

/// The name of a slot as a limiter gives it.
fn named(id: SlotId, ttl_ms: u64, generation: u64) -> Slot {
    Slot {
        turn: generation,
        ..InFlightSlot { id, ttl_ms }.into()
    }
}

// --- Checks that free, renew or enter slots and charge nothing: one check for the slots of one bucket.

/// Slots of one bucket in one check, at most.
const MAX_TOGETHER: usize = protocol::MAX_FREE;

/// A slot, and the request that holds it if that still runs.
type OfStream = (Option<StreamId>, HeldSlot);

impl Worker {
    /// Makes checks that free, renew or enter slots, those of a bucket together.
    fn send_slot_ops(&mut self, now: Now, act: SlotAct, slots: Vec<OfStream>) {
        // A slot whose bucket is not known here gets a check of its own.
        let hash = |(_, slot): &OfStream| slot.key.map_or(slot.slot.parts, BucketKey::hash);
        let same = |(_, one): &OfStream, (_, other): &OfStream| {
            one.key.is_some() && one.key == other.key && one.limit == other.limit
        };
        for slots in grouped(slots, hash, same) {
            for together in slots.chunks(MAX_TOGETHER) {
                self.send_slot_op(now, act, together);
            }
        }
    }

    fn send_slot_op(&mut self, now: Now, act: SlotAct, slots: &[OfStream]) {
        let Some((_, first)) = slots.first() else {
            return;
        };
        let ttls = slots.iter().filter_map(|(_, held)| held.slot.ttl_ms());
        let release = SlotRelease {
            slots: slots.iter().map(|(_, held)| held.op(act)).collect(),
            streams: slots.iter().filter_map(|(stream, _)| *stream).collect(),
            until_us: now.after_ms(ttls.max().unwrap_or(0)),
            ..SlotRelease::default()
        };
        self.push_release(now, PendingCheck::of_slots(&first.request, release));
    }
}

// --- Renews the slots of long requests until they end, and enters missing ones again.

impl InFlight {
    /// The breaker opened or closed. When it closes, the renewals that it stopped become due.
    pub(crate) fn look_at_breaker(&mut self, now: Now, open: bool) {
        if std::mem::replace(&mut self.stopped, open) && !open {
            self.next_us = self.next_us.min(now.mono_us);
        }
    }
}

impl Worker {
    /// Renews the slots of long requests.
    pub(crate) fn renew_slots(&mut self, host: &impl Host, now: Now) {
        if !now.reached(self.requests.in_flight.next_us) {
            return;
        }
        self.renew_shares(host, now);
        let (mut due, mut next_us) = (Vec::new(), u64::MAX);
        for (stream, held) in self.requests.in_flight.held.iter_mut() {
            for slot in &mut held.slots {
                let ttl_ms = slot.slot.ttl_ms().unwrap_or(u64::MAX);
                // Slots that are due a little later are renewed in the same check.
                if slot.renew_us <= now.after_ms(ttl_ms / RETRIES) {
                    slot.renew_us = now.after_ms(ttl_ms / RENEWALS);
                    due.push((Some(*stream), slot.clone()));
                }
                next_us = next_us.min(slot.renew_us);
            }
        }
        self.requests.in_flight.next_us = next_us;
        self.send_slot_ops(now, SlotAct::Renew, due);
    }

    /// Handles the answer about slots: missing slots whose requests still run are entered again.
    pub(crate) fn on_slots_answered(
        &mut self,
        now: Now,
        sent: Now,
        release: &SlotRelease,
        answer: &Answer,
    ) {
        let Some((limit, first)) = release.slots.first() else {
            return;
        };
        if first.act != SlotAct::Renew {
            return;
        }
        let limit = answer.limits.iter().find(|of| of.name == *limit);
        let bits = limit.and_then(|limit| limit.slot.filter(|_| limit.charged == 0));
        let missing = bits.map_or_else(Missing::default, |bits| {
            Missing::new(bits.start_ms, bits.parts)
        });
        let (mut gone, mut lapsed) = (Vec::new(), 0);
        for (position, ((limit, op), stream)) in
            release.slots.iter().zip(&release.streams).enumerate()
        {
            let Some(held) = self.requests.in_flight.slot(*stream, limit, op.slot) else {
                continue;
            };
            held.renew_us = sent.after_ms(op.slot.ttl_ms().unwrap_or(0) / RENEWALS);
            if missing.contains(position) {
                lapsed += u64::from(std::mem::replace(&mut held.stored, true));
                gone.push((Some(*stream), held.clone()));
            }
        }
        let entered = u64::try_from(gone.len()).unwrap_or(0) - lapsed;
        self.counts.happened_to(Event::SlotLapsed, lapsed);
        self.counts.happened_to(Event::SlotTaken, entered);
        self.send_slot_ops(now, SlotAct::Enter, gone);
    }

    /// A check that renewed or entered slots got no answer: they are renewed soon.
    pub(crate) fn on_slots_unanswered(&mut self, now: Now, release: &SlotRelease) {
        let mut next_us = u64::MAX;
        for ((limit, op), stream) in release.slots.iter().zip(&release.streams) {
            if let Some(held) = self.requests.in_flight.slot(*stream, limit, op.slot) {
                held.renew_us = now.after_ms(op.slot.ttl_ms().unwrap_or(0) / RETRIES);
                next_us = next_us.min(held.renew_us);
            }
        }
        let in_flight = &mut self.requests.in_flight;
        in_flight.next_us = in_flight.next_us.min(next_us);
    }
}

// --- Slots that a worker could not free before it was deleted: when Envoy receives a new configuration,
// the worker of the old one is deleted with its last request. It writes the pending frees to shared
// data, and any worker of the domain sends them.

/// Bound: bytes of shared data for slots that a deleted plugin left to be freed. Beyond it, the
/// slots expire.
const MAX_BYTES: usize = 256 * 1024;
/// How often a worker looks for frees in shared data.
const EVERY_MS: u64 = 500;
/// Checks in one call.
const MAX_CHECKS: usize = 128;

/// The frees that this worker has taken from shared data and is sending.
#[derive(Debug, Default)]
pub(crate) struct LeftoverFrees {
    looked_us: u64,
    /// Calls that carry frees, until they are answered.
    in_flight: Vec<(CallId, Frees)>,
}

/// The frees in one call.
#[derive(Debug)]
struct Frees {
    /// When the last of the slots expires, on the monotonic clock.
    until_us: u64,
    body: Vec<u8>,
}

fn key(domain: &str) -> Vec<u8> {
    format!("rl1:{domain}:freed").into_bytes()
}

impl Worker {
    /// Leaves the slots still to be freed, and the leased units, to the other workers. The host must not
    /// use the worker afterwards.
    pub fn leave(&mut self, host: &impl Host, now: Now) {
        let frees = |check: &PendingCheck| {
            let release = check.free.as_ref();
            release.is_some_and(|of| of.frees())
        };
        let (mut checks, mut unsent) = (Vec::new(), std::mem::take(&mut self.calls.later));
        unsent.append(&mut self.calls.batcher.take_waiting());
        for call in self.calls.registry.take_checks() {
            if call.probe {
                unsent.extend(call.checks);
                continue;
            }
            for check in &call.checks {
                self.free_unanswered(now, check);
            }
            checks.extend(call.checks);
        }
        for check in &unsent {
            self.restore_settlements(check);
        }
        checks.append(&mut unsent);
        for check in &mut checks {
            // Their requests are gone, and nobody else will receive the answers.
            self.undo_left(std::mem::take(&mut check.claims));
        }
        self.leave_leases(host, now);
        self.free_slots(host, now);
        checks.append(&mut self.calls.batcher.take_waiting());
        checks.append(&mut self.requests.holds.take_unsent());
        checks.retain(frees);
        for batch in checks.chunks_mut(MAX_CHECKS) {
            let releases = batch.iter().filter_map(|check| check.free.as_ref());
            let until_us = releases.map(|release| release.until_us).max().unwrap_or(0);
            let body = encode_checks(self, batch);
            self.leave_call(host, now, &Frees { until_us, body });
        }
        for (_, frees) in std::mem::take(&mut self.requests.in_flight.leftover_frees.in_flight) {
            self.leave_call(host, now, &frees);
        }
    }

    /// Sends the frees that deleted workers left.
    pub(crate) fn send_leftover_frees(&mut self, host: &impl Host, now: Now) {
        let leftover_frees = &mut self.requests.in_flight.leftover_frees;
        if !now.reached(leftover_frees.looked_us.saturating_add(EVERY_MS * 1000)) {
            return;
        }
        leftover_frees.looked_us = now.mono_us;
        let key = key(self.config.domain.as_str());
        if host.load(&key).is_none_or(|left| left.bytes.is_empty()) {
            return;
        }
        let taken = update(host, &key, |bytes| {
            Change::Write(Vec::new(), bytes.to_vec())
        });
        let bytes = taken.unwrap_or_default();
        let mut reader = Reader::new(&bytes);
        while let Some(frees) = Frees::read(&mut reader) {
            let id = self.calls.registry.start_leftover_frees();
            let body = frees.body.clone();
            let leftover_frees = &mut self.requests.in_flight.leftover_frees;
            leftover_frees.in_flight.push((id, frees));
            self.post(id, CHECK_PATH, protocol::CHECK_CBOR, body, 0);
        }
    }

    /// A call that carried frees was answered. If a limiter refuses it, the slots expire.
    pub(crate) fn on_leftover_frees_answered(
        &mut self,
        host: &impl Host,
        now: Now,
        id: CallId,
        answer: Option<&dyn CallAnswer>,
    ) {
        let status = answer.and_then(|answer| answer.header(":status")?.first());
        if let Some(b'2' | b'4') = status {
            let in_flight = &mut self.requests.in_flight.leftover_frees.in_flight;
            in_flight.retain(|(of, _)| *of != id);
        } else {
            self.on_leftover_frees_failed(host, now, id);
        }
    }

    /// A call that carried frees failed: they go back to shared data. Freeing a slot twice does
    /// nothing.
    pub(crate) fn on_leftover_frees_failed(&mut self, host: &impl Host, now: Now, id: CallId) {
        let in_flight = &mut self.requests.in_flight.leftover_frees.in_flight;
        let at = in_flight.iter().position(|(of, _)| *of == id);
        if let Some((_, frees)) = at.map(|at| in_flight.swap_remove(at)) {
            self.leave_call(host, now, &frees);
        }
    }

    fn leave_call(&self, host: &impl Host, now: Now, frees: &Frees) {
        if now.reached(frees.until_us) {
            return;
        }
        // Contended: the slots expire.
        let _ = update(host, &key(self.config.domain.as_str()), |bytes| {
            let mut all = bytes.to_vec();
            if all.len() + frees.body.len() > MAX_BYTES {
                return Change::Keep(());
            }
            frees.write(&mut all);
            Change::Write(all, ())
        });
    }
}

impl Frees {
    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let until_us = reader.u64()?;
        let len = usize::try_from(reader.u32()?).ok()?;
        let body = reader.take(len)?.to_vec();
        Some(Self { until_us, body })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.put_u64(self.until_us);
        out.put_u32(u32::try_from(self.body.len()).unwrap_or(u32::MAX));
        out.extend_from_slice(&self.body);
    }
}

// --- This proxy's share of a limit on requests in flight, while no limiter answers.

/// The share is counted across all revisions of its limit, because requests in flight outlast a
/// revision.
const GENERATION: u64 = 0;

/// A slot in the share of one bucket. It is counted in the epoch, one slot ttl long, in which it was
/// last [renewed](ShareSlot::renew), and in the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShareSlot {
    key: BucketKey,
    ttl_us: u64,
    epoch: u64,
}

/// The slots of a share that are taken, counted by all workers of a proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TakenSlots {
    epoch: u64,
    /// Of this epoch, and of the one before.
    current: u64,
    previous: u64,
}

impl ShareSlot {
    /// A slot in the bucket with this key, of [`Role::Global`], whose slots have this ttl.
    pub(crate) fn new(key: BucketKey, ttl_ms: u64) -> Self {
        Self {
            key: key.in_role(Role::InFlight),
            ttl_us: ttl_ms.saturating_mul(1000).max(1),
            epoch: 0,
        }
    }

    /// The size of this proxy's share: an equal part of the limit, but at least one slot.
    pub(crate) fn size(limit: u64, proxies: u64) -> u64 {
        (limit / proxies.max(1)).max(1).min(limit)
    }

    /// Whether it is in the bucket with this key, of [`Role::Global`].
    fn is_of(&self, key: BucketKey) -> bool {
        self.key == key.in_role(Role::InFlight)
    }

    /// Takes a slot if fewer than `size` are taken, or with `peek` only looks; returns whether one was
    /// left.
    pub(crate) fn take(
        &mut self,
        table: &Table,
        host: &impl Host,
        now: Now,
        size: u64,
        peek: bool,
    ) -> Result<bool, Contended> {
        self.epoch = self.epoch_of(now);
        self.change(table, host, now, |taken| {
            let fits = taken.current + taken.previous < size;
            taken.current += u64::from(fits && !peek);
            fits
        })
    }

    /// Renews `count` slots of one bucket and epoch, of which this is one. A module that stops loses
    /// its slots within two ttls.
    fn renew(
        &self,
        table: &Table,
        host: &impl Host,
        now: Now,
        count: u64,
    ) -> Result<(), Contended> {
        self.change(table, host, now, |taken| {
            taken.leave(self.epoch, count);
            taken.current += count;
        })
    }

    fn free(self, table: &Table, host: &impl Host, now: Now) -> Result<(), Contended> {
        self.change(table, host, now, |taken| taken.leave(self.epoch, 1))
    }

    fn epoch_of(&self, now: Now) -> u64 {
        now.mono_us / self.ttl_us
    }

    /// Changes the counts of taken slots, which include those of other workers.
    fn change<T>(
        &self,
        table: &Table,
        host: &impl Host,
        now: Now,
        change: impl Fn(&mut TakenSlots) -> T,
    ) -> Result<T, Contended> {
        let epoch = self.epoch_of(now);
        table.update::<BucketEntry, _>(host, self.key, GENERATION, now, |found| {
            let local = match found.room {
                Room::Own => &mut found.entry.local,
                Room::Overflow | Room::None => &mut found.overflow,
            };
            let before = local
                .as_ref()
                .and_then(|local| TakenSlots::read(&local.bytes));
            let mut taken = before.unwrap_or_default().at(epoch);
            let same = taken;
            let result = change(&mut taken);
            if taken == same {
                return Update::Keep(result);
            }
            let any = taken.current + taken.previous > 0;
            *local = any.then(|| LocalState {
                bytes: taken.write(),
                touched_us: now.mono_us,
                unused_at_us: now.mono_us.saturating_add(2 * self.ttl_us),
            });
            Update::Write(result)
        })
    }
}

impl TakenSlots {
    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        Some(Self {
            epoch: reader.u64()?,
            current: u64::from(reader.u32()?),
            previous: u64::from(reader.u32()?),
        })
    }

    fn write(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_u64(self.epoch);
        for count in [self.current, self.previous] {
            bytes.put_u32(u32::try_from(count).unwrap_or(u32::MAX));
        }
        bytes
    }

    /// The counts that still apply in an epoch.
    const fn at(self, epoch: u64) -> Self {
        let (current, previous) = match epoch.checked_sub(self.epoch) {
            Some(0) => (self.current, self.previous),
            Some(1) => (0, self.current),
            _ => (0, 0),
        };
        Self {
            epoch,
            current,
            previous,
        }
    }

    /// Frees slots that were counted in an epoch, if they still are.
    const fn leave(&mut self, epoch: u64, count: u64) {
        if epoch == self.epoch {
            self.current = self.current.saturating_sub(count);
        } else if epoch + 1 == self.epoch {
            self.previous = self.previous.saturating_sub(count);
        }
    }
}

impl Worker {
    /// Frees a slot of the share.
    fn free_share(&self, host: &impl Host, now: Now, share: &ShareSlot) {
        // Contended: the slot stays taken for up to two ttls.
        let _ = share.free(&self.process.table, host, now);
    }

    /// Renews the slots of requests that still run.
    fn renew_shares(&mut self, host: &impl Host, now: Now) {
        let due = { self.requests.in_flight.shares() }
            .filter(|share| share.epoch != share.epoch_of(now))
            .collect();
        let same = |one: &&mut ShareSlot, other: &&mut ShareSlot| {
            one.key == other.key && one.epoch == other.epoch
        };
        for together in grouped(due, |share| share.key.hash(), same) {
            let count = u64::try_from(together.len()).unwrap_or(u64::MAX);
            let Some(share) = together.first() else {
                continue;
            };
            // Contended: the next renewal comes before they are lost.
            if share.renew(&self.process.table, host, now, count).is_ok() {
                for share in together {
                    share.epoch = share.epoch_of(now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_ids_differ_between_requests_and_between_workers() {
        let now = Now {
            mono_us: 0,
            wall_ms: 1_763_000_000_123,
        };
        let ids = |key| {
            let mut ids = Ids::new([key; 16]);
            (0..100).map(move |_| ids.next(now, 9)).collect::<Vec<_>>()
        };
        let mut all = ids(1);
        all.extend(ids(2));
        assert!(
            all.iter()
                .all(|id| id.mark() == 9 && id.at_s() == 1_763_000_000)
        );
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 200);
    }
}

#[cfg(test)]
mod share_tests {
    use super::*;
    use crate::{host::at, simulated::SharedData};

    fn share(table: &Table) -> ShareSlot {
        ShareSlot::new(table.key("in-flight", std::iter::empty()), 1_000)
    }

    #[test]
    fn a_share_is_a_part_of_the_limit_and_at_least_one() {
        assert_eq!(ShareSlot::size(10, 3), 3);
        assert_eq!(ShareSlot::size(2, 5), 1);
        assert_eq!(ShareSlot::size(0, 5), 0);
        assert_eq!(ShareSlot::size(10, 0), 10);
    }

    #[test]
    fn workers_count_one_share_together() {
        let host = SharedData::default();
        let tables = [0, 1].map(|_| Table::new("shop", 16, [7; 16]));
        let take = |table: &Table| share(table).take(table, &host, at(1), 3, false).unwrap();
        let taken: Vec<bool> = tables.iter().cycle().take(5).map(take).collect();
        assert_eq!(taken, [true, true, true, false, false]);
        let [first, second] = &tables;
        assert!(!share(second).take(second, &host, at(1), 3, true).unwrap());
        share(first).free(first, &host, at(2)).unwrap();
        assert!(share(second).take(second, &host, at(2), 3, true).unwrap());
        assert!(take(second));
        assert!(!take(first));
    }

    #[test]
    fn a_slot_of_a_share_expires_after_two_ttls_unless_it_is_renewed() {
        let host = SharedData::default();
        let table = Table::new("shop", 16, [7; 16]);
        let (mut lost, mut kept) = (share(&table), share(&table));
        assert!(lost.take(&table, &host, at(500), 2, false).unwrap());
        assert!(kept.take(&table, &host, at(600), 2, false).unwrap());
        for ms in (700..5_000).step_by(300) {
            kept.renew(&table, &host, at(ms), 1).unwrap();
            kept.epoch = kept.epoch_of(at(ms));
            let room = share(&table).take(&table, &host, at(ms), 2, true).unwrap();
            assert_eq!(room, ms >= 2_000, "{ms}");
        }
        // Freeing what is gone takes nobody else's slot.
        lost.free(&table, &host, at(5_000)).unwrap();
        assert!(
            !share(&table)
                .take(&table, &host, at(5_000), 1, true)
                .unwrap()
        );
        kept.free(&table, &host, at(5_000)).unwrap();
        assert!(
            share(&table)
                .take(&table, &host, at(5_000), 1, true)
                .unwrap()
        );
    }
}
