//! The leased units in one worker's memory.

mod slots;

use std::rc::Rc;

use protocol::Lease;

pub(crate) use slots::WorkerLeases;

use super::{Grant, Settlements, SharedView, Terms, demand::Demand};
use crate::{
    cache::{BucketKey, BucketStatus},
    time::Now,
};

/// After this time without a request an idle lease is dropped, in microseconds.
const FORGET_US: u64 = 200_000;
/// Settlements wait for the next query while they are at most the quota divided by this.
const UNSETTLED_PART: u64 = 128;

/// How many units a worker takes from a shared lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Portion {
    /// Units.
    pub(crate) units: u64,
    /// Whether the bucket is nearly used up, so that no worker should hold much of it.
    pub(crate) scarce: bool,
}

/// One worker's lease of one bucket.
#[derive(Debug)]
pub(crate) struct WorkerLease<O> {
    key: BucketKey,
    /// The generation of its limit.
    generation: u64,
    /// Its units, all of one grant.
    pub(crate) grant: Grant,
    /// Settlements that are not in the shared lease yet.
    pub(crate) settlements: Settlements,
    /// The bucket's state in the limiter's last answer.
    pub(crate) status: Option<BucketStatus>,
    /// Units in the shared lease when this worker last updated it.
    pub(crate) shared: u64,
    /// When maintenance is due; `u64::MAX`: there is nothing to maintain.
    pub(crate) maintain_at_us: u64,
    /// When the newest grant needs maintenance.
    due_us: u64,
    /// The last deadline of any known units.
    last_deadline_us: u64,
    /// Units to settle in the shared lease when this worker last updated it.
    unsettled: u64,
    /// The lease time.
    ttl_us: u64,
    /// A descriptor of the bucket, for queries without a request.
    pub(crate) descriptor: Option<Rc<O>>,
    /// The size of the last portion.
    portion: u64,
    /// When the last portion was taken.
    taken_us: u64,
    /// When a request last used it.
    used_us: u64,
    /// The demand of this worker's requests.
    demand: Demand,
    /// Whether an answer named a later generation of the limit than this worker has.
    outdated: bool,
}

/// Units reserved for a request that is not decided yet: neither spent nor available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    epoch: u64,
    deadline_us: u64,
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
            unsettled: 0,
            ttl_us: 0,
            outdated: false,
            descriptor: None,
            portion: 0,
            taken_us: 0,
            used_us: now.mono_us,
            demand: Demand::default(),
        }
    }

    /// Reserves a request's cost, if so many units are left before their deadline.
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

    /// Records the size of a portion that this worker tried to take.
    pub(crate) fn set_portion(&mut self, portion: Portion) {
        self.portion = portion.units;
    }

    /// Takes a portion.
    pub(crate) fn receive(&mut self, grant: Grant, now: Now) {
        self.grant = grant;
        self.taken_us = now.mono_us;
    }

    /// Settles reserved units as spent.
    pub(crate) fn spend(&mut self, reservation: Reservation, cost: u64) {
        self.settlements.add(reservation.epoch, cost, 0);
    }

    /// Releases reserved units. If units of the same grant are still here, they are merged; otherwise
    /// they are returned to the limiter. They are never merged into another grant, whose deadline may
    /// be later.
    pub(crate) fn release(&mut self, reservation: Reservation, cost: u64) {
        if self.grant.is_of(reservation.epoch, reservation.deadline_us) {
            self.grant.units = self.grant.units.saturating_add(cost);
        } else {
            self.settlements.add(reservation.epoch, 0, cost);
        }
    }

    /// Counts a request that found no units. Returns the units needed within a lease time, if
    /// leasing pays with so many checks per call and `left` units in the bucket.
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

    /// An answer named a later generation than this worker's. Until the worker has that generation, it
    /// queries for no more units, because it would drop them. The grant is returned.
    pub(crate) fn mark_outdated(&mut self, lease: Option<Lease>) {
        self.outdated = true;
        if let Some(lease) = lease {
            self.settlements.add(lease.epoch, 0, lease.units);
        }
    }

    /// Whether there is room for a portion.
    pub(crate) fn is_empty(&self) -> bool {
        self.grant.units == 0
    }

    /// The size of the next portion: enough for about a sixteenth of the lease time, but at least the
    /// smallest portion that is worth an update of shared data.
    pub(crate) fn next_portion(&self, now: Now, terms: &Terms) -> Portion {
        let lasted_us = now.mono_us.saturating_sub(self.taken_us);
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

    /// Clears units and settlements, which are in the shared lease now.
    pub(crate) fn clear(&mut self) {
        self.grant = Grant::default();
        self.settlements = Settlements::default();
    }

    /// Applies this worker's view of the shared lease, after it took its portion.
    pub(crate) fn apply_view(&mut self, view: &SharedView, now: Now) {
        self.shared = view.left;
        self.unsettled = view.unsettled;
        self.due_us = view.due_us;
        self.last_deadline_us = view.last_deadline_us.max(self.grant.deadline_us);
        self.maintain_at_us = if self.last_deadline_us == 0 && view.unsettled == 0 {
            u64::MAX
        } else {
            self.maintenance_after(now)
        };
    }

    /// When unused units must be returned: the bucket may drop a grant as soon as its time is over.
    fn return_us(&self) -> u64 {
        self.last_deadline_us.saturating_sub(self.ttl_us / 8)
    }

    /// When settlements must be sent, if no query has carried them by then.
    fn settle_by_us(&self) -> u64 {
        self.last_deadline_us.saturating_add(self.ttl_us / 4)
    }

    /// When maintenance is next due.
    fn maintenance_after(&self, now: Now) -> u64 {
        let looks = [self.due_us, self.return_us()].into_iter();
        let mut next = looks.filter(|at_us| !now.reached(*at_us));
        next.next().unwrap_or(self.settle_by_us())
    }

    /// Whether maintenance can wait: the units will probably be used in time, or are so few that
    /// they may be lost. The next query carries the settlements, unless they are large.
    fn can_wait(&mut self, now: Now) -> bool {
        if self.maintain_at_us >= self.settle_by_us() {
            return false;
        }
        let limit = self
            .status
            .and_then(|status| status.limit)
            .unwrap_or(u64::MAX);
        let (spent, returned) = self.settlements.totals();
        let unsettled = spent
            .saturating_add(returned)
            .saturating_add(self.unsettled);
        let left_us = self.grant.deadline_us.saturating_sub(now.mono_us);
        let needed =
            self.demand.in_ttl(now, self.ttl_us).saturating_mul(left_us) / self.ttl_us.max(1);
        let left = self.grant.units.saturating_add(self.shared);
        let little = limit / UNSETTLED_PART;
        let waits = if self.maintain_at_us < self.return_us() {
            left <= needed && unsettled <= little
        } else {
            unsettled.saturating_add(left) <= little
        };
        let waits = waits && !self.demand.scarce;
        if waits {
            self.maintain_at_us = self.maintenance_after(now);
        }
        waits
    }

    /// When maintenance is due: at once if there are settlements only.
    fn next_maintenance_us(&self) -> u64 {
        if self.maintain_at_us == u64::MAX && !self.settlements.is_empty() {
            return 0;
        }
        self.maintain_at_us
    }

    /// Idle: no local or shared units, nothing to settle.
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
