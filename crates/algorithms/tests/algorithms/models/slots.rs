//! Requests in flight: a list of slots, each with its request, its ttl and its expiry.

use algorithms::check::{Options, Part, Stored};
use algorithms::{
    Algorithm, Debits, InFlightSlot, Kind, LimitVerdict, Missing, Parameters, SlotAct, SlotId,
    SlotOp,
};

use super::{Random, START_MS, STEPS_PER_WALK, ask, assert_decides, count, part, walks};

const TTLS_MS: [u64; 3] = [100, 1000, 10_000];

#[derive(Clone, Copy)]
struct Slot {
    id: SlotId,
    /// The one that it was given, which it keeps through edits.
    ttl_ms: u64,
    expires_ms: u64,
}

#[derive(Clone, Default)]
struct Model {
    slots: Vec<Slot>,
}

impl Model {
    /// Those that live. After a step back of the clock none lives longer than one ttl from now.
    fn read(&self, now_ms: u64) -> Self {
        let live = self.slots.iter().filter(|slot| slot.expires_ms > now_ms);
        let cut = live.map(|slot| Slot {
            expires_ms: slot.expires_ms.min(now_ms + slot.ttl_ms),
            ..*slot
        });
        Self {
            slots: cut.collect(),
        }
    }

    fn held(&mut self, id: SlotId) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.id == id)
    }

    /// Gives the request a slot, or prolongs the one that it has.
    fn hold(&mut self, id: SlotId, ttl_ms: u64, now_ms: u64) {
        match self.held(id) {
            Some(slot) => slot.expires_ms = now_ms + slot.ttl_ms,
            None => self.slots.push(Slot {
                id,
                ttl_ms,
                expires_ms: now_ms + ttl_ms,
            }),
        }
    }

    /// Acts on a slot as its holder asks, or its proxy; returns whether that changed anything and whether a slot that was
    /// to be renewed is missing.
    fn act(&mut self, act: SlotAct, slot: InFlightSlot, ttl_ms: u64, now_ms: u64) -> (bool, bool) {
        let held = self.held(slot.id).is_some();
        match act {
            SlotAct::Free(_) | SlotAct::Answered(_) => {
                self.slots.retain(|other| other.id != slot.id);
            }
            SlotAct::Renew if !held => return (false, true),
            // One that lapsed is entered under the limit as it is now, above it if need be.
            SlotAct::Renew | SlotAct::Enter => self.hold(slot.id, slot.ttl_ms.min(ttl_ms), now_ms),
        }
        (held || act == SlotAct::Enter, false)
    }

    /// The hits of Envoy's rate limit service that end: those slots of it are freed that expire first.
    fn give_back(&mut self, hits: u64) {
        for _ in 0..hits {
            let of_service = self
                .slots
                .iter()
                .filter(|slot| slot.id.mark() == SlotId::SERVICE);
            let first = of_service
                .min_by_key(|slot| (slot.expires_ms, slot.id.secret))
                .map(|slot| slot.id);
            self.slots.retain(|slot| Some(slot.id) != first);
        }
    }

    fn used(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Decides a check; returns the slots after it, whether it was allowed, and which slots were missing.
    fn check(&mut self, ask: &Asked, now_ms: u64) -> (Self, bool, Vec<bool>) {
        let mut read = self.read(now_ms);
        let mut changed = read.slots.iter().any(|slot| {
            let before = self.slots.iter().find(|other| other.id == slot.id);
            before.is_some_and(|before| before.expires_ms != slot.expires_ms)
        });
        let mut missing = Vec::new();
        for (act, slot) in &ask.acts {
            let (acted, gone) = read.act(*act, *slot, ask.ttl_ms, now_ms);
            changed |= acted;
            missing.push(gone);
        }
        // It is stored also where no slot was of that service.
        changed |= ask.hits > 0 && read.used() > 0;
        read.give_back(ask.hits);
        let allowed = read.held(ask.id).is_some() || read.used() + ask.cost <= ask.limit;
        if allowed && ask.cost > 0 && !ask.peek {
            read.hold(ask.id, ask.ttl_ms, now_ms);
            changed = true;
        }
        // A check that changes nothing stores nothing: if the clock steps back, slots live again that had just expired.
        if changed {
            *self = read.clone();
        }
        (read, allowed, missing)
    }
}

/// A check.
struct Asked {
    limit: u64,
    ttl_ms: u64,
    id: SlotId,
    acts: Vec<(SlotAct, InFlightSlot)>,
    hits: u64,
    cost: u64,
    peek: bool,
}

impl Asked {
    fn any(
        random: &mut Random,
        (limit, ttl_ms): (u64, u64),
        step: u64,
        names: &[InFlightSlot],
    ) -> Self {
        let hits = random.below(3) * u64::from(random.one_in(10));
        let mark = random.pick(&[SlotId::SERVICE, SlotId::PROGRAM, 7]);
        let mut id = SlotId::new(START_MS / 1000, mark, 1_000_000 + 1000 * step);
        // A request repeats its check, but none from before an edit of the ttl: a slot's name in the bucket has its ttl,
        // so it would have two slots until one lapses.
        for name in names
            .iter()
            .rev()
            .take(8)
            .filter(|name| name.ttl_ms == ttl_ms)
        {
            if random.one_in(20) {
                id = name.id;
            }
        }
        // Hits that end come without a request.
        if hits > 0 {
            id = SlotId::default();
        }
        let mut acts = Vec::new();
        for _ in 0..random.below(4) {
            let back = usize::try_from(random.below(3 * limit + 4)).unwrap();
            let act = random.pick(&[
                SlotAct::Free(1),
                SlotAct::Renew,
                SlotAct::Renew,
                SlotAct::Enter,
            ]);
            acts.extend(names.iter().rev().nth(back).map(|name| (act, *name)));
        }
        let cost = u64::from(hits == 0 && !random.one_in(5));
        let peek = random.one_in(8);
        Self {
            limit,
            ttl_ms,
            id,
            acts,
            hits,
            cost,
            peek,
        }
    }

    fn decide(&self, stored: &mut Option<Stored>, now_ms: u64) -> LimitVerdict {
        let parameters = Parameters::new(Kind::Concurrency, self.limit, self.ttl_ms);
        let algorithm = Algorithm::new(&parameters).unwrap().for_request(self.id);
        let named = |(act, slot): &(SlotAct, InFlightSlot)| SlotOp {
            slot: (*slot).into(),
            act: *act,
        };
        let options = Options {
            peek: self.peek,
            debits: Debits::Refunded,
            ..Options::default()
        };
        let asked = Part {
            free: self.acts.iter().map(named).collect(),
            debit: self.hits,
            ..part(&algorithm, self.cost)
        };
        let (verdict, write) = ask((&asked, stored.as_ref(), None), now_ms, options);
        *stored = write.or(stored.take());
        verdict
    }
}

fn walk(mut random: Random) -> [u64; 5] {
    let mut seen = [0; 5];
    let (mut now_ms, mut stored, mut model) = (START_MS, None, Model::default());
    let (mut limit, mut ttl_ms) = (1 + random.below(12), random.pick(&TTLS_MS));
    let edited_at = random.below(STEPS_PER_WALK);
    let mut names: Vec<InFlightSlot> = Vec::new();
    for step in 0..STEPS_PER_WALK {
        if random.one_in(100) {
            limit = 1 + random.below(12);
        }
        // It is lowered, and once: entered under one ttl, a slot has that in its name, and is not found under a third.
        if step == edited_at {
            ttl_ms = ttl_ms.min(random.pick(&TTLS_MS));
        }
        now_ms = random.tick(now_ms, ttl_ms / 2);
        let asked = Asked::any(&mut random, (limit, ttl_ms), step, &names);
        let verdict = asked.decide(&mut stored, now_ms);

        let held = model.read(now_ms).held(asked.id).is_some();
        let (read, allowed, missing) = model.check(&asked, now_ms);
        let full = read.used() >= limit;
        let gone = missing.contains(&true);
        count(
            &mut seen,
            [
                !allowed,
                held && allowed && full,
                read.used() > limit,
                gone,
                asked.hits > 0,
            ],
        );
        let mut decision = verdict.decision;
        assert_eq!(decision.allowed, allowed, "{decision:?}");
        let charges = allowed && asked.cost > 0 && !asked.peek;
        assert_eq!(verdict.charged > 0, charges);
        if verdict.charged > 0 {
            let name = InFlightSlot {
                id: asked.id,
                ttl_ms,
            };
            names.extend((!held).then_some(name));
            assert_eq!(verdict.slot.map(InFlightSlot::from), Some(name));
        } else {
            let bits = verdict
                .slot
                .map(|slot| Missing::new(slot.start_ms, slot.parts));
            let is_missing =
                |(nth, gone): (usize, &bool)| bits.unwrap_or_default().contains(nth) == *gone;
            assert!(missing.iter().enumerate().all(is_missing));
        }
        // What else would fit says little of a request that has a slot.
        let left = limit.saturating_sub(read.used());
        if read.clone().held(asked.id).is_some() {
            decision.remaining = left;
        }
        let fits = |ms| read.read(ms).used() + asked.cost <= limit;
        let unused = |ms| read.read(ms).used() == 0;
        assert_decides(decision, now_ms, (allowed, left, false), fits, unused);
    }
    seen
}

#[test]
fn slots_are_held_as_a_model_of_a_list_holds_them() {
    walks(walk);
}
