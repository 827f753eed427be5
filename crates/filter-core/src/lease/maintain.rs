//! Maintenance at ticks: returns units that will not be used, and sends settlements.

use std::rc::Rc;

use crate::{
    cache::BucketKey,
    host::Host,
    lease::shared_update::{LeaseChange, update_shared},
    lease::{LeaseDescriptor, LeaseQuery, Terms},
    metrics::Event,
    request::PendingCheck,
    time::Now,
    worker::Worker,
};

impl Worker {
    /// Maintains the leases that are due.
    pub(crate) fn maintain_leases(&mut self, host: &impl Host, now: Now) {
        for (key, generation) in self.leases.due(now) {
            let worker_lease = self.leases.find(key, generation);
            let Some(descriptor) =
                worker_lease.and_then(|worker_lease| worker_lease.descriptor.clone())
            else {
                continue;
            };
            if let Some(terms) = self.terms(&descriptor.limit)
                && let Some(lease_query) = self.maintain(host, now, &terms, key, generation)
            {
                self.settle(now, &descriptor, key, lease_query);
            }
        }
    }

    fn maintain(
        &mut self,
        host: &impl Host,
        now: Now,
        terms: &Terms,
        key: BucketKey,
        generation: u64,
    ) -> Option<LeaseQuery> {
        let (shared, worker_lease) = (self.process.shared()?, self.leases.find(key, generation)?);
        let (table, bucket) = (&shared.table, (key, generation));
        let maintained = update_shared(
            host,
            now,
            table,
            bucket,
            None,
            &mut |shared_lease, status| {
                shared_lease.deposit(worker_lease.grant, &worker_lease.settlements);
                let expired = shared_lease.expire(now);
                let lease_query = shared_lease.maintain(now, terms);
                LeaseChange::new(shared_lease, now, terms, None, lease_query, expired, status)
            },
        );
        // Contended: retried at the next tick.
        let change = maintained.ok()?;
        worker_lease.clear();
        worker_lease.apply(&change, now);
        self.counts.happened_to(Event::LeaseExpired, change.expired);
        change.query
    }

    /// Sends a lease query without a request.
    fn settle(
        &mut self,
        now: Now,
        descriptor: &LeaseDescriptor,
        key: BucketKey,
        lease_query: LeaseQuery,
    ) {
        let policy = &descriptor.policy;
        let mut limit_checks = self.limit_checks_of(&descriptor.entries, policy, now);
        if let Some(limit_check) = limit_checks
            .iter_mut()
            .find(|limit_check| limit_check.key == key)
        {
            limit_check.lease_query = Some(Box::new(lease_query));
            let policy = Rc::clone(policy);
            let entries = descriptor.entries.clone();
            self.push_background(PendingCheck::background(policy, entries, limit_checks));
        }
    }

    /// Queues a check that no request waits for any more.
    pub(crate) fn push_background(&mut self, check: PendingCheck) {
        let check = PendingCheck {
            stream: None,
            cost: 0,
            ..check
        };
        if let Err(check) = self.calls.batcher.push(check) {
            self.undo_unsent(check);
        }
    }

    /// Undoes a check that was not sent because its client left or the queue was full.
    pub(crate) fn undo_unsent(&mut self, mut check: PendingCheck) {
        self.undo_left(std::mem::take(&mut check.claims));
        self.restore_settlements(&check);
    }

    /// A check was not sent: its settlements go back to the worker's lease, for another query.
    pub(crate) fn restore_settlements(&mut self, check: &PendingCheck) {
        for limit_check in &check.limit_checks {
            let (key, generation) = (limit_check.key, limit_check.limit.generation);
            if let Some(lease_query) = &limit_check.lease_query
                && let Some(worker_lease) = self.leases.find(key, generation)
            {
                worker_lease.settlements.merge(&lease_query.settle);
            }
        }
    }
}
