//! Rust and Lua give equal integers on every input: random limits of every algorithm, edited
//! live, charged at times that step both ways. `RL_TWIN_STEPS` sets how many steps; a failure
//! names the seed of its walk, for `RL_TWIN_SEED`.

use crate::support::random::{Random, Walk};
use crate::support::{
    Engine, KINDS, Leasing, LuaRedis, Penalized, RustEngine, Scripts, Share, Subject, algorithm,
    done, number, on_twins, script_check,
};
use algorithms::check::{Options, Part, Verdict};
use algorithms::{
    ADAPTIVE_LINGER_MS, Algorithm, Charged, Debits, Kind, Parameters, Penalty, RetryAfter,
    Settlement, Slot, SlotOp, State,
};
use lua_redis::mlua::Value;
use store::script::{Bucket, Charge, Clock, Credit, Credited, ScriptError};

const STEPS_PER_WALK: u64 = 60;
const LISTS: [Kind; 2] = [Kind::SlidingWindowLog, Kind::SlidingWindowBuckets];

fn steps() -> u64 {
    number("RL_TWIN_STEPS", 30_000)
}

// Each walk on one of the servers, and some in the interpreter.
on_twins! {
    edits: compare((0, 6), (0, 2), (1, 2));
    costs: compare_costs((0, 6), (0, 2), (1, 2));
    penalties: compare_penalties((0, 6), (0, 2), (1, 2));
    debts: compare_debts((0, 6), (0, 2), (1, 2));
    queues: compare_queues((0, 6), (0, 2), (1, 2));
    slots: compare_slots((0, 6), (0, 2), (1, 2));
    adaptive: compare_adaptive((1, 6), (0, 2), (1, 2));
    credits: compare_credits((0, 6), (0, 2), (1, 2));
    credits_of_reservations: compare_credits_of_reservations((0, 6), (0, 2), (1, 2));
}

/// Both implementations, and a walk that they take together.
struct Both<'t> {
    rust: RustEngine,
    twin: &'t mut dyn Engine,
    walk: Walk,
    chance: Random,
    seed: u64,
    step: u64,
}

impl Both<'_> {
    fn agree<T: PartialEq + std::fmt::Debug>(
        &mut self,
        ask: impl Fn(&mut dyn Engine) -> T,
        what: &dyn std::fmt::Debug,
    ) -> T {
        let expected = ask(&mut self.rust);
        let actual = ask(self.twin);
        let Self {
            seed, step, rust, ..
        } = self;
        let at = format!("seed {seed} step {step}");
        assert_eq!(expected, actual, "{at} {what:#?} {:#?}", rust.buckets);
        expected
    }

    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, ScriptError> {
        self.step += 1;
        let asked = (now_ms, options, subjects);
        self.agree(|engine| engine.check(subjects, now_ms, options), &asked)
    }

    /// As [`Self::check`] with any options; the walk learns what was granted.
    fn go(&mut self, subjects: &[Subject], now_ms: u64) -> Result<Verdict, ScriptError> {
        let options = any_options(&mut self.chance, subjects);
        let verdict = self.check(subjects, now_ms, options);
        if let Ok(verdict) = &verdict {
            self.walk.observe(verdict);
        }
        verdict
    }

    fn credit(&mut self, credit: &Credit<'_>, now_ms: u64) -> bool {
        let credited = self.agree(|engine| engine.credit(credit, now_ms), credit);
        matches!(credited, Credited::Done { used: true, .. })
    }
}

/// Takes walks until the steps are used up. What they count of rare cases has to be more than so many, or the comparison
/// shows nothing.
fn walks<const N: usize>(
    twin: &mut dyn Engine,
    (nth, of): Share,
    (steps, steps_per_walk): (u64, u64),
    rare: u64,
    new: fn(u64) -> Walk,
    mut walk: impl FnMut(&mut Both<'_>, &mut [u64; N]),
) {
    let (first, mut seen) = (number("RL_TWIN_SEED", nth as u64), [0; N]);
    let seeds = first..first + steps.div_ceil(steps_per_walk);
    for seed in seeds.step_by(of) {
        let chance = Random::new(seed ^ 0x5eed);
        let (rust, twin) = (RustEngine::default(), &mut *twin);
        let mut both = Both {
            rust,
            twin,
            walk: new(seed),
            chance,
            seed,
            step: 0,
        };
        while both.step < steps_per_walk {
            walk(&mut both, &mut seen);
        }
    }
    let enough = |seen: &u64| seen * of as u64 > rare;
    assert!(seen.iter().all(enough), "{seen:?}");
}

fn any_options(chance: &mut Random, subjects: &[Subject]) -> Options {
    // If everything is given back, Redis deletes the list, and with it the time of its last write;
    // Rust keeps an empty one. Nothing is used either way.
    let listed = |subject: &Subject| LISTS.contains(&subject.algorithm.parameters().kind);
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

/// Charges of a walk: the limit, the units, when, and the slot of a queue.
type Charges = Vec<(Subject, u64, u64, Option<Slot>)>;

fn compare(twin: &mut dyn Engine, share: Share) {
    let steps = steps();
    let mut charged = Charges::new();
    walks(
        twin,
        share,
        (steps, STEPS_PER_WALK),
        steps / 100,
        Walk::new,
        |both, seen: &mut [_; 3]| {
            if both.step == 0 {
                charged.clear();
            }
            let (now_ms, subjects) = both.walk.step();
            let verdict = both.go(&subjects, now_ms);
            let limits = verdict.iter().flat_map(|verdict| &verdict.limits);
            for (subject, limit) in subjects.iter().zip(limits) {
                seen[0] += u64::from(limit.lease.is_some());
                if limit.charged > 0 {
                    charged.push((subject.clone(), limit.charged, now_ms, limit.slot));
                }
            }
            let settling = subjects.iter().filter(|s| !s.lease.settle.is_empty());
            seen[1] += settling.count() as u64;
            // Some charges are refunded, now or later, once or by mistake twice.
            while !charged.is_empty() && both.chance.one_in(3) {
                let nth = both.chance.below_len(charged.len());
                let (subject, units, at_ms, slot) = charged[nth].clone();
                let charge = Charge {
                    bucket: &subject.bucket(),
                    charged: Charged {
                        at_ms,
                        units,
                        lease_ttl_ms: subject.lease.ttl_ms,
                        slot,
                    },
                };
                let refunded = both.agree(|engine| engine.refund(&charge, now_ms), &charge);
                seen[2] += u64::from(refunded.taken);
            }
        },
    );
}

/// Reservations, whose settlements are late, repeated and made up.
fn compare_costs(twin: &mut dyn Engine, share: Share) {
    let steps = steps();
    walks(
        twin,
        share,
        (steps, 2 * STEPS_PER_WALK),
        steps / 100,
        Walk::of_costs,
        |both, seen: &mut [_; 3]| {
            let (now_ms, subjects) = both.walk.costs_step();
            let options = Options {
                peek: both.chance.one_in(9),
                force: both.chance.one_in(25),
                denied: false,
                debits: match both.chance.below_len(5) {
                    0 => Debits::Reported,
                    _ => Debits::Admitted,
                },
                patience_ms: 0,
            };
            let verdict = both.check(&subjects, now_ms, options);
            for (subject, verdict) in subjects.iter().zip(&verdict) {
                both.walk.observe_costs(subject, verdict);
                let reserved = verdict.limits[0].reserved;
                let cases = [reserved.number, reserved.given_back, reserved.excess];
                for (seen, case) in seen.iter_mut().zip(cases) {
                    *seen += u64::from(case > 0);
                }
            }
        },
    );
}

/// Limits with penalties, whose numbers are edited now and then.
fn compare_penalties(twin: &mut dyn Engine, share: Share) {
    let steps = steps();
    let (mut penalty, mut on) = (Penalty::new(1, 1, 1), false);
    walks(
        twin,
        share,
        (steps, STEPS_PER_WALK),
        steps / 100,
        Walk::new,
        |both, seen: &mut [_; 3]| {
            let (now_ms, mut subjects) = both.walk.step();
            let chance = &mut both.chance;
            if both.step == 0 || chance.one_in(30) {
                penalty = any_penalty(chance);
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
                    counts: !chance.one_in(9),
                });
            }
            let options = Options {
                denied: chance.one_in(9),
                patience_ms: match chance.below_len(3) {
                    0 => chance.magnitude(15),
                    _ => 0,
                },
                ..any_options(chance, &subjects)
            };
            let verdict = both.check(&subjects, now_ms, options);
            for limit in verdict.into_iter().flat_map(|verdict| verdict.limits) {
                seen[0] += u64::from(limit.penalty.begun);
                seen[1] += u64::from(limit.penalty.left_ms > 0);
                seen[2] += u64::from(on && limit.penalty.left_ms == 0);
                on = limit.penalty.left_ms > 0;
            }
        },
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

/// Debits that are charged beyond the capacity.
fn compare_debts(twin: &mut dyn Engine, share: Share) {
    let steps = steps();
    walks(
        twin,
        share,
        (steps, STEPS_PER_WALK),
        steps / 10,
        Walk::of_debts,
        |both, seen: &mut [_; 1]| {
            let (now_ms, subjects) = both.walk.debts_step();
            let mut options = any_options(&mut both.chance, &subjects);
            if both.chance.one_in(2) {
                options.debits = Debits::Reported;
            }
            let verdict = both.check(&subjects, now_ms, options);
            if let Ok(verdict) = &verdict {
                both.walk.observe(verdict);
            }
            let limits = verdict.iter().flat_map(|verdict| &verdict.limits);
            for (subject, limit) in subjects.iter().zip(limits) {
                let full_ms = subject.algorithm.window_ms();
                seen[0] += u64::from(limit.decision.reset_after_ms > full_ms);
            }
        },
    );
}

/// Busy queues whose requests leave: slots are given again.
fn compare_queues(twin: &mut dyn Engine, share: Share) {
    let steps = steps();
    walks(
        twin,
        share,
        (steps, 300),
        steps / 20,
        Walk::of_a_queue,
        |both, seen: &mut [_; 1]| {
            let (now_ms, subjects) = both.walk.queue_step();
            let verdict = both.go(&subjects, now_ms);
            let limits = verdict.iter().flat_map(|verdict| &verdict.limits);
            let again = limits.filter(|limit| limit.slot.is_some_and(|slot| slot.turn > 0));
            seen[0] += again.count() as u64;
        },
    );
}

/// Requests in flight that are renewed, freed and entered again.
fn compare_slots(twin: &mut dyn Engine, share: Share) {
    let steps = steps();
    walks(
        twin,
        share,
        (steps, 300),
        steps / 50,
        Walk::of_slots,
        |both, seen: &mut [_; 3]| {
            let (now_ms, subjects) = both.walk.slots_step();
            let verdict = both.go(&subjects, now_ms);
            for limit in verdict.iter().flat_map(|verdict| &verdict.limits) {
                seen[0] += limit.charged;
                seen[1] += u64::from(!limit.decision.allowed);
                seen[2] += u64::from(limit.charged == 0 && limit.slot.is_some());
            }
        },
    );
}

/// An adaptive limit that grows, falls, is edited and stays.
fn compare_adaptive(twin: &mut dyn Engine, share: Share) {
    let steps = 2 * steps();
    let mut before = None;
    walks(
        twin,
        share,
        (steps, 2000),
        steps / 8000,
        Walk::of_an_adaptive_limit,
        |both, seen: &mut [_; 4]| {
            if both.step == 0 {
                before = None;
            }
            let (now_ms, subjects) = both.walk.adaptive_step();
            let options = Options {
                peek: both.chance.one_in(9),
                force: true,
                ..Options::default()
            };
            let verdict = both.check(&subjects, now_ms, options);
            let Ok(verdict) = &verdict else { return };
            both.walk.observe(verdict);
            let limit = verdict.limits[0].limit_milli;
            if let (Some(limit), Some(before)) = (limit, before) {
                seen[0] += u64::from(limit > before);
                seen[1] += u64::from(limit < before);
            }
            before = limit;
            seen[2] += u64::from(limit.is_none());
            let state = verdict.limits[0].adaptive.as_ref();
            seen[3] += u64::from(state.is_some_and(|state| state.own_late > 0));
        },
    );
}

fn compare_credits(twin: &mut dyn Engine, share: Share) {
    let steps = steps();
    walks(
        twin,
        share,
        (steps, STEPS_PER_WALK),
        steps / 60,
        Walk::new,
        |both, seen: &mut [_; 1]| {
            let (now_ms, subjects) = both.walk.step();
            // In the year 144,000 a time and the most leased units together exceed what the script
            // can read back.
            if now_ms > 1 << 51 {
                both.step = STEPS_PER_WALK;
                return;
            }
            let verdict = both.check(&subjects, now_ms, Options::default());
            if let Ok(verdict) = &verdict {
                both.walk.observe(verdict);
            }
            for subject in &subjects {
                if !both.chance.one_in(3) {
                    continue;
                }
                let limit = subject.algorithm.limit();
                let bucket = subject.bucket();
                let credit = Credit {
                    bucket: &bucket,
                    units: both.chance.pick(&[0, 1, 2, limit / 2, limit, 1 << 52]),
                    peek: both.chance.one_in(5),
                    force: both.chance.one_in(20),
                };
                seen[0] += u64::from(both.credit(&credit, now_ms));
            }
        },
    );
}

/// Reservations that stay open through credits and edits.
fn compare_credits_of_reservations(twin: &mut dyn Engine, share: Share) {
    let steps = steps();
    let mut credited = false;
    walks(
        twin,
        share,
        (steps, 2 * STEPS_PER_WALK),
        steps / 1080,
        Walk::of_costs,
        |both, seen: &mut [_; 2]| {
            credited &= both.step > 0;
            let (now_ms, subjects) = both.walk.costs_step();
            let verdict = both.check(&subjects, now_ms, Options::default());
            for (subject, verdict) in subjects.iter().zip(&verdict) {
                both.walk.observe_costs(subject, verdict);
                let back = verdict.limits.iter().map(|limit| limit.reserved.given_back);
                seen[0] += u64::from(credited && back.sum::<u64>() > 0);
            }
            for subject in &subjects {
                // An emptied list has no key, and Rust forgets its reservations with it.
                let chance = &mut both.chance;
                if LISTS.contains(&subject.algorithm.kind()) || !chance.one_in(6) {
                    continue;
                }
                let key = format!("r:{{{}}}", subject.key);
                let limit = subject.algorithm.limit();
                let part = Part::new(&subject.algorithm, subject.generation);
                let bucket = Bucket {
                    reservations: Some(key).filter(|_| !chance.one_in(9)),
                    ..Bucket::new(&subject.key, part)
                };
                let credit = Credit {
                    bucket: &bucket,
                    units: chance.pick(&[1, 2, limit / 9, limit / 2, 1 << 52]),
                    peek: chance.one_in(5),
                    force: chance.one_in(20),
                };
                credited = both.credit(&credit, now_ms);
                seen[1] += u64::from(credited);
            }
        },
    );
}

/// Many checks of one call: several that ask the same of different buckets, others between them.
#[test]
fn rust_and_lua_agree_on_many_checks_in_one_call() {
    compare_batches(Walk::new, Walk::step, steps() / 6);
    compare_batches(Walk::of_a_queue, Walk::queue_step, steps() / 12);
    compare_batches(Walk::of_slots, Walk::slots_step, steps() / 24);
    compare_batches(Walk::of_debts, Walk::debts_step, steps() / 24);
}

fn compare_batches(new: fn(u64) -> Walk, next: fn(&mut Walk) -> (u64, Vec<Subject>), steps: u64) {
    let (mut lua, first) = (LuaRedis::new(), number("RL_TWIN_SEED", 0));
    for seed in first..first + steps.div_ceil(STEPS_PER_WALK) {
        let (mut rust, mut walk) = (RustEngine::default(), new(seed));
        let mut chance = Random::new(seed ^ 0xba7c);
        let mut asked: Vec<(Vec<Subject>, Options)> = Vec::new();
        for step in 0..STEPS_PER_WALK {
            let (now_ms, mut subjects) = next(&mut walk);
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
    let mut subject = Subject::new("log", algorithm(Kind::SlidingWindowLog, 100_000, 1000));
    let (mut rust, mut lua, mut charged) = (RustEngine::default(), LuaRedis::new(), 0);
    for step in 0..400 {
        for cost in [9999, 60_000] {
            subject.cost = cost;
            let expected = rust.one(&subject, step * 97);
            assert_eq!(lua.one(&subject, step * 97), expected, "step {step}");
            charged += expected.charged;
        }
    }
    assert!(charged > 3_000_000, "{charged}");
}

/// After a far step back of the clock a query moves the stored times back, and nothing else: grants
/// do not move to the current sub-window, although the query wanted units there and got none.
#[test]
fn a_query_after_a_clock_step_back_keeps_sub_window_grants() {
    let tenths = algorithm(Kind::SlidingWindowBuckets, 100, 1000);
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
        let lease = Leasing {
            ttl_ms: 20,
            want,
            settle,
            ..Leasing::default()
        };
        let subject = Subject {
            cost,
            lease,
            ..Subject::new("sub-windows", tenths)
        };
        let expected = rust.one(&subject, now_ms);
        assert_eq!(lua.one(&subject, now_ms), expected, "at {now_ms}");
        remaining.push(expected.decision.remaining);
    }
    assert_eq!(remaining, [87, 7, 7, 6, 18]);
}

/// While the clock is behind, freed time counts again once it has caught up, unless something is stored before.
#[test]
fn a_check_leaves_no_freed_time_to_the_next_of_its_call() {
    let queue = Parameters {
        max_delay_ms: Some(500),
        ..Parameters::new(Kind::LeakyBucket, 20, 1000)
    };
    let mut subject = Subject::new("queue", Algorithm::new(&queue).unwrap());
    let (mut rust, mut lua, now_ms) = (RustEngine::default(), LuaRedis::new(), 1_763_000_040_000);
    let slots: Vec<Slot> = (0..10)
        .filter_map(|_| {
            rust.one(&subject, now_ms);
            lua.one(&subject, now_ms).slot
        })
        .collect();
    subject.lease.free = vec![SlotOp::free(slots[5], 1)];
    subject.cost = 0;
    assert_eq!(rust.one(&subject, now_ms), lua.one(&subject, now_ms));
    (subject.lease.free, subject.cost) = (Vec::new(), 1);
    let subjects = [subject];
    let checks = [0; 2].map(|_| script_check(&subjects, Options::default()));
    let found = lua.batch(&checks, Clock::Injected(now_ms - 100)).results;
    let [one, two] = [0; 2].map(|_| rust.check(&subjects, now_ms - 100, Options::default()));
    assert_eq!(found, [one, two]);
    let of_second = &found[1].as_ref().unwrap().limits[0];
    assert_eq!(of_second.decision.retry_after, RetryAfter::Millis(150));
}

/// Time that was freed before is stored in up to 4 KiB. A request behind the last slot needs none of it.
#[test]
fn a_slot_behind_the_last_one_leaves_freed_time_as_it_is_stored() {
    let queue = Parameters {
        max_delay_ms: Some(900),
        ..Parameters::new(Kind::LeakyBucket, 20, 1000)
    };
    let subject = Subject::new("queue", Algorithm::new(&queue).unwrap());
    let mut lua = LuaRedis::new();
    // Ten slots, two of which were freed and given again.
    lua.command::<Value>(&[
        "SET",
        "queue",
        "b1:500:7000:50:q1:7000::7000;100,150,1;200,250,1",
    ]);
    let mut stored_at = |now_ms| {
        lua.one(&subject, now_ms);
        lua.command::<String>(&["GET", "queue"])
    };
    let [both, none] = [7200, 7260].map(&mut stored_at);
    assert_eq!(both, "b1:350:7200:50:q1:7000::7000;100,150,1;200,250,1");
    assert_eq!(none, "b1:340:7260:50:q1:7000::");
}

/// With the server's clock the same answers, and no key that expires before its bucket is unused.
#[test]
fn rust_and_lua_agree_with_the_servers_clock() {
    let mut redis = LuaRedis::new();
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
                    // An adaptive limit is kept, whatever it is edited to.
                    let found = matches!(&rust.buckets[&subject.key].state, State::Concurrency(of) if of.adaptive().is_some());
                    let linger_ms = if found {
                        ADAPTIVE_LINGER_MS
                    } else {
                        subject.algorithm.linger_ms()
                    };
                    let linger_ms = i64::try_from(linger_ms).unwrap();
                    let least_ms = reset_ms + 1000 + linger_ms;
                    let most_ms = least_ms + (reset_ms + linger_ms).min(8 * 3_600_000) / 8;
                    assert!(
                        (least_ms..=most_ms).contains(&ttl_ms),
                        "seed {seed} {subject:?} {ttl_ms}"
                    );
                }
            }
        }
    }
}

/// Windows of a minute that end together are not removed together, however the script decides them.
#[test]
fn buckets_that_end_together_are_kept_for_different_times() {
    for kind in [
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingWindowBuckets,
    ] {
        let mut redis = LuaRedis::new();
        let mut ttl_at = |micros| {
            let key = format!("bucket-{micros}");
            let subject = Subject::new(&key, algorithm(kind, 100, 60_000));
            redis.set_time(1_763_000_040, micros);
            let check = [subject];
            let check = script_check(&check, Options::default());
            let reset_ms = match redis.batch(&[check], Clock::Server).results.remove(0) {
                Ok(verdict) => verdict.limits[0].decision.reset_after_ms,
                Err(error) => panic!("{error:?}"),
            };
            redis.ttl(&key) - 1000 - i64::try_from(reset_ms).unwrap()
        };
        let longest = [0, 500_000, 999_999].map(&mut ttl_at);
        assert_eq!(longest[0], 0, "{kind:?}");
        assert!(
            longest[1] >= 3000 && longest[2] >= 2 * longest[1] - 100,
            "{kind:?} {longest:?}"
        );
    }
}

/// Every algorithm, and a queue.
fn hundreds() -> Vec<Algorithm> {
    let queue = Parameters {
        max_delay_ms: Some(60_000),
        ..Parameters::new(Kind::LeakyBucket, 100, 60_000)
    };
    let plain = KINDS.map(|kind| algorithm(kind, 100, 60_000));
    plain.into_iter().chain(Algorithm::new(&queue)).collect()
}

fn credit<'a>(bucket: &'a Bucket<'a>, units: u64) -> Credit<'a> {
    Credit {
        bucket,
        units,
        peek: false,
        force: false,
    }
}

/// Within one window, what is left rises by exactly what was credited, and by no more than was used.
#[test]
fn a_credit_raises_what_is_left_up_to_the_quota() {
    for algorithm in hundreds() {
        let (mut redis, now_ms) = (LuaRedis::new(), 1_763_000_040_000);
        let mut subject = Subject::new("bucket", algorithm);
        subject.cost = 20;
        for at_ms in [now_ms, now_ms, now_ms + 1] {
            assert!(redis.one(&subject, at_ms).decision.allowed, "{algorithm:?}");
        }
        let bucket = Bucket::new("bucket", Part::new(&algorithm, 1));
        let mut left = |units| match redis.credit(&credit(&bucket, units), now_ms + 1) {
            Credited::Done {
                used: true,
                left_before,
                left,
                ..
            } => (left_before, left),
            unused => {
                assert_eq!(unused, done(false, 100, 100, 0), "{algorithm:?}");
                (0, 0)
            }
        };
        let raised = [25, 1000, 1].map(&mut left);
        assert_eq!(raised, [(40, 65), (65, 100), (0, 0)], "{algorithm:?}");
        // And all of it can be used again, once.
        subject.cost = 100;
        let allowed = [0, 1].map(|_| redis.one(&subject, now_ms + 1).decision.allowed);
        assert_eq!(allowed, [true, false], "{algorithm:?}");
    }
}

/// A credit removes the newest units first, so that it lasts for as long as they would have counted.
#[test]
fn a_credit_removes_the_newest_units_of_logs_and_sub_windows_first() {
    for kind in LISTS {
        let (mut redis, start_ms) = (LuaRedis::new(), 1_763_000_040_000);
        let mut subject = Subject::new("bucket", algorithm(kind, 100, 60_000));
        subject.cost = 40;
        for at_ms in [start_ms, start_ms + 30_000] {
            assert!(redis.one(&subject, at_ms).decision.allowed);
        }
        let bucket = Bucket::new("bucket", Part::new(&subject.algorithm, 1));
        redis.credit(&credit(&bucket, 40), start_ms + 30_000);
        // The first 40 are forgotten a window after they came; the others are gone already.
        subject.cost = 100;
        let verdict = redis.one(&subject, start_ms + 66_000);
        assert!(verdict.decision.allowed, "{verdict:?}");
    }
}
