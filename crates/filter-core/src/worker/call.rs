//! Calls of the limiter, and the checks in one.

use std::rc::Rc;

use policy::Name;
use protocol::{
    CHECK_CBOR,
    compact::{Batch, BatchCheck},
};

use super::{CHECK_PATH, Call, Step, Worker, case::Case};
use crate::{breaker::Gate, host::Host, metrics::Event, time::Now};

impl Worker {
    /// Lets the checks that wait leave in one call.
    pub(super) fn depart(&mut self, host: &impl Host, now: Now, gate: Gate) {
        let proxy = self
            .shared
            .as_ref()
            .map_or("", |shared| shared.proxy.as_str());
        let (domain, proxy) = (self.config.domain.clone(), proxy.to_owned());
        let flight = self.batcher.depart(now, Case::load);
        let id = flight.id;
        flight.probe = gate == Gate::Probe;
        let body = if flight.probe {
            // It charges nothing and carries nothing, so nothing is lost with it.
            let mut peek: Vec<Case> = flight.checks.first().map(Case::peek).into_iter().collect();
            encode(domain, proxy, &mut peek)
        } else {
            let doubt = self.breaker.is_troubled(now);
            for case in &mut flight.checks {
                if let Some(shared) = &self.shared {
                    case.take_owed(host, now, &shared.table, doubt);
                }
            }
            for case in &mut flight.checks {
                case.attempts.left(now);
            }
            let body = encode(domain, proxy, &mut flight.checks);
            let first = flight.checks.iter().filter(|case| case.attempts.made == 1);
            let parts = first.flat_map(|case| &case.parts);
            for ask in parts.filter_map(|part| part.ask.as_deref()) {
                let (spent, returned) = ask.settle.totals();
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
fn encode(domain: Name, proxy: String, cases: &mut [Case]) -> Vec<u8> {
    let first = cases.first();
    let keys = first.map_or_else(|| Rc::from([]), |case| Rc::clone(case.entries.keys()));
    let policy = first.and_then(|case| case.policy.clone());
    let checks = cases.iter_mut().map(|case| BatchCheck {
        values: case.entries.lend(&keys),
        cost: case.cost,
        skip: case.settled(),
        debits: case.debits(),
        leases: case.leases(),
        free: case
            .free
            .as_ref()
            .map_or_else(Vec::new, |free| free.slots.clone()),
        max_delay_ms: case.hold.barred.then_some(0),
    });
    let batch = Batch {
        domain,
        proxy,
        checks: checks.collect(),
        revision: policy.map(|policy| policy.compiled.revision().clone()),
        keys: keys.to_vec(),
    };
    let body = batch.encode();
    for (case, check) in cases.iter_mut().zip(batch.checks) {
        case.entries.give_back(&keys, check.values);
    }
    body
}
