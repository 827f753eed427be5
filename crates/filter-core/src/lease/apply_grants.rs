//! Stores the grants in an answer.

use protocol::{Answer, Lease, LimitAnswer};

use crate::{
    cache::{Answered, BucketKey, BucketStatus, write_answer},
    host::Host,
    lease::Terms,
    lease::shared_update::{LeaseChange, update_shared},
    metrics::Event,
    request::PendingCheck,
    time::Now,
    worker::Worker,
};

impl Worker {
    /// Stores the grants in an answer. Removes the answers about limits that are settled already,
    /// because those are not decisions.
    pub(crate) fn apply_grants(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        check: &mut PendingCheck,
        answer: &mut Answer,
    ) {
        for limit_check in &mut check.limit_checks {
            let Some(lease_query) = limit_check.lease_query.take() else {
                continue;
            };
            let limit = &limit_check.limit;
            let Some(at) = answer.limits.iter().position(|of| of.name == limit.name) else {
                continue;
            };
            if let Some(limit_answer) = answer.limits.get_mut(at) {
                limit_answer.lease = limit_answer.lease.map(|lease| Lease {
                    units: lease.units.min(lease_query.want),
                    ttl_ms: lease.ttl_ms.min(limit.lease_ttl_ms.unwrap_or(0)),
                    ..lease
                });
            }
            // A query that only settles expects no grant.
            if lease_query.want > 0
                && let (Some(limit_answer), Some(terms)) =
                    (answer.limits.get(at), self.terms(limit))
            {
                let worker_lease = self.leases.find(limit_check.key, limit.generation);
                match worker_lease.filter(|_| limit_answer.generation > limit.generation) {
                    Some(worker_lease) => {
                        let units = limit_answer.lease.map_or(0, |lease| lease.units);
                        self.counts.happened_to(Event::LeaseGranted, units);
                        worker_lease.mark_outdated(limit_answer.lease);
                        self.ticks.by_maintenance(now, now.mono_us);
                    }
                    None => self.share(host, now, sent, &terms, limit_check.key, limit_answer),
                }
            }
            if check.cost == 0 || limit_check.leased {
                answer.limits.remove(at);
            }
        }
    }

    /// Adds a grant to the shared lease.
    fn share(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        terms: &Terms,
        key: BucketKey,
        limit_answer: &LimitAnswer,
    ) {
        let Some(shared) = self.process.shared() else {
            return;
        };
        let status = BucketStatus::new(now, limit_answer);
        let failing = self.outage.breaker.failed_lately(now);
        if self
            .cache
            .store_status(key, limit_answer.generation, status, failing)
        {
            let answered = Answered {
                status,
                denial: None,
            };
            let bucket = (key, limit_answer.generation);
            write_answer(host, now, &shared.table, bucket, &answered);
        }
        let units = limit_answer.lease.map_or(0, |lease| lease.units);
        self.counts.happened_to(Event::LeaseGranted, units);
        let bucket = (key, limit_answer.generation);
        let mut worker_lease = self.leases.find(key, limit_answer.generation);
        // The worker that queried takes the first portion.
        let empty = worker_lease
            .as_ref()
            .filter(|worker_lease| worker_lease.is_empty());
        let portion = empty.map(|worker_lease| worker_lease.next_portion(now, terms));
        let table = &shared.table;
        let landed = update_shared(
            host,
            now,
            table,
            bucket,
            Some(status),
            &mut |shared_lease, status| {
                shared_lease.answered(now, sent, limit_answer.lease, terms);
                let expired = shared_lease.expire(now);
                let grant = portion.and_then(|portion| shared_lease.withdraw(now, terms, portion));
                LeaseChange::new(shared_lease, now, terms, grant, None, expired, status)
            },
        );
        // Contended: the units are never used.
        let Ok(change) = landed else {
            return self.counts.happened_to(Event::LeaseExpired, units);
        };
        self.counts.happened_to(Event::LeaseExpired, change.expired);
        if let Some(worker_lease) = &mut worker_lease {
            if let Some(portion) = portion {
                worker_lease.set_portion(portion);
            }
            worker_lease.apply(&change, now);
            self.ticks.by_maintenance(now, worker_lease.maintain_at_us);
        }
    }
}
