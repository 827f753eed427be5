//! Rust and Lua give equal integers on every input: random limits of every algorithm, edited
//! live, charged at times that step both ways. `RL_TWIN_STEPS` sets how many steps for each of the
//! interpreter and the servers; a failure names the seed of its walk, for `RL_TWIN_SEED`.

use crate::support::random::{Random, Walk};
use crate::support::{
    Engine, Leasing, LuaRedis, Penalized, RustEngine, Server, Subject, number, script_check,
};
use algorithms::check::{Options, Verdict};
use algorithms::{Algorithm, Debits, Kind, Parameters, Penalty, Settlement, Slot};
use store::script::{Charge, Clock, ScriptError};

const STEPS_PER_WALK: u64 = 60;

fn steps() -> u64 {
    number("RL_TWIN_STEPS", 30_000)
}

fn first_seed() -> u64 {
    number("RL_TWIN_SEED", 0)
}

/// Tests of comparisons: in an interpreter, and on a server of each engine with a part of the steps.
macro_rules! twins {
    ($($test:ident: $compare:ident, 1 / $part:literal;)*) => {$(
        mod $test {
            use super::{LuaRedis, Server, steps};

            #[test]
            fn in_an_interpreter() {
                super::$compare(&mut LuaRedis::new(), steps());
            }

            #[test]
            #[ignore = "needs a server"]
            fn on_redis() {
                super::$compare(&mut Server::start(harness::Engine::Redis), steps() / $part);
            }

            #[test]
            #[ignore = "needs a server"]
            fn on_valkey() {
                super::$compare(&mut Server::start(harness::Engine::Valkey), steps() / $part);
            }
        }
    )*};
}

twins! {
    edits: compare, 1 / 1;
    costs: compare_costs, 1 / 1;
    penalties: compare_penalties, 1 / 1;
    debts: compare_debts, 1 / 3;
    queues: compare_queues, 1 / 3;
    slots: compare_slots, 1 / 3;
}

/// What a check charged: the limit, the units, when, and the slot of a queue.
type Charges = Vec<(Subject, u64, u64, Option<Slot>)>;

/// What a check charged.
fn charges(subjects: &[Subject], verdict: &Result<Verdict, ScriptError>, now_ms: u64) -> Charges {
    let limits = verdict.iter().flat_map(|verdict| &verdict.limits);
    let charged = subjects.iter().zip(limits).filter(|(_, l)| l.charged > 0);
    charged
        .map(|(subject, limit)| (subject.clone(), limit.charged, now_ms, limit.slot))
        .collect()
}

fn any_options(chance: &mut Random, subjects: &[Subject]) -> Options {
    // If everything is given back, Redis deletes the list, and with it the time of its last write;
    // Rust keeps an empty one. Nothing is used either way.
    let lists = [Kind::SlidingWindowLog, Kind::SlidingWindowBuckets];
    let listed = |subject: &Subject| lists.contains(&subject.algorithm.parameters().kind);
    let debits = match chance.below_len(9) {
        0 => Debits::Reported,
        1 if !subjects.iter().any(listed) => Debits::Refunded,
        _ => Debits::Admitted,
    };
    Options {
        peek: debits == Debits::Refunded || chance.one_in(9),
        force: chance.one_in(25),
        denied: false,
        debits,
        patience_ms: 0,
    }
}

/// Checks with both, which must agree; `at` says where in the walk.
fn check_both(
    rust: &mut RustEngine,
    twin: &mut dyn Engine,
    subjects: &[Subject],
    now_ms: u64,
    options: Options,
    at: &str,
) -> Result<Verdict, ScriptError> {
    let expected = rust.check(subjects, now_ms, options);
    let actual = twin.check(subjects, now_ms, options);
    assert_eq!(
        expected, actual,
        "{at} at {now_ms} {options:?} {subjects:#?} {:#?}",
        rust.buckets
    );
    expected
}

/// Walks with both until the steps are used up.
fn compare(twin: &mut dyn Engine, steps: u64) {
    let (mut granted, mut settled) = (0_u64, 0_u64);
    let mut taken = 0;
    for seed in first_seed()..first_seed() + steps.div_ceil(STEPS_PER_WALK) {
        let mut rust = RustEngine::default();
        let mut walk = Walk::new(seed);
        let mut chance = Random::new(seed ^ 0x5eed);
        let mut charged = Charges::new();
        for step in 0..STEPS_PER_WALK {
            let (now_ms, subjects) = walk.step();
            let options = any_options(&mut chance, &subjects);
            let at = format!("seed {seed} step {step}");
            let expected = check_both(&mut rust, twin, &subjects, now_ms, options, &at);
            if let Ok(verdict) = &expected {
                walk.observe(verdict);
                let leases = verdict.limits.iter().filter(|l| l.lease.is_some());
                granted += leases.map(|_| 1).sum::<u64>();
            }
            let settling = subjects.iter().filter(|s| !s.lease.settle.is_empty());
            settled += settling.map(|_| 1).sum::<u64>();
            charged.extend(charges(&subjects, &expected, now_ms));
            // Some charges are refunded, now or later, once or by mistake twice.
            while !charged.is_empty() && chance.one_in(3) {
                let nth = chance.below_len(charged.len());
                let Some((subject, units, at_ms, slot)) = charged.get(nth).cloned() else {
                    break;
                };
                let charge = Charge {
                    key: subject.key.as_bytes(),
                    algorithm: &subject.algorithm,
                    generation: subject.generation,
                    units,
                    lease_ttl_ms: subject.lease.ttl_ms,
                    at_ms,
                    slot,
                };
                let expected = rust.refund(&charge, now_ms);
                let actual = twin.refund(&charge, now_ms);
                assert_eq!(
                    expected, actual,
                    "seed {seed} step {step} at {now_ms}: {charge:?} {:#?}",
                    rust.buckets
                );
                taken += u64::from(expected.taken);
            }
        }
    }
    let often = steps / 100;
    assert!(granted > often && settled > often, "{granted} {settled}");
    assert!(taken > steps / 100, "{taken} charges were refunded");
}

/// Walks of reservations, whose settlements are late, repeated and made up.
fn compare_costs(twin: &mut dyn Engine, steps: u64) {
    let (mut made, mut given_back, mut excess) = (0, 0, 0);
    for seed in first_seed()..first_seed() + steps.div_ceil(2 * STEPS_PER_WALK) {
        let mut rust = RustEngine::default();
        let mut walk = Walk::of_costs(seed);
        let mut chance = Random::new(seed ^ 0xc057);
        for step in 0..2 * STEPS_PER_WALK {
            let (now_ms, subjects) = walk.costs_step();
            let options = Options {
                peek: chance.one_in(9),
                force: chance.one_in(25),
                denied: false,
                debits: match chance.below_len(5) {
                    0 => Debits::Reported,
                    _ => Debits::Admitted,
                },
                patience_ms: 0,
            };
            let at = format!("seed {seed} step {step}");
            let expected = check_both(&mut rust, twin, &subjects, now_ms, options, &at);
            if let Ok(verdict) = &expected {
                for (subject, limit) in subjects.iter().zip(&verdict.limits) {
                    walk.observe_costs(subject, verdict);
                    let reserved = limit.reserved;
                    made += u64::from(reserved.number > 0);
                    given_back += u64::from(reserved.given_back > 0);
                    excess += u64::from(reserved.excess > 0);
                }
            }
        }
    }
    let often = steps / 50;
    assert!(
        made > often && given_back > often && excess > often,
        "{made} {given_back} {excess}"
    );
}

/// Walks of limits with penalties, whose numbers are edited now and then.
fn compare_penalties(twin: &mut dyn Engine, steps: u64) {
    let (mut begun, mut penalized, mut ended) = (0, 0, 0);
    for seed in first_seed()..first_seed() + steps.div_ceil(STEPS_PER_WALK) {
        let (mut rust, mut walk) = (RustEngine::default(), Walk::new(seed));
        let mut chance = Random::new(seed ^ 0xb0bb);
        let mut penalty = any_penalty(&mut chance);
        let mut on = false;
        for step in 0..STEPS_PER_WALK {
            let (now_ms, mut subjects) = walk.step();
            if chance.one_in(30) {
                penalty = any_penalty(&mut chance);
            }
            for subject in &mut subjects {
                subject.penalty = (!chance.one_in(9)).then(|| Penalized {
                    key: format!("p:{{{}}}", subject.key),
                    penalty,
                    reported: match chance.below_len(20) {
                        0 => chance.magnitude(52),
                        1 | 2 => chance.below(4),
                        _ => 0,
                    },
                });
            }
            let options = Options {
                denied: chance.one_in(9),
                patience_ms: match chance.below_len(3) {
                    0 => chance.magnitude(15),
                    _ => 0,
                },
                ..any_options(&mut chance, &subjects)
            };
            let at = format!("seed {seed} step {step}");
            let expected = check_both(&mut rust, twin, &subjects, now_ms, options, &at);
            let verdict = expected.into_iter().flat_map(|verdict| verdict.limits);
            for limit in verdict {
                begun += u64::from(limit.penalty.begun);
                penalized += u64::from(limit.penalty.left_ms > 0);
                ended += u64::from(on && limit.penalty.left_ms == 0);
                on = limit.penalty.left_ms > 0;
            }
        }
    }
    let often = steps / 100;
    assert!(
        begun > often && penalized > often && ended > often,
        "{begun} {penalized} {ended}"
    );
}

fn any_penalty(chance: &mut Random) -> Penalty {
    let for_ms = 1 + chance.magnitude(14);
    Penalty {
        after: 1 + chance.below(5),
        within_ms: 1 + chance.magnitude(16),
        for_ms,
        grow: 1 + chance.below(4),
        max_ms: for_ms + chance.magnitude(17),
    }
}

/// Walks through debits that are charged beyond the capacity.
fn compare_debts(twin: &mut dyn Engine, steps: u64) {
    let mut beyond = 0;
    for seed in first_seed()..first_seed() + steps.div_ceil(STEPS_PER_WALK) {
        let (mut rust, mut walk) = (RustEngine::default(), Walk::of_debts(seed));
        let mut chance = Random::new(seed ^ 0xdeb7);
        for step in 0..STEPS_PER_WALK {
            let (now_ms, subjects) = walk.debts_step();
            let mut options = any_options(&mut chance, &subjects);
            if chance.one_in(2) {
                options.debits = Debits::Reported;
            }
            let at = format!("seed {seed} step {step}");
            let expected = check_both(&mut rust, twin, &subjects, now_ms, options, &at);
            let Ok(verdict) = expected else { continue };
            walk.observe(&verdict);
            for (subject, limit) in subjects.iter().zip(&verdict.limits) {
                let full_ms = subject.algorithm.window_ms();
                beyond += u64::from(limit.decision.reset_after_ms > full_ms);
            }
        }
    }
    assert!(beyond > steps / 10, "{beyond} owed beyond the capacity");
}

/// Walks through busy queues whose requests leave.
fn compare_queues(twin: &mut dyn Engine, steps: u64) {
    const STEPS_PER_QUEUE: u64 = 300;
    let mut given_again = 0;
    for seed in first_seed()..first_seed() + steps.div_ceil(STEPS_PER_QUEUE) {
        let (mut rust, mut walk) = (RustEngine::default(), Walk::of_a_queue(seed));
        let mut chance = Random::new(seed ^ 0x9e0e);
        for step in 0..STEPS_PER_QUEUE {
            let (now_ms, subjects) = walk.queue_step();
            let options = any_options(&mut chance, &subjects);
            let at = format!("seed {seed} step {step}");
            let expected = check_both(&mut rust, twin, &subjects, now_ms, options, &at);
            let Ok(verdict) = expected else { continue };
            walk.observe(&verdict);
            let slots = verdict.limits.iter().filter_map(|limit| limit.slot);
            given_again += slots.filter(|slot| slot.turn > 0).map(|_| 1).sum::<u64>();
        }
    }
    assert!(
        given_again > steps / 10,
        "{given_again} slots were given again"
    );
}

/// Walks through requests in flight that are renewed, freed and entered again.
fn compare_slots(twin: &mut dyn Engine, steps: u64) {
    const STEPS_PER_BUCKET: u64 = 300;
    let (mut taken, mut denied, mut missing) = (0, 0, 0);
    for seed in first_seed()..first_seed() + steps.div_ceil(STEPS_PER_BUCKET) {
        let (mut rust, mut walk) = (RustEngine::default(), Walk::of_slots(seed));
        let mut chance = Random::new(seed ^ 0x5107);
        for step in 0..STEPS_PER_BUCKET {
            let (now_ms, subjects) = walk.slots_step();
            let options = any_options(&mut chance, &subjects);
            let at = format!("seed {seed} step {step}");
            let expected = check_both(&mut rust, twin, &subjects, now_ms, options, &at);
            let Ok(verdict) = expected else { continue };
            walk.observe(&verdict);
            for limit in &verdict.limits {
                taken += limit.charged;
                denied += u64::from(!limit.decision.allowed);
                missing += u64::from(limit.charged == 0 && limit.slot.is_some());
            }
        }
    }
    let often = steps / 50;
    assert!(
        taken > often && denied > often && missing > often,
        "{taken} {denied} {missing}"
    );
}

/// Many checks of one call: several that ask the same of different buckets, others between them.
#[test]
fn rust_and_lua_agree_on_many_checks_in_one_call() {
    let lua = LuaRedis::new();
    for seed in first_seed()..first_seed() + steps().div_ceil(2 * STEPS_PER_WALK) {
        let (mut rust, mut walk) = (RustEngine::default(), Walk::new(seed));
        let mut chance = Random::new(seed ^ 0xba7c);
        let mut asked: Vec<(Vec<Subject>, Options)> = Vec::new();
        for step in 0..STEPS_PER_WALK {
            let (now_ms, mut subjects) = walk.step();
            if chance.one_in(2) {
                // Buckets that are not leased are kept from check to check.
                for subject in &mut subjects {
                    subject.lease = Leasing::default();
                }
            }
            let options = any_options(&mut chance, &subjects);
            asked.insert(0, (subjects, options));
            asked.truncate(3);
            let batch: Vec<_> = (0..=chance.below(12))
                .map(|_| {
                    let (mut subjects, options) = asked[chance.below_len(asked.len())].clone();
                    for subject in &mut subjects {
                        subject.key = format!("{}/{}", subject.key, chance.below(3));
                    }
                    (subjects, options)
                })
                .collect();
            let checks: Vec<_> = batch.iter().map(|(s, o)| script_check(s, *o)).collect();
            let reply = lua.batch(&checks, Clock::Injected(now_ms));
            for (nth, ((subjects, options), actual)) in batch.iter().zip(reply.results).enumerate()
            {
                let expected = rust.check(subjects, now_ms, *options);
                assert_eq!(
                    expected, actual,
                    "seed {seed} step {step} check {nth} at {now_ms} {options:?} {subjects:#?}"
                );
                if let Ok(verdict) = &expected {
                    walk.observe(verdict);
                }
            }
        }
    }
}

/// A log's running total starts again at 10^6, three times here.
#[test]
fn rust_and_lua_agree_when_a_logs_total_wraps() {
    let parameters = Parameters::new(Kind::SlidingWindowLog, 100_000, 1000);
    let mut subject = Subject {
        cost: 0,
        ..Subject::new("log", Algorithm::new(&parameters).unwrap())
    };
    let (mut rust, mut lua, mut charged) = (RustEngine::default(), LuaRedis::new(), 0);
    for step in 0..400 {
        for cost in [9999, 60_000] {
            subject.cost = cost;
            let subjects = std::slice::from_ref(&subject);
            let expected = rust.check(subjects, step * 97, Options::default()).unwrap();
            let actual = lua.check(subjects, step * 97, Options::default());
            assert_eq!(actual.as_ref(), Ok(&expected), "step {step}");
            charged += expected.limits.first().unwrap().charged;
        }
    }
    assert!(charged > 3_000_000, "{charged}");
}

/// After a far step back of the clock a query moves the stored times back, and nothing else: grants
/// do not move to the current sub-window, although the query wanted units there and got none.
#[test]
fn a_query_after_a_clock_step_back_keeps_sub_window_grants() {
    let parameters = Parameters {
        sub_windows: Some(10),
        ..Parameters::new(Kind::SlidingWindowBuckets, 100, 1000)
    };
    let subject = Subject {
        cost: 0,
        lease: Leasing {
            ttl_ms: 20,
            ..Leasing::default()
        },
        ..Subject::new("sub-windows", Algorithm::new(&parameters).unwrap())
    };
    let returned = Settlement {
        epoch: 49_900,
        spent: 0,
        returned: 12,
    };
    let steps = [
        (100_000, 1, 40, vec![]),
        (100_100, 80, 0, vec![]),
        (50_000, 0, 40, vec![]),
        (50_300, 1, 40, vec![]),
        (50_300, 0, 0, vec![returned]),
    ];
    let (mut rust, mut lua) = (RustEngine::default(), LuaRedis::new());
    let mut remaining = Vec::new();
    for (now_ms, cost, want, settle) in steps {
        let mut subject = subject.clone();
        subject.cost = cost;
        subject.lease.want = want;
        subject.lease.settle = settle;
        let subjects = [subject];
        let expected = rust.check(&subjects, now_ms, Options::default()).unwrap();
        let actual = lua.check(&subjects, now_ms, Options::default());
        assert_eq!(actual.as_ref(), Ok(&expected), "at {now_ms}");
        remaining.push(expected.limits.first().unwrap().decision.remaining);
    }
    assert_eq!(remaining, [87, 7, 7, 6, 18]);
}

/// With the server's clock the same answers, and no key that expires before its bucket is unused.
#[test]
fn rust_and_lua_agree_with_the_servers_clock() {
    let redis = LuaRedis::new();
    for seed in 0..steps().div_ceil(4 * STEPS_PER_WALK) {
        let mut rust = RustEngine::default();
        let mut walk = Walk::new(seed);
        for _ in 0..STEPS_PER_WALK {
            let (now_ms, subjects) = walk.step();
            redis.set_time(now_ms / 1000, now_ms % 1000 * 1000 + 999);
            let check = script_check(&subjects, Options::default());
            let mut reply = redis.batch(&[check], Clock::Server);
            assert_eq!(reply.now_ms, now_ms);
            let expected = rust.check(&subjects, now_ms, Options::default());
            assert_eq!(reply.results.remove(0), expected, "seed {seed}");
            let Ok(verdict) = expected else { continue };
            walk.observe(&verdict);
            for (subject, limit) in subjects.iter().zip(verdict.limits) {
                let ttl_ms = redis.ttl(&subject.key);
                let reset_ms = i64::try_from(limit.decision.reset_after_ms).unwrap();
                if limit.charged > 0 || limit.lease.is_some() {
                    let linger_ms = i64::try_from(subject.algorithm.linger_ms()).unwrap();
                    assert_eq!(
                        ttl_ms,
                        reset_ms + 1000 + linger_ms,
                        "seed {seed} {subject:?}"
                    );
                }
            }
        }
    }
}
