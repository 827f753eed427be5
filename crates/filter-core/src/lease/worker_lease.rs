//! The leased units in one worker's memory.

use std::sync::Arc;

use protocol::Lease;

use super::{Grant, Settlements, SharedView, Terms};
use crate::{
    cache::{BucketAt, BucketKey, BucketStatus},
    host::Now,
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
    pub(super) bucket: BucketAt,
    /// Its units, all of one grant.
    pub(crate) grant: Grant,
    /// Settlements that are not in the shared lease yet.
    pub(crate) settlements: Settlements,
    /// The bucket's state in the limiter's last answer.
    pub(crate) status: Option<BucketStatus>,
    /// The shared lease when this worker last updated it; the last deadline of any known units.
    pub(crate) shared: SharedView,
    /// When maintenance is due; `u64::MAX`: there is nothing to maintain.
    pub(crate) maintain_at_us: u64,
    /// The lease time.
    ttl_us: u64,
    /// A descriptor of the bucket, for queries without a request.
    pub(crate) descriptor: Option<Arc<O>>,
    /// The size of the last portion that this worker tried to take.
    pub(crate) portion: u64,
    /// When the last portion was taken.
    taken_us: u64,
    /// When a request last used it.
    used_us: u64,
    /// The demand of this worker's requests.
    demand: Demand,
    /// Whether an answer named a later generation of the limit than this worker has.
    outdated: bool,
}

impl<O> WorkerLease<O> {
    fn new(bucket: BucketAt, now: Now) -> Self {
        Self {
            bucket,
            grant: Grant::default(),
            settlements: Settlements::default(),
            status: None,
            shared: SharedView::default(),
            maintain_at_us: u64::MAX,
            ttl_us: 0,
            outdated: false,
            descriptor: None,
            portion: 0,
            taken_us: 0,
            used_us: now.mono_us,
            demand: Demand::default(),
        }
    }

    /// Reserves a request's cost, if so many units are left before their deadline: until the request is decided,
    /// they are neither spent nor available.
    pub(crate) fn take(&mut self, cost: u64, now: Now) -> Option<Grant> {
        if self.grant.is_over(now) {
            return None;
        }
        self.grant.units = self.grant.units.checked_sub(cost)?;
        self.demand.add(cost);
        self.used_us = now.mono_us;
        Some(Grant {
            units: cost,
            ..self.grant
        })
    }

    /// Takes a portion.
    pub(crate) fn receive(&mut self, grant: Grant, now: Now) {
        self.grant = grant;
        self.taken_us = now.mono_us;
    }

    /// Settles reserved units as spent.
    pub(crate) fn spend(&mut self, reserved: Grant) {
        self.settlements.add(reserved.epoch, reserved.units, 0);
    }

    /// Releases reserved units. If units of the same grant are still here, they are merged; otherwise
    /// they are returned to the limiter. They are never merged into another grant, whose deadline may
    /// be later.
    pub(crate) fn release(&mut self, reserved: Grant) {
        if self.grant.is_of(reserved) {
            self.grant.units = self.grant.units.saturating_add(reserved.units);
        } else {
            self.settlements.add(reserved.epoch, 0, reserved.units);
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
        self.shared = *view;
        self.shared.last_deadline_us = view.last_deadline_us.max(self.grant.deadline_us);
        self.maintain_at_us = if self.shared.last_deadline_us == 0 && view.unsettled == 0 {
            u64::MAX
        } else {
            self.maintenance_after(now)
        };
    }

    /// When unused units must be returned: the bucket may drop a grant as soon as its time is over.
    fn return_us(&self) -> u64 {
        self.shared.last_deadline_us.saturating_sub(self.ttl_us / 8)
    }

    /// When settlements must be sent, if no query has carried them by then.
    fn settle_by_us(&self) -> u64 {
        self.shared.last_deadline_us.saturating_add(self.ttl_us / 4)
    }

    /// When maintenance is next due.
    fn maintenance_after(&self, now: Now) -> u64 {
        let looks = [self.shared.due_us, self.return_us()].into_iter();
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
            .saturating_add(self.shared.unsettled);
        let left_us = self.grant.deadline_us.saturating_sub(now.mono_us);
        let needed =
            self.demand.in_ttl(now, self.ttl_us).saturating_mul(left_us) / self.ttl_us.max(1);
        let left = self.grant.units.saturating_add(self.shared.left);
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

// --- Measures how many units of a bucket one worker needs, and decides when leasing pays.

/// Requests in a lease time at which a worker starts to query for units, and below which it stops. The
/// second is lower, so that a demand in between does not switch back and forth.
type Threshold = (u64, u64);
/// For checks that have a call to themselves, which costs many times as much as the check.
const ALONE: Threshold = (4, 3);
/// For checks that share calls, where a grant saves only the check: a grant costs as much as three or
/// four checks.
const TOGETHER: Threshold = (8, 4);
/// From this many checks in a call, they count as sharing it.
const SHARED_CALL: usize = 4;
/// For a bucket that is nearly used up: units stranded on one worker are denied to others, and grants
/// are small.
const SCARCE: Threshold = (32, 16);
/// The bucket is nearly used up if less than this many times the worker's demand in a lease time is
/// left.
const LITTLE: u64 = 32;

/// The demand of one worker for units of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Demand {
    since_us: u64,
    /// Units since then.
    seen: u64,
    /// Units in the previous lease time.
    before: u64,
    /// Whether leasing paid at the last request.
    pays: bool,
    /// Whether the bucket was nearly used up.
    pub(super) scarce: bool,
}

impl Demand {
    /// Counts units that a request needs.
    pub(super) fn add(&mut self, units: u64) {
        self.seen = self.seen.saturating_add(units);
    }

    /// Units needed within a lease time. Assumes that the demand of the previous lease time was evenly
    /// distributed.
    #[inline(never)]
    fn in_ttl(&mut self, now: Now, ttl_us: u64) -> u64 {
        let elapsed_us = now.mono_us.saturating_sub(self.since_us);
        if elapsed_us >= ttl_us {
            self.before = part(self.seen, ttl_us, elapsed_us);
            (self.since_us, self.seen) = (now.mono_us, 0);
            return self.before;
        }
        let earlier = part(self.before, ttl_us - elapsed_us, ttl_us);
        self.seen.saturating_add(earlier)
    }

    /// Counts a request that found no leased units. Returns the units needed within a lease time if
    /// leasing pays, with so many checks per call and `left` units in the bucket.
    pub(super) fn record_miss(
        &mut self,
        now: Now,
        terms: &Terms,
        checks_per_call: usize,
        left: Option<u64>,
    ) -> Option<u64> {
        // First drops the demand that is older than a lease time.
        let before = self.in_ttl(now, terms.ttl_us);
        self.add(terms.cost);
        let needed = before.saturating_add(terms.cost);
        self.scarce = left.is_some_and(|left| left < needed.saturating_mul(LITTLE));
        let (start, keep) = if self.scarce {
            SCARCE
        } else if checks_per_call < SHARED_CALL {
            ALONE
        } else {
            TOGETHER
        };
        let least = if self.pays { keep } else { start };
        self.pays = needed >= terms.cost.saturating_mul(least);
        self.pays.then_some(needed)
    }
}

/// `units` times `share` of `whole`.
fn part(units: u64, share: u64, whole: u64) -> u64 {
    units.saturating_mul(share) / whole.max(1)
}

// --- One worker's leases, found by bucket.

/// Bound: buckets with leases in a worker. Beyond it, an idle one makes room, or else each request
/// is checked.
const SLOTS: usize = 1024;

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
    pub(crate) fn take(&mut self, bucket: BucketAt, cost: u64, now: Now) -> Option<Grant> {
        self.find(bucket)?.take(cost, now)
    }

    /// The lease of a bucket, if there is one of this generation of its limit.
    pub(crate) fn find(&mut self, bucket: BucketAt) -> Option<&mut WorkerLease<O>> {
        let at = self.position(bucket.key)?;
        let worker_lease = self.slots.get_mut(at)?.as_deref_mut()?;
        (worker_lease.bucket == bucket).then_some(worker_lease)
    }

    /// The lease of a bucket, a new one if there is none; `None`: both slots are in use.
    pub(crate) fn open(&mut self, bucket: BucketAt, now: Now) -> Option<&mut WorkerLease<O>> {
        if self.slots.is_empty() {
            self.slots.resize_with(SLOTS, || None);
        }
        let at = self.position(bucket.key).or_else(|| {
            let free = |at: &usize| {
                let slot = self.slots.get(*at).and_then(Option::as_ref);
                slot.is_none_or(|worker_lease| worker_lease.is_unused(now))
            };
            choices(bucket.key).into_iter().find(free)
        })?;
        let slot = self.slots.get_mut(at)?;
        let fits = |worker_lease: &WorkerLease<O>| worker_lease.bucket == bucket;
        if !slot.as_deref().is_some_and(fits) {
            // The slot held an idle lease, or one of an older generation.
            *slot = Some(Box::new(WorkerLease::new(bucket, now)));
        }
        slot.as_deref_mut()
    }

    /// Drops idle leases, and lists those whose maintenance is due.
    pub(crate) fn due(&mut self, now: Now) -> Vec<BucketAt> {
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
                due.push(worker_lease.bucket);
            }
        }
        due
    }

    /// Takes out all leases.
    pub(crate) fn take_all(&mut self) -> impl Iterator<Item = Box<WorkerLease<O>>> + use<O> {
        std::mem::take(&mut self.slots).into_iter().flatten()
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
            slot.is_some_and(|worker_lease| worker_lease.bucket.key == key)
        })
    }
}

/// The two slots of a bucket.
fn choices(key: BucketKey) -> [usize; 2] {
    let at = usize::try_from(key.hash() % (SLOTS as u64)).unwrap_or(0);
    [at, at ^ 1]
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod demand_tests {
    use super::*;
    use crate::host::at;

    const TERMS: Terms = Terms {
        cost: 2,
        ..crate::lease::shared_lease::TERMS
    };

    #[test]
    fn demand_counts_the_units_needed_within_one_lease_ttl() {
        let mut demand = Demand::default();
        for _ in 0..10 {
            demand.add(1);
        }
        assert_eq!(demand.in_ttl(at(99), 100_000), 10);
        assert_eq!(demand.in_ttl(at(100), 100_000), 10);
        demand.add(1);
        assert_eq!(
            demand.in_ttl(at(150), 100_000),
            6,
            "half of them were before"
        );
        // Spread over a longer time, the same units are a smaller demand.
        assert_eq!(demand.in_ttl(at(1100), 100_000), 0);
        assert_eq!(demand.in_ttl(at(1300), 100_000), 0);
    }

    /// The number of the request at which leasing begins, with one request every `every_ms`
    /// milliseconds.
    fn begins(checks_per_call: usize, every_ms: u64) -> Option<u64> {
        let mut demand = Demand::default();
        (1..=50).find(|n| {
            demand
                .record_miss(at(1000 + n * every_ms), &TERMS, checks_per_call, None)
                .is_some()
        })
    }

    #[test]
    fn leasing_begins_when_a_grant_repays_its_cost() {
        assert_eq!(
            [1, 3, 4, 30].map(|checks_per_call| begins(checks_per_call, 1)),
            [4, 4, 8, 8].map(Some)
        );
        assert_eq!(
            [20, 60].map(|every_ms| begins(1, every_ms)),
            [Some(4), None]
        );
        assert_eq!(
            [10, 15].map(|every_ms| begins(30, every_ms)),
            [Some(8), None]
        );
    }

    #[test]
    fn leasing_a_scarce_bucket_needs_more_demand() {
        let queries = |requests: u64, left: u64| {
            let mut demand = Demand::default();
            for _ in 1..requests {
                demand.record_miss(at(1000), &TERMS, 1, Some(left));
            }
            demand
                .record_miss(at(1000), &TERMS, 1, Some(left))
                .is_some()
        };
        // Two units each.
        assert!(queries(10, 640), "32 times as much is left");
        assert!(!queries(10, 639));
        assert!(!queries(31, 0));
        assert!(queries(32, 0));
    }

    #[test]
    fn leasing_continues_down_to_half_the_demand_that_starts_it() {
        let mut demand = Demand::default();
        let mut queries = |from_ms: u64, every_ms: u64| {
            let times = (1..=40).map(|n| from_ms + n * every_ms);
            times
                .filter(|ms| demand.record_miss(at(*ms), &TERMS, 30, None).is_some())
                .count()
        };
        assert_eq!(queries(1000, 18), 0);
        assert_eq!(queries(2000, 10), 33);
        assert_eq!(queries(2400, 18), 40);
        assert_eq!(queries(3120, 40), 3, "until it is known");
        assert_eq!(queries(6000, 18), 0, "once over, it begins as before");
    }
}
