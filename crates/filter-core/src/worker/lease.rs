//! Requests that are admitted by units granted in advance.

use std::rc::Rc;

use policy::Limit;
use protocol::{Answer, LimitAnswer};

use super::{
    Worker,
    active::Active,
    case::{Case, Leased, Mode, Part},
    near,
};
use crate::{
    client::Standing,
    descriptor::Extracted,
    host::{Contended, Host},
    lease::{Ask, Hand, Lot, Pool, Seen, Terms},
    metrics::Event,
    table::{Place, Role, Table, Told, Update},
    time::Now,
};

/// A request by which the limiter can be told of a bucket after it has gone.
#[derive(Debug)]
pub(super) struct Origin {
    policy: Rc<Active>,
    /// The limit's position.
    at: usize,
    entries: Extracted,
}

/// What a look at the shared units came to.
struct Drawn {
    lot: Option<Lot>,
    ask: Option<Ask>,
    expired: u64,
    /// What is left.
    seen: Seen,
    told: Option<Told>,
}

impl Worker {
    /// Takes what this worker has at hand. Nothing is shared, nothing is asked.
    pub(super) fn take_in_hand(&mut self, now: Now, policy: &Active, parts: &mut [Part]) {
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
    pub(super) fn draw(
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

    /// Takes over what the limiter granted. What it says of limits that are settled already is
    /// no decision, and is taken out of the answer.
    pub(super) fn land_leases(
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

    /// Looks after units that are left over, and tells the limiter what became of others.
    pub(super) fn tend_leases(&mut self, host: &impl Host, now: Now) {
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
            });
        }
    }

    /// Sends what is asked and told for a request that needs no answer any more.
    pub(super) fn ask_alone(&mut self, case: Case) {
        let case = Case {
            stream: None,
            cost: 0,
            ..case
        };
        if let Err(case) = self.batcher.push(case) {
            self.undo(&case);
        }
    }

    /// What was taken for a request that is admitted was used.
    pub(super) fn spend(&mut self, policy: &Active, parts: &mut [Part]) {
        for part in parts {
            if let (Leased::Held(token), Some(limit)) = (part.lease, policy.compiled.limit(part.at))
            {
                part.lease = Leased::Used;
                if let Some(hand) = self.hands.find(part.place, limit.generation) {
                    hand.spend(token, limit.cost);
                }
            }
        }
    }

    /// What was taken for a request that is not admitted was not used.
    pub(super) fn put_back_units(&mut self, policy: &Active, parts: &[Part]) {
        for part in parts {
            if let (Leased::Held(token), Some(limit)) = (part.lease, policy.compiled.limit(part.at))
                && let Some(hand) = self.hands.find(part.place, limit.generation)
            {
                hand.put_back(token, limit.cost);
            }
        }
    }

    /// A request was left by its client before its check did.
    pub(super) fn undo(&mut self, case: &Case) {
        if let Some(policy) = &case.policy {
            self.put_back_units(policy, &case.parts);
        }
        self.untold(case);
    }

    /// A check never left: what it would have told is still to be told.
    pub(super) fn untold(&mut self, case: &Case) {
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

    /// How a client stands with a limit whose units were granted in advance: what the limiter said
    /// was left, and what of the grants this worker knows of.
    pub(super) fn leased_standing(
        &mut self,
        part: &Part,
        limit: &Limit,
        now: Now,
    ) -> Option<Standing> {
        let hand = self.hands.find(part.place, limit.generation)?;
        let told = hand.told.filter(|_| !limit.hidden)?;
        let known = told.remaining.saturating_add(hand.shared);
        let quota = told.limit?;
        let elapsed_ms = now.mono_us.saturating_sub(told.at_us) / 1000;
        Some(Standing {
            limit: limit.name.clone(),
            quota,
            window_ms: told.window_ms,
            remaining: known.saturating_add(hand.lot.units).min(quota),
            reset_after_ms: told.reset_after_ms.saturating_sub(elapsed_ms),
            cost: limit.cost,
        })
    }

    /// The numbers that the leases of the limit at a position follow; `None`: it has none.
    fn terms(&self, policy: &Active, at: usize) -> Option<Terms> {
        let limit = policy.compiled.limit(at)?;
        let ttl_ms = limit.lease_ttl_ms?;
        Some(Terms {
            cost: limit.cost.max(1),
            ttl_us: ttl_ms.saturating_mul(1000),
            patience_us: self.config.limiter.timeout_ms.saturating_mul(2000),
            proxies: policy.proxies(at),
        })
    }
}

/// The limit of a part that may be settled by units granted in advance, and is not yet.
fn leased<'p>(policy: &'p Active, part: &Part) -> Option<&'p Limit> {
    let limit = policy.compiled.limit(part.at)?;
    (limit.lease_ttl_ms.is_some() && part.is_global() && part.mode == Mode::Enforce)
        .then_some(limit)
}

/// Changes the shared units of a bucket; they are written if they are not what they were. `told` is
/// what the limiter has just said of it. (One function for whatever is done to them: each way of its
/// own through the table would be 2 KB of the module.)
fn change(
    host: &impl Host,
    now: Now,
    table: &Table,
    (place, generation): (Place, u64),
    told: Option<Told>,
    act: &mut dyn FnMut(&mut Pool, Option<Told>) -> Drawn,
) -> Result<Drawn, Contended> {
    let place = place.in_role(Role::Lease);
    table.update(host, place, generation, now, |found| {
        if let Some(told) = told {
            found.entry.hear(told);
        }
        let before = found.entry.pool.take().unwrap_or_default();
        let mut pool = before.clone();
        let drawn = act(&mut pool, found.entry.told);
        let changed = pool != before;
        found.entry.pool = Some(pool);
        if changed {
            Update::Write(drawn)
        } else {
            Update::Keep(drawn)
        }
    })
}

impl Drawn {
    #[inline(never)]
    fn new(
        pool: &Pool,
        now: Now,
        terms: &Terms,
        lot: Option<Lot>,
        ask: Option<Ask>,
        expired: u64,
        told: Option<Told>,
    ) -> Self {
        Self {
            lot,
            ask,
            expired,
            seen: pool.seen(now, terms),
            told,
        }
    }
}

impl Hand<Origin> {
    /// Takes over what a look at the shared units came to.
    fn take_over(&mut self, drawn: &Drawn, now: Now) {
        self.told = drawn.told;
        if let Some(lot) = drawn.lot {
            self.receive(lot, now);
        }
        self.saw(&drawn.seen, now);
    }
}
