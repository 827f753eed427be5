//! The requests of a worker: what each holds until it ends, also while a queue delays it.
//!
//! `descriptor` extracts a request's entries, `decide` decides as much of it as this proxy can and carries out
//! the decision, `check` is what a limiter still has to decide, and `in_flight` renews its slots.

mod check;
mod decide;
mod descriptor;
mod in_flight;

use std::sync::Arc;

use algorithms::{Algorithm, Charged, Slot};
use in_flight::InFlight;
use protocol::CHECK_STREAM;

use crate::{
    cache::BucketAt,
    call::{CHECK_PATH, POLICY_PATH, REPORT_PATH},
    cost::{Meter, Metered, RequestBodies},
    host::{Host, Now},
    lease::Grant,
    local_bucket::{LocalBucket, Start},
    response::QuotaStatus,
    worker::{Edits, StreamId, Worker},
};

pub(crate) use check::{
    Attempts, DenyingLimits, Hold, LimitCheck, PendingCheck, SlotRelease, quota_status,
};
pub(crate) use decide::Admission;
pub(crate) use descriptor::{Extracted, Plan, magnitude};
pub(crate) use in_flight::{HeldSlots, Measured, RequestDescriptor, ShareSlot};

pub(crate) use crate::report::Denials;

#[cfg(test)]
pub(crate) use descriptor::Bare;
pub use descriptor::{NoProperty, Request};

/// The requests of a worker that have not ended.
#[derive(Debug)]
pub(crate) struct Requests {
    pub(crate) streams: ByStream<Stream>,
    pub(crate) holds: Holds,
    pub(crate) in_flight: InFlight,
    pub(crate) metered: Metered,
    pub(crate) bodies: RequestBodies,
}

impl Requests {
    /// `hold_max` is how many requests may be held at once, `key` random.
    pub(crate) fn new(hold_max: usize, key: [u8; 16]) -> Self {
        Self {
            streams: ByStream::default(),
            holds: Holds::new(hold_max),
            in_flight: InFlight::new(key),
            metered: Metered::default(),
            bodies: RequestBodies::default(),
        }
    }

    /// Whether none holds slots or units, and nothing is to be freed.
    #[inline(never)]
    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_settled() && self.in_flight.is_idle() && self.metered.is_idle()
    }
}

// --- The state of each request that has not ended.

/// Requests whose ids have the same low byte share a chain. The host counts ids up, so thousands of
/// concurrent requests are a few in each chain, and no table has to grow.
const CHAINS: usize = 256;

/// The state of one request.
#[derive(Debug)]
pub(crate) enum Stream {
    /// The filter reads its body, which determines what it reserves.
    Body,
    /// Its check is in flight.
    Waiting,
    /// A queue holds it.
    Held,
    /// It continued; its response will show these quotas.
    Passed(Vec<QuotaStatus>),
}

/// A map from requests to values, by their ids.
#[derive(Debug)]
pub struct ByStream<T> {
    chains: Box<[Vec<(StreamId, T)>; CHAINS]>,
    len: usize,
}

impl<T> Default for ByStream<T> {
    fn default() -> Self {
        Self {
            chains: Box::new([const { Vec::new() }; CHAINS]),
            len: 0,
        }
    }
}

impl<T> ByStream<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a request.
    pub fn get(&self, id: StreamId) -> Option<&T> {
        let chain = self.chains.get(chain_of(id))?;
        chain.iter().find(|(of, _)| *of == id).map(|(_, kept)| kept)
    }

    /// As [`Self::get`], to change it.
    pub fn get_mut(&mut self, id: StreamId) -> Option<&mut T> {
        let chain = self.chains.get_mut(chain_of(id))?;
        let mut kept = chain.iter_mut().filter(|(of, _)| *of == id);
        kept.next().map(|(_, kept)| kept)
    }

    /// Gives a request a value; returns what was replaced.
    pub fn insert(&mut self, id: StreamId, new: T) -> Option<T> {
        if let Some(kept) = self.get_mut(id) {
            return Some(std::mem::replace(kept, new));
        }
        self.chains.get_mut(chain_of(id))?.push((id, new));
        self.len += 1;
        None
    }

    /// Takes out the value of a request.
    pub fn remove(&mut self, id: StreamId) -> Option<T> {
        let chain = self.chains.get_mut(chain_of(id))?;
        let at = chain.iter().position(|(of, _)| *of == id)?;
        self.len -= 1;
        Some(chain.swap_remove(at).1)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut (StreamId, T)> {
        self.chains.iter_mut().flatten()
    }
}

/// Always below [`CHAINS`].
fn chain_of(id: StreamId) -> usize {
    let [low, ..] = id.0.to_le_bytes();
    usize::from(low)
}

// --- Recognizes the filter's own calls to a limiter, which are not limited.

impl Worker {
    /// Whether a request is a filter's call to the limiter that passes through another Envoy (the
    /// sidecar of a limiter). Checking it would cause another call, and so on. The limiter's token
    /// proves it. The `:authority` alone does not, unless the configuration says that clients cannot
    /// reach that host.
    pub(crate) fn is_limiter_traffic(&self, request: &impl Request) -> bool {
        let bearer = self.calls.bearer.as_deref();
        if bearer.is_none() && !self.config.limiter.trust_host {
            return false;
        }
        let Some(path) = request.header(":path") else {
            return false;
        };
        // Only these paths: otherwise every path of that host would be unlimited.
        let polls = path.strip_prefix(POLICY_PATH.as_bytes());
        let polls = polls.is_some_and(|rest| matches!(rest, [] | [b'?', ..]));
        let posts = [CHECK_PATH, REPORT_PATH, CHECK_STREAM];
        if !posts.iter().any(|known| *path == *known.as_bytes()) && !polls {
            return false;
        }
        let authority = self.config.limiter.authority.as_bytes();
        let to_limiter = request
            .header(":authority")
            .is_some_and(|host| *host == *authority);
        let given = || request.header("authorization");
        to_limiter
            && bearer.is_none_or(|own| given().is_some_and(|token| *token == *own.as_bytes()))
    }
}

// --- Groups items that belong to one bucket.

/// Splits items into groups in which each item is the `same` as the first. Equal items have equal
/// `hash`es, which are keyed, so that clients cannot fill one chain.
pub(crate) fn grouped<T>(
    items: Vec<T>,
    hash: impl Fn(&T) -> u64,
    same: impl Fn(&T, &T) -> bool,
) -> impl Iterator<Item = Vec<T>> {
    let mut chains: Vec<Vec<Vec<T>>> = Vec::new();
    chains.resize_with(if items.len() > 1 { CHAINS } else { 1 }, Vec::new);
    let mask = chains.len() - 1;
    for item in items {
        let [low, ..] = hash(&item).to_le_bytes();
        let Some(chain) = chains.get_mut(usize::from(low) & mask) else {
            continue;
        };
        let of = |group: &&mut Vec<T>| group.first().is_some_and(|first| same(first, &item));
        match chain.iter_mut().find(of) {
            Some(group) => group.push(item),
            None => chain.push(vec![item]),
        }
    }
    chains.into_iter().flatten()
}

// --- What a request holds at this proxy until it ends: units, slots, a reservation, a permit.
//
// Every exit of a request goes through here: [`Worker::keep`] when it continues, [`Worker::undo`] when it
// is denied, [`Worker::undo_left`] when its client left. After [`Worker::keep`], the tables of
// [`Requests`](Requests) have what the request holds until its response ends.

/// What a request holds.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) leased: Vec<LeasedUnits>,
    /// Charges of buckets of this proxy that deny; in a queue, with the slot.
    pub(crate) local: Vec<LocalUnits>,
    /// Slots of queues in the store. Boxed: rare and large.
    pub(crate) queued: Option<Box<SlotRelease>>,
    /// Slots at limits on requests in flight.
    pub(crate) in_flight: HeldSlots,
    /// Units that it reserves until its response ends.
    pub(crate) meter: Option<Box<Meter>>,
    pub(crate) permit: Option<HoldPermit>,
}

/// Units that a request reserved in this worker's lease of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeasedUnits {
    pub(crate) bucket: BucketAt,
    pub(crate) units: Grant,
}

/// Units that a request was charged in a bucket of this proxy.
#[derive(Clone, Debug)]
pub(crate) struct LocalUnits {
    pub(crate) bucket: BucketAt,
    pub(crate) algorithm: Arc<Algorithm>,
    pub(crate) charged: Charged,
}

impl LocalUnits {
    pub(crate) fn new(
        of: &LimitCheck,
        algorithm: Arc<Algorithm>,
        slot: Option<Slot>,
        now: Now,
    ) -> Self {
        Self {
            bucket: of.bucket,
            algorithm,
            charged: Charged {
                at_ms: now.wall_ms,
                units: of.cost,
                lease_ttl_ms: 0,
                slot,
            },
        }
    }
}

impl Claims {
    pub(crate) fn add(&mut self, more: Self) {
        self.leased.extend(more.leased);
        self.local.extend(more.local);
        self.queued = more.queued.or(self.queued.take());
        self.in_flight.add(more.in_flight);
        self.meter = more.meter.or(self.meter.take());
        self.permit = more.permit.or(self.permit.take());
    }
}

impl Worker {
    /// Keeps the claims of a request that continues, now or when its delay is over. Until the delay is over,
    /// the caller holds what is left in `claims`: its slots in queues and its permit.
    pub(crate) fn keep(&mut self, now: Now, stream: StreamId, claims: &mut Claims) {
        // Not settled before: until now, another limit could deny the request.
        for of in claims.leased.drain(..) {
            if let Some(worker_lease) = self.leases.find(of.bucket) {
                worker_lease.spend(of.units);
            }
        }
        self.hold_slots(now, stream, std::mem::take(&mut claims.in_flight));
        self.requests.metered.follow(stream, claims.meter.take());
    }

    /// Undoes the claims of a request that is denied: a denied request charges nothing.
    pub(crate) fn undo(&mut self, host: &impl Host, now: Now, mut claims: Claims) {
        // Now, and not with the slots at the next event: other workers share these buckets, and their next
        // request may come first.
        for units in claims.local.drain(..) {
            self.refund(host, now, &units);
        }
        self.undo_left(claims);
    }

    /// Undoes the claims of a request whose client left before the decision.
    pub(crate) fn undo_left(&mut self, mut claims: Claims) {
        // Leased units were never charged to the request, only set aside: neither spent nor returned, they
        // would be withheld from everybody until their lease ends.
        for of in claims.leased {
            if let Some(worker_lease) = self.leases.find(of.bucket) {
                worker_lease.release(of.units);
            }
        }
        // What was charged here stays charged, as at the limiter: otherwise clients could use up the proxy
        // for nothing by leaving before the answer. A slot in a queue is freed, because the next in the
        // queue would wait for nobody.
        claims.local.retain(|units| units.charged.slot.is_some());
        self.requests.holds.release(claims.local, claims.queued);
        self.requests.in_flight.release(claims.in_flight);
        // The request never reached its upstream, so it costs nothing.
        self.requests.metered.cancel(claims.meter.as_deref());
        // The permit is free again when it is dropped.
        drop(claims.permit);
    }

    /// Refunds a charge of a bucket of this proxy.
    fn refund(&self, host: &impl Host, now: Now, units: &LocalUnits) {
        let bucket = LocalBucket {
            table: &self.process.table,
            bucket: units.bucket,
            algorithm: &units.algorithm,
            start: Start::Full,
        };
        // Contended: the bucket keeps a charge that should be refunded.
        let _ = bucket.refund(host, now, &units.charged);
    }
}

// --- Requests that a queue holds, and the slots of those that left early.

/// Bound: checks that free slots and wait for a limiter. Beyond it, the slots expire.
///
/// Each of up to 64 slots.
const MAX_UNSENT: usize = 4096;

/// Held requests, sorted so that the next one to continue is last.
#[derive(Debug)]
pub(crate) struct Holds {
    waiting: Vec<Held>,
    /// Counts the permits: each request that is held, or may be, has a clone.
    permits: Arc<()>,
    max: usize,
    /// Slots of requests that left since the last event: of queues of this proxy, and of the store.
    released_local: Vec<LocalUnits>,
    released: Vec<SlotRelease>,
    /// Releases that no limiter has received yet: at most [`MAX_UNSENT`].
    unsent: Vec<PendingCheck>,
}

/// One of `hold.max` permits to hold a request, until it is dropped.
#[derive(Debug)]
pub(crate) struct HoldPermit(#[expect(dead_code, reason = "it is counted")] Arc<()>);

/// A request that is held until its slot starts.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) until_us: u64,
    pub(crate) stream: StreamId,
    pub(crate) edits: Edits,
    pub(crate) quotas: Vec<QuotaStatus>,
    /// Its slots in queues, freed if it leaves before they start, and its permit.
    pub(crate) claims: Claims,
}

impl Holds {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            waiting: Vec::new(),
            permits: Arc::default(),
            max,
            released_local: Vec::new(),
            released: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// When the next request continues; `u64::MAX`: none is held.
    pub(crate) fn next_us(&self) -> u64 {
        self.waiting.last().map_or(u64::MAX, |held| held.until_us)
    }

    /// A permit for one more request; `None`: `hold.max` are taken.
    pub(crate) fn permit(&self) -> Option<HoldPermit> {
        let taken = Arc::strong_count(&self.permits) - 1;
        (taken < self.max).then(|| HoldPermit(Arc::clone(&self.permits)))
    }

    /// Holds a request. Requests that continue at the same moment keep their order of arrival.
    pub(crate) fn add(&mut self, held: Held) {
        let at = self
            .waiting
            .partition_point(|other| other.until_us > held.until_us);
        self.waiting.insert(at, held);
    }

    /// Takes out a request whose delay is over.
    pub(crate) fn next_due(&mut self, now: Now) -> Option<Held> {
        self.waiting.pop_if(|held| now.reached(held.until_us))
    }

    /// Takes out a request that left.
    pub(crate) fn take(&mut self, stream: StreamId) -> Option<Held> {
        let at = self.waiting.iter().position(|held| held.stream == stream)?;
        Some(self.waiting.remove(at))
    }

    /// Releases the slots of a request that does not continue.
    pub(crate) fn release(&mut self, local: Vec<LocalUnits>, queued: Option<Box<SlotRelease>>) {
        self.released_local.extend(local);
        self.released.extend(queued.map(|slots| *slots));
    }

    /// Whether no release is pending.
    pub(crate) fn is_settled(&self) -> bool {
        self.released_local.is_empty() && self.released.is_empty() && self.unsent.is_empty()
    }

    /// Takes the releases that could not be sent.
    fn take_unsent(&mut self) -> Vec<PendingCheck> {
        std::mem::take(&mut self.unsent)
    }

    /// Keeps a release that could not be sent, unless all its slots have passed.
    fn keep_unsent(&mut self, check: PendingCheck, now: Now) {
        let release = check.free.as_ref();
        let lasts = release.is_some_and(|release| release.until_us > now.mono_us);
        if lasts && self.unsent.len() < MAX_UNSENT {
            self.unsent.push(check);
        }
    }
}

impl Worker {
    /// A check about slots was not answered. One that frees slots is kept; slots to be renewed become
    /// due again.
    pub(crate) fn keep_unsent(&mut self, check: PendingCheck, now: Now) {
        match check.free.as_deref() {
            Some(release) if !release.frees() => {
                self.on_slots_unanswered(now, release);
            }
            _ => self.requests.holds.keep_unsent(check, now),
        }
    }

    /// Frees released slots: in local buckets at once, in the store with the next check call.
    pub(crate) fn free_slots(&mut self, host: &impl Host, now: Now) {
        if self.requests.is_idle() {
            return;
        }
        self.free_in_flight(host, now);
        self.settle_costs(now);
        for units in std::mem::take(&mut self.requests.holds.released_local) {
            self.refund(host, now, &units);
        }
        for queued in std::mem::take(&mut self.requests.holds.released) {
            self.push_release(now, PendingCheck::of_slots(queued));
        }
    }

    /// Sends the releases that could not be sent before.
    pub(crate) fn retry_unsent(&mut self, now: Now) {
        for check in std::mem::take(&mut self.requests.holds.unsent) {
            let to_come = |release: &SlotRelease| release.until_us > now.mono_us;
            if check.free.as_deref().is_some_and(to_come) {
                self.push_release(now, check);
            }
        }
    }

    /// Queues a check about slots, or keeps it for later.
    pub(crate) fn push_release(&mut self, now: Now, check: PendingCheck) {
        if let Err(check) = self.calls.batcher.push(check) {
            self.keep_unsent(check, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_keeps_its_own_state_until_it_is_removed() {
        let mut streams = ByStream::default();
        assert!(streams.is_empty());
        for id in 0..2000 {
            streams.insert(StreamId(id), Stream::Waiting);
        }
        for id in (0..2000).step_by(2) {
            streams.insert(StreamId(id), Stream::Held);
        }
        for id in (0..2000).step_by(5) {
            assert!(streams.remove(StreamId(id)).is_some());
        }
        for id in 0..2000 {
            let kept = streams.remove(StreamId(id));
            let right = match id {
                _ if id % 5 == 0 => kept.is_none(),
                _ if id % 2 == 0 => matches!(kept, Some(Stream::Held)),
                _ => matches!(kept, Some(Stream::Waiting)),
            };
            assert!(right, "{id}: {kept:?}");
            assert!(streams.get(StreamId(id)).is_none());
        }
        assert!(streams.is_empty());
    }
}

#[cfg(test)]
mod grouped_tests {
    use super::*;

    #[test]
    fn equal_items_form_one_group_in_their_original_order() {
        for count in [0, 1, 2, 3000_u64] {
            let items: Vec<u64> = (0..count).collect();
            let same = |one: &u64, other: &u64| one % 1000 == other % 1000;
            let groups: Vec<_> = grouped(items, |item| item % 1000, same).collect();
            let wanted = usize::try_from(count.min(1000)).unwrap();
            assert_eq!(groups.len(), wanted);
            for group in groups {
                let first = group[0] % 1000;
                let like: Vec<u64> = (first..count).step_by(1000).collect();
                assert_eq!(group, like);
            }
        }
    }
}

#[cfg(test)]
mod claims_tests {
    use super::*;

    #[test]
    fn requests_go_on_in_the_order_of_their_turns() {
        let mut holds = Holds::new(5);
        for (stream, until_us) in [(1, 30), (2, 10), (3, 20), (4, 10), (5, 40)] {
            let permit = holds.permit().unwrap();
            holds.add(Held {
                until_us,
                stream: StreamId(stream),
                edits: Edits::default(),
                quotas: Vec::new(),
                claims: Claims {
                    permit: Some(permit),
                    ..Claims::default()
                },
            });
        }
        assert!(holds.permit().is_none());
        holds.take(StreamId(3));
        assert!(holds.permit().is_some());
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
