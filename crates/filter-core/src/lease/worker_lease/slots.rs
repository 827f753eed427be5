//! One worker's leases, found by bucket.

use super::{Reservation, WorkerLease};
use crate::{cache::BucketKey, time::Now};

/// Buckets with leases in one worker, at most; a power of two.
pub(super) const SLOTS: usize = 1024;

/// One worker's leases of all buckets, in a fixed number of slots; each bucket may use two of them. If
/// both are in use, the bucket's requests are checked.
#[derive(Debug)]
pub(crate) struct WorkerLeases<O> {
    pub(super) slots: Vec<Option<Box<WorkerLease<O>>>>,
}

impl<O> Default for WorkerLeases<O> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<O> WorkerLeases<O> {
    /// Reserves a request's cost, if so many units are left before their deadline.
    pub(crate) fn take(
        &mut self,
        key: BucketKey,
        generation: u64,
        cost: u64,
        now: Now,
    ) -> Option<Reservation> {
        self.find(key, generation)?.take(cost, now)
    }

    /// The lease of a bucket, if there is one of this generation of its limit.
    pub(crate) fn find(&mut self, key: BucketKey, generation: u64) -> Option<&mut WorkerLease<O>> {
        let at = self.position(key)?;
        let worker_lease = self.slots.get_mut(at)?.as_deref_mut()?;
        (worker_lease.generation == generation).then_some(worker_lease)
    }

    /// The lease of a bucket, a new one if there is none; `None`: both slots are in use.
    pub(crate) fn open(
        &mut self,
        key: BucketKey,
        generation: u64,
        now: Now,
    ) -> Option<&mut WorkerLease<O>> {
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, || None);
        }
        let at = self.position(key).or_else(|| {
            let free = |at: &usize| {
                let slot = self.slots.get(*at).and_then(Option::as_ref);
                slot.is_none_or(|worker_lease| worker_lease.is_unused(now))
            };
            choices(key).into_iter().find(free)
        })?;
        let slot = self.slots.get_mut(at)?;
        let fits = |worker_lease: &WorkerLease<O>| {
            worker_lease.key == key && worker_lease.generation == generation
        };
        if !slot.as_deref().is_some_and(fits) {
            // The slot held an idle lease, or one of an older generation.
            *slot = Some(Box::new(WorkerLease::new(key, generation, now)));
        }
        slot.as_deref_mut()
    }

    /// Drops idle leases, and lists those whose maintenance is due.
    pub(crate) fn due(&mut self, now: Now) -> Vec<(BucketKey, u64)> {
        let mut due = Vec::new();
        for slot in &mut self.slots {
            if slot
                .as_ref()
                .is_some_and(|worker_lease| worker_lease.is_unused(now))
            {
                *slot = None;
            }
            let Some(worker_lease) = slot else { continue };
            if now.reached(worker_lease.next_maintenance_us()) && !worker_lease.can_wait(now) {
                due.push((worker_lease.key, worker_lease.generation));
            }
        }
        due
    }

    /// When maintenance is next due; `u64::MAX`: never.
    pub(crate) fn next_maintenance_us(&self) -> u64 {
        let leases = self.slots.iter().flatten();
        leases
            .map(|worker_lease| worker_lease.next_maintenance_us())
            .min()
            .unwrap_or(u64::MAX)
    }

    fn position(&self, key: BucketKey) -> Option<usize> {
        choices(key).into_iter().find(|at| {
            let slot = self.slots.get(*at).and_then(Option::as_ref);
            slot.is_some_and(|worker_lease| worker_lease.key == key)
        })
    }
}

/// The two slots of a bucket.
fn choices(key: BucketKey) -> [usize; 2] {
    let at = usize::try_from(key.hash() % (SLOTS as u64)).unwrap_or(0);
    [at, at ^ 1]
}
