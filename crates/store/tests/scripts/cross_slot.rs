//! Checks whose buckets are on several nodes, many of them at once: a check that is denied in the
//! end leaves no bucket better off than if it had never been sent.
//!
//! The shipped scripts run in interpreters, one for each node, with clocks of their own. `RL_SPREAD_RUNS`
//! sets how many interleavings are tried; a failure names the seed, for `RL_SPREAD_SEED`.

use std::collections::BTreeMap;

use crate::support::random::Random;
use crate::support::{Engine, LuaRedis, RustEngine, Scripts, Subject, number};
use algorithms::check::{Mode, Options, Part, PenaltyRequest};
use algorithms::{
    Algorithm, Align, CostSettlement, Kind, LeaseRequest, Parameters, Penalty, Reservation,
    ReserveRequest, Settlement,
};
use store::{
    script::{self, Clock, CrossSlotCheck, ScriptCheck, ScriptError, SlotCheck},
    scripts::REFUND,
    slot,
};

const START_MS: u64 = 1_763_000_040_000;

/// A limit, its bucket, and the node that has it.
#[derive(Clone, Debug)]
struct Bucket {
    key: String,
    algorithm: Algorithm,
    mode: Mode,
    node: usize,
}

/// One charge of a check that passed: of a node, in its order.
#[derive(Clone, Debug)]
struct Admitted {
    bucket: usize,
    order: u64,
    at_ms: u64,
    units: u64,
}

/// Nodes, buckets on them, and checks under way.
struct World<'a> {
    nodes: Vec<LuaRedis>,
    /// How far a node's clock is from the first one's.
    ahead_ms: Vec<u64>,
    buckets: &'a [Bucket],
    now_ms: u64,
    order: u64,
    admitted: Vec<Admitted>,
}

/// A check under way.
struct Running<'a> {
    /// Indices of the buckets of its limits.
    buckets: Vec<usize>,
    cross_slot: CrossSlotCheck<'a, ScriptError>,
    /// When each of its limits was called, and in which order.
    called: BTreeMap<usize, (u64, u64)>,
}

impl<'a> World<'a> {
    fn new(buckets: &'a [Bucket], refund: &str, random: &mut Random) -> Self {
        let nodes = buckets.iter().map(|b| b.node).max().map_or(0, |n| n + 1);
        Self {
            nodes: (0..nodes).map(|_| LuaRedis::with_refund(refund)).collect(),
            ahead_ms: (0..nodes).map(|_| random.below(5_000)).collect(),
            buckets,
            now_ms: START_MS,
            order: 0,
            admitted: Vec::new(),
        }
    }

    fn clock(&self, node: usize) -> (Clock, u64) {
        let now_ms = self.now_ms + self.ahead_ms[node];
        (Clock::Injected(now_ms), now_ms)
    }

    fn begin(&self, buckets: Vec<usize>, cost: u64) -> Running<'a> {
        let limits = buckets.iter().map(|i| {
            let bucket = &self.buckets[*i];
            script::Bucket::new(
                &bucket.key,
                Part {
                    cost,
                    mode: bucket.mode,
                    ..Part::new(&bucket.algorithm, 1)
                },
            )
        });
        let check = ScriptCheck {
            limits: limits.collect(),
            options: Options::default(),
        };
        Running {
            buckets,
            // It lives as long as the buckets: to the end of the test.
            cross_slot: CrossSlotCheck::new(Box::leak(Box::new(check)), slot),
            called: BTreeMap::new(),
        }
    }

    /// Does one step of a check; returns false once there is nothing more to do.
    fn step(&mut self, running: &mut Running<'a>, random: &mut Random) -> bool {
        let slot_checks = running.cross_slot.next();
        if !slot_checks.is_empty() {
            self.call(running, &slot_checks[random.below_len(slot_checks.len())]);
            return true;
        }
        let charges = running.cross_slot.refund();
        for (limit, _, charge) in &charges {
            let node = self.buckets[running.buckets[*limit]].node;
            let (clock, _) = self.clock(node);
            let charges = std::slice::from_ref(charge);
            let now = self.nodes[node].refund_all(charges, clock)[0];
            running.cross_slot.refunded(*limit, now);
        }
        !charges.is_empty()
    }

    fn call(&mut self, running: &mut Running<'a>, slot_check: &SlotCheck<'a>) {
        let first = running.cross_slot.limit(slot_check.part, 0);
        let node = self.buckets[running.buckets[first]].node;
        let (clock, now_ms) = self.clock(node);
        let batch = std::slice::from_ref(&slot_check.check);
        let result = self.nodes[node].batch(batch, clock).results.remove(0);
        for i in 0..slot_check.check.limits.len() {
            let limit = running.cross_slot.limit(slot_check.part, i);
            running.called.insert(limit, (self.order, now_ms));
        }
        self.order += 1;
        running
            .cross_slot
            .answer(slot_check.part, result.map(|verdict| (verdict, now_ms)));
    }

    /// Records the charges of a check that passed.
    fn end(&mut self, running: Running<'a>) -> bool {
        let decided = running
            .cross_slot
            .decided(|| unreachable!("every limit was decided"));
        let (verdict, _) = decided.unwrap();
        if verdict.allowed {
            for (i, limit) in verdict
                .limits
                .iter()
                .enumerate()
                .filter(|(_, l)| l.charged > 0)
            {
                let (order, at_ms) = running.called[&i];
                self.admitted.push(Admitted {
                    bucket: running.buckets[i],
                    order,
                    at_ms,
                    units: limit.charged,
                });
            }
        }
        verdict.allowed
    }

    /// Replays the checks that passed on buckets that never saw the denied ones; returns how many
    /// of them those deny.
    fn over_admitted(&mut self) -> usize {
        self.admitted.sort_by_key(|admitted| admitted.order);
        let mut uncharged = RustEngine::default();
        let mut refused = 0;
        for admitted in &self.admitted {
            let bucket = &self.buckets[admitted.bucket];
            if bucket.algorithm.parameters().align == Some(Align::FirstRequest) {
                refused += usize::from(self.is_too_much_for_two_windows(admitted));
                continue;
            }
            let subject = Subject {
                cost: admitted.units,
                ..Subject::new(&bucket.key, bucket.algorithm)
            };
            let verdict = uncharged.check(&[subject], admitted.at_ms, Options::default());
            refused += usize::from(!verdict.unwrap().allowed);
        }
        refused
    }
}

impl World<'_> {
    /// A window that the first request opened stays open if that is refunded, and so ends before
    /// the one that the second would have opened. Its guarantee holds: 2N in any W.
    fn is_too_much_for_two_windows(&self, last: &Admitted) -> bool {
        let algorithm = &self.buckets[last.bucket].algorithm;
        let within = |other: &&Admitted| {
            let same = other.bucket == last.bucket && other.order <= last.order;
            same && other.at_ms + algorithm.window_ms() > last.at_ms
        };
        let units: u64 = self.admitted.iter().filter(within).map(|a| a.units).sum();
        units > 2 * algorithm.limit()
    }
}

fn algorithm(random: &mut Random) -> Algorithm {
    let kinds = [
        Kind::TokenBucket,
        Kind::Gcra,
        Kind::LeakyBucket,
        Kind::FixedWindow,
        Kind::SlidingWindowLog,
        Kind::SlidingWindowBuckets,
        Kind::SlidingWindow,
    ];
    let kind = random.pick(&kinds);
    let period_ms = random.pick(&[60, 100, 1200]);
    let mut parameters = Parameters::new(kind, 1 + random.below(6), period_ms);
    match kind {
        Kind::LeakyBucket if random.one_in(2) => {
            let max_delay_ms = random.below(900);
            let kinds = [Kind::LeakyBucket, Kind::TokenBucket, Kind::Gcra];
            parameters.kind = kinds[(max_delay_ms % 3) as usize];
            parameters.max_delay_ms = Some(max_delay_ms);
        }
        Kind::FixedWindow => {
            parameters.align = Some(random.pick(&[Align::Epoch, Align::FirstRequest]));
        }
        Kind::SlidingWindowBuckets => parameters.sub_windows = Some(random.pick(&[1, 4, 20])),
        _ => {}
    }
    Algorithm::new(&parameters).unwrap()
}

/// Some limits have the mode `some`, the others are enforced.
fn buckets(random: &mut Random, some: Mode) -> Vec<Bucket> {
    let bucket = |i: usize, random: &mut Random| Bucket {
        // Two buckets share a slot, and so a node.
        key: format!("{{{}}}:{i}", i / 2),
        algorithm: algorithm(random),
        mode: if random.one_in(6) {
            some
        } else {
            Mode::Enforce
        },
        node: i / 2,
    };
    let count = 2 + random.below_len(5);
    (0..count).map(|i| bucket(i, random)).collect()
}

/// The results of one interleaving.
#[derive(Default)]
struct Outcome {
    passed: usize,
    denied: usize,
    over_admitted: usize,
}

/// Checks that begin, go on and end in a random order, while time passes.
fn run(seed: u64, refund: &str, some: Mode) -> Outcome {
    let mut random = Random::new(seed);
    let buckets = buckets(&mut random, some);
    let mut world = World::new(&buckets, refund, &mut random);
    let (mut running, mut outcome): (Vec<Running<'_>>, _) = (Vec::new(), Outcome::default());
    for _ in 0..120 {
        if running.len() < 6 && random.one_in(2) {
            let mut some: Vec<usize> = (0..buckets.len()).collect();
            while some.len() > 1 && random.one_in(3) {
                some.remove(random.below_len(some.len()));
            }
            running.push(world.begin(some, 1 + random.below(2)));
        } else if !running.is_empty() {
            let i = random.below_len(running.len());
            if !world.step(&mut running[i], &mut random) {
                let passed = world.end(running.swap_remove(i));
                outcome.passed += usize::from(passed);
                outcome.denied += usize::from(!passed);
            }
        }
        world.now_ms += random.pick(&[0, 0, 0, 1, 3, 20, 130]);
    }
    outcome.over_admitted = world.over_admitted();
    outcome
}

fn runs() -> std::ops::Range<u64> {
    let first = number("RL_SPREAD_SEED", 0);
    first..first + number("RL_SPREAD_RUNS", 400)
}

#[test]
fn denied_checks_never_cause_over_admission_in_any_interleaving() {
    let (mut passed, mut denied) = (0, 0);
    for seed in runs() {
        let some = [Mode::Observe, Mode::Together][usize::from(seed % 2 == 1)];
        let outcome = run(seed, &REFUND.source, some);
        assert_eq!(outcome.over_admitted, 0, "seed {seed}");
        passed += outcome.passed;
        denied += outcome.denied;
    }
    assert!(
        passed > 1000 && denied > 1000,
        "{passed} passed, {denied} denied"
    );
}

/// What two limits that deny together, each full or not, and an enforced one make of a check.
#[test]
fn limits_in_several_slots_deny_together_or_not_at_all() {
    let algorithm = Algorithm::new(&Parameters::new(Kind::FixedWindow, 1, 86_400_000)).unwrap();
    for (full, allowed) in [
        ([false, false], true),
        ([true, false], true),
        ([false, true], true),
        ([true, true], false),
    ] {
        let modes = [Mode::Together, Mode::Enforce, Mode::Together];
        let buckets: Vec<Bucket> = (0..3)
            .map(|node| Bucket {
                key: format!("{{{node}}}"),
                algorithm,
                mode: modes[node],
                node,
            })
            .collect();
        let mut random = Random::new(1);
        let mut world = World::new(&buckets, &REFUND.source, &mut random);
        let mut decide = |some: Vec<usize>| {
            let mut running = world.begin(some, 1);
            while world.step(&mut running, &mut random) {}
            let decided = running
                .cross_slot
                .decided(|| unreachable!("every limit was decided"));
            decided.unwrap().0
        };
        for (index, _) in [0, 2].iter().zip(full).filter(|(_, full)| *full) {
            assert!(decide(vec![*index]).allowed);
        }
        let verdict = decide(vec![0, 1, 2]);
        assert_eq!(verdict.allowed, allowed, "{full:?}");
        let charged: Vec<u64> = verdict.limits.iter().map(|limit| limit.charged).collect();
        let expected = [!full[0], allowed, !full[1]].map(|took| u64::from(took && allowed));
        assert_eq!(charged, expected, "{full:?}");
    }
}

/// The shipped script with one of its rules taken out.
fn without(rule: &str, instead: &str) -> String {
    let source = REFUND.source.replace(rule, instead);
    assert_ne!(source, REFUND.source, "the rule is there to be taken out");
    source
}

const DRAINED_SINCE: (&str, &str) = (
    "local debt, elapsed = units * b.x, b.at - charged_at",
    "local debt, elapsed = units * b.x, 0",
);

#[test]
fn the_interleavings_detect_blind_refunds() {
    let (drained, instead) = DRAINED_SINCE;
    // From the first seed that shows the mistake.
    for (from, rule, instead) in [
        (44, drained, instead),
        (197, "charged_at < w.at or left == w.used", "left == w.used"),
        (
            95,
            "if charged_at >= w.at then\n    w.current",
            "if w.current > 0 then\n    w.current",
        ),
    ] {
        let blind = without(rule, instead);
        let found =
            (from..from + 4000).find(|seed| run(*seed, &blind, Mode::Observe).over_admitted > 0);
        assert!(found.is_some(), "nothing shows that `{rule}` is gone");
    }
}

/// A check charges ten units, then another slot denies it; a second later, when the bucket has
/// drained and ten others have passed, the ten are refunded.
fn admitted_around_a_refund(refund: &str) -> u64 {
    let ten_per_second = Algorithm::new(&Parameters::new(Kind::TokenBucket, 10, 1000)).unwrap();
    let closed = Algorithm::new(&Parameters::new(Kind::FixedWindow, 0, 1000)).unwrap();
    let bucket = |key: &str, algorithm, node| Bucket {
        key: key.to_owned(),
        algorithm,
        mode: Mode::Enforce,
        node,
    };
    let buckets = [bucket("{a}", ten_per_second, 0), bucket("{b}", closed, 1)];
    let mut random = Random::new(0);
    let mut world = World::new(&buckets, refund, &mut random);
    let mut denied = world.begin(vec![0, 1], 10);
    assert!(
        world.step(&mut denied, &mut random),
        "the first slot charges"
    );
    assert!(world.step(&mut denied, &mut random), "the second denies");
    world.now_ms += 1000;
    let mut passed = 0;
    let mut take = |world: &mut World<'_>| {
        for _ in 0..20 {
            let mut one = world.begin(vec![0], 1);
            while world.step(&mut one, &mut random) {}
            passed += u64::from(world.end(one));
        }
    };
    take(&mut world);
    let mut late = Random::new(0);
    while world.step(&mut denied, &mut late) {}
    take(&mut world);
    passed
}

#[test]
fn a_blind_refund_over_admits() {
    let (rule, instead) = DRAINED_SINCE;
    assert_eq!(admitted_around_a_refund(&REFUND.source), 10);
    assert_eq!(admitted_around_a_refund(&without(rule, instead)), 20);
}

const SETTLED: [Settlement; 1] = [Settlement {
    epoch: START_MS,
    spent: 1,
    returned: 1,
}];

/// Sending a check again after one slot has settled, or charged a debit, would do it twice: its caller can see that.
#[test]
fn a_check_over_several_slots_reports_what_it_has_executed() {
    type Case = (&'static str, fn(&mut Part<'_>), bool);
    let algorithm = Algorithm::new(&Parameters::new(Kind::TokenBucket, 10, 1000)).unwrap();
    let cases: [Case; 7] = [
        ("no cost", |_| (), false),
        ("a charge", |of| of.cost = 1, true),
        ("a settlement", |of| settle(of, &SETTLED), true),
        ("a debit", |of| of.debit = 1, true),
        ("reported denials", |of| report(of, 1), true),
        ("a denial", |of| of.cost = 11, true),
        ("a peek that is denied", |of| of.cost = 11, false),
    ];
    for (what, change, executed) in cases {
        let mut part = Part {
            cost: 0,
            ..Part::new(&algorithm, 1)
        };
        settle(&mut part, &[]);
        report(&mut part, 0);
        change(&mut part);
        let first = script::Bucket {
            denials: Some("{a}denials".to_owned()),
            ..script::Bucket::new("a", part)
        };
        let check = ScriptCheck {
            limits: vec![first, script::Bucket::new("b", Part::new(&algorithm, 1))],
            options: Options {
                peek: what.contains("peek"),
                ..Options::default()
            },
        };
        assert_eq!(executed_of(&check), [false, executed], "{what}");
    }
}

/// What a denied check reserved is refunded. Were it settled as well, units of others would be given back.
#[test]
fn a_check_that_another_slot_denies_leaves_nothing_to_settle() {
    let tokens = Algorithm::new(&Parameters::new(Kind::TokenBucket, 1000, 60_000)).unwrap();
    let closed = Algorithm::new(&Parameters::new(Kind::FixedWindow, 0, 60_000)).unwrap();
    let limit = |cost, costs| script::Bucket {
        reservations: Some("r:{a}".to_owned()),
        ..script::Bucket::new(
            "a",
            Part {
                cost,
                costs: Some(costs),
                ..Part::new(&tokens, 1)
            },
        )
    };
    let check = |limits| ScriptCheck {
        limits,
        options: Options::default(),
    };
    let mut redis = LuaRedis::new();
    let mut decide = |check: ScriptCheck<'_>| {
        let mut cross_slot: CrossSlotCheck<'_, ScriptError> = CrossSlotCheck::new(&check, slot);
        while let Some(slot_check) = cross_slot.next().pop() {
            let mut reply = redis.batch(&[slot_check.check], Clock::Injected(START_MS));
            let verdict = reply.results.remove(0).unwrap();
            cross_slot.answer(slot_check.part, Ok((verdict, reply.now_ms)));
        }
        for (limit, _, charge) in cross_slot.refund() {
            let refunded = redis.refund_all(&[charge], Clock::Injected(START_MS))[0];
            cross_slot.refunded(limit, refunded);
        }
        cross_slot.decided(|| unreachable!()).unwrap().0
    };
    let others = decide(check(vec![limit(500, ReserveRequest::default())]));
    assert_eq!(others.limits[0].decision.remaining, 500);
    let reserving = ReserveRequest {
        secret: Some(7),
        ..ReserveRequest::default()
    };
    let denied = decide(check(vec![
        limit(100, reserving),
        script::Bucket::new("b", Part::new(&closed, 1)),
    ]));
    assert!(!denied.allowed);
    assert_eq!(denied.limits[0].decision.remaining, 500);
    let settled = [CostSettlement {
        reservation: Reservation {
            secret: 7,
            number: denied.limits[0].reserved.number,
            units: 0,
            seal: 0,
        },
        units: 0,
    }];
    let settling = ReserveRequest {
        settle: settled.to_vec(),
        ..ReserveRequest::default()
    };
    let after = decide(check(vec![limit(0, settling)]));
    assert_eq!(after.limits[0].decision.remaining, 500);
}

/// The limit of the first slot passes a minute later, that of the second a day later.
#[test]
fn a_denial_that_another_slot_makes_final_counts_towards_a_penalty() {
    let of = |period_ms| Algorithm::new(&Parameters::new(Kind::FixedWindow, 1, period_ms)).unwrap();
    let (minute, day) = (of(60_000), of(86_400_000));
    let mut redis = LuaRedis::new();
    let mut decide = |patience_ms| {
        let mut part = Part::new(&minute, 1);
        report(&mut part, 0);
        let first = script::Bucket {
            denials: Some("{a}denials".to_owned()),
            ..script::Bucket::new("a", part)
        };
        let check = ScriptCheck {
            limits: vec![first, script::Bucket::new("b", Part::new(&day, 1))],
            options: Options {
                patience_ms,
                ..Options::default()
            },
        };
        let mut cross_slot: CrossSlotCheck<'_, ScriptError> = CrossSlotCheck::new(&check, slot);
        while let Some(slot_check) = cross_slot.next().pop() {
            let mut reply = redis.batch(&[slot_check.check], Clock::Injected(START_MS));
            let verdict = reply.results.remove(0).unwrap();
            cross_slot.answer(slot_check.part, Ok((verdict, reply.now_ms)));
        }
        assert!(cross_slot.refund().is_empty());
        let verdict = cross_slot.decided(|| unreachable!()).unwrap().0;
        (verdict.allowed, verdict.limits[0].penalty.denials)
    };
    assert_eq!(decide(0), (true, 0));
    for (patience_ms, denials) in [
        (0, 1),
        (1000, 2),
        (120_000, 3),
        (2 * 86_400_000, 3),
        (120_000, 4),
    ] {
        assert_eq!(decide(patience_ms), (false, denials), "{patience_ms}");
    }
}

fn settle(part: &mut Part<'_>, settle: &'static [Settlement]) {
    part.lease = Some(LeaseRequest {
        ttl_ms: 100,
        settle,
        ..LeaseRequest::default()
    });
}

fn report(part: &mut Part<'_>, reported: u64) {
    part.penalty = Some(PenaltyRequest {
        penalty: Penalty::new(9, 1000, 1000),
        reported,
        counts: true,
    });
}

/// What such a check reports before anything was sent, and after the first slot's part.
fn executed_of(check: &ScriptCheck<'_>) -> [bool; 2] {
    let mut cross_slot: CrossSlotCheck<'_, ScriptError> = CrossSlotCheck::new(check, slot);
    let before = cross_slot.has_executed();
    let mut redis = LuaRedis::new();
    let first = cross_slot.next().remove(0);
    assert_eq!(first.check.limits[0].key, "a", "in the order of the limits");
    let mut reply = redis.batch(&[first.check], Clock::Injected(START_MS));
    let verdict = reply.results.remove(0).unwrap();
    cross_slot.answer(first.part, Ok((verdict, reply.now_ms)));
    let after = cross_slot.has_executed();
    let second = cross_slot.next().remove(0);
    let stale = ScriptError::Stale {
        limit: 0,
        generation: 2,
    };
    cross_slot.answer(second.part, Err(stale));
    let charges = cross_slot.refund();
    for (limit, _, charge) in &charges {
        let charges = std::slice::from_ref(charge);
        let refunded = redis.refund_all(charges, Clock::Injected(START_MS))[0];
        assert!(refunded.taken);
        cross_slot.refunded(*limit, refunded);
    }
    // Only a charge is undone.
    assert_eq!(cross_slot.has_executed(), after && charges.is_empty());
    [before, after]
}
