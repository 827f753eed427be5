//! Takes leased units for a request.

use std::rc::Rc;

use crate::{
    host::Host,
    lease::shared_update::{LeaseChange, update_shared},
    lease::spend::is_leasable,
    lease::{LeaseDescriptor, Reservation, Terms},
    metrics::Event,
    request::{Claims, LeasedUnits, LimitCheck, PendingCheck},
    time::Now,
    worker::Worker,
};

impl Worker {
    /// Reserves units of this worker's leases. Touches neither shared data nor the limiter.
    pub(crate) fn reserve_units(&mut self, now: Now, check: &mut PendingCheck) {
        for limit_check in check.limit_checks.iter_mut().filter(|of| is_leasable(of)) {
            let (key, limit) = (limit_check.key, &limit_check.limit);
            let reservation = self.leases.take(key, limit.generation, limit.cost, now);
            if let Some(reservation) = reservation {
                limit_check.claim(reservation, &mut check.claims);
            }
        }
    }

    /// Takes units of the shared leases for the limits that this worker had none for, and queries the
    /// limiter for more before they run out.
    pub(crate) fn acquire_units(&mut self, host: &impl Host, now: Now, check: &mut PendingCheck) {
        let Some(policy) = &check.policy else {
            return;
        };
        let checks_per_call = self.calls.batcher.checks_per_call();
        for limit_check in check.limit_checks.iter_mut().filter(|of| is_leasable(of)) {
            let limit = &limit_check.limit;
            let Some(terms) = self.terms(limit) else {
                continue;
            };
            let Some(worker_lease) = self.leases.open(limit_check.key, limit.generation, now)
            else {
                continue;
            };
            let left = limit_check.status.map(|status| status.remaining);
            let needed = worker_lease.record_miss(now, &terms, checks_per_call, left);
            if needed.is_none() && worker_lease.is_idle() {
                continue;
            }
            if worker_lease.descriptor.is_none() {
                worker_lease.descriptor = Some(Rc::new(LeaseDescriptor {
                    policy: Rc::clone(policy),
                    limit: Rc::clone(limit),
                    entries: check.entries.clone(),
                }));
            }
            self.acquire_for(host, now, &terms, limit_check, needed, &mut check.claims);
        }
    }

    fn acquire_for(
        &mut self,
        host: &impl Host,
        now: Now,
        terms: &Terms,
        limit_check: &mut LimitCheck,
        needed: Option<u64>,
        claims: &mut Claims,
    ) {
        let generation = limit_check.limit.generation;
        let (Some(shared), Some(worker_lease)) = (
            self.process.shared(),
            self.leases.find(limit_check.key, generation),
        ) else {
            return;
        };
        let portion = worker_lease.next_portion(now, terms);
        let (key, table) = (limit_check.key, &shared.table);
        let change = update_shared(
            host,
            now,
            table,
            (key, generation),
            None,
            &mut |shared_lease, status| {
                shared_lease.deposit(worker_lease.grant, &worker_lease.settlements);
                let expired = shared_lease.expire(now);
                let grant = shared_lease.withdraw(now, terms, portion);
                let most = terms.most(now, status);
                let lease_query = match (needed, grant) {
                    (Some(_), Some(_)) => shared_lease.query(now, terms, 0, most),
                    (Some(needed), None) => {
                        shared_lease.query(now, terms, terms.first_want(needed), most)
                    }
                    // The request is checked, and the check can carry the settlements.
                    (None, None) => shared_lease.take_query(),
                    (None, Some(_)) => None,
                };
                LeaseChange::new(
                    shared_lease,
                    now,
                    terms,
                    grant,
                    lease_query,
                    expired,
                    status,
                )
            },
        );
        // Contended: this request is checked.
        let Ok(change) = change else {
            return self.counts.happened(Event::Contended);
        };
        worker_lease.clear();
        worker_lease.set_portion(portion);
        worker_lease.apply(&change, now);
        self.ticks.by_maintenance(now, worker_lease.maintain_at_us);
        if change.grant.is_some()
            && let Some(reservation) = worker_lease.take(terms.cost, now)
        {
            limit_check.claim(reservation, claims);
        }
        limit_check.lease_query = change.query.map(Box::new);
        self.counts.happened_to(Event::LeaseExpired, change.expired);
    }
}

impl LimitCheck {
    /// Leased units decide the limit.
    fn claim(&mut self, reservation: Reservation, claims: &mut Claims) {
        self.leased = true;
        claims.leased.push(LeasedUnits {
            key: self.key,
            generation: self.limit.generation,
            cost: self.limit.cost,
            reservation,
        });
    }
}
