//! Slots of requests in flight in the script: what the comparison with the algorithm does not cover.

use crate::support::LuaRedis;
use algorithms::check::{Options, Part};
use algorithms::{
    Algorithm, Debits, InFlightSlot, Kind, Missing, Parameters, SlotAct, SlotId, SlotOp,
};
use store::script::{Charge, Clock, ScriptCheck, ScriptError, ScriptLimit};

const NOW: u64 = 1_763_000_040_000;
const TTL_MS: u64 = 10_000;
const KEY: &str = "slots";

/// A bucket that the script keeps.
struct Bucket {
    redis: LuaRedis,
    limit: u64,
}

/// What a check finds.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    remaining: u64,
    missing: Missing,
}

impl Bucket {
    fn new(limit: u64) -> Self {
        let redis = LuaRedis::new();
        Self { redis, limit }
    }

    fn ask(
        &self,
        clock: Clock,
        id: SlotId,
        cost: u64,
        free: &[SlotOp],
        options: Options,
    ) -> Result<Found, ScriptError> {
        let parameters = Parameters::new(Kind::Concurrency, self.limit, TTL_MS);
        let algorithm = Algorithm::new(&parameters).unwrap().for_request(id);
        let given_back = u64::from(options.debits == Debits::Refunded);
        let limit = ScriptLimit::new(
            KEY.as_bytes(),
            Part {
                cost,
                debit: given_back,
                free,
                ..Part::new(&algorithm, 1)
            },
        );
        let check = ScriptCheck {
            limits: vec![limit],
            options,
        };
        let mut reply = self.redis.batch(&[check], clock);
        let verdict = reply.results.remove(0)?;
        let limit = verdict.limits.first().unwrap();
        let bits = limit.slot.filter(|_| limit.charged == 0);
        Ok(Found {
            remaining: limit.decision.remaining,
            missing: bits.map_or_else(Missing::default, |b| Missing::new(b.start_ms, b.parts)),
        })
    }

    fn take(&self, now_ms: u64, secret: u64) -> u64 {
        let clock = Clock::Injected(now_ms);
        let found = self.ask(clock, id(secret), 1, &[], Options::default());
        found.unwrap().remaining
    }

    fn act(&self, now_ms: u64, acts: &[SlotOp]) -> Found {
        let clock = Clock::Injected(now_ms);
        let none = SlotId::default();
        self.ask(clock, none, 0, acts, Options::default()).unwrap()
    }

    /// Gives back one slot of a holder that names none.
    fn give_back(&self, now_ms: u64) -> u64 {
        let options = Options {
            peek: true,
            debits: Debits::Refunded,
            ..Options::default()
        };
        let clock = Clock::Injected(now_ms);
        let found = self.ask(clock, SlotId::default(), 0, &[], options);
        found.unwrap().remaining
    }

    /// How many members the set has beside its marks.
    fn stored(&self) -> i64 {
        self.redis.command::<i64>(&["ZCARD", KEY]) - 2
    }
}

/// The id of a request that came through Envoy's rate limit service.
fn id(secret: u64) -> SlotId {
    SlotId::new(1_763_000_000, SlotId::SERVICE, secret)
}

fn act(act: SlotAct, secret: u64) -> SlotOp {
    let slot = InFlightSlot {
        id: id(secret),
        ttl_ms: TTL_MS,
    };
    SlotOp {
        slot: slot.into(),
        act,
    }
}

#[test]
fn renewing_a_hundred_slots_names_each_missing_one() {
    let bucket = Bucket::new(200);
    for held in [3, 49, 50, 77, 99] {
        bucket.take(NOW, held);
    }
    let renewed: Vec<_> = (0..102).map(|nth| act(SlotAct::Renew, nth)).collect();
    let found = bucket.act(NOW + 1, &renewed);
    let missing: Vec<usize> = (0..102).filter(|n| found.missing.contains(*n)).collect();
    let gone = (0..100).filter(|nth| ![3, 49, 50, 77, 99].contains(nth));
    assert_eq!(missing, gone.collect::<Vec<_>>());
}

#[test]
fn a_free_removes_what_expired_too() {
    let bucket = Bucket::new(5);
    for (nth, secret) in (0..).zip([1, 2, 3]) {
        bucket.take(NOW + nth * TTL_MS / 4, secret);
    }
    let later = NOW + TTL_MS + TTL_MS / 4;
    bucket.act(later, &[act(SlotAct::Free(1), 3)]);
    assert_eq!(bucket.stored(), 0);
}

/// After a step back of the clock it would count again.
#[test]
fn a_refund_removes_what_expired_too() {
    let bucket = Bucket::new(5);
    bucket.take(NOW, 1);
    let at_ms = NOW + TTL_MS / 2;
    bucket.take(at_ms, 2);
    let parameters = Parameters::new(Kind::Concurrency, 5, TTL_MS);
    let algorithm = Algorithm::new(&parameters).unwrap();
    let charge = Charge {
        key: KEY.as_bytes(),
        algorithm: &algorithm,
        generation: 1,
        units: 1,
        at_ms,
        lease_ttl_ms: 0,
        slot: Some(act(SlotAct::Free(1), 2).slot),
    };
    let clock = Clock::Injected(NOW + TTL_MS);
    let refunded = bucket.redis.refund(&[charge], clock);
    assert!(refunded.iter().all(|refunded| refunded.taken));
    assert_eq!(bucket.stored(), 0);
}

#[test]
fn a_set_lives_a_little_longer_than_its_slots() {
    let bucket = Bucket::new(5);
    let taken = bucket.ask(Clock::Server, id(1), 1, &[], Options::default());
    assert_eq!(taken.unwrap().remaining, 4);
    assert_eq!(bucket.redis.ttl(KEY), 11_000);
    let free = [act(SlotAct::Free(1), 1)];
    let none = SlotId::default();
    let freed = bucket.ask(Clock::Server, none, 0, &free, Options::default());
    assert_eq!(freed.unwrap().remaining, 5);
    assert_eq!(bucket.redis.ttl(KEY), 1000, "marks alone");
}

#[test]
fn a_foreign_sorted_set_is_corrupt() {
    let marks = |generation: &str, at: &str| {
        let bucket = Bucket::new(5);
        let text = ["ZADD", KEY, generation, "g", at, "t"];
        bucket.redis.command::<i64>(&text);
        let clock = Clock::Injected(NOW);
        bucket.ask(clock, id(1), 1, &[], Options::default())
    };
    assert!(marks("-2", "-1763000040001").is_ok());
    let corrupt = Err(ScriptError::Corrupt { limit: 0 });
    assert_eq!(marks("-9007199254740992", "-2"), corrupt);

    let bucket = Bucket::new(5);
    bucket.redis.command::<i64>(&["ZADD", KEY, "7", "slot"]);
    let clock = Clock::Injected(NOW);
    let asked = bucket.ask(clock, id(1), 1, &[], Options::default());
    assert_eq!(asked, corrupt, "without marks");
}

/// The order is the algorithm's, whichever slot was taken first.
#[test]
fn a_refund_takes_the_first_slot_by_name_of_those_expiring_together() {
    let bucket = Bucket::new(5);
    bucket.take(NOW, 9);
    bucket.take(NOW + 5, 10);
    // Both are cut to one ttl from here.
    let back = NOW - 100 * TTL_MS;
    assert_eq!(bucket.give_back(back), 4);
    let renewed = [act(SlotAct::Renew, 9), act(SlotAct::Renew, 10)];
    let found = bucket.act(back, &renewed);
    let missing = [0, 1].map(|position| found.missing.contains(position));
    assert_eq!(missing, [false, true]);
}
