//! What a request holds at this proxy until it ends: units, slots, a reservation, a permit.
//!
//! Every exit of a request goes through here: [`Worker::keep`] when it continues, [`Worker::undo`] when it
//! is denied, [`Worker::undo_left`] when its client left. After [`Worker::keep`], the tables of
//! [`Requests`](super::Requests) have what the request holds until its response ends.

use std::rc::Rc;

use algorithms::{Algorithm, Slot, SlotOp};
use policy::Name;
use protocol::Answer;

use crate::{
    active_policy::ActivePolicy,
    cache::BucketKey,
    cost::Meter,
    host::Host,
    lease::Reservation,
    local_bucket::{LocalBucket, Start},
    request::{Extracted, HeldSlots, PendingCheck, SlotRelease},
    response::QuotaHeaders,
    time::Now,
    worker::{Edits, StreamId, Worker},
};

/// What a request holds.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) leased: Vec<LeasedUnits>,
    /// Charges of buckets of this proxy that deny; in a queue, with the slot.
    pub(crate) local: Vec<LocalUnits>,
    /// Slots of queues in the store. Boxed: rare and large.
    pub(crate) queued: Option<Box<LimiterSlots>>,
    /// Slots at limits on requests in flight.
    pub(crate) in_flight: HeldSlots,
    /// Units that it reserves until its response ends.
    pub(crate) meter: Option<Box<Meter>>,
    pub(crate) permit: Option<HoldPermit>,
}

/// Units that a request reserved in this worker's lease of a bucket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeasedUnits {
    pub(crate) key: BucketKey,
    pub(crate) generation: u64,
    pub(crate) cost: u64,
    pub(crate) reservation: Reservation,
}

/// Units that a request was charged in a bucket of this proxy.
#[derive(Clone, Debug)]
pub(crate) struct LocalUnits {
    pub(crate) key: BucketKey,
    pub(crate) generation: u64,
    pub(crate) algorithm: Rc<Algorithm>,
    pub(crate) cost: u64,
    /// The slot, if the bucket is a queue.
    pub(crate) slot: Option<Slot>,
    /// When they were charged, in milliseconds since the epoch.
    pub(crate) at_ms: u64,
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
        for units in claims.leased.drain(..) {
            if let Some(worker_lease) = self.leases.find(units.key, units.generation) {
                worker_lease.spend(units.reservation, units.cost);
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
        for units in claims.leased {
            if let Some(worker_lease) = self.leases.find(units.key, units.generation) {
                worker_lease.release(units.reservation, units.cost);
            }
        }
        // What was charged here stays charged, as at the limiter: otherwise clients could use up the proxy
        // for nothing by leaving before the answer. A slot in a queue is freed, because the next in the
        // queue would wait for nobody.
        claims.local.retain(|units| units.slot.is_some());
        self.requests.holds.release(claims.local, claims.queued);
        self.requests.in_flight.release(claims.in_flight);
        // The request never reached its upstream, so it costs nothing.
        self.requests.metered.cancel(claims.meter.as_deref());
        // The permit is free again when it is dropped.
        drop(claims.permit);
    }

    /// Refunds a charge of a bucket of this proxy.
    pub(super) fn refund(&self, host: &impl Host, now: Now, units: &LocalUnits) {
        let Some(shared) = self.process.shared() else {
            return;
        };
        let bucket = LocalBucket {
            table: &shared.table,
            key: units.key,
            generation: units.generation,
            algorithm: &units.algorithm,
            start: Start::Full,
        };
        // Contended: the bucket keeps a charge that should be refunded.
        let _ = bucket.refund(host, now, units.at_ms, units.cost, units.slot);
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
    permits: Rc<()>,
    max: usize,
    /// Slots of requests that left since the last event: of queues of this proxy, and of the store.
    released_local: Vec<LocalUnits>,
    released: Vec<LimiterSlots>,
    /// Releases that no limiter has received yet: at most `max`.
    unsent: Vec<PendingCheck>,
}

/// One of `hold.max` permits to hold a request, until it is dropped.
#[derive(Debug)]
pub(crate) struct HoldPermit(#[expect(dead_code, reason = "it is counted")] Rc<()>);

/// A request that is held until its slot starts.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) until_us: u64,
    pub(crate) stream: StreamId,
    pub(crate) edits: Edits,
    pub(crate) quotas: QuotaHeaders,
    /// Its slots in queues, freed if it leaves before they start, and its permit.
    pub(crate) claims: Claims,
}

/// Slots in queues in the store.
#[derive(Debug)]
pub(crate) struct LimiterSlots {
    policy: Rc<ActivePolicy>,
    entries: Extracted,
    slots: Vec<(Name, SlotOp)>,
    /// When all of them have passed, on the monotonic clock.
    until_us: u64,
}

impl Holds {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            waiting: Vec::new(),
            permits: Rc::default(),
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
        let taken = Rc::strong_count(&self.permits) - 1;
        (taken < self.max).then(|| HoldPermit(Rc::clone(&self.permits)))
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
    pub(crate) fn release(&mut self, local: Vec<LocalUnits>, queued: Option<Box<LimiterSlots>>) {
        self.released_local.extend(local);
        self.released.extend(queued.map(|slots| *slots));
    }

    /// Whether no release is pending.
    pub(crate) fn is_settled(&self) -> bool {
        self.released_local.is_empty() && self.released.is_empty() && self.unsent.is_empty()
    }

    /// Takes the releases that could not be sent.
    pub(crate) fn take_unsent(&mut self) -> Vec<PendingCheck> {
        std::mem::take(&mut self.unsent)
    }

    /// Keeps a release that could not be sent, unless all its slots have passed.
    fn keep_unsent(&mut self, mut check: PendingCheck, now: Now) {
        let Some(release) = &check.free else {
            return;
        };
        let max = match release.skip {
            Some(_) => MAX_UNSENT,
            None => self.max,
        };
        if release.until_us > now.mono_us && self.unsent.len() < max {
            // The failed call consumed the entries.
            check.entries = release.entries.clone();
            self.unsent.push(check);
        }
    }
}

impl LimiterSlots {
    /// The slots in an answer; `None`: there are none.
    pub(crate) fn from_answer(
        check: &PendingCheck,
        answer: &Answer,
        now: Now,
    ) -> Option<Box<Self>> {
        let (policy, entries) = (check.policy.clone()?, check.hold.entries.as_deref()?);
        let given = answer.limits.iter().filter(|limit| limit.charged > 0);
        let slots = given.clone().filter_map(|limit| {
            let slot = limit.slot.filter(|slot| slot.ttl_ms().is_none())?;
            Some((limit.name.clone(), SlotOp::free(slot, limit.charged)))
        });
        let slots: Vec<_> = slots.collect();
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
        self.free_in_flight(host, now);
        self.settle_costs(now);
        for units in std::mem::take(&mut self.requests.holds.released_local) {
            self.refund(host, now, &units);
        }
        for slots in std::mem::take(&mut self.requests.holds.released) {
            self.free_global(now, slots);
        }
    }

    /// Sends the releases that could not be sent before.
    pub(crate) fn retry_unsent(&mut self, now: Now) {
        for check in std::mem::take(&mut self.requests.holds.unsent) {
            let to_come = |release: &SlotRelease| release.until_us > now.mono_us;
            if check.free.as_deref().is_some_and(to_come)
                && let Err(check) = self.calls.batcher.push(check)
            {
                self.keep_unsent(check, now);
            }
        }
    }

    fn free_global(&mut self, now: Now, slots: LimiterSlots) {
        let policy = slots.policy;
        let limit_checks = self.limit_checks_of(&slots.entries, &policy, now);
        let mut check = PendingCheck::background(policy, slots.entries.clone(), limit_checks);
        check.free = Some(Box::new(SlotRelease {
            streams: Vec::new(),
            settle: Vec::new(),
            skip: None,
            slots: slots.slots,
            entries: slots.entries,
            until_us: slots.until_us,
        }));
        if let Err(check) = self.calls.batcher.push(check) {
            self.keep_unsent(check, now);
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
            let permit = holds.permit().unwrap();
            holds.add(Held {
                until_us,
                stream: StreamId(stream),
                edits: Edits::default(),
                quotas: QuotaHeaders::default(),
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
