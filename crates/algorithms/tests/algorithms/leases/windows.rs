//! Leased windows count each unit in the window in which it is used.

use algorithms::{Algorithm, Align, Kind, Parameters};

use super::Random;
use super::bucket::Real;
use super::edits::Edits;
use super::world::{Lapses, World};
use super::{EVENTS, seeds};

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

const TTL_EDITS: Edits = Edits {
    ttl: true,
    switched_off: true,
    resets: false,
    numbers: false,
    kind: false,
    clock: false,
};

const RESETS: Edits = Edits {
    resets: true,
    ..TTL_EDITS
};

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
