//! Units for a request.

use std::rc::Rc;

use super::{
    Origin, leased,
    look::{Drawn, change},
};
use crate::{
    descriptor::Extracted,
    host::Host,
    lease::Terms,
    metrics::Event,
    time::Now,
    worker::{
        Worker,
        active::Active,
        case::{Leased, Part},
    },
};

impl Worker {
    /// Takes what this worker has at hand. Nothing is shared, nothing is asked.
    pub(in crate::worker) fn take_in_hand(
        &mut self,
        now: Now,
        policy: &Active,
        parts: &mut [Part],
    ) {
        for part in parts {
            if let Some(limit) = leased(policy, part)
                && let Some(token) =
                    (self.hands).take(part.place, limit.generation, limit.cost, now)
            {
                part.lease = Leased::Held(token);
            }
        }
    }

    /// Takes from what the workers share, for the limits that nothing was at hand for, and sees to
    /// it that there is more before there is nothing.
    pub(in crate::worker) fn draw(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &Rc<Active>,
        entries: &Extracted,
        parts: &mut [Part],
    ) {
        let together = self.batcher.together();
        for part in parts {
            let Some(limit) = leased(policy, part) else {
                continue;
            };
            let Some(terms) = self.terms(policy, part.at) else {
                continue;
            };
            let Some(hand) = self.hands.open(part.place, limit.generation, now) else {
                continue;
            };
            let left = part.told.map(|told| told.remaining);
            let needed = hand.miss(now, &terms, together, left);
            if needed.is_none() && hand.is_at_rest() {
                continue;
            }
            if hand.origin.is_none() {
                hand.origin = Some(Rc::new(Origin {
                    policy: Rc::clone(policy),
                    at: part.at,
                    entries: entries.clone(),
                }));
            }
            self.draw_for(host, now, &terms, part, limit.generation, needed);
        }
    }

    fn draw_for(
        &mut self,
        host: &impl Host,
        now: Now,
        terms: &Terms,
        part: &mut Part,
        generation: u64,
        needed: Option<u64>,
    ) {
        let (Some(shared), Some(hand)) = (&self.shared, self.hands.find(part.place, generation))
        else {
            return;
        };
        let portion = hand.next_portion(now, terms);
        let (place, table) = (part.place, &shared.table);
        let drawn = change(
            host,
            now,
            table,
            (place, generation),
            None,
            &mut |pool, told| {
                pool.hand_in(hand.lot, &hand.tally);
                let expired = pool.expire(now);
                let lot = pool.take(now, terms, portion);
                let most = terms.most(now, told);
                let ask = match (needed, lot) {
                    (Some(_), Some(_)) => pool.ask(now, terms, 0, most),
                    (Some(needed), None) => pool.ask(now, terms, terms.first_want(needed), most),
                    // It is checked by itself: the check may as well tell what there is to tell.
                    (None, None) => pool.tell(),
                    (None, Some(_)) => None,
                };
                Drawn::new(pool, now, terms, lot, ask, expired, told)
            },
        );
        // Contended: this request is checked by itself.
        let Ok(drawn) = drawn else {
            return self.counts.happened(Event::Contended);
        };
        hand.emptied();
        hand.asked_for(portion);
        hand.take_over(&drawn, now);
        self.ticks.by_look(now, hand.look_at_us);
        if drawn.lot.is_some()
            && let Some(token) = hand.take(terms.cost, now)
        {
            part.lease = Leased::Held(token);
        }
        part.ask = drawn.ask.map(Box::new);
        self.counts.happened_to(Event::LeaseExpired, drawn.expired);
    }
}
