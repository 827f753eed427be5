//! Leases never let a bucket admit more than C + r·Δ in any interval, for thousands of random
//! fleets. The same fleets exceed it with a rule left out: where a refill is one `max` of the debt and the outstanding
//! units, an epoch is ⌊t/τ⌋, a check of a limit that leases no more ignores the outstanding units, a proxy counts the
//! ttl from the receipt of a grant, a settlement is executed twice, or a key lives only as long as its debt.
//!
//! `RL_LEASE_SEEDS` sets how many fleets each test runs.

mod world;

use algorithms::{Algorithm, Align, Kind, Parameters};
use world::{Edits, World};

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

// -----------------------------------------------------------------------------
// Buckets.

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
        let mut world = World::new(seed, algorithm(seed, kind), edits);
        world.run(EVENTS);
        let worst = world.audit.worst;
        assert!(worst <= 0, "seed {seed}: {worst} parts");
        granted += world.granted;
        spent += world.spent;
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
        let mut world = World::new(seed, Algorithm::new(&parameters).unwrap(), edits);
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
