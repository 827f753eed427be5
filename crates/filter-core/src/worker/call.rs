//! Calls of the limiter, and the checks in one.

use std::rc::Rc;

use policy::Name;
use protocol::{
    CHECK_CBOR,
    compact::{Batch, BatchCheck},
};

use super::{CHECK_PATH, Call, Step, Worker, pending_check::PendingCheck};
use crate::{breaker::Gate, host::Host, metrics::Event, time::Now};

impl Worker {
    /// Lets the checks that wait leave in one call.
    pub(super) fn send_call(&mut self, host: &impl Host, now: Now, gate: Gate) {
        let proxy = self
            .shared
            .as_ref()
            .map_or("", |shared| shared.proxy.as_str());
        let (domain, proxy) = (self.config.domain.clone(), proxy.to_owned());
        let call = self.batcher.start_call(now, PendingCheck::load);
        let id = call.id;
        call.probe = gate == Gate::Probe;
        let body = if call.probe {
            // It charges nothing and carries nothing, so nothing is lost with it.
            let mut peek: Vec<PendingCheck> = call
                .checks
                .first()
                .map(PendingCheck::peek)
                .into_iter()
                .collect();
            encode(domain, proxy, &mut peek)
        } else {
            let failing = self.breaker.failed_lately(now);
            for check in &mut call.checks {
                if let Some(shared) = &self.shared {
                    check.take_debts(host, now, &shared.table, failing);
                }
            }
            for check in &mut call.checks {
                check.attempts.left(now);
            }
            let body = encode(domain, proxy, &mut call.checks);
            let first = call.checks.iter().filter(|check| check.attempts.made == 1);
            let limit_checks = first.flat_map(|check| &check.limit_checks);
            for lease_query in
                limit_checks.filter_map(|limit_check| limit_check.lease_query.as_deref())
            {
                let (spent, returned) = lease_query.settle.totals();
                self.counts.happened_to(Event::LeaseSettled, spent);
                self.counts.happened_to(Event::LeaseReturned, returned);
            }
            body
        };
        let headers = vec![("content-type", CHECK_CBOR.to_owned())];
        self.call(Call {
            id,
            method: "POST",
            path: CHECK_PATH.to_owned(),
            headers,
            body: Some(body),
            timeout_ms: self.config.limiter.timeout_ms,
        });
    }

    /// Adds what every call of the limiter carries.
    pub(super) fn call(&mut self, mut call: Call) {
        if let Some(bearer) = &self.bearer {
            call.headers.push(("authorization", bearer.clone()));
        }
        self.steps.push_back(Step::Call(call));
    }
}

/// The checks of one flight as the limiter reads them.
fn encode(domain: Name, proxy: String, checks: &mut [PendingCheck]) -> Vec<u8> {
    let first = checks.first();
    let keys = first.map_or_else(|| Rc::from([]), |check| Rc::clone(check.entries.keys()));
    let policy = first.and_then(|check| check.policy.clone());
    let encoded = checks.iter_mut().map(|check| BatchCheck {
        values: check.entries.lend(&keys),
        cost: check.cost,
        skip: check.settled(),
        debits: check.debits(),
        leases: check.leases(),
        free: check
            .free
            .as_ref()
            .map_or_else(Vec::new, |free| free.slots.clone()),
        max_delay_ms: check.hold.barred.then_some(0),
    });
    let batch = Batch {
        domain,
        proxy,
        checks: encoded.collect(),
        revision: policy.map(|policy| policy.compiled.revision().clone()),
        keys: keys.to_vec(),
    };
    let body = batch.encode();
    for (check, encoded) in checks.iter_mut().zip(batch.checks) {
        check.entries.give_back(&keys, encoded.values);
    }
    body
}
