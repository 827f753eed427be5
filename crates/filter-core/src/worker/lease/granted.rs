//! Units that the limiter grants.

use protocol::{Answer, Lease, LimitAnswer};

use super::look::{Drawn, change};
use crate::{
    host::Host,
    lease::Terms,
    metrics::Event,
    table::{Place, Told},
    time::Now,
    worker::{
        Worker,
        case::{Case, Leased},
        near,
    },
};

impl Worker {
    /// Takes over what the limiter granted. What it says of limits that are settled already is
    /// no decision, and is taken out of the answer.
    pub(in crate::worker) fn land_leases(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        case: &mut Case,
        answer: &mut Answer,
    ) {
        let Some(policy) = case.policy.clone() else {
            return;
        };
        for part in &mut case.parts {
            let (Some(ask), Some(limit)) = (part.ask.take(), policy.compiled.limit(part.at)) else {
                continue;
            };
            let Some(at) = answer.limits.iter().position(|of| of.name == limit.name) else {
                continue;
            };
            if let Some(said) = answer.limits.get_mut(at) {
                said.lease = said.lease.map(|lease| Lease {
                    units: lease.units.min(ask.want),
                    ttl_ms: lease.ttl_ms.min(limit.lease_ttl_ms.unwrap_or(0)),
                    ..lease
                });
            }
            // Who only told something expects nothing.
            if ask.want > 0
                && let (Some(said), Some(terms)) =
                    (answer.limits.get(at), self.terms(&policy, part.at))
            {
                let hand = self.hands.find(part.place, limit.generation);
                match hand.filter(|_| said.generation > limit.generation) {
                    Some(hand) => {
                        let units = said.lease.map_or(0, |lease| lease.units);
                        self.counts.happened_to(Event::LeaseGranted, units);
                        hand.outdate(said.lease);
                        self.ticks.by_look(now, now.mono_us);
                    }
                    None => self.share(host, now, sent, &terms, part.place, said),
                }
            }
            if case.cost == 0 || part.lease != Leased::No {
                answer.limits.remove(at);
            }
        }
    }

    /// Shares what was granted with the other workers. The next request of any of them takes it.
    fn share(
        &mut self,
        host: &impl Host,
        now: Now,
        sent: Now,
        terms: &Terms,
        place: Place,
        said: &LimitAnswer,
    ) {
        let Some(shared) = &self.shared else {
            return;
        };
        let told = Told::new(now, said);
        let trouble = self.breaker.is_troubled(now);
        if self.near.heard(place, said.generation, told, trouble) {
            near::tell(host, now, &shared.table, place, said.generation, told);
        }
        let units = said.lease.map_or(0, |lease| lease.units);
        self.counts.happened_to(Event::LeaseGranted, units);
        let bucket = (place, said.generation);
        let mut hand = self.hands.find(place, said.generation);
        // Who asked is the first who will need it.
        let empty = hand.as_ref().filter(|hand| hand.is_empty());
        let portion = empty.map(|hand| hand.next_portion(now, terms));
        let table = &shared.table;
        let landed = change(host, now, table, bucket, Some(told), &mut |pool, told| {
            pool.answered(now, sent, said.lease, terms);
            let expired = pool.expire(now);
            let lot = portion.and_then(|portion| pool.take(now, terms, portion));
            Drawn::new(pool, now, terms, lot, None, expired, told)
        });
        // Contended: nobody uses them.
        let Ok(drawn) = landed else {
            return self.counts.happened_to(Event::LeaseExpired, units);
        };
        self.counts.happened_to(Event::LeaseExpired, drawn.expired);
        if let Some(hand) = &mut hand {
            if let Some(portion) = portion {
                hand.asked_for(portion);
            }
            hand.take_over(&drawn, now);
            self.ticks.by_look(now, hand.look_at_us);
        }
    }
}
