//! The leased units of one bucket that all workers of a process share.

use protocol::Lease;

use super::{Grant, Portion, Settlements, Terms};
use crate::{
    codec::{Put, Reader},
    time::Now,
};

/// The most grants at once: the current one, and the one before it until its deadline.
const LOTS: usize = 2;

/// The shared lease of a bucket. Each method changes a copy, which replaces the shared value unless
/// another worker wrote in between.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedLease {
    /// The grant that ends first comes first.
    grants: [Grant; LOTS],
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
        let same = |own: &&mut Grant| own.units > 0 && own.is_of(grant.epoch, grant.deadline_us);
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
            out.put_u64(grant.epoch);
            out.put_u64(grant.deadline_us);
            out.put_u64(grant.units);
        }
        self.settlements.write(out);
        out.put_u64(self.want);
        out.put_u64(self.query_until_us);
        out.put_u64(self.sent_us);
        out.put_u64(self.granted);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut shared_lease = Self::default();
        for grant in &mut shared_lease.grants {
            *grant = Grant {
                epoch: reader.u64()?,
                deadline_us: reader.u64()?,
                units: reader.u64()?,
            };
        }
        shared_lease.settlements = Settlements::read(reader)?;
        shared_lease.want = reader.u64()?;
        shared_lease.query_until_us = reader.u64()?;
        shared_lease.sent_us = reader.u64()?;
        shared_lease.granted = reader.u64()?;
        Some(shared_lease)
    }
}

#[cfg(test)]
mod tests;
