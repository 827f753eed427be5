//! Units that are left over, and what the limiter is told of the others.

use std::rc::Rc;

use super::{
    Origin,
    look::{Drawn, change},
};
use crate::{
    host::Host,
    lease::{Ask, Terms},
    metrics::Event,
    table::Place,
    time::Now,
    worker::{
        Worker,
        case::{Attempts, Case, Hold},
    },
};

impl Worker {
    /// Looks after units that are left over, and tells the limiter what became of others.
    pub(in crate::worker) fn tend_leases(&mut self, host: &impl Host, now: Now) {
        for (place, generation) in self.hands.due(now) {
            let hand = self.hands.find(place, generation);
            let Some(origin) = hand.and_then(|hand| hand.origin.clone()) else {
                continue;
            };
            if let Some(terms) = self.terms(&origin.policy, origin.at)
                && let Some(ask) = self.tend(host, now, &terms, place, generation)
            {
                self.settle(now, &origin, place, ask);
            }
        }
    }

    fn tend(
        &mut self,
        host: &impl Host,
        now: Now,
        terms: &Terms,
        place: Place,
        generation: u64,
    ) -> Option<Ask> {
        let (shared, hand) = (self.shared.as_ref()?, self.hands.find(place, generation)?);
        let (table, bucket) = (&shared.table, (place, generation));
        let tended = change(host, now, table, bucket, None, &mut |pool, told| {
            pool.hand_in(hand.lot, &hand.tally);
            let expired = pool.expire(now);
            let ask = pool.tend(now, terms);
            Drawn::new(pool, now, terms, None, ask, expired, told)
        });
        // Contended: at the next tick.
        let drawn = tended.ok()?;
        hand.emptied();
        hand.take_over(&drawn, now);
        self.counts.happened_to(Event::LeaseExpired, drawn.expired);
        drawn.ask
    }

    /// Asks and tells without a request.
    fn settle(&mut self, now: Now, origin: &Origin, place: Place, ask: Ask) {
        let policy = &origin.policy;
        let values = origin.entries.values();
        let matches = policy.compiled.matching_values(&values, now.wall_ms);
        let mut parts = self.parts(&matches, policy, now);
        if let Some(part) = parts.iter_mut().find(|part| part.place == place) {
            part.ask = Some(Box::new(ask));
            self.ask_alone(Case {
                stream: None,
                cost: 0,
                policy: Some(Rc::clone(policy)),
                entries: origin.entries.clone(),
                parts,
                opaque: None,
                attempts: Attempts::default(),
                hold: Hold::default(),
                free: None,
            });
        }
    }

    /// Sends what is asked and told for a request that needs no answer any more.
    pub(in crate::worker) fn ask_alone(&mut self, case: Case) {
        let case = Case {
            stream: None,
            cost: 0,
            ..case
        };
        if let Err(case) = self.batcher.push(case) {
            self.undo(&case);
        }
    }

    /// A request was left by its client before its check did.
    pub(in crate::worker) fn undo(&mut self, case: &Case) {
        if let Some(policy) = &case.policy {
            self.put_back_units(policy, &case.parts);
        }
        self.untold(case);
    }

    /// A check never left: what it would have told is still to be told.
    pub(in crate::worker) fn untold(&mut self, case: &Case) {
        let Some(policy) = &case.policy else {
            return;
        };
        for part in &case.parts {
            if let (Some(ask), Some(limit)) = (&part.ask, policy.compiled.limit(part.at))
                && let Some(hand) = self.hands.find(part.place, limit.generation)
            {
                hand.tally.merge(&ask.settle);
            }
        }
    }
}
