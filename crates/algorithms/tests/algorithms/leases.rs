//! Leases never let a bucket admit more than C + r·Δ in any interval, for thousands of random
//! fleets; and each known mistake in the rules does, for some of them.
//!
//! `RL_LEASE_SEEDS` sets how many fleets each test runs.

mod model;
mod world;

use std::fmt::Debug;

use algorithms::{Algorithm, Align, Kind, Parameters};
use model::{Model, Wrong};
use world::{Bucket, Edits, Lapses, Question, Real, Reply, World};

use crate::support::{Random, bursting, number};

const EVENTS: u64 = 400;

fn seeds() -> std::ops::Range<u64> {
    0..number("RL_LEASE_SEEDS", 3000)
}

/// A bucket that may lease, of everyday numbers.
fn algorithm(seed: u64, kind: Kind) -> Algorithm {
    let mut random = Random(seed ^ 0xa160);
    loop {
        let units = random.pick(&[1, 3, 7, 10, 100, 1000]);
        let period_ms = random.pick(&[7, 10, 100, 1000, 1500]);
        let burst = random.pick(&[4, 10, 20, 100, 1000]);
        let parameters = bursting(kind, units, period_ms, burst);
        let algorithm = Algorithm::new(&parameters).unwrap();
        // Neither a minute per unit nor no refill at all: something has to happen.
        if algorithm.lease_max_ms().is_some_and(|ms| ms <= 5000) {
            return algorithm;
        }
    }
}

/// The results of one fleet.
struct Outcome {
    /// By how many parts the bound was exceeded; kept if not above 0.
    worst: i128,
    granted: u64,
    spent: u64,
}

fn fleet(
    seed: u64,
    algorithm: &Algorithm,
    bucket: &mut dyn Bucket,
    lapses: Lapses,
    edits: Edits,
) -> Outcome {
    let mut world = World::new(seed, algorithm, bucket, lapses, edits);
    world.run(EVENTS);
    Outcome {
        worst: world.audit.worst,
        granted: world.granted,
        spent: world.spent,
    }
}

fn real_fleet(seed: u64, kind: Kind, lapses: Lapses, edits: Edits) -> Outcome {
    let algorithm = algorithm(seed, kind);
    let mut bucket = Real::new(algorithm);
    fleet(seed, &algorithm, &mut bucket, lapses, edits)
}

// -----------------------------------------------------------------------------
// The bounds hold with every rule in force.

const NO_EDITS: Edits = Edits {
    ttl: false,
    switched_off: false,
    resets: false,
    numbers: false,
    kind: false,
    clock: false,
};
const TTL_EDITS: Edits = Edits {
    ttl: true,
    switched_off: true,
    ..NO_EDITS
};
const RESETS: Edits = Edits {
    resets: true,
    ..TTL_EDITS
};

fn never_more_than_it_may(kind: Kind, edits: Edits) {
    let (mut granted, mut spent) = (0, 0);
    for seed in seeds() {
        let outcome = real_fleet(seed, kind, Lapses::default(), edits);
        assert!(outcome.worst <= 0, "seed {seed}: {} parts", outcome.worst);
        granted += outcome.granted;
        spent += outcome.spent;
    }
    // With fewer, the test would show nothing.
    assert!(spent > 100 * seeds().end / 10, "{spent} of {granted}");
}

#[test]
fn a_token_bucket_never_admits_more() {
    never_more_than_it_may(Kind::TokenBucket, NO_EDITS);
}

#[test]
fn a_bucket_never_admits_more_while_it_is_edited_and_reset() {
    for kind in [Kind::TokenBucket, Kind::Gcra, Kind::LeakyBucket] {
        never_more_than_it_may(kind, RESETS);
    }
}

/// Leases that are outstanding when the capacity is lowered may exceed it once, but never the larger one.
#[test]
fn an_edit_of_the_numbers_admits_no_more_than_the_larger_ones() {
    let edits = Edits {
        numbers: true,
        ..TTL_EDITS
    };
    never_more_than_it_may(Kind::TokenBucket, edits);
    never_more_than_it_may(Kind::LeakyBucket, edits);
    never_more_than_it_may(Kind::Gcra, edits);
}

/// Units that are outstanding when the algorithm is switched may be used once beside what the other
/// one admits.
#[test]
fn switching_the_algorithm_forgives_only_what_is_owed() {
    let edits = Edits {
        kind: true,
        numbers: true,
        ..TTL_EDITS
    };
    never_more_than_it_may(Kind::TokenBucket, edits);
    never_more_than_it_may(Kind::Gcra, edits);
}

/// A step J forward adds r·J at most, a step back nothing.
#[test]
fn setting_the_clock_forward_adds_at_most_the_skipped_refill() {
    let edits = Edits {
        clock: true,
        ..NO_EDITS
    };
    never_more_than_it_may(Kind::TokenBucket, edits);
    never_more_than_it_may(Kind::Gcra, edits);
}

/// Two buckets that get the same input.
struct Both(Real, Model);

impl Bucket for Both {
    fn ask(&mut self, now_ms: u64, ttl_ms: u64, question: &Question) -> Reply {
        let real = self.0.ask(now_ms, ttl_ms, question);
        let model = self.1.ask(now_ms, ttl_ms, question);
        let reply = Reply {
            reset_after_ms: real.reset_after_ms,
            ..model
        };
        assert_eq!(real, reply, "at {now_ms} {question:?}");
        real
    }

    fn edit(&mut self, algorithm: Algorithm) {
        self.0.edit(algorithm);
        self.1.edit(algorithm);
    }

    fn reset(&mut self) {
        self.0.reset();
        self.1.reset();
    }

    fn expire(&mut self) {
        self.0.expire();
        self.1.expire();
    }
}

/// The tests make mistakes in the model, so it has to be right without them.
#[test]
fn the_model_agrees_with_the_algorithm() {
    for seed in seeds() {
        let algorithm = algorithm(seed, Kind::TokenBucket);
        let mut both = Both(Real::new(algorithm), Model::new(&algorithm, None));
        fleet(seed, &algorithm, &mut both, Lapses::default(), TTL_EDITS);
    }
}

// -----------------------------------------------------------------------------
// Each rule is needed: without it, some fleet is admitted beyond the limit.

/// Finds the first fleet that exceeds the bound without a rule. `run` returns by how many parts a
/// fleet does, with the rule or without.
fn breaks(without: impl Debug, run: impl Fn(u64, bool) -> i128) {
    let unit = |seed| {
        let algorithm = algorithm(seed, Kind::TokenBucket);
        i128::from(algorithm.parameters().rate.period_ms)
    };
    let found = seeds().find(|seed| run(*seed, false) >= unit(*seed));
    assert!(
        found.is_some(),
        "no fleet shows what is wrong with {without:?}"
    );
    if let Some(seed) = found {
        let units = run(seed, false) / unit(seed);
        println!("{without:?}: {units} too many by seed {seed}");
        assert!(run(seed, true) <= 0, "the rule makes the difference");
    }
}

fn by_the_model(wrong: Wrong, edits: Edits) {
    breaks(wrong, |seed, rule| {
        let algorithm = algorithm(seed, Kind::TokenBucket);
        let mut model = Model::new(&algorithm, Some(wrong).filter(|_| !rule));
        fleet(seed, &algorithm, &mut model, Lapses::default(), edits).worst
    });
}

fn by_a_lapse(lapses: Lapses) {
    breaks(lapses, |seed, rule| {
        let lapses = if rule { Lapses::default() } else { lapses };
        real_fleet(seed, Kind::TokenBucket, lapses, NO_EDITS).worst
    });
}

/// `max(debt − r·(t − ts), O)`: take all, spend at the deadline, lease again at the second edge.
#[test]
fn a_refill_by_one_max_credits_the_time_at_the_floor() {
    by_the_model(Wrong::OneMax, NO_EDITS);
}

#[test]
fn a_deadline_counted_from_receipt_is_too_late() {
    by_a_lapse(Lapses {
        deadline_from_receipt: true,
        ..Lapses::default()
    });
}

#[test]
fn an_epoch_by_division_forgets_leases_when_the_ttl_is_edited() {
    let edits = Edits {
        ttl: true,
        ..NO_EDITS
    };
    by_the_model(Wrong::EpochByDivision, edits);
}

#[test]
fn a_key_that_lives_as_long_as_its_debt_dies_before_its_leases() {
    by_a_lapse(Lapses {
        ttl_of_the_debt: true,
        ..Lapses::default()
    });
}

#[test]
fn a_return_executed_twice_returns_what_others_hold() {
    by_a_lapse(Lapses {
        settled_twice: true,
        ..Lapses::default()
    });
}

#[test]
fn a_strict_check_that_ignores_the_slots_admits_what_is_leased() {
    let edits = Edits {
        switched_off: true,
        ..NO_EDITS
    };
    by_the_model(Wrong::StrictIgnoresSlots, edits);
}

// -----------------------------------------------------------------------------
// Leased windows count each unit in the window in which it is used.

fn window(seed: u64, kind: Kind) -> Parameters {
    let mut random = Random(seed ^ 0x316d);
    let period_ms = random.pick(&[400, 1000, 1200, 6000]);
    let mut parameters = Parameters::new(kind, random.pick(&[5, 20, 100, 1000]), period_ms);
    if kind == Kind::SlidingWindowBuckets {
        parameters.sub_windows = Some(random.pick(&[1, 2, 4, 10]));
    }
    parameters
}

/// The most units admitted in any of the intervals that `start` and `end` give an admission.
fn most(log: &[(u64, u64)], interval: impl Fn(u64) -> std::ops::Range<u64>) -> u64 {
    let within = |at_ms: u64| {
        let interval = interval(at_ms);
        let of = log.iter().filter(|(t, _)| interval.contains(t));
        of.map(|(_, units)| units).sum()
    };
    log.iter()
        .map(|(at_ms, _)| within(*at_ms))
        .max()
        .unwrap_or(0)
}

fn fleets(
    kind: Kind,
    edits: Edits,
    align: Option<Align>,
    most: impl Fn(&Parameters, &[(u64, u64)]) -> u64,
) {
    let mut spent = 0;
    for seed in 0..seeds().end / 4 {
        let mut parameters = window(seed, kind);
        parameters.align = align;
        let algorithm = Algorithm::new(&parameters).unwrap();
        let mut bucket = Real::new(algorithm);
        let lapses = Lapses::default();
        let mut world = World::new(seed, &algorithm, &mut bucket, lapses, edits);
        world.run(EVENTS);
        spent += world.spent;
        // What a reset gives back may be used once more: so the log is checked from each reset on.
        let mut from = 0;
        for to in world.resets.iter().copied().chain([world.log.len()]) {
            let worst = most(&parameters, &world.log[from..to]);
            let limit = parameters.rate.units;
            assert!(worst <= limit, "seed {seed}: {worst} of {parameters:?}");
            from = to;
        }
    }
    assert!(
        spent > 10 * seeds().end,
        "otherwise nothing was shown: {spent}"
    );
}

/// The most in the aligned window of any admission.
fn in_aligned_windows(parameters: &Parameters, log: &[(u64, u64)]) -> u64 {
    let period_ms = parameters.rate.period_ms;
    most(log, |at_ms| {
        let start_ms = at_ms - at_ms % period_ms;
        start_ms..start_ms + period_ms
    })
}

/// The most in any window that begins with an admission.
fn in_any_window(parameters: &Parameters, log: &[(u64, u64)]) -> u64 {
    most(log, |at_ms| at_ms..at_ms + parameters.rate.period_ms)
}

#[test]
fn a_fixed_window_never_admits_more_than_n() {
    let align = Some(Align::Epoch);
    fleets(Kind::FixedWindow, TTL_EDITS, align, in_aligned_windows);
}

#[test]
fn a_sliding_window_never_admits_more_than_n_in_an_aligned_one() {
    fleets(Kind::SlidingWindow, TTL_EDITS, None, in_aligned_windows);
}

#[test]
fn strict_sub_windows_never_admit_more_than_n_in_any_window() {
    fleets(Kind::SlidingWindowBuckets, TTL_EDITS, None, in_any_window);
}

#[test]
fn units_outstanding_at_a_window_reset_are_not_granted_again() {
    let align = Some(Align::Epoch);
    fleets(Kind::FixedWindow, RESETS, align, in_aligned_windows);
    fleets(Kind::SlidingWindow, RESETS, None, in_aligned_windows);
    fleets(Kind::SlidingWindowBuckets, RESETS, None, in_any_window);
}
