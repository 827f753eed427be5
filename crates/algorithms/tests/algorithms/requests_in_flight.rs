//! Slots of requests in flight: what one bucket answers.
use algorithms::check::{Options, Part, Stored, check};
use algorithms::{
    Algorithm, InFlightSlot, Kind, Missing, Parameters, Slot, SlotAct, SlotId, SlotOp, State,
};

use crate::support::{Subject, count, histories, moved, part};

const TTL_MS: u64 = 10_000;

/// A bucket and its clock.
struct Bucket {
    limit: u64,
    ttl_ms: u64,
    stored: Option<Stored>,
    now_ms: u64,
}

fn bucket(limit: u64) -> Bucket {
    Bucket {
        limit,
        ttl_ms: TTL_MS,
        stored: None,
        now_ms: 1_763_000_000_000,
    }
}

fn id(n: u64) -> SlotId {
    SlotId::new(1_763_000_000, 9, n)
}

impl Bucket {
    /// Whether a check passes, the slot it gets or the bits of those that are missing, and how long to wait.
    fn ask(&mut self, id: SlotId, cost: u64, free: &[SlotOp]) -> (bool, Option<Slot>, Option<u64>) {
        let parameters = Parameters::new(Kind::Concurrency, self.limit, self.ttl_ms);
        let algorithm = Algorithm::new(&parameters).unwrap().for_request(id);
        let part = Part {
            free,
            ..part(&algorithm, self.stored.as_ref(), cost)
        };
        let (verdict, mut writes) = check(&[part], self.now_ms, Options::default()).unwrap();
        let limit = verdict.limits[0];
        self.stored = writes.remove(0).or(self.stored.take());
        let decision = limit.decision;
        (decision.allowed, limit.slot, decision.retry_after.millis())
    }

    /// Frees, renews or enters a slot by a name that claims a ttl; returns whether it was missing.
    fn act(&mut self, act: SlotAct, n: u64, ttl_ms: u64) -> &'static str {
        let slot = InFlightSlot { id: id(n), ttl_ms }.into();
        let (_, missing, _) = self.ask(SlotId::default(), 0, &[SlotOp { slot, act }]);
        match missing {
            Some(bits) if Missing::new(bits.start_ms, bits.parts).contains(0) => "missing",
            _ => "held",
        }
    }

    /// Ids of the slots that have not expired.
    fn held(&self) -> Vec<String> {
        let state = self.stored.as_ref().map(|stored| &stored.state);
        let Some(State::Concurrency(state)) = state else {
            return Vec::new();
        };
        let live = state.slots().filter(|(_, at_ms)| *at_ms > self.now_ms);
        live.map(|(slot, _)| slot.id.secret.to_string()).collect()
    }
}

impl Subject for Bucket {
    /// `take ID...` and `deny ID`, `free`, `renew` or `enter ID [TTL]`, `held`, an edit, or a move of the clock.
    fn step(&mut self, verb: &str, arguments: &[&str]) -> String {
        let number = |nth: usize| count(arguments[nth]);
        let ttl_ms = arguments.get(1).map_or(TTL_MS, |word| count(word));
        match verb {
            "take" => {
                let mut all = arguments.iter().map(|n| self.ask(id(count(n)), 1, &[]).0);
                assert!(all.all(|allowed| allowed), "{arguments:?}");
            }
            "deny" => {
                let (allowed, _, wait_ms) = self.ask(id(number(0)), 1, &[]);
                assert!(!allowed, "{arguments:?}");
                return wait_ms.unwrap().to_string();
            }
            "free" => _ = self.act(SlotAct::Free(1), number(0), ttl_ms),
            "renew" => return self.act(SlotAct::Renew, number(0), ttl_ms).to_owned(),
            "enter" => return self.act(SlotAct::Enter, number(0), ttl_ms).to_owned(),
            "held" => return self.held().join(" "),
            "limit" => self.limit = number(0),
            "ttl" => self.ttl_ms = number(0),
            by => self.now_ms = moved(self.now_ms, by),
        }
        String::new()
    }
}

histories! {
    /// Also above a limit that was lowered.
    a_take_that_is_repeated_is_allowed_and_counts_once: bucket(2),
        "take 1 2; deny 3; take 1; held = 1 2; free 2; take 1 3; deny 4; limit 1; take 3; deny 4";
    an_expired_slot_is_not_counted_and_a_renewed_one_lives_on: bucket(2),
        "take 1 2; +5000; renew 2 = held; +4999; deny 3; +1; take 3; deny 4; held = 2 3";
    a_lapsed_slot_is_entered_above_the_limit_and_none_is_admitted_until_fewer_are_held: bucket(1),
        "take 1; +10_000; take 2; renew 1 = missing; held = 2; enter 1; enter 1; held = 1 2;
         free 2; deny 3; free 1; take 3";
    freeing_a_slot_repeatedly_frees_no_other_slot: bucket(2),
        "take 1 2; free 1; free 7; held = 2; free 1; free 7; held = 2; free 1; free 7; held = 2";
    after_a_step_back_of_the_clock_no_slot_lives_longer_than_its_ttl: bucket(1),
        "take 1; -1_000_000; deny 2 = 10_000; +10_000; take 2";
    a_slot_keeps_the_ttl_that_it_was_given: bucket(1),
        "take 1; ttl 1000; +9999; deny 2; renew 1 = held; +9999; deny 2; +1; take 2";
    /// Its holder renews and frees it by the name that it has.
    an_entered_slot_lives_for_the_limits_own_ttl_whatever_its_name_claims: bucket(1),
        "enter 1 86_400_000; deny 2; +9999; renew 1 86_400_000 = held; +9999; enter 1 86_400_000 = held;
         held = 1; +9999; deny 2; free 1 86_400_000; take 2; free 2;
         enter 3 86_400_000; +10_000; renew 3 86_400_000 = missing; take 4";
}
