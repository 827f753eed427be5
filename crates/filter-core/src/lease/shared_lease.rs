//! The leased units of one bucket that all workers of a process share.

use protocol::{Lease, Settlement};

use super::{LeaseDescriptor, Portion, WorkerLease};
use crate::{
    cache::{BucketAt, BucketStatus, Record, Role, Table, Update},
    host::{Contended, Host, Now, Put, Reader, Row, rows},
};

/// Bound: grants of a bucket at a proxy. Beyond it, the one that ends first is returned.
///
/// The current one, and the one before it until its deadline.
const GRANTS_MAX: usize = 2;

/// The shared lease of a bucket. Each method changes a copy, which replaces the shared value unless
/// another worker wrote in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedLease {
    /// The grant that ends first comes first.
    grants: [Grant; GRANTS_MAX],
    /// Units to settle with the limiter.
    settlements: Settlements,
    /// Units to query for: about half of the demand in a lease time.
    want: u64,
    /// No other query is sent before this time.
    query_until_us: u64,
    /// When the query of the newest grant was sent.
    sent_us: u64,
    /// The size of the newest grant; 0 once [`SharedLease::maintain`] has compared it with the demand.
    granted: u64,
}

/// The lease query of a check for one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseQuery {
    /// Units wanted.
    pub(crate) want: u64,
    /// Settlements of earlier grants.
    pub(crate) settle: Settlements,
}

/// A worker's view of a shared lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedView {
    /// Units that may be taken.
    pub(crate) left: u64,
    /// When they need maintenance.
    pub(crate) due_us: u64,
    /// The latest deadline of any units; 0: there are none.
    pub(crate) last_deadline_us: u64,
    /// Units that are not settled yet.
    pub(crate) unsettled: u64,
}

impl SharedLease {
    /// A worker's view of it.
    pub(crate) fn view(&self, now: Now, terms: &Terms) -> SharedView {
        let some = self.grants.iter().filter(|grant| grant.units > 0);
        let (spent, returned) = self.settlements.totals();
        SharedView {
            left: self.units(now),
            due_us: self.due_us(terms),
            last_deadline_us: some.map(|grant| grant.deadline_us).max().unwrap_or(0),
            unsettled: spent.saturating_add(returned),
        }
    }

    /// Units that may be taken now.
    pub(crate) fn units(&self, now: Now) -> u64 {
        let live = self.grants.iter().filter(|grant| !grant.is_over(now));
        live.map(|grant| grant.units).fold(0, u64::saturating_add)
    }

    /// Drops units past their deadline; returns how many. They are returned to the limiter with the
    /// next query.
    pub(crate) fn expire(&mut self, now: Now) -> u64 {
        let mut expired: u64 = 0;
        for grant in &mut self.grants {
            if grant.units > 0 && grant.is_over(now) {
                expired = expired.saturating_add(grant.units);
                self.settlements.add(grant.epoch, 0, grant.units);
                *grant = Grant::default();
            }
        }
        expired
    }

    /// Adds a worker's units and settlements.
    pub(crate) fn deposit(&mut self, grant: Grant, settlements: &Settlements) {
        self.settlements.merge(settlements);
        self.add_grant(grant);
    }

    /// Adds units to those of the same grant. If there is no room for another grant, the one that
    /// ends first is returned to the limiter.
    fn add_grant(&mut self, grant: Grant) {
        if grant.units == 0 {
            return;
        }
        let same = |own: &&mut Grant| own.units > 0 && own.is_of(grant);
        if let Some(own) = self.grants.iter_mut().find(same) {
            own.units = own.units.saturating_add(grant.units);
            return;
        }
        let ends = |own: &&mut Grant| if own.units > 0 { own.deadline_us } else { 0 };
        let mut rest = grant;
        if let Some(own) = self.grants.iter_mut().min_by_key(ends)
            && (own.units == 0 || own.deadline_us < grant.deadline_us)
        {
            rest = std::mem::replace(own, grant);
        }
        self.settlements.add(rest.epoch, 0, rest.units);
        let [first, second] = &mut self.grants;
        if first.units == 0 || (second.units > 0 && second.deadline_us < first.deadline_us) {
            std::mem::swap(first, second);
        }
    }

    /// Takes a portion for one worker: at most half of the units, or a quarter if the bucket is nearly
    /// used up; at least one request's cost.
    pub(crate) fn withdraw(&mut self, now: Now, terms: &Terms, portion: Portion) -> Option<Grant> {
        let (parts, least) = if portion.scarce {
            (4, terms.cost)
        } else {
            (2, terms.least_portion())
        };
        let part = terms.whole(self.units(now).div_ceil(parts));
        let most = part.max(least);
        let portion = terms.whole(portion.units).min(most).max(terms.cost);
        let fits = |grant: &&mut Grant| grant.units >= terms.cost && !grant.is_over(now);
        let grant = self.grants.iter_mut().find(fits)?;
        let units = terms.whole(grant.units).min(portion);
        grant.units = grant.units.saturating_sub(units);
        Some(Grant { units, ..*grant })
    }

    /// The query to send, if it is time for one: for at least `least`, which a worker needed and
    /// did not find, and at most `most`. One worker queries at a time.
    pub(crate) fn query(
        &mut self,
        now: Now,
        terms: &Terms,
        least: u64,
        most: u64,
    ) -> Option<LeaseQuery> {
        if self.units(now) > self.want / 4 || !now.reached(self.query_until_us) {
            return None;
        }
        let age_us = now.mono_us.saturating_sub(self.sent_us);
        // A grant smaller than the query says nothing about the demand.
        if self.granted > 0 && self.granted >= self.want && age_us < terms.part_us(4) {
            self.want = self.want.saturating_mul(2);
        }
        self.want = terms.whole(self.want.max(least).min(most));
        if self.want == 0 {
            return None;
        }
        self.query_until_us = now.mono_us.saturating_add(terms.patience_us);
        Some(LeaseQuery {
            want: self.want,
            settle: self.settlements.take(),
        })
    }

    /// Adds the grant in the answer to a query that was sent at `sent`.
    pub(crate) fn answered(&mut self, now: Now, sent: Now, lease: Option<Lease>, terms: &Terms) {
        let Some(lease) = lease.filter(|lease| lease.units > 0) else {
            // The bucket is nearly used up: for a while, requests are checked.
            self.query_until_us = now.mono_us.saturating_add(terms.part_us(8));
            return;
        };
        self.query_until_us = 0;
        self.sent_us = sent.mono_us;
        let grant = Grant::new(lease, sent);
        self.granted = terms.whole(grant.units);
        // A fraction of a request's cost cannot be used.
        self.settlements
            .add(grant.epoch, 0, grant.units.saturating_sub(self.granted));
        let units = self.granted;
        self.add_grant(Grant { units, ..grant });
    }

    /// A query that only settles, if there is anything to settle.
    pub(crate) fn take_query(&mut self) -> Option<LeaseQuery> {
        let settle = self.settlements.take();
        (!settle.is_empty()).then_some(LeaseQuery { want: 0, settle })
    }

    /// When the newest grant needs maintenance: at 0.7 of the lease time.
    fn due_us(&self, terms: &Terms) -> u64 {
        self.sent_us
            .saturating_add(terms.ttl_us.saturating_mul(7) / 10)
    }

    /// Once the newest grant is due, returns the units that the rest of the lease time will not need.
    /// Returns the query that settles them.
    pub(crate) fn maintain(&mut self, now: Now, terms: &Terms) -> Option<LeaseQuery> {
        if !now.reached(self.due_us(terms)) {
            return None;
        }
        if self.granted > 0 {
            let left = self.units(now);
            let used = self.granted.saturating_sub(left);
            if used < left {
                self.want = terms.whole(self.want / 2);
            }
            self.granted = 0;
            let needed = used.saturating_mul(3) / 7;
            self.give_back(terms.whole(left.saturating_sub(needed)));
        }
        self.end_soon(now, terms);
        self.take_query()
    }

    /// Returns units shortly before their deadline: after it they would arrive too late.
    fn end_soon(&mut self, now: Now, terms: &Terms) {
        for grant in &mut self.grants {
            let since_us = grant.deadline_us.saturating_sub(terms.part_us(8));
            if grant.units > 0 && now.reached(since_us) {
                self.settlements.add(grant.epoch, 0, grant.units);
                *grant = Grant::default();
            }
        }
    }

    fn give_back(&mut self, mut excess: u64) {
        for grant in &mut self.grants {
            let units = grant.units.min(excess);
            grant.units = grant.units.saturating_sub(units);
            excess = excess.saturating_sub(units);
            self.settlements.add(grant.epoch, 0, units);
        }
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for grant in &self.grants {
            grant.write(out);
        }
        self.settlements.write(out);
        out.put_u64s(&[self.want, self.query_until_us, self.sent_us, self.granted]);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut shared_lease = Self::default();
        for grant in &mut shared_lease.grants {
            *grant = Grant::read(reader)?;
        }
        shared_lease.settlements = Settlements::read(reader)?;
        let [want, query_until_us, sent_us, granted] = reader.u64s()?;
        Some(Self {
            want,
            query_until_us,
            sent_us,
            granted,
            ..shared_lease
        })
    }
}

// --- Granted units.

/// Units of one grant, in a shared lease or in a worker's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    /// The epoch that the limiter names the grant by.
    pub(crate) epoch: u64,
    /// Their deadline, on the monotonic clock.
    pub(crate) deadline_us: u64,
    /// How many there are.
    pub(crate) units: u64,
}

rows! {
    Grant { epoch, deadline_us, units }
    Settlement { epoch, spent, returned }
}

impl Grant {
    /// The grant in an answer to a call that was sent at `sent`. The time to live counts from the
    /// sending, because the limiter read its clock at an unknown moment after it. The deadline is a
    /// millisecond earlier, because the limiter's clock has whole milliseconds, and a thousandth
    /// earlier, because no two clocks run at the same speed.
    pub(crate) fn new(lease: Lease, sent: Now) -> Self {
        let sure_us = lease.ttl_ms.saturating_sub(1).saturating_mul(999);
        Self {
            epoch: lease.epoch,
            deadline_us: sent.mono_us.saturating_add(sure_us),
            units: lease.units,
        }
    }

    /// Whether the deadline has passed.
    pub(crate) fn is_over(&self, now: Now) -> bool {
        now.reached(self.deadline_us)
    }

    /// Whether these units can be merged with others.
    pub(super) fn is_of(&self, other: Self) -> bool {
        self.epoch == other.epoch && self.deadline_us == other.deadline_us
    }
}

// --- Granted units that were spent or returned, until the limiter is informed.

/// The most grants at once. A bucket distinguishes two; the third is for a settlement in flight.
const EPOCHS: usize = 3;

const NOTHING: Settlement = Settlement {
    epoch: 0,
    spent: 0,
    returned: 0,
};

/// Units spent and returned, by the epoch of their grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settlements([Settlement; EPOCHS]);

impl Default for Settlements {
    fn default() -> Self {
        Self([NOTHING; EPOCHS])
    }
}

impl Settlements {
    /// Adds to an epoch. If there is no room, the oldest epoch is dropped, as its bucket has
    /// dropped it.
    pub(crate) fn add(&mut self, epoch: u64, spent: u64, returned: u64) {
        if spent == 0 && returned == 0 {
            return;
        }
        let known = self
            .0
            .iter()
            .position(|of| of.epoch == epoch && !is_nothing(of));
        let at = known.or_else(|| {
            let oldest = |(_, of): &(usize, &Settlement)| (!is_nothing(of)).then_some(of.epoch);
            let (at, of) = self.0.iter().enumerate().min_by_key(oldest)?;
            (is_nothing(of) || of.epoch < epoch).then_some(at)
        });
        let Some(of) = at.and_then(|at| self.0.get_mut(at)) else {
            return;
        };
        if known.is_none() {
            *of = NOTHING;
        }
        of.epoch = epoch;
        of.spent = of.spent.saturating_add(spent);
        of.returned = of.returned.saturating_add(returned);
    }

    /// Adds all of another one.
    pub(crate) fn merge(&mut self, other: &Self) {
        for of in &other.0 {
            self.add(of.epoch, of.spent, of.returned);
        }
    }

    /// Whether there is nothing to settle.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(is_nothing)
    }

    /// Takes all of them out, for the one call that sends them.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// The settlements as the limiter reads them.
    pub(crate) fn by_epoch(&self) -> Vec<Settlement> {
        let some = self.0.iter().filter(|of| !is_nothing(of));
        some.copied().collect()
    }

    /// The units spent and the units returned, over all epochs.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let sum = |of: fn(&Settlement) -> u64| self.0.iter().map(of).fold(0, u64::saturating_add);
        (sum(|of| of.spent), sum(|of| of.returned))
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for of in &self.0 {
            of.write(out);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut settlements = Self::default();
        for of in &mut settlements.0 {
            *of = Settlement::read(reader)?;
        }
        Some(settlements)
    }
}

fn is_nothing(of: &Settlement) -> bool {
    of.spent == 0 && of.returned == 0
}

// --- The parameters of a limit that its leases use.

/// The smallest portion that a worker takes of a shared lease, in requests: an update of shared data
/// costs almost as much as a check.
const LEAST_PORTION: u64 = 8;

/// A proxy queries for at most the units left in the bucket, divided by the number of proxies and by
/// this: units stranded on one proxy are denied to others. (The limiter's own bound on a grant is
/// larger.)
const SHARES: u64 = 12;

/// The parameters of a limit that its leases use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Units one request takes, at least 1.
    pub(crate) cost: u64,
    /// The lease time, in microseconds.
    pub(crate) ttl_us: u64,
    /// How long the answer to a query may take, in microseconds.
    pub(crate) patience_us: u64,
    /// The proxies that share the limit's buckets.
    pub(crate) proxies: u64,
}

/// The terms in tests.
#[cfg(test)]
pub(super) const TERMS: Terms = Terms {
    cost: 1,
    ttl_us: 100_000,
    patience_us: 40_000,
    proxies: 1,
};

/// A portion of a bucket that is not nearly used up.
#[cfg(test)]
pub(super) fn portion(units: u64) -> Portion {
    let scarce = false;
    Portion { units, scarce }
}

impl Terms {
    /// A fraction of the lease time.
    pub(super) fn part_us(&self, of: u64) -> u64 {
        self.ttl_us / of
    }

    /// The smallest portion, in units.
    pub(super) fn least_portion(&self) -> u64 {
        self.cost.saturating_mul(LEAST_PORTION)
    }

    /// The first query, if so much is needed within a lease time: half of it, or the smallest
    /// portion.
    pub(crate) fn first_want(&self, needed: u64) -> u64 {
        needed.min(self.least_portion()).max(needed / 2)
    }

    /// The largest query, by the limiter's last answer. An old answer has no meaning: a new window may
    /// have begun, or other proxies may have used up the bucket.
    pub(crate) fn most(&self, now: Now, status: Option<BucketStatus>) -> u64 {
        let Some(status) = status else {
            return u64::MAX;
        };
        if now.reached(status.at_us.saturating_add(self.part_us(4))) {
            return status.limit.unwrap_or(u64::MAX);
        }
        let parts = self.proxies.max(1).saturating_mul(SHARES);
        status.remaining.checked_div(parts).unwrap_or(0)
    }

    /// Rounds down to whole requests.
    pub(super) fn whole(&self, units: u64) -> u64 {
        units - units % self.cost.max(1)
    }
}

// --- The shared lease of a bucket as an entry of the shared table.

/// The entry of a bucket in the role `Lease`. It may be evicted at any time: units that are lost
/// with it are never used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct LeaseEntry {
    /// The bucket's state in the limiter's last answer.
    pub(crate) status: Option<BucketStatus>,
    pub(crate) lease: SharedLease,
}

impl LeaseEntry {
    /// Stores a status unless a newer one is stored.
    pub(crate) fn update_status(&mut self, status: BucketStatus) {
        if self.status.is_none_or(|known| known.at_us < status.at_us) {
            self.status = Some(status);
        }
    }
}

impl Record for LeaseEntry {
    fn write(&self, out: &mut Vec<u8>) {
        self.lease.write(out);
        if let Some(status) = &self.status {
            status.write(out);
        }
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let lease = SharedLease::read(&mut reader)?;
        let status = if reader.is_empty() {
            None
        } else {
            Some(BucketStatus::read(&mut reader)?)
        };
        reader.is_empty().then_some(Self { status, lease })
    }

    fn in_use_until_us(&self) -> u64 {
        0
    }
}

// --- Changes of a bucket's shared lease, each one compare-and-swap in the shared table.

/// What an act on a shared lease gives: units for this worker, a query for the limiter, and how many units were
/// past their deadline.
type Acted = (Option<Grant>, Option<LeaseQuery>, u64);

/// The result of one change.
pub(super) struct LeaseChange {
    /// Units that this worker took.
    pub(super) grant: Option<Grant>,
    /// The query to send to the limiter.
    pub(super) query: Option<LeaseQuery>,
    /// Units whose deadline passed.
    pub(super) expired: u64,
    /// The shared lease after the change.
    view: SharedView,
    /// The bucket's state in the limiter's last answer.
    status: Option<BucketStatus>,
}

/// The bucket of a leased limit, with the terms of its leases.
#[derive(Clone, Copy)]
pub(super) struct LeasedBucket<'a> {
    pub(super) table: &'a Table,
    pub(super) bucket: BucketAt,
    pub(super) terms: &'a Terms,
}

impl LeasedBucket<'_> {
    /// Changes the shared lease of a bucket by `act`, which may run several times, and writes it if it
    /// differs. `status` is a status that has just arrived. (`act` is dynamic because a copy of this
    /// function for each caller would add 2 KB to the module.)
    pub(super) fn update(
        &self,
        host: &impl Host,
        now: Now,
        status: Option<BucketStatus>,
        act: &mut dyn FnMut(&mut SharedLease, Option<BucketStatus>) -> Acted,
    ) -> Result<LeaseChange, Contended> {
        let bucket = self.bucket.in_role(Role::Lease);
        (self.table).update::<LeaseEntry, _>(host, bucket, now, |found| {
            let entry = &mut found.entry;
            if let Some(status) = status {
                entry.update_status(status);
            }
            let before = entry.lease.clone();
            let (grant, query, expired) = act(&mut entry.lease, entry.status);
            let change = LeaseChange {
                grant,
                query,
                expired,
                view: entry.lease.view(now, self.terms),
                status: entry.status,
            };
            Update::new(entry.lease != before, change)
        })
    }
}

impl WorkerLease<LeaseDescriptor> {
    /// Applies a change of the shared lease to this worker's.
    pub(super) fn apply(&mut self, change: &LeaseChange, now: Now) {
        self.status = change.status;
        if let Some(grant) = change.grant {
            self.receive(grant, now);
        }
        self.apply_view(&change.view, now);
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod settlements_tests {
    use super::*;

    fn entries(settlements: &Settlements) -> Vec<(u64, u64, u64)> {
        let settlements = settlements.by_epoch().into_iter();
        settlements
            .map(|s| (s.epoch, s.spent, s.returned))
            .collect()
    }

    #[test]
    fn units_are_counted_by_epoch_and_settled_once() {
        let mut settlements = Settlements::default();
        settlements.add(7, 0, 0);
        assert!(settlements.is_empty());
        settlements.add(7, 2, 0);
        settlements.add(8, 1, 4);
        settlements.add(7, 1, 1);
        let mut other = Settlements::default();
        other.merge(&settlements);
        assert_eq!(entries(&other.take()), [(7, 3, 1), (8, 1, 4)]);
        assert!(other.is_empty());
        assert_eq!(settlements.totals(), (4, 5));
    }

    #[test]
    fn a_new_epoch_evicts_the_oldest_and_an_older_one_is_dropped() {
        let mut settlements = Settlements::default();
        for epoch in [5, 4, 6] {
            settlements.add(epoch, epoch, 0);
        }
        settlements.add(3, 1, 0);
        settlements.add(7, 7, 0);
        let mut epochs: Vec<u64> = settlements.by_epoch().iter().map(|s| s.epoch).collect();
        epochs.sort_unstable();
        assert_eq!(epochs, [5, 6, 7]);
        assert_eq!(settlements.totals(), (18, 0));
    }
}

#[cfg(test)]
mod terms_tests {
    use super::*;
    use crate::host::at;

    #[test]
    fn each_proxy_requests_at_most_a_small_share_of_what_is_left() {
        let status = BucketStatus {
            at_us: 0,
            limit: Some(1000),
            window_ms: 1000,
            remaining: 500,
            reset_after_ms: 1,
        };
        let most = |ms, proxies, status| Terms { proxies, ..TERMS }.most(at(ms), status);
        assert_eq!(most(24, 1, Some(status)), 41);
        assert_eq!(most(24, 5, Some(status)), 8);
        assert_eq!(most(25, 5, Some(status)), 1000, "it was said long ago");
        assert_eq!(most(12, 5, None), u64::MAX, "nobody has said");
    }
}

#[cfg(test)]
mod entry_tests {
    use proptest::prelude::*;

    use super::*;
    use crate::host::Put;

    proptest! {
        #[test]
        fn a_lease_entry_round_trips_through_bytes(
            numbers in any::<[u64; 19]>(),
            status in proptest::option::of((any::<[u64; 4]>(), any::<Option<u64>>())),
        ) {
            let mut bytes = Vec::new();
            for number in numbers {
                bytes.put_u64(number);
            }
            let entry = LeaseEntry {
                lease: SharedLease::read(&mut Reader::new(&bytes)).unwrap(),
                status: status.map(|([at_us, window_ms, remaining, reset_after_ms], limit)| {
                    BucketStatus { at_us, limit, window_ms, remaining, reset_after_ms }
                }),
            };
            let mut written = Vec::new();
            entry.write(&mut written);
            prop_assert_eq!(LeaseEntry::read(&written), Some(entry));
        }

        #[test]
        fn reading_arbitrary_bytes_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = LeaseEntry::read(&bytes);
        }
    }
}
