//! Reservations: what is given back, and what is not. `adversary` looks for histories that get more than
//! the bound.

mod adversary;
mod model;
mod windows;

use algorithms::check::{Options, Part, Stored, Verdict, check};
use algorithms::{
    Algorithm, Align, CostSettlement, Kind, Parameters, Reservation, ReserveRequest,
    SETTLE_WITHIN_MS,
};

use crate::support::{Random, Subject, bursting, count, histories, moved, number, part};

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
        let costs = ReserveRequest {
            secret,
            settle: settle.to_vec(),
            ..ReserveRequest::default()
        };
        self.check_by(cost, Some(costs))
    }

    /// `costs` is `None` for a limit whose responses state no cost.
    fn check_by(&mut self, cost: u64, costs: Option<ReserveRequest>) -> Verdict {
        let part = Part {
            generation: self.generation,
            costs,
            ..part(&self.algorithm, cost)
        };
        let asked = [(&part, self.stored.as_ref(), None)];
        let (verdict, mut writes) = check(&asked, self.now_ms, Options::default()).unwrap();
        if let Some((Some(write), _)) = writes.pop() {
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
        let limit = &verdict.limits[0];
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
        let reserved = verdict.limits[0].reserved;
        (reserved.given_back, reserved.excess)
    }

    /// Units that are reserved and not settled yet.
    fn open(&mut self) -> u64 {
        let count_open = true;
        let costs = ReserveRequest {
            count_open,
            ..ReserveRequest::default()
        };
        self.check_by(0, Some(costs)).limits[0].reserved.open
    }

    /// How often something is in the stored reservations.
    fn stored_of(&self, what: &str) -> usize {
        let stored = self.stored.as_ref().unwrap();
        format!("{:?}", stored.reservations).matches(what).count()
    }

    fn left(&mut self) -> u64 {
        self.check(0, None, &[]).limits[0].decision.remaining
    }
}

fn bucket(units: u64, period_ms: u64, burst: u64) -> Parameters {
    bursting(Kind::TokenBucket, units, period_ms, burst)
}

/// A world in which requests have names, and the state that a failover goes back to.
struct Named {
    world: World,
    flights: Vec<(String, CostSettlement)>,
    older: Option<Stored>,
}

fn of(parameters: Parameters) -> Named {
    Named {
        world: World::new(&parameters),
        flights: Vec::new(),
        older: None,
    }
}

fn window(kind: Kind) -> Named {
    let sub_windows = (kind == Kind::SlidingWindowBuckets).then_some(10);
    of(Parameters {
        sub_windows,
        ..Parameters::new(kind, 100, 60_000)
    })
}

impl Subject for Named {
    /// `reserve NAME UNITS`, `settle NAME COST` (what is given back and what is charged beyond), `left`, `open`, an edit,
    /// a credit, a check of another kind, a failover, or a move of the clock.
    fn step(&mut self, verb: &str, arguments: &[&str]) -> String {
        let number = |nth: usize| count(arguments[nth]);
        let world = &mut self.world;
        match verb {
            "reserve" => {
                let secret = self.flights.len() as u64;
                let of = world.reserve(number(1), secret).unwrap();
                self.flights.push((arguments[0].to_owned(), of));
            }
            "settle" => {
                let mut named = self.flights.iter().filter(|(name, _)| name == arguments[0]);
                let (given_back, excess) = world.settle(named.next_back().unwrap().1, number(1));
                return format!("{given_back} {excess}");
            }
            "forge" => {
                let (_, mut of) = self.flights[0];
                of.reservation.secret += 1;
                self.flights.push((arguments[0].to_owned(), of));
            }
            "deny" => {
                let denied = world.check(number(0), None, &[]).limits[0].decision;
                return denied.retry_after.millis().unwrap().to_string();
            }
            "left" => return world.left().to_string(),
            "open" => return world.open().to_string(),
            "edit" => world.edit(&bucket(number(0), number(1), number(2))),
            "length" => world.edit(&Parameters::new(Kind::FixedWindow, 100, number(0))),
            // The limit's responses state no cost for some time, so nothing tracks the least debt.
            "plain" => {
                world.generation += 1;
                world.check_by(number(0), None);
                world.generation += 1;
            }
            "credit" => {
                let (stored, generation) = (world.stored.as_ref().unwrap(), world.generation);
                let at = (world.now_ms, 0);
                let credited =
                    world
                        .algorithm
                        .credit_stored(stored, generation, at, number(0), true);
                world.stored = Some(credited);
            }
            "copy" => self.older = world.stored.clone(),
            "failover" => world.stored = self.older.clone(),
            by => world.now_ms = moved(world.now_ms, by),
        }
        String::new()
    }
}

histories! {
    /// Drained to 20, then charged again: at least 20 units of the first were owed all the time, and the second does
    /// not get back again what the first got.
    a_bucket_gives_back_at_most_its_least_debt_since_the_reservation: of(bucket(20, 1000, 100)),
        "reserve a 80; +3000; reserve b 80; left = 0; settle a 0 = 20 0; left = 20; settle b 0 = 80 0; left = 100";
    a_settlement_counts_once: of(bucket(20, 1000, 100)),
        "reserve a 50; settle a 20 = 30 0; settle a 0 = 0 0; settle a 90 = 0 0; left = 80;
         forge b; settle b 0 = 0 0";
    /// After a reset, or a failover to an older state.
    without_a_record_the_excess_is_charged: of(bucket(20, 1000, 100)),
        "reserve a 50; failover; settle a 20 = 0 0; settle a 90 = 0 40; left = 60";
    a_late_settlement_gives_nothing_back: of(bucket(1, 60_000, 100)),
        "reserve a 50; +600_000; settle a 20 = 0 0";
    /// The older state never charged `lost`, and its number is another reservation then.
    a_failover_gives_back_what_the_older_state_still_owes: of(bucket(1, 60_000, 100)),
        "reserve a 50; copy; reserve lost 30; settle a 0 = 50 0; failover; settle lost 0 = 0 0; settle a 0 = 50 0;
         reserve c 40; settle lost 0 = 0 0; left = 60";
    /// 650 are owed, 550 of them beyond; a capacity of 10 forgives 90 of the others.
    debt_beyond_the_capacity_outlives_an_edit: of(bucket(20, 1000, 100)),
        "reserve a 50; settle a 650 = 0 600; edit 20 1000 10; deny 10 = 28_000";
    /// 40 were forgiven: giving back 90 of the 50 owed units would forgive units of other requests.
    a_capacity_that_is_lowered_voids_reservations: of(bucket(1, 60_000, 100)),
        "reserve a 90; edit 1 60_000 50; settle a 0 = 0 0";
    another_unit_voids_reservations: of(bucket(1, 60_000, 100)),
        "reserve a 90; edit 1 1000 100; settle a 0 = 0 0";
    another_length_of_a_window_voids_reservations: window(Kind::FixedWindow),
        "reserve a 90; length 120_000; settle a 0 = 0 0";
    /// Neither a repeat nor another cost counts.
    the_excess_of_a_void_or_late_reservation_is_charged_once: of(bucket(1, 60_000, 100)),
        "reserve late 10; +600_000; reserve void 60; edit 1 60_000 50;
         settle late 13 = 0 3; settle late 13 = 0 0; settle late 20 = 0 0;
         settle void 65 = 0 5; settle void 65 = 0 0; settle void 72 = 0 0";
    /// 80 are owed since.
    a_credit_after_an_edit_leaves_reservations_open: of(bucket(1, 60_000, 100)),
        "reserve a 60; reserve b 30; edit 1 60_000 200; credit 10; left = 120; settle a 20 = 40 0;
         settle b 35 = 0 5; settle b 35 = 0 0; left = 155";
    /// Nor are they given back later, when the owed units are those of other requests.
    a_clock_that_steps_back_far_voids_reservations: of(bucket(20, 1000, 100)),
        "reserve a 90; -60_000; settle a 0 = 0 0; +60_000; reserve b 90; settle a 0 = 0 0";
    while_the_clock_is_behind_a_window_gives_nothing_back: window(Kind::FixedWindow),
        "+1000; reserve a 90; -500; settle a 0 = 0 0";
    units_that_another_version_charged_are_not_given_back: of(bucket(20, 1000, 100)),
        "reserve a 80; +4000; plain 80; settle a 0 = 0 0; left = 20";
    /// The next request does, and its window lasts a minute.
    a_settlement_alone_opens_no_window: of(Parameters {
        align: Some(Align::FirstRequest),
        ..Parameters::new(Kind::FixedWindow, 100, 60_000)
    }),
        "reserve a 20; +61_000; settle a 20 = 0 0; +30_000; reserve b 100; +59_999; left = 0; +1; left = 100 |
         reserve a 20; +61_000; settle a 0 = 0 0; +30_000; reserve b 100; +59_999; left = 0; +1; left = 100";
    /// Where the clock steps back, the first entry counts again, as without the settlement.
    a_settlement_of_a_log_changes_no_entry: of(Parameters::new(Kind::SlidingWindowLog, 10, 1000)),
        "reserve a 5; +900; reserve b 3; +600; settle a 0 = 0 0; left = 7; -550; left = 2; settle a 9 = 0 0";
    /// Those that are late no longer are, nor those that an edit voids.
    open_units_are_those_that_may_still_be_settled: of(bucket(1, 60_000, 5000)),
        "reserve a 100; +300_000; reserve b 20; open = 120; settle a 30; open = 20; reserve c 3;
         +300_000; open = 23; +300_000; open = 0; reserve d 3; edit 1 1000 5000; open = 0";
}

#[test]
fn windows_give_back_what_they_still_count() {
    assert_eq!(SETTLE_WITHIN_MS, 600_000, "as the histories have it");
    for kind in [
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::SlidingWindowBuckets,
    ] {
        // The count of the second is past; the excess counts in the current window, and ends with it.
        let history = "reserve a 60; +1000; settle a 10 = 50 0; left = 90; reserve b 50; +130_000;
            settle b 0 = 0 0; left = 100; reserve c 50; settle c 3000 = 0 2950; left = 0; +400_000; left = 100";
        crate::support::play(&mut window(kind), history);
    }
}

#[test]
fn many_in_flight_get_back_all_that_has_not_drained() {
    let mut world = World::new(&bucket(1, 1000, 10_000));
    let reserve = |n| {
        world.now_ms += 10;
        world.reserve(40, n).unwrap()
    };
    let flights: Vec<_> = (0..200).map(reserve).collect();
    let back: u64 = flights.iter().map(|of| world.settle(*of, 0).0).sum();
    assert_eq!(world.left(), 10_000);
    // Of each but the last, ten parts of a thousand have drained, and a report counts whole units.
    assert_eq!(back, 199 * 39 + 40);
}

#[test]
fn the_oldest_of_too_many_reservations_is_forgotten() {
    // A window gives back every reservation that it has a record of.
    let mut world = World::new(&Parameters::new(Kind::FixedWindow, 5000, 60_000));
    let flights: Vec<_> = (0..1001).map(|n| world.reserve(2, n).unwrap()).collect();
    let back = [0, 1, 1000].map(|nth: usize| world.settle(flights[nth], 0));
    assert_eq!(back, [(0, 0), (2, 0), (2, 0)]);
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
