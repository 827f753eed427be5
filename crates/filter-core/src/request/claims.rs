//! What a request holds at this proxy until it ends: units, slots, a reservation, a permit.
//!
//! Every exit of a request goes through here: [`Worker::keep`] when it continues, [`Worker::undo`] when it
//! is denied, [`Worker::undo_left`] when its client left. After [`Worker::keep`], the tables of
//! [`Requests`](super::Requests) have what the request holds until its response ends.

use std::rc::Rc;

use algorithms::{Algorithm, QueueSlot};

use crate::{
    cache::BucketKey,
    cost::Meter,
    host::Host,
    lease::Reservation,
    local_bucket::{LocalBucket, Start},
    request::{HeldSlots, HoldPermit, LimiterSlots},
    time::Now,
    worker::{StreamId, Worker},
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
    pub(crate) slot: Option<QueueSlot>,
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
