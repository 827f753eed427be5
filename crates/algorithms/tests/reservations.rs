//! Reservations against an adversary that loses, delays, repeats and reorders their settlements,
//! edits, resets and credits the limit, and fails over to an older state.
//!
//! The bound: a bucket's costs count at their checks, so that in any time Δ what requests truly used
//! is at most C + rΔ, plus what they used beyond their reservations, plus what was credited and what
//! a failover or a reset forgot. A window admits N of them, plus the same.

#![expect(clippy::unwrap_used, reason = "a test stops with the reason")]

#[cfg(target_arch = "wasm32")]
#[macro_use]
extern crate wasm_test;

use algorithms::check::{Costs, Mode, Options, Part, Stored, Verdict, check};
use algorithms::{Algorithm, CostSettlement, Kind, LeaseAsk, Parameters, SETTLE_WITHIN_MS};

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// One bucket and its clock.
struct World {
    algorithm: Algorithm,
    generation: u64,
    stored: Option<Stored>,
    now_ms: u64,
}

impl World {
    fn new(parameters: &Parameters) -> Self {
        Self {
            algorithm: Algorithm::new(parameters).unwrap(),
            generation: 1,
            stored: None,
            now_ms: 1_763_000_040_000,
        }
    }

    fn edit(&mut self, parameters: &Parameters) {
        self.algorithm = Algorithm::new(parameters).unwrap();
        self.generation += 1;
    }

    fn check(&mut self, cost: u64, secret: Option<u64>, settle: &[CostSettlement]) -> Verdict {
        let part = Part {
            algorithm: &self.algorithm,
            generation: self.generation,
            stored: self.stored.as_ref(),
            cost,
            debit: 0,
            debit_serial: None,
            lease: LeaseAsk::default(),
            free: &[],
            costs: Some(Costs {
                secret,
                settle,
                count_open: false,
            }),
            penalty: None,
            mode: Mode::Enforce,
        };
        let (verdict, mut writes) = check(&[part], self.now_ms, Options::default()).unwrap();
        if let Some(write) = writes.pop().flatten() {
            self.stored = Some(write);
        }
        verdict
    }

    /// Reserves units; what settles them by the cost 0.
    fn reserve(&mut self, units: u64, secret: u64) -> Option<CostSettlement> {
        let verdict = self.check(units, Some(secret), &[]);
        let limit = verdict.limits.first().unwrap();
        (limit.charged > 0).then_some(CostSettlement {
            number: limit.reserved.number,
            secret,
            reserved: units,
            units: 0,
        })
    }

    /// Units given back, and charged beyond.
    fn settle(&mut self, of: CostSettlement, units: u64) -> (u64, u64) {
        let verdict = self.check(0, None, &[CostSettlement { units, ..of }]);
        let reserved = verdict.limits.first().unwrap().reserved;
        (reserved.given_back, reserved.excess)
    }

    fn left(&mut self) -> u64 {
        self.check(0, None, &[])
            .limits
            .first()
            .unwrap()
            .decision
            .remaining
    }
}

fn bucket(units: u64, period_ms: u64, burst: u64) -> Parameters {
    Parameters {
        burst: Some(burst),
        ..Parameters::new(Kind::TokenBucket, units, period_ms)
    }
}

/// A request under way.
struct Flight {
    of: CostSettlement,
    truth: u64,
    at_ms: u64,
    /// Given back of it.
    back: u64,
}

/// What a bucket of this history may have admitted: each admission by its true use, at its check.
struct Admitted(Vec<(u64, u64)>);

impl Admitted {
    /// The largest use beyond C + rΔ in any Δ, in parts of a thousandth of a unit.
    fn beyond(&self, capacity: u64, per_second: u64) -> u64 {
        let mut worst = 0_u64;
        for (first, (from_ms, _)) in self.0.iter().enumerate() {
            let mut used = 0_u64;
            for (at_ms, units) in self.0.iter().skip(first) {
                used += units * 1000;
                let allowed = capacity * 1000 + per_second * (at_ms - from_ms);
                worst = worst.max(used.saturating_sub(allowed));
            }
        }
        worst
    }
}

/// A history of a token bucket of 100 units and 20 a second. Requests use what they say truly, up to
/// their reservation, so that whatever is beyond C + rΔ was given back wrongly.
fn history(seed: u64) -> (u64, u64) {
    let mut random = Random(seed);
    let mut world = World::new(&bucket(20, 1000, 100));
    let mut flights: Vec<Flight> = Vec::new();
    let mut settled: Vec<Flight> = Vec::new();
    let mut admitted = Admitted(Vec::new());
    let mut given_back = 0;
    let (lowers, mut forgiven) = (random.one_in(3), 0);
    for step in 0..400 {
        if random.one_in(2) {
            world.now_ms += random.below(400);
        }
        // Rates may be edited within the same parts of a unit; a capacity may be lowered.
        if lowers && random.one_in(60) {
            let burst = if random.one_in(2) { 100 } else { 60 };
            // What an edit forgives is admitted again, once.
            forgiven += 100 - burst;
            world.edit(&bucket(20, 1000, burst));
        }
        if random.one_in(2) {
            let units = 1 + random.below(40);
            if let Some(of) = world.reserve(units, step) {
                let truth = if random.one_in(2) {
                    0
                } else {
                    random.below(units + 1)
                };
                let at_ms = world.now_ms;
                flights.push(Flight {
                    of,
                    truth,
                    at_ms,
                    back: 0,
                });
            }
        }
        if !flights.is_empty() && random.one_in(3) {
            let at = usize::try_from(random.below(flights.len() as u64)).unwrap();
            let mut flight = flights.swap_remove(at);
            admitted.0.push((flight.at_ms, flight.truth));
            // Some settlements are lost.
            if !random.one_in(10) {
                flight.back = world.settle(flight.of, flight.truth).0;
                given_back += flight.back;
                settled.push(flight);
            }
        }
        if !settled.is_empty() && random.one_in(4) {
            // Repeated, now or much later. One that came while the capacity was lower gave nothing
            // back, and left the bucket as it was.
            let at = usize::try_from(random.below(settled.len() as u64)).unwrap();
            if let Some(flight) = settled.get_mut(at) {
                flight.back += world.settle(flight.of, flight.truth).0;
                let rest = flight.of.reserved - flight.truth;
                assert!(flight.back <= rest, "seed {seed}: given back twice");
            }
        }
    }
    // What was never settled used what it reserved.
    let open = flights
        .iter()
        .map(|flight| (flight.at_ms, flight.of.reserved));
    admitted.0.extend(open);
    admitted.0.sort_unstable();
    (admitted.beyond(100 + forgiven, 20), given_back)
}

#[test]
fn what_requests_use_is_within_the_bound() {
    let mut given_back = 0;
    for seed in 0..3000 {
        let (beyond, back) = history(seed);
        // A part of a unit is rounded up, a millisecond down.
        assert_eq!(
            beyond, 0,
            "seed {seed}: {beyond} thousandths beyond the bound"
        );
        given_back += back;
    }
    assert!(given_back > 100_000, "{given_back} units were given back");
}

#[test]
fn a_bucket_gives_back_no_more_than_it_owed_ever_since() {
    let mut world = World::new(&bucket(20, 1000, 100));
    let first = world.reserve(80, 1).unwrap();
    // Drained to 20, then charged again: only 20 of the first are owed all the time.
    world.now_ms += 3000;
    let second = world.reserve(80, 2).unwrap();
    assert_eq!(world.left(), 0);
    assert_eq!(world.settle(first, 0), (20, 0));
    assert_eq!(world.left(), 20);
    // What the first got back is not the second's any more.
    assert_eq!(world.settle(second, 0), (80, 0));
    assert_eq!(world.left(), 100);
}

#[test]
fn many_in_flight_lose_little() {
    let mut world = World::new(&bucket(1, 1000, 10_000));
    let flights: Vec<_> = (0..200)
        .map(|n| {
            world.now_ms += 10;
            world.reserve(40, n).unwrap()
        })
        .collect();
    let back: u64 = flights.iter().map(|of| world.settle(*of, 0).0).sum();
    assert!(back > 7000, "{back} of 8000 were given back");
}

#[test]
fn a_settlement_counts_once() {
    let mut world = World::new(&bucket(20, 1000, 100));
    let of = world.reserve(50, 7).unwrap();
    assert_eq!(world.settle(of, 20), (30, 0));
    assert_eq!(world.settle(of, 0), (0, 0));
    assert_eq!(world.settle(of, 90), (0, 0));
    assert_eq!(world.left(), 80);
    let other = CostSettlement { secret: 8, ..of };
    assert_eq!(world.settle(other, 0), (0, 0));
}

#[test]
fn without_a_record_the_excess_is_charged() {
    let mut world = World::new(&bucket(20, 1000, 100));
    let of = world.reserve(50, 7).unwrap();
    world.stored = None; // a reset, or a failover to an older state
    assert_eq!(world.settle(of, 20), (0, 0));
    assert_eq!(world.settle(of, 90), (0, 40));
    assert_eq!(world.left(), 60);
}

#[test]
fn a_late_settlement_gives_nothing_back() {
    let mut world = World::new(&bucket(1, 60_000, 100));
    let of = world.reserve(50, 7).unwrap();
    world.now_ms += SETTLE_WITHIN_MS;
    assert_eq!(world.settle(of, 20), (0, 0));
}

#[test]
fn a_failover_gives_back_what_the_older_state_still_owes() {
    let mut world = World::new(&bucket(1, 60_000, 100));
    let first = world.reserve(50, 1).unwrap();
    let older = world.stored.clone();
    let lost = world.reserve(30, 2).unwrap();
    assert_eq!(world.settle(first, 0), (50, 0));
    world.stored = older;
    assert_eq!(
        world.settle(lost, 0),
        (0, 0),
        "the older state never charged it"
    );
    assert_eq!(world.settle(first, 0), (50, 0));
    // The same number is another reservation now.
    let next = world.reserve(40, 3).unwrap();
    assert_eq!(next.number, lost.number);
    assert_eq!(world.settle(lost, 0), (0, 0));
    assert_eq!(world.left(), 60);
}

#[test]
fn what_is_owed_beyond_outlives_an_edit() {
    let mut world = World::new(&bucket(20, 1000, 100));
    let of = world.reserve(50, 1).unwrap();
    assert_eq!(world.settle(of, 650), (0, 600));
    // 650 are owed, 550 of them beyond; a capacity of 10 forgives 90 of the others.
    world.edit(&bucket(20, 1000, 10));
    let denied = world.check(10, None, &[]);
    let retry = denied.limits.first().unwrap().decision.retry_after.millis();
    assert_eq!(retry, Some(28_000));
}

#[test]
fn a_capacity_that_is_lowered_voids_reservations() {
    let mut world = World::new(&bucket(1, 60_000, 100));
    let of = world.reserve(90, 1).unwrap();
    world.edit(&bucket(1, 60_000, 50));
    // 40 were forgiven: giving back 90 of the 50 that are owed would forgive others' units.
    assert_eq!(world.settle(of, 0), (0, 0));
}

#[test]
fn another_unit_voids_reservations() {
    let mut world = World::new(&bucket(1, 60_000, 100));
    let of = world.reserve(90, 1).unwrap();
    world.edit(&bucket(1, 1000, 100));
    assert_eq!(world.settle(of, 0), (0, 0));
}

#[test]
fn windows_give_back_what_they_still_count() {
    for kind in [
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingWindowBuckets,
    ] {
        let mut world = World::new(&Parameters {
            sub_windows: (kind == Kind::SlidingWindowBuckets).then_some(10),
            ..Parameters::new(kind, 100, 60_000)
        });
        let first = world.reserve(60, 1).unwrap();
        world.now_ms += 1000;
        assert_eq!(world.settle(first, 10), (50, 0), "{kind}");
        assert_eq!(world.left(), 90, "{kind}");
        let second = world.reserve(50, 2).unwrap();
        world.now_ms += 130_000;
        // Its count is past.
        assert_eq!(world.settle(second, 0), (0, 0), "{kind}");
        assert_eq!(world.left(), 100, "{kind}");
        // What is charged beyond counts now, and ends with its window.
        let third = world.reserve(50, 3).unwrap();
        assert_eq!(world.settle(third, 3000), (0, 2950), "{kind}");
        assert_eq!(world.left(), 0, "{kind}");
        world.now_ms += 400_000;
        assert_eq!(world.left(), 100, "{kind}");
    }
}

#[test]
fn the_oldest_of_too_many_reservations_is_forgotten() {
    let mut world = World::new(&bucket(1, 60_000, 5000));
    let flights: Vec<_> = (0..1001).map(|n| world.reserve(2, n).unwrap()).collect();
    assert_eq!(world.settle(*flights.first().unwrap(), 0), (0, 0));
    assert_eq!(world.settle(*flights.last().unwrap(), 0), (2, 0));
}
