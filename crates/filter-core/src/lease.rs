//! Leases: units of a bucket that the limiter grants in advance, and that are spent without a check.
//!
//! For a limit with `lease`, a proxy occasionally queries the limiter for more units than one request
//! takes. A grant goes into the [`SharedLease`] of the bucket, which all workers of the process share.
//! Each worker takes portions of it into its [`WorkerLeases`], so that most requests use only their own
//! worker's memory. The store has counted granted units as used already. The limit holds because each
//! unit is used once and before its deadline: a unit is in one place only, and each move is one
//! compare-and-swap. Units are dropped when a move fails, an entry is evicted, or their generation is
//! outdated. That wastes units and never creates any.
//!
//! Lease [`Settlements`] are never retried: the worker that takes them out of the shared lease sends
//! them once. A lost settlement costs the bucket a little of its rate for two lease times.
//!
//! A request's claims ([`Claims`]) have the units that it took until they are spent or released.

mod shared_lease;
mod worker_lease;

use std::sync::Arc;

use policy::Mode;
use protocol::{Answer, Lease, LimitAnswer};

use crate::{
    active_policy::{ActiveLimit, ActivePolicy},
    cache::{BucketAt, BucketKey, BucketStatus, write_answer},
    host::{Host, Now},
    metrics::Event,
    request::{Claims, Extracted, LeasedUnits, LimitCheck, PendingCheck},
    response::QuotaStatus,
    worker::Worker,
};
pub(crate) use shared_lease::{Grant, LeaseQuery};
use shared_lease::{LeasedBucket, Settlements, SharedView, Terms};
pub(crate) use worker_lease::WorkerLeases;
use worker_lease::{Portion, WorkerLease};

// --- Takes leased units for a request.

impl Worker {
    /// Reserves units of this worker's leases. Touches neither shared data nor the limiter.
    pub(crate) fn reserve_units(&mut self, now: Now, check: &mut PendingCheck) {
        for limit_check in check.limit_checks.iter_mut().filter(|of| is_leasable(of)) {
            let cost = limit_check.limit.cost;
            let reservation = self.leases.take(limit_check.bucket, cost, now);
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
            let Some(worker_lease) = self.leases.open(limit_check.bucket, now) else {
                continue;
            };
            let left = limit_check.status.map(|status| status.remaining);
            let needed = worker_lease.record_miss(now, &terms, checks_per_call, left);
            if needed.is_none() && worker_lease.is_idle() {
                continue;
            }
            let descriptor = || LeaseDescriptor::new(policy, limit, &check.entries);
            worker_lease.descriptor.get_or_insert_with(descriptor);
            let portion = worker_lease.next_portion(now, &terms);
            let bucket = LeasedBucket {
                table: &self.process.table,
                bucket: limit_check.bucket,
                terms: &terms,
            };
            let change = bucket.update(host, now, None, &mut |shared_lease, status| {
                shared_lease.deposit(worker_lease.grant, &worker_lease.settlements);
                let expired = shared_lease.expire(now);
                let grant = shared_lease.withdraw(now, &terms, portion);
                let most = terms.most(now, status);
                let lease_query = match (needed, grant) {
                    (Some(needed), _) => {
                        let least = grant.map_or(terms.first_want(needed), |_| 0);
                        shared_lease.query(now, &terms, least, most)
                    }
                    // The request is checked, and the check can carry the settlements.
                    (None, None) => shared_lease.take_query(),
                    (None, Some(_)) => None,
                };
                (grant, lease_query, expired)
            });
            // Contended: this request is checked.
            let Ok(change) = change else {
                self.counts.happened(Event::Contended);
                continue;
            };
            worker_lease.clear();
            worker_lease.portion = portion.units;
            worker_lease.apply(&change, now);
            self.ticks.by_maintenance(now, worker_lease.maintain_at_us);
            if change.grant.is_some()
                && let Some(reservation) = worker_lease.take(terms.cost, now)
            {
                limit_check.claim(reservation, &mut check.claims);
            }
            limit_check.lease_query = change.query.map(Box::new);
            self.counts.happened_to(Event::LeaseExpired, change.expired);
        }
    }
}

impl LimitCheck {
    /// Leased units decide the limit.
    fn claim(&mut self, units: Grant, claims: &mut Claims) {
        self.leased = true;
        let bucket = self.bucket;
        claims.leased.push(LeasedUnits { bucket, units });
    }
}

// --- Leased limits: the terms of their leases, and what their clients see.

/// A descriptor of the bucket, for lease queries that are sent without a request.
#[derive(Debug)]
pub(crate) struct LeaseDescriptor {
    pub(super) policy: Arc<ActivePolicy>,
    pub(super) limit: Arc<ActiveLimit>,
    pub(super) entries: Extracted,
}

impl LeaseDescriptor {
    fn new(policy: &Arc<ActivePolicy>, limit: &Arc<ActiveLimit>, entries: &Extracted) -> Arc<Self> {
        Arc::new(Self {
            policy: Arc::clone(policy),
            limit: Arc::clone(limit),
            entries: entries.clone(),
        })
    }
}

impl Worker {
    /// The client's quota at a leased limit: the units that the limiter reported as left, plus the
    /// leased units that this worker has or last saw.
    pub(crate) fn leased_status(
        &mut self,
        limit_check: &LimitCheck,
        now: Now,
    ) -> Option<QuotaStatus> {
        let limit = &limit_check.limit;
        let worker_lease = self.leases.find(limit_check.bucket)?;
        let status = worker_lease.status.filter(|_| !limit.hidden)?;
        let leased = worker_lease
            .shared
            .left
            .saturating_add(worker_lease.grant.units);
        status.quota_status(now, &limit.name, limit.cost, leased)
    }

    /// The lease terms of a limit; `None`: it has none.
    pub(super) fn terms(&self, limit: &ActiveLimit) -> Option<Terms> {
        let ttl_ms = limit.lease_ttl_ms?;
        Some(Terms {
            cost: limit.cost.max(1),
            ttl_us: ttl_ms.saturating_mul(1000),
            patience_us: self.config.limiter.timeout_ms.saturating_mul(2000),
            proxies: limit.proxies(),
        })
    }
}

/// Whether leased units may settle a limit, and have not yet.
fn is_leasable(of: &LimitCheck) -> bool {
    of.limit.lease_ttl_ms.is_some() && of.is_global() && of.mode == Mode::Enforce
}

// --- Stores the grants in an answer.

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
                limit_answer.verdict.lease = limit_answer.verdict.lease.map(|lease| Lease {
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
                let BucketAt { key, generation } = limit_check.bucket;
                let worker_lease = self.leases.find(limit_check.bucket);
                match worker_lease.filter(|_| limit_answer.generation > generation) {
                    Some(worker_lease) => {
                        let units = limit_answer.verdict.lease.map_or(0, |lease| lease.units);
                        self.counts.happened_to(Event::LeaseGranted, units);
                        worker_lease.mark_outdated(limit_answer.verdict.lease);
                        self.ticks.by_maintenance(now, now.mono_us);
                    }
                    None => self.share(host, now, sent, &terms, key, limit_answer),
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
        let status = BucketStatus::new(now, limit_answer);
        let failing = self.outage.breaker.failed_lately(now);
        let bucket = key.at(limit_answer.generation);
        if self.cache.store_status(bucket, status, failing) {
            write_answer(host, now, &self.process.table, bucket, status, None);
        }
        let units = limit_answer.verdict.lease.map_or(0, |lease| lease.units);
        self.counts.happened_to(Event::LeaseGranted, units);
        let mut worker_lease = self.leases.find(bucket);
        // The worker that queried takes the first portion.
        let empty = worker_lease
            .as_ref()
            .filter(|worker_lease| worker_lease.is_empty());
        let portion = empty.map(|worker_lease| worker_lease.next_portion(now, terms));
        let leased = LeasedBucket {
            table: &self.process.table,
            bucket,
            terms,
        };
        let landed = leased.update(host, now, Some(status), &mut |shared_lease, _| {
            shared_lease.answered(now, sent, limit_answer.verdict.lease, terms);
            let expired = shared_lease.expire(now);
            let grant = portion.and_then(|portion| shared_lease.withdraw(now, terms, portion));
            (grant, None, expired)
        });
        // Contended: the units are never used.
        let Ok(change) = landed else {
            return self.counts.happened_to(Event::LeaseExpired, units);
        };
        self.counts.happened_to(Event::LeaseExpired, change.expired);
        if let Some(worker_lease) = &mut worker_lease {
            if let Some(portion) = portion {
                worker_lease.portion = portion.units;
            }
            worker_lease.apply(&change, now);
            self.ticks.by_maintenance(now, worker_lease.maintain_at_us);
        }
    }

    // --- Maintenance at ticks: returns units that will not be used, and sends settlements.

    /// Maintains the leases that are due.
    pub(crate) fn maintain_leases(&mut self, host: &impl Host, now: Now) {
        for bucket in self.leases.due(now) {
            let worker_lease = self.leases.find(bucket);
            let Some(descriptor) =
                worker_lease.and_then(|worker_lease| worker_lease.descriptor.clone())
            else {
                continue;
            };
            if let Some(terms) = self.terms(&descriptor.limit)
                && let Some(lease_query) = self.maintain(host, now, &terms, bucket)
            {
                self.settle(now, &descriptor, bucket.key, lease_query);
            }
        }
    }

    fn maintain(
        &mut self,
        host: &impl Host,
        now: Now,
        terms: &Terms,
        bucket: BucketAt,
    ) -> Option<LeaseQuery> {
        let worker_lease = self.leases.find(bucket)?;
        let bucket = LeasedBucket {
            table: &self.process.table,
            bucket,
            terms,
        };
        let maintained = bucket.update(host, now, None, &mut |shared_lease, _| {
            shared_lease.deposit(worker_lease.grant, &worker_lease.settlements);
            let expired = shared_lease.expire(now);
            let lease_query = shared_lease.maintain(now, terms);
            (None, lease_query, expired)
        });
        // Contended: retried at the next tick.
        let change = maintained.ok()?;
        worker_lease.clear();
        worker_lease.apply(&change, now);
        self.counts.happened_to(Event::LeaseExpired, change.expired);
        change.query
    }

    /// Leaves this worker's units in the shared leases, for the other workers of the process.
    pub(crate) fn leave_leases(&mut self, host: &impl Host, now: Now) {
        for worker_lease in self.leases.take_all() {
            let descriptor = worker_lease.descriptor.as_ref();
            let Some(terms) = descriptor.and_then(|of| self.terms(&of.limit)) else {
                continue;
            };
            let bucket = LeasedBucket {
                table: &self.process.table,
                bucket: worker_lease.bucket,
                terms: &terms,
            };
            // Contended: nobody uses the units.
            let _ = bucket.update(host, now, None, &mut |shared_lease, _| {
                shared_lease.deposit(worker_lease.grant, &worker_lease.settlements);
                (None, None, 0)
            });
        }
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
            .find(|limit_check| limit_check.bucket.key == key)
        {
            limit_check.lease_query = Some(Box::new(lease_query));
            let policy = Arc::clone(policy);
            let entries = descriptor.entries.clone();
            self.push_background(PendingCheck::background(policy, entries, limit_checks));
        }
    }

    /// Queues a check that no request waits for any more.
    pub(crate) fn push_background(&mut self, mut check: PendingCheck) {
        check.stream = None;
        check.cost = 0;
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
            if let Some(lease_query) = &limit_check.lease_query
                && let Some(worker_lease) = self.leases.find(limit_check.bucket)
            {
                worker_lease.settlements.merge(&lease_query.settle);
            }
        }
    }
}
