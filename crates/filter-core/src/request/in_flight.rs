//! Slots of requests in flight: held until the request ends, however it ends, and renewed meanwhile.
//!
//! Requests to which no such limit applies have no entry here.

use std::{hash::Hasher, sync::Arc};

use algorithms::{Adaptive, InFlightSlot, Missing, Pace, Slot, SlotAct, SlotId, SlotOp};
use policy::{Name, whole_number};
use protocol::{Answer, LimitRequest};
use siphasher::sip::SipHasher13;

use crate::{
    cache::{BucketEntry, BucketKey, LocalState, Role, Room, Table, Update},
    call::{CHECK_PATH, CallId, encode_checks},
    cost::RequestBody,
    host::{Change, Contended, Host, Now, Put, Reader, update},
    metrics::Event,
    request::{ByStream, Extracted, LimitCheck, PendingCheck, Request, SlotRelease, grouped},
    response::ResponseHeaders,
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

    /// What a request holds whose answer says something to a limit.
    fn measured(&mut self, stream: StreamId) -> Option<&mut Measured> {
        if self.held.is_empty() {
            return None;
        }
        let measured = &mut self.held.get_mut(stream)?.measured;
        Some(measured).filter(|measured| **measured != Measured::Nothing)
    }

    /// The last of a request has arrived.
    pub(crate) fn arrived(&mut self, stream: StreamId, now: impl FnOnce() -> Now) {
        if let Some(measured) = self.measured(stream)
            && *measured == Measured::Arriving
        {
            *measured = Measured::Since(now().mono_us);
        }
    }

    /// A request continues that was held until now.
    pub(crate) fn resumed(&mut self, stream: StreamId, now: Now) {
        if let Some(Measured::Since(since_us)) = self.measured(stream) {
            *since_us = now.mono_us;
        }
    }

    /// The answer to a request begins.
    pub(crate) fn answered(
        &mut self,
        stream: StreamId,
        headers: &impl ResponseHeaders,
        now: impl FnOnce() -> Now,
    ) {
        if let Some(measured) = self.measured(stream) {
            *measured = measured.answered(headers, now);
        }
    }

    /// Releases the slots of a request that ended; returns whether it had any. `forwarded`: its
    /// service may have got it.
    pub(crate) fn end(
        &mut self,
        stream: StreamId,
        now: impl FnOnce() -> Now,
        forwarded: bool,
    ) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let mut held = self.held.remove(stream);
        if let Some(held) = &mut held {
            held.measured = if forwarded {
                held.measured.ended(now)
            } else {
                // What it waited for was this filter.
                Measured::Nothing
            };
        }
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
    pub(crate) fn hold_slots(&mut self, now: Now, stream: StreamId, mut held: HeldSlots) {
        if held.is_empty() {
            return;
        }
        if let Measured::Since(since_us) = &mut held.measured {
            *since_us = now.mono_us;
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
            slots.extend(stored.map(|slot| {
                let pace = slot.rule.and_then(|rule| held.measured.pace(&rule));
                (None, pace.map_or(SlotAct::Free(1), SlotAct::Answered), slot)
            }));
        }
        let freed = u64::try_from(slots.len()).unwrap_or(0);
        self.counts.happened_to(Event::SlotFreed, freed);
        self.send_slot_ops(now, slots);
    }

    /// Frees the slots that an unanswered check may have taken.
    pub(crate) fn free_unanswered(&mut self, now: Now, check: &PendingCheck) {
        if let Some(id) = check.slot {
            let slots = possible_slots(check, id).map(|slot| (None, SlotAct::Free(1), slot));
            self.send_slot_ops(now, slots.collect());
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
        held.measured = check.measured;
    }
}

// --- What a request that ends says to adaptive limits: how its service answered, or nothing. The time runs from
// the end of the request to the headers of the response, so that neither a slow upload nor a client that reads
// slowly counts.

/// How the service answers a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Measured {
    /// It says nothing: no limit is adaptive, it is an upgrade, or Envoy answered in its place.
    #[default]
    Nothing,
    /// The client still sends the request.
    Arriving,
    /// The service has had all of it since then, on the monotonic clock.
    Since(u64),
    /// The service answered after so many milliseconds.
    Took {
        ms: u64,
        /// With an error. A client may have provoked it, and a service that fails fast is not quick.
        failed: bool,
    },
    /// The service is overloaded, or was not reached in time.
    Slow,
    /// The client left after so many milliseconds without an answer.
    Left(u64),
}

/// Envoy's router writes it: milliseconds from the end of the request.
const SERVICE_TIME: &str = "x-envoy-upstream-service-time";
/// Among the headers of a gRPC answer without messages, as most errors are. Later it is a trailer, and trailers are
/// read for costs only.
const GRPC_STATUS: &str = "grpc-status";
const GRPC_DEADLINE_EXCEEDED: u64 = 4;
const GRPC_UNAVAILABLE: u64 = 14;
/// `UNKNOWN`, `RESOURCE_EXHAUSTED`, `INTERNAL` and `DATA_LOSS`.
const GRPC_FAILED: [u64; 4] = [2, 8, 13, 15];
/// Why Envoy answers as it does.
const CODE_DETAILS: &[u8] = b"response\0code_details";

impl Measured {
    /// Of a request that arrives. `body`: what was read of it before the decision.
    pub(crate) fn new(request: &impl Request, body: Option<&RequestBody>) -> Self {
        let connect = request.header(":method") == Some(b"CONNECT");
        if connect || request.header("upgrade").is_some() {
            Self::Nothing
        } else if body.map_or_else(|| request.has_body(), |body| !body.ended) {
            Self::Arriving
        } else {
            Self::Since(0)
        }
    }

    fn elapsed_ms(self, now: impl FnOnce() -> Now) -> Option<u64> {
        match self {
            Self::Since(since_us) => Some(now().mono_us.saturating_sub(since_us) / 1000),
            _ => None,
        }
    }

    fn answered(self, headers: &impl ResponseHeaders, now: impl FnOnce() -> Now) -> Self {
        let number = |name| headers.get(name).and_then(|text| whole_number(&text));
        let (status, service_ms) = (number(":status").unwrap_or(0), number(SERVICE_TIME));
        if status == 101 {
            return Self::Nothing;
        }
        if service_ms.is_none() {
            // The router may not write it; but then, the answer may not be the service's.
            let details = headers.property(CODE_DETAILS).unwrap_or_default();
            let unreached = [&b"upstream_"[..], b"no_healthy_upstream"];
            if unreached.iter().any(|of| details.starts_with(of)) {
                return Self::Slow;
            }
            if details != b"via_upstream" {
                return Self::Nothing;
            }
        }
        if matches!(status, 503 | 504) {
            return Self::Slow;
        }
        let grpc = number(GRPC_STATUS).filter(|_| status == 200);
        if grpc == Some(GRPC_UNAVAILABLE) {
            return Self::Slow;
        }
        let failed = status >= 500 || grpc.is_some_and(|status| GRPC_FAILED.contains(&status));
        // An answer that begins before its request ends took no time that can be measured.
        let ms = service_ms.or_else(|| self.elapsed_ms(now));
        ms.map_or(Self::Nothing, |ms| match grpc {
            // The deadline is the client's: it left.
            Some(GRPC_DEADLINE_EXCEEDED) => Self::Left(ms),
            _ => Self::Took { ms, failed },
        })
    }

    fn ended(self, now: impl FnOnce() -> Now) -> Self {
        match self {
            Self::Since(_) => self.elapsed_ms(now).map_or(Self::Nothing, Self::Left),
            Self::Arriving => Self::Nothing,
            known => known,
        }
    }

    /// What it says to a limit.
    fn pace(self, rule: &Adaptive) -> Option<Pace> {
        let quick = |ms| rule.pace(ms) == Pace::InTime;
        match self {
            Self::Took { ms, failed: true } if quick(ms) => None,
            Self::Took { ms, .. } => Some(rule.pace(ms)),
            Self::Slow => Some(Pace::Slow),
            // Where everybody gives up before the latency, an overload shows all the same.
            Self::Left(ms) if !quick(ms) => Some(Pace::Slow),
            Self::Left(_) | Self::Nothing | Self::Arriving | Self::Since(_) => None,
        }
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
    /// What the request says to those of the limits that are adaptive.
    measured: Measured,
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
    /// What an adaptive limit follows its service by.
    rule: Option<Adaptive>,
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
        if more.measured != Measured::Nothing {
            self.measured = more.measured;
        }
    }

    /// The slots in the answer to a check that was sent at `sent`.
    pub(crate) fn from_answer(
        check: &PendingCheck,
        answer: &Answer,
        sent: Now,
        request: Option<&Arc<RequestDescriptor>>,
    ) -> Self {
        let given = answer.limits.iter().filter(|of| of.verdict.charged > 0);
        let slots = given.filter_map(|limit| {
            let slot = limit.verdict.slot?;
            let ttl_ms = slot.ttl_ms()?;
            let known = check.find(&limit.name);
            Some(HeldSlot {
                key: known.map(|of| of.bucket.key),
                limit: limit.name.clone(),
                slot,
                renew_us: sent.after_ms(ttl_ms / RENEWALS),
                stored: true,
                rule: known.and_then(|of| of.limit.quota.parameters().adaptive),
                request: Arc::clone(request?),
            })
        });
        Self {
            slots: slots.collect(),
            shares: Vec::new(),
            measured: check.measured,
        }
    }

    /// Whether the answer came so late that a slot may expire before it is renewed.
    pub(crate) fn is_late(&self, now: Now) -> bool {
        self.slots.iter().any(|held| now.reached(held.renew_us))
    }
}

impl RequestDescriptor {
    /// For checks about the limits of a request that give slots or reserve units. It may last as long as the request, and
    /// values may be long, so it has only those that decide whether these limits apply, and that keep others from it.
    /// `known`: a check of this proxy's limits.
    #[inline(never)]
    fn new(check: &PendingCheck, known: bool) -> Arc<Self> {
        let policy = check.policy.as_ref();
        // Where a limit is not known here, nobody knows what it reads.
        let policy = policy.filter(|policy| known && policy.compiled.opaque().is_empty());
        let is_read = |key: &Name| {
            policy.is_none_or(|policy| policy.satisfied_by_absence.contains(key))
                || check
                    .limit_checks
                    .iter()
                    .any(|of| of.limit.holds_requests() && of.limit.reads(key))
        };
        let limits = check.limit_checks.iter();
        Arc::new(Self {
            entries: check.entries.only(is_read),
            skip: limits.map(|of| of.limit.name.clone()).collect(),
        })
    }

    /// For the slots and the reserved units in the answer to a check; `None`: there are none.
    pub(crate) fn from_answer(check: &PendingCheck, answer: &Answer) -> Option<Arc<Self>> {
        let (mut any, mut known) = (false, true);
        for limit in &answer.limits {
            any |= limit.verdict.slot.is_some() || limit.reservation.is_some();
            known &= check.find(&limit.name).is_some();
        }
        any.then(|| Self::new(check, known))
    }
}

/// The slots that a check's request has if its limits give it slots under this id.
fn possible_slots(check: &PendingCheck, id: SlotId) -> impl Iterator<Item = HeldSlot> {
    let giving = check.global().filter(|of| of.limit.gives_slots());
    let request = RequestDescriptor::new(check, true);
    giving.map(move |limit_check| {
        let limit = &limit_check.limit;
        let ttl_ms = limit.quota.parameters().rate.period_ms;
        HeldSlot {
            limit: limit.name.clone(),
            slot: named(id, ttl_ms, limit_check.bucket.generation),
            key: Some(limit_check.bucket.key),
            renew_us: 0,
            stored: true,
            rule: limit.quota.parameters().adaptive,
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

/// What is done to a slot, and the request that holds it if that still runs.
type OfStream = (Option<StreamId>, SlotAct, HeldSlot);

impl Worker {
    /// Makes checks that free, renew or enter slots, those of a bucket together.
    fn send_slot_ops(&mut self, now: Now, slots: Vec<OfStream>) {
        // A slot whose bucket is not known here gets a check of its own.
        let hash = |(.., slot): &OfStream| slot.key.map_or(slot.slot.parts, BucketKey::hash);
        let same = |(.., one): &OfStream, (.., other): &OfStream| {
            one.key.is_some() && one.key == other.key && one.limit == other.limit
        };
        for slots in grouped(slots, hash, same) {
            for together in slots.chunks(MAX_TOGETHER) {
                self.send_slot_op(now, together);
            }
        }
    }

    fn send_slot_op(&mut self, now: Now, slots: &[OfStream]) {
        let Some((.., first)) = slots.first() else {
            return;
        };
        let ttls = slots.iter().filter_map(|(.., held)| held.slot.ttl_ms());
        let op = |(_, act, held): &OfStream| SlotOp {
            slot: held.slot,
            act: *act,
        };
        let release = SlotRelease {
            request: Arc::clone(&first.request),
            limits: vec![LimitRequest {
                slots: slots.iter().map(op).collect(),
                ..LimitRequest::new(first.limit.clone())
            }],
            streams: slots.iter().filter_map(|(stream, ..)| *stream).collect(),
            until_us: now.after_ms(ttls.max().unwrap_or(0)),
        };
        self.push_release(now, PendingCheck::of_slots(release));
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
                    due.push((Some(*stream), SlotAct::Renew, slot.clone()));
                }
                next_us = next_us.min(slot.renew_us);
            }
        }
        self.requests.in_flight.next_us = next_us;
        self.send_slot_ops(now, due);
    }

    /// Handles the answer about slots: missing slots whose requests still run are entered again.
    pub(crate) fn on_slots_answered(
        &mut self,
        now: Now,
        sent: Now,
        release: &SlotRelease,
        answer: &Answer,
    ) {
        let [of] = release.limits.as_slice() else {
            return;
        };
        if of.slots.first().is_none_or(|op| op.act != SlotAct::Renew) {
            return;
        }
        let limit = answer.limits.iter().find(|limit| limit.name == of.limit);
        let verdict = limit.map(|limit| &limit.verdict);
        let bits = verdict.and_then(|of| of.slot.filter(|_| of.charged == 0));
        let missing = bits.map_or_else(Missing::default, |bits| {
            Missing::new(bits.start_ms, bits.parts)
        });
        let (mut gone, mut lapsed) = (Vec::new(), 0);
        for (position, (op, stream)) in of.slots.iter().zip(&release.streams).enumerate() {
            let Some(held) = self.requests.in_flight.slot(*stream, &of.limit, op.slot) else {
                continue;
            };
            held.renew_us = sent.after_ms(op.slot.ttl_ms().unwrap_or(0) / RENEWALS);
            if missing.contains(position) {
                lapsed += u64::from(std::mem::replace(&mut held.stored, true));
                gone.push((Some(*stream), SlotAct::Enter, held.clone()));
            }
        }
        let entered = u64::try_from(gone.len()).unwrap_or(0) - lapsed;
        self.counts.happened_to(Event::SlotLapsed, lapsed);
        self.counts.happened_to(Event::SlotTaken, entered);
        self.send_slot_ops(now, gone);
    }

    /// A check that renewed or entered slots got no answer: they are renewed soon.
    pub(crate) fn on_slots_unanswered(&mut self, now: Now, release: &SlotRelease) {
        let mut next_us = u64::MAX;
        let ops = release
            .limits
            .iter()
            .flat_map(|of| of.slots.iter().map(|op| (&of.limit, op)));
        for ((limit, op), stream) in ops.zip(&release.streams) {
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
        table.update::<BucketEntry, _>(host, self.key.at(GENERATION), now, |found| {
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
mod descriptor_tests {
    use filter_config::Source;
    use policy::Entries;

    use super::*;
    use crate::host::at;

    #[test]
    fn a_stream_stores_only_what_decides_whether_its_limits_apply() {
        let text = "domain: shop\nlimits:\n  - {name: streams, algorithm: concurrency, limit: 9, per: [user]}
  - {name: targets, per: [target], rate: 1/s}\n  - {name: people, match: {agent: '!bot'}, rate: 1/s}\n";
        let source = |key: &str, len| (key.parse().unwrap(), Source::Constant(vec![b'x'; len]));
        let sources = [
            source("user", 5),
            source("target", 50_000),
            source("agent", 7),
        ];
        let check = PendingCheck::of_limits(text, &sources, at(0));
        for (known, lens) in [(true, [5, 0, 7]), (false, [5, 50_000, 7])] {
            let stored = RequestDescriptor::new(&check, known);
            assert_eq!(stored.skip.len(), 3);
            let len = |key| stored.entries.get(key).map_or(0, <[u8]>::len);
            assert_eq!(["user", "target", "agent"].map(len), lens);
        }
    }
}

#[cfg(test)]
mod measured_tests {
    use super::*;
    use crate::{host::at, worker::StreamId};

    const RULE: Adaptive = Adaptive {
        min: 1,
        max: 9,
        latency_ms: 300,
        share: 950,
    };

    /// A status (`grpc:14`: one of gRPC), the router's time, and why Envoy answered so.
    struct Answer(&'static str, Option<&'static str>, &'static str);

    impl ResponseHeaders for Answer {
        fn get(&self, name: &str) -> Option<Vec<u8>> {
            match name {
                ":status" if self.0.starts_with("grpc:") => Some("200".into()),
                ":status" => Some(self.0.into()),
                GRPC_STATUS => self.0.strip_prefix("grpc:").map(Into::into),
                SERVICE_TIME => self.1.map(Into::into),
                _ => None,
            }
        }
        fn set(&mut self, _: &'static str, _: &str) {}
        fn add(&mut self, _: &'static str, _: &str) {}
        fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
            (path == CODE_DETAILS && !self.2.is_empty()).then(|| self.2.into())
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn each_end_of_a_request_says_what_the_manual_lists() {
        const SERVICE: &str = "via_upstream";
        let since = Measured::Since(at(1000).mono_us);
        let says = |answer: Answer, ms: u64| {
            since
                .answered(&answer, || at(1000 + ms))
                .ended(|| at(9000))
                .pace(&RULE)
        };
        // By Envoy's time, whatever ours is.
        for (time, pace) in [
            ("150", Pace::InTime),
            ("151", Pace::Late),
            ("300", Pace::Late),
            ("301", Pace::Slow),
            ("18446744073709551615", Pace::Slow),
        ] {
            assert_eq!(
                says(Answer("200", Some(time), SERVICE), 5),
                Some(pace),
                "{time}"
            );
            assert_eq!(
                says(Answer("429", Some(time), SERVICE), 5),
                Some(pace),
                "{time}"
            );
        }
        // By ours, where Envoy writes none that can be read.
        for (ms, pace) in [(150, Pace::InTime), (300, Pace::Late), (301, Pace::Slow)] {
            assert_eq!(says(Answer("200", None, SERVICE), ms), Some(pace));
            assert_eq!(says(Answer("200", Some("-1"), SERVICE), ms), Some(pace));
        }
        for status in ["503", "504", "grpc:14"] {
            assert_eq!(
                says(Answer(status, Some("1"), SERVICE), 1),
                Some(Pace::Slow)
            );
        }
        // A client that sets a deadline of a millisecond says nothing about the service.
        for (time, pace) in [("1", None), ("200", Some(Pace::Slow))] {
            assert_eq!(says(Answer("grpc:4", Some(time), SERVICE), 1), pace);
        }
        for (time, pace) in [
            ("1", None),
            ("200", Some(Pace::Late)),
            ("400", Some(Pace::Slow)),
        ] {
            assert_eq!(says(Answer("500", Some(time), SERVICE), 1), pace);
            assert_eq!(says(Answer("502", Some(time), SERVICE), 1), pace);
            for status in ["grpc:2", "grpc:8", "grpc:13", "grpc:15"] {
                assert_eq!(says(Answer(status, Some(time), SERVICE), 1), pace);
            }
        }
        for status in ["grpc:0", "grpc:5", "grpc:16"] {
            let pace = Some(Pace::InTime);
            assert_eq!(says(Answer(status, Some("1"), SERVICE), 1), pace);
        }
        for details in [
            "upstream_reset_before_response_started{connection_failure}",
            "upstream_response_timeout",
            "no_healthy_upstream",
        ] {
            assert_eq!(
                says(Answer("503", None, details), 1),
                Some(Pace::Slow),
                "{details}"
            );
        }
        // Before the end of the request only Envoy's time says anything.
        for (time, pace) in [(None, None), (Some("20"), Some(Pace::InTime))] {
            let early = Measured::Arriving.answered(&Answer("200", time, SERVICE), || at(9000));
            assert_eq!(early.ended(|| at(9000)).pace(&RULE), pace);
        }
        for (status, details) in [
            ("grpc:14", "direct_response"),
            ("200", "direct_response"),
            ("503", "fault_filter_abort"),
            ("401", "jwt_authn_access_denied"),
            ("200", ""),
            ("101", SERVICE),
        ] {
            assert_eq!(says(Answer(status, None, details), 400), None, "{details}");
        }
    }

    #[test]
    fn a_client_that_leaves_says_something_only_after_half_of_the_latency() {
        let left = |measured: Measured, ms: u64| measured.ended(|| at(1000 + ms)).pace(&RULE);
        let since = Measured::Since(at(1000).mono_us);
        assert_eq!(left(since, 150), None);
        assert_eq!(left(since, 151), Some(Pace::Slow));
        // Nor is this filter's queue.
        for (forwarded, pace) in [(true, Some(Pace::Slow)), (false, None)] {
            let mut in_flight = InFlight::new([0; 16]);
            let held = HeldSlots {
                measured: since,
                ..HeldSlots::default()
            };
            in_flight.held.insert(StreamId(1), held);
            in_flight.end(StreamId(1), || at(2000), forwarded);
            let said = in_flight.released.pop();
            assert_eq!(said.unwrap().measured.pace(&RULE), pace);
        }
        // A slow upload is not the service's fault.
        assert_eq!(left(Measured::Arriving, 60_000), None);
        assert_eq!(left(Measured::Nothing, 60_000), None);
        // After the headers it may take as long as it likes.
        let took = since.answered(&Answer("200", Some("20"), "via_upstream"), || at(1020));
        assert_eq!(left(took, 60_000), Some(Pace::InTime));
    }
}

#[cfg(test)]
mod share_tests {
    use super::*;
    use crate::{host::at, simulated::SharedData};

    fn share(table: &Table) -> ShareSlot {
        ShareSlot::new(table.key(("in-flight", 1), std::iter::empty()), 1_000)
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
