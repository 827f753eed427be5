//! Encodes a batch of checks and sends it as a call.

use std::rc::Rc;

use policy::{Name, Revision};
use protocol::{
    CHECK_CBOR,
    compact::{Batch, BatchCheck},
};

use crate::{
    active_policy::PolicyState,
    call::CHECK_PATH,
    host::Host,
    metrics::Event,
    outage::Gate,
    request::PendingCheck,
    time::Now,
    worker::{Call, Worker},
};

impl Worker {
    /// Sends the next batch of checks, or with [`Gate::Probe`] a probe in its place.
    pub(crate) fn send_checks(&mut self, host: &impl Host, now: Now, gate: Gate) {
        let mut checks = self.calls.batcher.take_batch(PendingCheck::load);
        let probe = gate == Gate::Probe;
        let body = if probe {
            // A probe charges nothing and carries no debts, so nothing is lost with it.
            let mut peek: Vec<_> = checks.first().map(PendingCheck::peek).into_iter().collect();
            self.encode(&mut peek)
        } else {
            self.take_debts(host, now, &mut checks);
            for check in &mut checks {
                check.attempts.count(now);
            }
            self.count_settlements(&checks);
            self.encode(&mut checks)
        };
        if self.calls.stream.is_open() && !probe {
            return self.send_on_stream(now, checks, &body);
        }
        let id = self.calls.registry.start_checks(now, probe, checks);
        if !probe {
            self.open_stream(now);
        }
        self.call(Call {
            id,
            method: "POST",
            path: CHECK_PATH.to_owned(),
            headers: vec![("content-type", CHECK_CBOR.to_owned())],
            body: Some(body),
            timeout_ms: self.config.limiter.timeout_ms,
        });
    }

    /// Moves debts out of the shared table into the checks that charge them.
    fn take_debts(&self, host: &impl Host, now: Now, checks: &mut [PendingCheck]) {
        let failing = self.outage.breaker.failed_lately(now);
        if let Some(shared) = self.process.shared() {
            for check in checks {
                check.take_debts(host, now, &shared.table, failing);
            }
        }
    }

    /// Counts the lease settlements in the checks that are sent for the first time.
    fn count_settlements(&mut self, checks: &[PendingCheck]) {
        let first = checks.iter().filter(|check| check.attempts.made == 1);
        let limit_checks = first.flat_map(|check| &check.limit_checks);
        for query in limit_checks.filter_map(|of| of.lease_query.as_deref()) {
            let (spent, returned) = query.settle.totals();
            self.counts.happened_to(Event::LeaseSettled, spent);
            self.counts.happened_to(Event::LeaseReturned, returned);
        }
    }

    fn encode(&self, checks: &mut [PendingCheck]) -> Vec<u8> {
        encode_checks(self, checks)
    }
}

/// The body of a call with some checks.
pub(crate) fn encode_checks(worker: &Worker, checks: &mut [PendingCheck]) -> Vec<u8> {
    let domain = worker.config.domain.clone();
    let revision = match &worker.policy.state {
        PolicyState::Limits(policy) => Some(policy.compiled.revision().clone()),
        PolicyState::NoLimits | PolicyState::Unknown => None,
    };
    encode(domain, worker.process.proxy().to_owned(), revision, checks)
}

/// Encodes the checks of one call. The batch borrows the values instead of copying them.
fn encode(
    domain: Name,
    proxy: String,
    revision: Option<Revision>,
    checks: &mut [PendingCheck],
) -> Vec<u8> {
    let first = checks.first();
    let keys = first.map_or_else(|| Rc::from([]), |check| Rc::clone(check.entries.keys()));
    let encoded = checks.iter_mut().map(|check| BatchCheck {
        values: check.entries.lend(&keys),
        cost: check.cost,
        limits: check.limit_requests(),
        max_delay_ms: check.hold.barred.then_some(0),
        slot: check.slot,
    });
    let batch = Batch {
        domain,
        proxy,
        checks: encoded.collect(),
        revision,
        keys: keys.to_vec(),
    };
    let body = batch.encode();
    for (check, encoded) in checks.iter_mut().zip(batch.checks) {
        check.entries.give_back(&keys, encoded.values);
    }
    body
}
