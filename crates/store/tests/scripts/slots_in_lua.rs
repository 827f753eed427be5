//! Slots of requests in flight in the script: what the comparison with the algorithm does not cover.

use crate::support::{Engine, LuaRedis, RustEngine, Scripts, Subject, algorithm, script_check};
use algorithms::check::{Options, Part};
use algorithms::{
    Adaptive, Algorithm, Charged, Debits, InFlightSlot, Kind, Missing, Pace, Parameters, SlotAct,
    SlotId, SlotOp,
};
use store::script::{self, Charge, Clock, ScriptError};

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

    fn subject(&self, id: SlotId, cost: u64, acts: &[SlotOp]) -> Subject {
        let algorithm = algorithm(Kind::Concurrency, self.limit, TTL_MS).for_request(id);
        let mut subject = Subject::new(KEY, algorithm);
        subject.cost = cost;
        subject.lease.free = acts.to_vec();
        subject
    }

    fn ask(
        &mut self,
        clock: Clock,
        subject: Subject,
        options: Options,
    ) -> Result<Found, ScriptError> {
        let subjects = [subject];
        let check = script_check(&subjects, options);
        let verdict = self.redis.batch(&[check], clock).results.remove(0)?;
        let limit = &verdict.limits[0];
        let bits = limit.slot.filter(|_| limit.charged == 0);
        Ok(Found {
            remaining: limit.decision.remaining,
            missing: bits.map_or_else(Missing::default, |b| Missing::new(b.start_ms, b.parts)),
        })
    }

    fn take_at(&mut self, clock: Clock, secret: u64) -> Result<u64, ScriptError> {
        let subject = self.subject(id(secret), 1, &[]);
        Ok(self.ask(clock, subject, Options::default())?.remaining)
    }

    fn take(&mut self, now_ms: u64, secret: u64) -> u64 {
        self.take_at(Clock::Injected(now_ms), secret).unwrap()
    }

    fn act(&mut self, clock: Clock, acts: &[SlotOp]) -> Found {
        let subject = self.subject(SlotId::default(), 0, acts);
        self.ask(clock, subject, Options::default()).unwrap()
    }

    /// Gives back one slot of a holder that names none.
    fn give_back(&mut self, now_ms: u64) -> u64 {
        let options = Options {
            peek: true,
            debits: Debits::Refunded,
            ..Options::default()
        };
        let mut subject = self.subject(SlotId::default(), 0, &[]);
        subject.debit = 1;
        self.ask(Clock::Injected(now_ms), subject, options)
            .unwrap()
            .remaining
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
    let mut bucket = Bucket::new(200);
    for held in [3, 49, 50, 77, 99] {
        bucket.take(NOW, held);
    }
    let renewed: Vec<_> = (0..102).map(|nth| act(SlotAct::Renew, nth)).collect();
    let found = bucket.act(Clock::Injected(NOW + 1), &renewed);
    let missing: Vec<usize> = (0..102).filter(|n| found.missing.contains(*n)).collect();
    let gone = (0..100).filter(|nth| ![3, 49, 50, 77, 99].contains(nth));
    assert_eq!(missing, gone.collect::<Vec<_>>());
}

#[test]
fn a_free_removes_what_expired_too() {
    let mut bucket = Bucket::new(5);
    for (nth, secret) in (0..).zip([1, 2, 3]) {
        bucket.take(NOW + nth * TTL_MS / 4, secret);
    }
    let later = NOW + TTL_MS + TTL_MS / 4;
    bucket.act(Clock::Injected(later), &[act(SlotAct::Free(1), 3)]);
    assert_eq!(bucket.stored(), 0);
}

/// After a step back of the clock it would count again.
#[test]
fn a_refund_removes_what_expired_too() {
    let mut bucket = Bucket::new(5);
    bucket.take(NOW, 1);
    let at_ms = NOW + TTL_MS / 2;
    bucket.take(at_ms, 2);
    let algorithm = algorithm(Kind::Concurrency, 5, TTL_MS);
    let charge = Charge {
        bucket: &script::Bucket::new(KEY, Part::new(&algorithm, 1)),
        charged: Charged {
            at_ms,
            units: 1,
            lease_ttl_ms: 0,
            slot: Some(act(SlotAct::Free(1), 2).slot),
        },
    };
    let clock = Clock::Injected(NOW + TTL_MS);
    let refunded = bucket.redis.refund_all(&[charge], clock);
    assert!(refunded.iter().all(|refunded| refunded.taken));
    assert_eq!(bucket.stored(), 0);
}

#[test]
fn a_set_lives_a_little_longer_than_its_slots() {
    let mut bucket = Bucket::new(5);
    assert_eq!(bucket.take_at(Clock::Server, 1), Ok(4));
    assert_eq!(bucket.redis.ttl(KEY), 11_000);
    let freed = bucket.act(Clock::Server, &[act(SlotAct::Free(1), 1)]);
    assert_eq!(freed.remaining, 5);
    assert_eq!(bucket.redis.ttl(KEY), 1000, "marks alone");
}

#[test]
fn a_foreign_sorted_set_is_corrupt() {
    let of = |members: &[&str]| {
        let mut bucket = Bucket::new(5);
        let words: Vec<_> = ["ZADD", KEY].iter().chain(members).copied().collect();
        bucket.redis.command::<i64>(&words);
        bucket.take_at(Clock::Injected(NOW), 1)
    };
    assert_eq!(of(&["-2", "g", "-1763000040001", "t"]), Ok(4));
    let corrupt = Err(ScriptError::Corrupt { limit: 0 });
    assert_eq!(of(&["-9007199254740992", "g", "-2", "t"]), corrupt);
    assert_eq!(of(&["7", "slot"]), corrupt, "without marks");
}

/// The order is the algorithm's, whichever slot was taken first.
#[test]
fn a_refund_takes_the_first_slot_by_name_of_those_expiring_together() {
    let mut bucket = Bucket::new(5);
    bucket.take(NOW, 9);
    bucket.take(NOW + 5, 10);
    // Both are cut to one ttl from here.
    let back = NOW - 100 * TTL_MS;
    assert_eq!(bucket.give_back(back), 4);
    let renewed = [act(SlotAct::Renew, 9), act(SlotAct::Renew, 10)];
    let found = bucket.act(Clock::Injected(back), &renewed);
    let missing = [0, 1].map(|position| found.missing.contains(position));
    assert_eq!(missing, [false, true]);
}

fn adaptive() -> Parameters {
    Parameters {
        adaptive: Some(Adaptive {
            min: 1,
            max: 200,
            latency_ms: 300,
            share: 950,
        }),
        ..Parameters::new(Kind::Concurrency, 20, TTL_MS)
    }
}

/// That version had the time of the latest write beside the mark of an adaptive limit.
#[test]
fn what_an_earlier_version_kept_of_an_adaptive_limit_goes_on() {
    let algorithm = Algorithm::new(&adaptive()).unwrap();
    let found = |engine: &mut dyn Engine, now_ms, acts: Vec<SlotOp>| {
        let mut subject = Subject::new(KEY, algorithm);
        subject.cost = 0;
        subject.lease.free = acts;
        let options = Options {
            peek: true,
            ..Options::default()
        };
        let mut verdict = engine.check(&[subject], now_ms, options).unwrap();
        let limit = verdict.limits.remove(0);
        (limit.limit_milli.unwrap(), limit.adaptive)
    };
    let entered = || (0..40).map(|secret| act(SlotAct::Enter, secret)).collect();
    let answered = |of: std::ops::Range<u64>| {
        let answered = of.map(|secret| act(SlotAct::Answered(Pace::InTime), secret));
        answered.collect::<Vec<_>>()
    };
    let (mut rust, mut lua) = (RustEngine::default(), LuaRedis::new());
    for engine in [&mut rust as &mut dyn Engine, &mut lua] {
        found(engine, NOW, entered());
        found(engine, NOW, answered(0..10));
    }
    let members = lua.bytes(&[b"ZRANGE", KEY.as_bytes(), b"0", b"1"]);
    let mark = members.iter().find(|member| member.len() > 1).unwrap();
    let time = lua.bytes(&[b"ZSCORE", KEY.as_bytes(), mark]).remove(0);
    lua.bytes(&[b"ZADD", KEY.as_bytes(), b"-1", mark, &time, b"t"]);
    assert_eq!(lua.command::<i64>(&["ZCARD", KEY]), 30 + 3);
    // A slot that is renewed leaves it so, and its time is the later one.
    for (at_ms, acts, marks) in [
        (NOW + 500, vec![act(SlotAct::Renew, 39)], 3),
        (NOW + 500, answered(10..12), 2),
        (NOW + 1000, answered(12..30), 2),
        (NOW + 400, vec![], 2),
    ] {
        let expected = found(&mut rust, at_ms, acts.clone());
        assert_eq!(found(&mut lua, at_ms, acts), expected);
        let slots = lua.command::<i64>(&["ZCOUNT", KEY, "0", "+inf"]);
        assert_eq!(lua.command::<i64>(&["ZCARD", KEY]) - slots, marks);
    }
    assert_eq!(found(&mut rust, NOW + 1000, vec![]).0, 25_000);
}

/// A free of an adaptive limit leaves the time to live as it is, which is that of a slot and an hour.
#[test]
fn a_free_prolongs_no_set_that_lives_long_enough() {
    let adaptive = adaptive();
    let mut lua = LuaRedis::new();
    let ttl_after = |lua: &mut LuaRedis, parameters: Parameters, acts: &[SlotOp]| {
        let mut subject = Subject::new(KEY, Algorithm::new(&parameters).unwrap());
        subject.cost = 0;
        subject.lease.free = acts.to_vec();
        let check = [subject];
        let check = script_check(&check, Options::default());
        assert!(lua.batch(&[check], Clock::Server).results[0].is_ok());
        lua.ttl(KEY)
    };
    let free = |secret| act(SlotAct::Answered(Pace::InTime), secret);
    let enter = |secret| act(SlotAct::Enter, secret);
    let plain = Parameters::new(Kind::Concurrency, 20, TTL_MS);
    let hour_ms = 3_600_000;
    assert_eq!(
        ttl_after(&mut lua, plain, &[enter(1), enter(2), enter(3)]),
        11_000
    );
    // The first of the adaptive limit keeps its mark for so long, whichever limit follows.
    assert_eq!(ttl_after(&mut lua, adaptive, &[free(1)]), 11_000 + hour_ms);
    assert_eq!(ttl_after(&mut lua, adaptive, &[free(2)]), 11_000 + hour_ms);
    assert_eq!(ttl_after(&mut lua, plain, &[free(3)]), 11_000 + hour_ms);
    assert_eq!(ttl_after(&mut lua, plain, &[enter(4)]), 11_000 + hour_ms);
    // A slot that is given or entered prolongs it, also beside one that is freed.
    lua.command::<i64>(&["PEXPIRE", KEY, "5"]);
    assert_eq!(
        ttl_after(&mut lua, adaptive, &[free(4), enter(5)]),
        11_000 + hour_ms
    );
}

/// A negative hit of Envoy's rate limit service costs the same however many requests are in flight.
#[test]
fn a_slot_is_given_back_without_reading_the_others() {
    let read = |held: u64| {
        let mut bucket = Bucket::new(1000);
        (0..held).for_each(|secret| _ = bucket.take(NOW + secret, secret));
        let before = bucket.redis.ranged_items();
        assert_eq!(bucket.give_back(NOW + held), 1001 - held);
        bucket.redis.ranged_items() - before
    };
    assert_eq!(read(500), read(20));
}
