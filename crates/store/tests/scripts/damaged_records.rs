//! A record that somebody or something damaged: its check gets an answer or is reported as corrupt, and the other
//! checks of the call are decided all the same.

use crate::support::random::{Random, Walk};
use crate::support::{LuaRedis, Penalized, Scripts, Subject, script_check};
use algorithms::check::{Options, Part};
use algorithms::{Algorithm, Kind, Parameters, Penalty};
use store::script::{Bucket, Clock, ScriptCheck};

/// What a damaged number may be.
const NUMBERS: [&str; 8] = [
    "",
    "0",
    "-1",
    "x",
    "9007199254740992",
    "99999999999999999999",
    "1e300",
    "1.5",
];

/// Damages a text: one of its numbers, its end, or a byte.
fn damaged(before: &[u8], chance: &mut Random) -> Vec<u8> {
    let text = damaged_text(before, chance);
    let shown = String::from_utf8_lossy;
    println!("{:?} -> {:?}", shown(before), shown(&text));
    text
}

fn damaged_text(text: &[u8], chance: &mut Random) -> Vec<u8> {
    let mut text = text.to_vec();
    if text.is_empty() {
        return b"x".to_vec();
    }
    let at = chance.below_len(text.len());
    match chance.below_len(4) {
        0 => text.truncate(at),
        1 => text[at] = chance.pick(b":;,x9|\xff\x7f"),
        _ => {
            let digit = |at: &usize| text.get(*at).is_some_and(u8::is_ascii_digit);
            let start = (at..text.len()).find(digit).unwrap_or(at);
            let end = (start..=text.len()).find(|at| !digit(at)).unwrap_or(start);
            let number = chance.pick(&NUMBERS).bytes();
            text.splice(start..end, number);
        }
    }
    text
}

/// Damages what is stored at a key; returns whether there was anything.
fn damage(lua: &LuaRedis, key: &str, chance: &mut Random) -> bool {
    type Bytes = Vec<u8>;
    let is = |kind: &str| lua.type_of(key) == kind;
    if is("string") {
        let text: Bytes = lua.bytes(&[b"GET", key.as_bytes()]).remove(0);
        lua.bytes(&[
            b"SET",
            key.as_bytes(),
            &damaged(&text, chance),
            b"PX",
            b"86400000",
        ]);
    } else if is("hash") {
        let fields = lua.bytes(&[b"HGETALL", key.as_bytes()]);
        let nth = 2 * chance.below_len(fields.len() / 2);
        let text = damaged(&fields[nth + 1], chance);
        lua.bytes(&[b"HSET", key.as_bytes(), &fields[nth], &text]);
    } else if is("zset") {
        let members = lua.bytes(&[b"ZRANGE", key.as_bytes(), b"0", b"-1", b"WITHSCORES"]);
        let nth = 2 * chance.below_len(members.len() / 2);
        let (member, score) = (&members[nth], &members[nth + 1]);
        println!("{:?} {:?}", String::from_utf8_lossy(member), score);
        lua.bytes(&[b"ZREM", key.as_bytes(), member]);
        let scores: [&[u8]; 4] = [score, b"9007199254740992", b"1e300", b"-1.5"];
        let (member, score) = if chance.one_in(2) {
            (damaged(member, chance), scores[0])
        } else {
            (member.clone(), scores[chance.below_len(4)])
        };
        lua.bytes(&[b"ZADD", key.as_bytes(), score, &member]);
    } else if is("list") {
        let items = lua.bytes(&[b"LRANGE", key.as_bytes(), b"0", b"-1"]);
        let nth = chance.below_len(items.len());
        let text = damaged(&items[nth], chance);
        lua.bytes(&[b"LSET", key.as_bytes(), nth.to_string().as_bytes(), &text]);
    } else {
        return false;
    }
    true
}

fn walk(mut walk: Walk, seed: u64, step: impl Fn(&mut Walk) -> (u64, Vec<Subject>)) -> (u64, u64) {
    let (mut lua, mut chance) = (LuaRedis::new(), Random::new(seed ^ 0xda3a));
    let healthy = Algorithm::new(&Parameters::new(Kind::TokenBucket, 1_000_000, 1000)).unwrap();
    let (mut harmed, mut corrupt) = (0, 0);
    for number in 0..60 {
        let (now_ms, mut subjects) = step(&mut walk);
        for subject in &mut subjects {
            if subject.penalty.is_none() && subject.costs.is_none() && chance.one_in(3) {
                subject.penalty = Some(Penalized {
                    key: format!("p:{{{}}}", subject.key),
                    penalty: Penalty::new(3, 60_000, 1000),
                    reported: 0,
                    counts: true,
                });
            }
        }
        let other = ScriptCheck {
            limits: vec![Bucket::new("healthy", Part::new(&healthy, 1))],
            options: Options::default(),
        };
        let checks = [script_check(&subjects, Options::default()), other];
        let reply = lua.batch(&checks, Clock::Injected(now_ms));
        let (of_walk, other) = (&reply.results[0], &reply.results[1]);
        corrupt +=
            u64::from(matches!(of_walk, Err(error) if format!("{error:?}").contains("Corrupt")));
        assert!(other.as_ref().unwrap().allowed, "seed {seed} step {number}");
        if let Ok(verdict) = of_walk {
            walk.observe(verdict);
            if let [subject] = &subjects[..] {
                walk.observe_costs(subject, verdict);
            }
        } else {
            for subject in &subjects {
                lua.bytes(&[b"DEL", subject.key.as_bytes()]);
            }
        }
        for subject in &subjects {
            let beside = [
                subject.costs.as_ref().map(|costs| costs.key.clone()),
                subject.penalty.as_ref().map(|penalty| penalty.key.clone()),
            ];
            let keys = [Some(subject.key.clone())]
                .into_iter()
                .chain(beside)
                .flatten();
            let keys: Vec<String> = keys.collect();
            let key = &keys[chance.below_len(keys.len())];
            if chance.one_in(2) && damage(&lua, key, &mut chance) {
                harmed += 1;
            }
        }
    }
    (harmed, corrupt)
}

fn sum(of: impl Fn(u64) -> (u64, u64)) {
    let sums = (0..50).map(of);
    let (harmed, corrupt) = sums.fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    assert!(harmed > 333 && corrupt > 33, "{harmed} {corrupt}");
}

#[test]
fn a_damaged_bucket_fails_no_other_check() {
    sum(|seed| walk(Walk::new(seed), seed, Walk::step));
}

#[test]
fn a_damaged_debt_fails_no_other_check() {
    sum(|seed| walk(Walk::of_debts(seed), seed, Walk::debts_step));
}

#[test]
fn a_damaged_queue_fails_no_other_check() {
    sum(|seed| walk(Walk::of_a_queue(seed), seed, Walk::queue_step));
}

#[test]
fn a_damaged_slot_fails_no_other_check() {
    sum(|seed| walk(Walk::of_slots(seed), seed, Walk::slots_step));
}

#[test]
fn a_damaged_reservation_fails_no_other_check() {
    sum(|seed| walk(Walk::of_costs(seed), seed, Walk::costs_step));
}

#[test]
fn a_damaged_adaptive_limit_fails_no_other_check() {
    sum(|seed| walk(Walk::of_an_adaptive_limit(seed), seed, Walk::adaptive_step));
}

/// No script writes such a time: the record would end before it is written.
#[test]
fn a_penalty_that_ended_before_it_began_fails_no_check() {
    let mut lua = LuaRedis::new();
    lua.set_time(1_763_000_040, 0);
    lua.bytes(&[b"SET", b"p:{bucket}", b"9000000000000:0:0:0"]);
    let healthy = Algorithm::new(&Parameters::new(Kind::TokenBucket, 10, 1000)).unwrap();
    let subjects = [Subject {
        penalty: Some(Penalized {
            key: "p:{bucket}".to_owned(),
            penalty: Penalty::new(3, 60_000, 1000),
            reported: 0,
            counts: true,
        }),
        ..Subject::new("bucket", healthy)
    }];
    let check = script_check(&subjects, Options::default());
    let verdict = lua.batch(&[check], Clock::Server).results.remove(0);
    assert!(verdict.unwrap().allowed);
}
