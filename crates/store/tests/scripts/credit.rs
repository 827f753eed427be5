//! Credits: Rust and Lua leave the same state on every input, and what is left rises by what was
//! credited. Walks as in `twins.rs`.

use crate::support::random::{Random, Walk};
use crate::support::{Engine, LuaRedis, RustEngine, Server, Subject};
use algorithms::check::{Options, Part};
use algorithms::{Algorithm, BucketRequest, Kind, LeaseRequest, Parameters};
use store::script::{Clock, Credit, Credited, ScriptLimit};

const WALKS: u64 = 300;
const STEPS_PER_WALK: u64 = 60;

/// A twin that gives units back as well.
trait Creditor: Engine {
    fn give_back(&mut self, credit: &Credit<'_>, now_ms: u64) -> Credited;
}

impl Creditor for LuaRedis {
    fn give_back(&mut self, credit: &Credit<'_>, now_ms: u64) -> Credited {
        self.credit(credit, Clock::Injected(now_ms))
    }
}

impl Creditor for Server {
    fn give_back(&mut self, credit: &Credit<'_>, now_ms: u64) -> Credited {
        self.credit(credit, Clock::Injected(now_ms))
    }
}

impl Creditor for RustEngine {
    fn give_back(&mut self, credit: &Credit<'_>, now_ms: u64) -> Credited {
        let key = String::from_utf8_lossy(credit.limit.key);
        let part = &credit.limit.part;
        let algorithm = part.algorithm;
        let ttl_ms = part.lease.unwrap_or_default().ttl_ms;
        let asked = |state| {
            let ask = BucketRequest {
                lease: LeaseRequest {
                    ttl_ms,
                    ..LeaseRequest::default()
                },
                ..BucketRequest::default()
            };
            let decision = algorithm
                .evaluate_request(state, now_ms, ask)
                .leave()
                .decision;
            (decision.remaining, decision.reset_after_ms)
        };
        if !algorithm.covers(now_ms) {
            return Credited::Stale;
        }
        let Some(stored) = self.buckets.get_mut(key.as_ref()) else {
            let (left, reset_after_ms) = asked(None);
            return done(false, left, left, reset_after_ms);
        };
        if part.generation < stored.generation && !credit.force {
            return Credited::Stale;
        }
        let (before, reset_before) = asked(Some(&stored.state));
        let credited = algorithm.credit_stored(
            stored,
            part.generation,
            (now_ms, ttl_ms),
            credit.units,
            credit.limit.reservations.is_some(),
        );
        let used = credit.units > 0 && reset_before > 0;
        if !used {
            return done(false, before, before, reset_before);
        }
        let (after, reset_after_ms) = asked(Some(&credited.state));
        if !credit.peek {
            *stored = credited;
            // Lists and hashes cannot be empty.
            let lists = [Kind::SlidingWindowLog, Kind::SlidingWindowBuckets];
            if reset_after_ms == 0 && lists.contains(&algorithm.kind()) {
                self.buckets.remove(key.as_ref());
            }
        }
        done(true, before, after, reset_after_ms)
    }
}

fn done(used: bool, left_before: u64, left: u64, reset_after_ms: u64) -> Credited {
    Credited::Done {
        used,
        left_before,
        left,
        reset_after_ms,
    }
}

fn compare(twin: &mut dyn Creditor, walks: u64) {
    let mut given = 0;
    for seed in 0..walks {
        let mut rust = RustEngine::default();
        let mut walk = Walk::new(seed);
        let mut chance = Random::new(seed ^ 0xc4ed);
        for step in 0..STEPS_PER_WALK {
            let (now_ms, subjects) = walk.step();
            // In the year 144,000 a time and the most leased units together exceed what the script
            // can read back.
            if now_ms > 1 << 51 {
                break;
            }
            let options = Options::default();
            let expected = rust.check(&subjects, now_ms, options);
            assert_eq!(
                expected,
                twin.check(&subjects, now_ms, options),
                "seed {seed}"
            );
            if let Ok(verdict) = &expected {
                walk.observe(verdict);
            }
            for subject in &subjects {
                if !chance.one_in(3) {
                    continue;
                }
                let limit = subject.algorithm.limit();
                let credit = Credit {
                    limit: subject.script_limit(),
                    units: chance.pick(&[0, 1, 2, limit / 2, limit, 1 << 52]),
                    peek: chance.one_in(5),
                    force: chance.one_in(20),
                };
                let expected = rust.give_back(&credit, now_ms);
                let actual = twin.give_back(&credit, now_ms);
                assert_eq!(
                    expected,
                    actual,
                    "seed {seed} step {step} at {now_ms}: {credit:#?} {:#?}",
                    rust.buckets.get(&subject.key)
                );
                given += u64::from(matches!(actual, Credited::Done { used: true, .. }));
            }
        }
    }
    assert!(given > walks, "units were given back {given} times");
}

/// Walks of reservations that stay open through credits and edits.
fn compare_costs(twin: &mut dyn Creditor, walks: u64) {
    let (mut given, mut given_back) = (0, 0);
    for seed in 0..walks {
        let mut rust = RustEngine::default();
        let mut walk = Walk::of_costs(seed);
        let mut chance = Random::new(seed ^ 0xc4ed);
        let mut credited = false;
        for step in 0..2 * STEPS_PER_WALK {
            let (now_ms, subjects) = walk.costs_step();
            let options = Options::default();
            let expected = rust.check(&subjects, now_ms, options);
            let actual = twin.check(&subjects, now_ms, options);
            let at = format!("seed {seed} step {step} at {now_ms}");
            assert_eq!(expected, actual, "{at}: {subjects:#?} {:#?}", rust.buckets);
            for (subject, verdict) in subjects.iter().zip(&expected) {
                walk.observe_costs(subject, verdict);
                let back = verdict.limits.iter().map(|limit| limit.reserved.given_back);
                given_back += u64::from(credited && back.sum::<u64>() > 0);
            }
            for subject in &subjects {
                // An emptied list has no key, and Rust forgets its reservations with it.
                let lists = [Kind::SlidingWindowLog, Kind::SlidingWindowBuckets];
                let listed = lists.contains(&subject.algorithm.kind());
                if listed || !chance.one_in(6) {
                    continue;
                }
                let key = format!("r:{{{}}}", subject.key);
                let limit = subject.algorithm.limit();
                let credit = Credit {
                    limit: ScriptLimit {
                        reservations: Some(key.as_bytes()).filter(|_| !chance.one_in(9)),
                        ..ScriptLimit::new(
                            subject.key.as_bytes(),
                            Part::new(&subject.algorithm, subject.generation),
                        )
                    },
                    units: chance.pick(&[1, 2, limit / 9, limit / 2, 1 << 52]),
                    peek: chance.one_in(5),
                    force: chance.one_in(20),
                };
                let expected = rust.give_back(&credit, now_ms);
                assert_eq!(expected, twin.give_back(&credit, now_ms), "{at}");
                credited = matches!(expected, Credited::Done { used: true, .. });
                given += u64::from(credited);
            }
        }
    }
    assert!(
        given > walks && given_back > walks / 9,
        "{given} {given_back}"
    );
}

#[test]
fn in_an_interpreter() {
    compare(&mut LuaRedis::new(), WALKS);
}

#[test]
fn reservations_in_an_interpreter() {
    compare_costs(&mut LuaRedis::new(), WALKS / 4);
}

#[test]
#[ignore = "needs a server"]
fn reservations_on_redis() {
    compare_costs(&mut Server::start(harness::Engine::Redis), WALKS);
}

#[test]
#[ignore = "needs a server"]
fn on_redis() {
    compare(&mut Server::start(harness::Engine::Redis), WALKS);
}

#[test]
#[ignore = "needs a server"]
fn on_valkey() {
    compare(&mut Server::start(harness::Engine::Valkey), WALKS);
}

fn kinds() -> Vec<Parameters> {
    let sub_windows = Parameters {
        sub_windows: Some(10),
        ..Parameters::new(Kind::SlidingWindowBuckets, 100, 60_000)
    };
    let queue = Parameters {
        max_delay_ms: Some(60_000),
        ..Parameters::new(Kind::LeakyBucket, 100, 60_000)
    };
    let plain = [
        Kind::TokenBucket,
        Kind::Gcra,
        Kind::LeakyBucket,
        Kind::FixedWindow,
        Kind::SlidingWindowLog,
        Kind::SlidingWindow,
    ];
    let plain = plain.map(|kind| Parameters::new(kind, 100, 60_000));
    plain.into_iter().chain([sub_windows, queue]).collect()
}

/// Within one window, what is left rises by exactly what was credited, and by no more than was used.
#[test]
fn a_credit_raises_what_is_left_up_to_the_quota() {
    for parameters in kinds() {
        let mut redis = LuaRedis::new();
        let mut subject = Subject {
            cost: 20,
            ..Subject::new("bucket", Algorithm::new(&parameters).unwrap())
        };
        let now_ms = 1_763_000_040_000;
        for at_ms in [now_ms, now_ms, now_ms + 1] {
            let subjects = std::slice::from_ref(&subject);
            let verdict = redis.check(subjects, at_ms, Options::default()).unwrap();
            assert!(verdict.allowed, "{parameters:?}");
        }
        let credit = |units| Credit {
            limit: ScriptLimit::new(b"bucket", Part::new(&subject.algorithm, 1)),
            units,
            peek: false,
            force: false,
        };
        let left = |credited| match credited {
            Credited::Done {
                used: true,
                left_before,
                left,
                ..
            } => (left_before, left),
            other => panic!("{other:?}"),
        };
        let at_ms = now_ms + 1;
        assert_eq!(
            left(redis.give_back(&credit(25), at_ms)),
            (40, 65),
            "{parameters:?}"
        );
        assert_eq!(
            left(redis.give_back(&credit(1000), at_ms)),
            (65, 100),
            "{parameters:?}"
        );
        let unused = redis.give_back(&credit(1), at_ms);
        assert_eq!(unused, done(false, 100, 100, 0), "{parameters:?}");
        // And all of it can be used again, once.
        subject.cost = 100;
        let subjects = std::slice::from_ref(&subject);
        let again = redis.check(subjects, at_ms, Options::default()).unwrap();
        assert!(again.allowed, "{parameters:?}");
        let over = redis.check(subjects, at_ms, Options::default()).unwrap();
        assert!(!over.allowed, "{parameters:?}");
    }
}

/// A credit removes the newest units first, so that it lasts for as long as they would have counted.
#[test]
fn a_credit_removes_the_newest_units_of_logs_and_sub_windows_first() {
    for parameters in kinds() {
        if ![Kind::SlidingWindowLog, Kind::SlidingWindowBuckets].contains(&parameters.kind) {
            continue;
        }
        let mut redis = LuaRedis::new();
        let mut subject = Subject {
            cost: 40,
            ..Subject::new("bucket", Algorithm::new(&parameters).unwrap())
        };
        let start_ms = 1_763_000_040_000;
        for at_ms in [start_ms, start_ms + 30_000] {
            let subjects = std::slice::from_ref(&subject);
            assert!(
                redis
                    .check(subjects, at_ms, Options::default())
                    .unwrap()
                    .allowed
            );
        }
        let credit = Credit {
            limit: ScriptLimit::new(b"bucket", Part::new(&subject.algorithm, 1)),
            units: 40,
            peek: false,
            force: false,
        };
        redis.give_back(&credit, start_ms + 30_000);
        // The first 40 are forgotten a window after they came; the others are gone already.
        subject.cost = 100;
        let subjects = std::slice::from_ref(&subject);
        let gone_ms = start_ms + 66_000;
        let verdict = redis.check(subjects, gone_ms, Options::default()).unwrap();
        assert!(verdict.allowed, "{verdict:?}");
    }
}
