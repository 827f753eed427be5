//! Reservations: what is given back, and what is not. `adversary` looks for histories that get more than
//! the bound.

mod adversary;
mod bounds;
mod model;
mod windows;

use algorithms::check::{Costs, Options, Part, Stored, Verdict, check};
use algorithms::{
    Algorithm, Align, CostSettlement, Kind, Parameters, Reservation, SETTLE_WITHIN_MS,
};

use crate::support::{Random, number, part};

const START_MS: u64 = 1_763_000_040_000;

/// One bucket and its clock.
struct World {
    algorithm: Algorithm,
    generation: u64,
    stored: Option<Stored>,
    now_ms: u64,
    /// When the state was last written.
    written_ms: u64,
}

impl World {
    fn new(parameters: &Parameters) -> Self {
        Self {
            algorithm: Algorithm::new(parameters).unwrap(),
            generation: 1,
            stored: None,
            now_ms: START_MS,
            written_ms: START_MS,
        }
    }

    fn edit(&mut self, parameters: &Parameters) {
        self.algorithm = Algorithm::new(parameters).unwrap();
        self.generation += 1;
    }

    fn check(&mut self, cost: u64, secret: Option<u64>, settle: &[CostSettlement]) -> Verdict {
        let costs = Costs {
            secret,
            settle,
            count_open: false,
        };
        self.check_by(cost, Some(costs))
    }

    /// `costs` is `None` for a limit whose responses state no cost.
    fn check_by(&mut self, cost: u64, costs: Option<Costs<'_>>) -> Verdict {
        let part = Part {
            generation: self.generation,
            costs,
            ..part(&self.algorithm, self.stored.as_ref(), cost)
        };
        let (verdict, mut writes) = check(&[part], self.now_ms, Options::default()).unwrap();
        if let Some(write) = writes.pop().flatten() {
            // Records may be written without the state, whose time then stays as it was.
            let before = self.stored.as_ref().map(|stored| &stored.state);
            if before != Some(&write.state) {
                self.written_ms = self.now_ms;
            }
            self.stored = Some(write);
        }
        verdict
    }

    /// Reserves units; returns their settlement with a cost of 0.
    fn reserve(&mut self, units: u64, secret: u64) -> Option<CostSettlement> {
        let verdict = self.check(units, Some(secret), &[]);
        let limit = verdict.limits.first().unwrap();
        (limit.charged > 0).then_some(CostSettlement {
            reservation: Reservation {
                secret,
                number: limit.reserved.number,
                units,
                seal: 0,
            },
            units: 0,
        })
    }

    /// Units given back, and charged beyond.
    fn settle(&mut self, of: CostSettlement, units: u64) -> (u64, u64) {
        let verdict = self.check(0, None, &[CostSettlement { units, ..of }]);
        let reserved = verdict.limits.first().unwrap().reserved;
        (reserved.given_back, reserved.excess)
    }

    /// Units that are reserved and not settled yet.
    fn open(&mut self) -> u64 {
        let costs = Costs {
            count_open: true,
            ..Costs::default()
        };
        let verdict = self.check_by(0, Some(costs));
        verdict.limits.first().unwrap().reserved.open
    }

    /// How often something is in the stored reservations.
    fn stored_of(&self, what: &str) -> usize {
        let stored = self.stored.as_ref().unwrap();
        format!("{:?}", stored.reservations).matches(what).count()
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

#[test]
fn a_bucket_gives_back_at_most_its_least_debt_since_the_reservation() {
    let mut world = World::new(&bucket(20, 1000, 100));
    let first = world.reserve(80, 1).unwrap();
    // Drained to 20, then charged again: at least 20 units of the first were owed all the time.
    world.now_ms += 3000;
    let second = world.reserve(80, 2).unwrap();
    assert_eq!(world.left(), 0);
    assert_eq!(world.settle(first, 0), (20, 0));
    assert_eq!(world.left(), 20);
    // The second does not get back again what the first got.
    assert_eq!(world.settle(second, 0), (80, 0));
    assert_eq!(world.left(), 100);
}

#[test]
fn many_in_flight_get_back_all_that_has_not_drained() {
    let mut world = World::new(&bucket(1, 1000, 10_000));
    let flights: Vec<_> = (0..200)
        .map(|n| {
            world.now_ms += 10;
            world.reserve(40, n).unwrap()
        })
        .collect();
    let back: u64 = flights.iter().map(|of| world.settle(*of, 0).0).sum();
    assert_eq!(world.left(), 10_000);
    // Of each but the last, ten parts of a thousand have drained, and a report counts whole units.
    assert_eq!(back, 199 * 39 + 40);
}

#[test]
fn a_settlement_counts_once() {
    let mut world = World::new(&bucket(20, 1000, 100));
    let of = world.reserve(50, 7).unwrap();
    assert_eq!(world.settle(of, 20), (30, 0));
    assert_eq!(world.settle(of, 0), (0, 0));
    assert_eq!(world.settle(of, 90), (0, 0));
    assert_eq!(world.left(), 80);
    let other = {
        let mut other = of;
        other.reservation.secret = 8;
        other
    };
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
    assert_eq!(next.reservation.number, lost.reservation.number);
    assert_eq!(world.settle(lost, 0), (0, 0));
    assert_eq!(world.left(), 60);
}

#[test]
fn debt_beyond_the_capacity_outlives_an_edit() {
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
    // 40 were forgiven: giving back 90 of the 50 owed units would forgive units of other requests.
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
fn another_length_of_a_window_voids_reservations() {
    let window = |length_ms| Parameters::new(Kind::FixedWindow, 100, length_ms);
    let mut world = World::new(&window(60_000));
    let of = world.reserve(90, 1).unwrap();
    world.edit(&window(120_000));
    assert_eq!(world.settle(of, 0), (0, 0));
}

#[test]
fn the_excess_of_a_void_or_late_reservation_is_charged_once() {
    let mut world = World::new(&bucket(1, 60_000, 100));
    let late = world.reserve(10, 1).unwrap();
    world.now_ms += SETTLE_WITHIN_MS;
    let void = world.reserve(60, 2).unwrap();
    world.edit(&bucket(1, 60_000, 50));
    for (of, units) in [(late, 13), (void, 65)] {
        assert_eq!(world.settle(of, units), (0, units - of.reservation.units));
        assert_eq!(world.settle(of, units), (0, 0), "a repeat");
        assert_eq!(world.settle(of, units + 7), (0, 0), "another cost");
    }
}

#[test]
fn a_credit_after_an_edit_leaves_reservations_open() {
    let mut world = World::new(&bucket(1, 60_000, 100));
    let first = world.reserve(60, 1).unwrap();
    let second = world.reserve(30, 2).unwrap();
    world.edit(&bucket(1, 60_000, 200));
    let stored = world.stored.as_ref().unwrap();
    let credited =
        { world.algorithm }.credit_stored(stored, world.generation, (world.now_ms, 0), 10, true);
    world.stored = Some(credited);
    assert_eq!(world.left(), 120);
    // 80 are owed since.
    assert_eq!(world.settle(first, 20), (40, 0));
    assert_eq!(world.settle(second, 35), (0, 5));
    assert_eq!(world.settle(second, 35), (0, 0));
    assert_eq!(world.left(), 155);
}

#[test]
fn a_clock_that_steps_back_far_voids_reservations() {
    let mut world = World::new(&bucket(20, 1000, 100));
    let of = world.reserve(90, 1).unwrap();
    world.now_ms -= 60_000;
    assert_eq!(world.settle(of, 0), (0, 0));
    // Nor are they given back later, when the owed units are those of other requests.
    world.now_ms += 60_000;
    world.reserve(90, 2).unwrap();
    assert_eq!(world.settle(of, 0), (0, 0));
}

#[test]
fn while_the_clock_is_behind_a_window_gives_nothing_back() {
    let mut world = World::new(&Parameters::new(Kind::FixedWindow, 100, 60_000));
    world.now_ms += 1000;
    let of = world.reserve(90, 1).unwrap();
    world.now_ms -= 500;
    assert_eq!(world.settle(of, 0), (0, 0));
}

#[test]
fn units_that_another_version_charged_are_not_given_back() {
    let mut world = World::new(&bucket(20, 1000, 100));
    let of = world.reserve(80, 1).unwrap();
    // The limit's responses state no cost for some time, so nothing tracks the least debt.
    world.generation += 1;
    world.now_ms += 4000;
    world.check_by(80, None);
    world.generation += 1;
    assert_eq!(world.settle(of, 0), (0, 0));
    assert_eq!(world.left(), 20);
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
        // The excess counts in the current window, and ends with it.
        let third = world.reserve(50, 3).unwrap();
        assert_eq!(world.settle(third, 3000), (0, 2950), "{kind}");
        assert_eq!(world.left(), 0, "{kind}");
        world.now_ms += 400_000;
        assert_eq!(world.left(), 100, "{kind}");
    }
}

#[test]
fn a_settlement_alone_opens_no_window() {
    for units in [20, 0] {
        let mut world = World::new(&Parameters {
            align: Some(Align::FirstRequest),
            ..Parameters::new(Kind::FixedWindow, 100, 60_000)
        });
        let of = world.reserve(20, 1).unwrap();
        world.now_ms += 61_000;
        assert_eq!(world.settle(of, units), (0, 0));
        // The next request does, and its window lasts a minute.
        world.now_ms += 30_000;
        world.reserve(100, 2).unwrap();
        world.now_ms += 59_999;
        assert_eq!(world.left(), 0);
        world.now_ms += 1;
        assert_eq!(world.left(), 100);
    }
}

#[test]
fn a_settlement_of_a_log_changes_no_entry() {
    let mut world = World::new(&Parameters::new(Kind::SlidingWindowLog, 10, 1000));
    let first = world.reserve(5, 1).unwrap();
    world.now_ms += 900;
    world.reserve(3, 2).unwrap();
    world.now_ms += 600;
    assert_eq!(world.settle(first, 0), (0, 0));
    assert_eq!(world.left(), 7);
    // Where the clock steps back, the first entry counts again, as without the settlement.
    world.now_ms -= 550;
    assert_eq!(world.left(), 2);
    assert_eq!(world.settle(first, 9), (0, 0), "it was settled");
}

#[test]
fn the_oldest_of_too_many_reservations_is_forgotten() {
    // A window gives back every reservation that it has a record of.
    let mut world = World::new(&Parameters::new(Kind::FixedWindow, 5000, 60_000));
    let flights: Vec<_> = (0..1001).map(|n| world.reserve(2, n).unwrap()).collect();
    assert_eq!(world.settle(*flights.first().unwrap(), 0), (0, 0));
    assert_eq!(world.settle(*flights.get(1).unwrap(), 0), (2, 0));
    assert_eq!(world.settle(*flights.last().unwrap(), 0), (2, 0));
    assert_eq!(world.stored_of("Record {"), 1000);
}

#[test]
fn a_bucket_stores_the_least_debt_since_reservations_with_a_record_only() {
    let mut world = World::new(&bucket(1, 60_000, 50_000));
    for secret in 0..1300 {
        world.reserve(10, secret).unwrap();
    }
    assert_eq!(world.stored_of("Least {"), 1000);
}

#[test]
fn open_units_are_those_that_may_still_be_settled() {
    let mut world = World::new(&bucket(1, 60_000, 5000));
    let first = world.reserve(100, 1).unwrap();
    world.now_ms += SETTLE_WITHIN_MS / 2;
    world.reserve(20, 2).unwrap();
    assert_eq!(world.open(), 120);
    world.settle(first, 30);
    assert_eq!(world.open(), 20);
    world.reserve(3, 3).unwrap();
    world.now_ms += SETTLE_WITHIN_MS / 2;
    assert_eq!(world.open(), 23);
    world.now_ms += SETTLE_WITHIN_MS / 2;
    assert_eq!(world.open(), 0, "too late");
    world.reserve(3, 4).unwrap();
    world.edit(&bucket(1, 1000, 5000));
    assert_eq!(world.open(), 0, "void");
}
