//! The units that one worker has at hand.

use std::rc::Rc;

use protocol::Lease;

use super::{Grant, Settlements, SharedView, Terms, demand::Demand};
use crate::{
    cache::{BucketKey, BucketStatus},
    time::Now,
};

/// Buckets that one worker knows the demand of, at most; a power of two.
const SLOTS: usize = 1024;
/// After which time without a request a bucket that has nothing makes room, in microseconds.
const FORGET_US: u64 = 200_000;
/// The part of a quota that may have been used without the limiter being told, while somebody is
/// about to call for more of it.
const UNTOLD_PART: u64 = 128;

/// How much a worker takes of what is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Units.
    pub(crate) units: u64,
    /// Whether little is left of the bucket, so that nobody should have much of it at hand.
    pub(crate) scarce: bool,
}

/// What one worker has of one bucket.
#[derive(Debug)]
pub(crate) struct WorkerLease<O> {
    key: BucketKey,
    /// The generation of its limit.
    generation: u64,
    /// Units at hand, of one grant.
    pub(crate) grant: Grant,
    /// What this worker did with units, as far as the others do not know.
    pub(crate) settlements: Settlements,
    /// What the limiter last said of the bucket.
    pub(crate) status: Option<BucketStatus>,
    /// Units that the others could still take when this worker last looked.
    pub(crate) shared: u64,
    /// When to look after what is left; `u64::MAX`: nothing is.
    pub(crate) maintain_at_us: u64,
    /// When to look after it first.
    due_us: u64,
    /// When the last of it ends.
    last_deadline_us: u64,
    /// Units that the others have not told the limiter of, when this worker last looked.
    unreported: u64,
    /// How long a grant lasts.
    ttl_us: u64,
    /// A request by which the bucket can be named to the limiter.
    pub(crate) descriptor: Option<Rc<O>>,
    /// The size of a portion.
    portion: u64,
    /// When the portion at hand was taken.
    drawn_us: u64,
    /// When it last had a request.
    used_us: u64,
    /// What its requests need.
    demand: Demand,
    /// Whether the limit was edited, as an answer told, and this worker does not follow that yet.
    outdated: bool,
}

/// Units taken for a request that is not decided yet. They are neither spent nor there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    epoch: u64,
    deadline_us: u64,
}

/// What one worker has of all buckets: a fixed number of places, two for each bucket to choose
/// from. A bucket that finds both in use by others is checked request by request.
#[derive(Debug)]
pub(crate) struct WorkerLeases<O> {
    slots: Vec<Option<Box<WorkerLease<O>>>>,
}

impl<O> Default for WorkerLeases<O> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<O> WorkerLeases<O> {
    /// Takes what a request needs, if it is at hand and its time has not come.
    pub(crate) fn take(
        &mut self,
        key: BucketKey,
        generation: u64,
        cost: u64,
        now: Now,
    ) -> Option<Reservation> {
        self.find(key, generation)?.take(cost, now)
    }

    /// The hand for a bucket, if there is one of this generation of its limit.
    pub(crate) fn find(&mut self, key: BucketKey, generation: u64) -> Option<&mut WorkerLease<O>> {
        let at = self.position(key)?;
        let worker_lease = self.slots.get_mut(at)?.as_deref_mut()?;
        (worker_lease.generation == generation).then_some(worker_lease)
    }

    /// The hand for a bucket, a new one if need be; `None`: there is no room.
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
            // What it had was another bucket's, or of an older generation.
            *slot = Some(Box::new(WorkerLease::new(key, generation, now)));
        }
        slot.as_deref_mut()
    }

    /// Forgets what is out of use, and lists the places of what needs to be looked after.
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

    /// When one of them has to be looked after; `u64::MAX`: none has.
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

/// Where the hand for a bucket may be.
fn choices(key: BucketKey) -> [usize; 2] {
    let at = usize::try_from(key.hash() % (SLOTS as u64)).unwrap_or(0);
    [at, at ^ 1]
}

impl<O> WorkerLease<O> {
    fn new(key: BucketKey, generation: u64, now: Now) -> Self {
        Self {
            key,
            generation,
            grant: Grant::default(),
            settlements: Settlements::default(),
            status: None,
            shared: 0,
            maintain_at_us: u64::MAX,
            due_us: 0,
            last_deadline_us: 0,
            unreported: 0,
            ttl_us: 0,
            outdated: false,
            descriptor: None,
            portion: 0,
            drawn_us: 0,
            used_us: now.mono_us,
            demand: Demand::default(),
        }
    }

    /// Takes what a request needs, if it is at hand and its time has not come.
    pub(crate) fn take(&mut self, cost: u64, now: Now) -> Option<Reservation> {
        if self.grant.is_over(now) {
            return None;
        }
        self.grant.units = self.grant.units.checked_sub(cost)?;
        self.demand.add(cost);
        self.used_us = now.mono_us;
        Some(Reservation {
            epoch: self.grant.epoch,
            deadline_us: self.grant.deadline_us,
        })
    }

    /// How much was asked for of what is shared.
    pub(crate) fn set_portion(&mut self, portion: Portion) {
        self.portion = portion.units;
    }

    /// Takes a lot that has just come to hand.
    pub(crate) fn receive(&mut self, grant: Grant, now: Now) {
        self.grant = grant;
        self.drawn_us = now.mono_us;
    }

    /// A request was admitted by what was taken for it.
    pub(crate) fn spend(&mut self, reservation: Reservation, cost: u64) {
        self.settlements.add(reservation.epoch, cost, 0);
    }

    /// A request was not admitted: what was taken for it goes where it came from. If that is not
    /// at hand any more, it goes back to the limiter; never into another grant, whose deadline
    /// may be later.
    pub(crate) fn put_back(&mut self, reservation: Reservation, cost: u64) {
        if self.grant.is_of(reservation.epoch, reservation.deadline_us) {
            self.grant.units = self.grant.units.saturating_add(cost);
        } else {
            self.settlements.add(reservation.epoch, 0, cost);
        }
    }

    /// Counts a request that found nothing here; returns how many units are needed in the time of a
    /// grant, if it pays to ask for them in advance while so many checks share a callout and so
    /// much is left of the bucket.
    pub(crate) fn record_miss(
        &mut self,
        now: Now,
        terms: &Terms,
        checks_per_call: usize,
        left: Option<u64>,
    ) -> Option<u64> {
        self.used_us = now.mono_us;
        self.ttl_us = terms.ttl_us;
        let needed = self.demand.record_miss(now, terms, checks_per_call, left);
        needed.filter(|_| !self.outdated)
    }

    /// A grant came under a later generation than this worker knows. Nobody asks for more until it
    /// does, for its own requests would drop what they find of that generation; what came goes back.
    pub(crate) fn mark_outdated(&mut self, lease: Option<Lease>) {
        self.outdated = true;
        if let Some(lease) = lease {
            self.settlements.add(lease.epoch, 0, lease.units);
        }
    }

    /// Whether there is room for another lot.
    pub(crate) fn is_empty(&self) -> bool {
        self.grant.units == 0
    }

    /// How much to take next: what lasts for about a sixteenth of a grant's time, and not less than is
    /// worth a look at what is shared.
    pub(crate) fn next_portion(&self, now: Now, terms: &Terms) -> Portion {
        let lasted_us = now.mono_us.saturating_sub(self.drawn_us);
        let units = if lasted_us < terms.part_us(32) {
            self.portion.saturating_mul(2)
        } else if lasted_us > terms.part_us(8) {
            self.portion / 2
        } else {
            self.portion
        };
        let scarce = self.demand.scarce;
        let least = if scarce {
            terms.cost
        } else {
            terms.least_portion()
        };
        let units = units.max(least);
        Portion { units, scarce }
    }

    /// Everything that was here is in other hands now.
    pub(crate) fn clear(&mut self) {
        self.grant = Grant::default();
        self.settlements = Settlements::default();
    }

    /// Takes over what was seen of the shared units, after what was taken of them.
    pub(crate) fn apply_view(&mut self, view: &SharedView, now: Now) {
        self.shared = view.left;
        self.unreported = view.unreported;
        self.due_us = view.due_us;
        self.last_deadline_us = view.last_deadline_us.max(self.grant.deadline_us);
        self.maintain_at_us = if self.last_deadline_us == 0 && view.unreported == 0 {
            u64::MAX
        } else {
            self.maintenance_after(now)
        };
    }

    /// When what is left has to go back if it is to count where it comes from: the bucket may forget
    /// of a grant as soon as its time is over.
    fn return_us(&self) -> u64 {
        self.last_deadline_us.saturating_sub(self.ttl_us / 8)
    }

    /// When what became of it is told at the latest: by then somebody has called who could tell it
    /// along with that.
    fn settle_by_us(&self) -> u64 {
        self.last_deadline_us.saturating_add(self.ttl_us / 4)
    }

    /// The first moment after now to look after what is left.
    fn maintenance_after(&self, now: Now) -> u64 {
        let looks = [self.due_us, self.return_us()].into_iter();
        let mut next = looks.filter(|at_us| !now.reached(*at_us));
        next.next().unwrap_or(self.settle_by_us())
    }

    /// Whether what is left will be needed in its time, so that nobody has to look after it but who
    /// asks for more, or is so little that it may be lost. They tell what became of it, too; only if
    /// that is much, it cannot wait.
    fn can_wait(&mut self, now: Now) -> bool {
        if self.maintain_at_us >= self.settle_by_us() {
            return false;
        }
        let limit = self
            .status
            .and_then(|status| status.limit)
            .unwrap_or(u64::MAX);
        let (spent, returned) = self.settlements.totals();
        let unreported = spent
            .saturating_add(returned)
            .saturating_add(self.unreported);
        let left_us = self.grant.deadline_us.saturating_sub(now.mono_us);
        let needed =
            self.demand.in_ttl(now, self.ttl_us).saturating_mul(left_us) / self.ttl_us.max(1);
        let left = self.grant.units.saturating_add(self.shared);
        let little = limit / UNTOLD_PART;
        let waits = if self.maintain_at_us < self.return_us() {
            left <= needed && unreported <= little
        } else {
            unreported.saturating_add(left) <= little
        };
        let waits = waits && !self.demand.scarce;
        if waits {
            self.maintain_at_us = self.maintenance_after(now);
        }
        waits
    }

    /// When it has to be looked after: at once where there is only something to tell.
    fn next_maintenance_us(&self) -> u64 {
        if self.maintain_at_us == u64::MAX && !self.settlements.is_empty() {
            return 0;
        }
        self.maintain_at_us
    }

    /// Whether nothing is at hand, nor known to be left with the others, nor to be told.
    pub(crate) fn is_idle(&self) -> bool {
        self.maintain_at_us == u64::MAX && self.settlements.is_empty()
    }

    fn is_unused(&self, now: Now) -> bool {
        let idle_us = now.mono_us.saturating_sub(self.used_us);
        idle_us > FORGET_US && self.is_idle()
    }
}

#[cfg(test)]
mod tests;
