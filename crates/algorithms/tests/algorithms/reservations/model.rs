//! A bucket that tracks every reservation by itself, written from the rules and slow: what is given back is
//! exactly that, however many are open. `RL_RESERVATION_STEPS` sets how many steps.

use super::{Random, START_MS, World, bucket, number};
use algorithms::{CostSettlement, SETTLE_WITHIN_MS};

/// A reservation.
struct Open {
    of: CostSettlement,
    at_ms: u64,
    /// The least debt since, in parts.
    least: u64,
    settled: bool,
}

/// A bucket, in parts of a unit.
struct Model {
    per_unit: u64,
    per_ms: u64,
    capacity: u64,
    /// What was owed when the usage last changed, and when that was.
    debt: u64,
    at_ms: u64,
    open: Vec<Open>,
}

impl Model {
    /// What is owed. A small step back of the clock gives no credit.
    fn debt(&self, now_ms: u64) -> u64 {
        let elapsed_ms = now_ms.saturating_sub(self.at_ms);
        self.debt.saturating_sub(elapsed_ms * self.per_ms)
    }

    fn left(&self, now_ms: u64) -> u64 {
        (self.capacity * self.per_unit).saturating_sub(self.debt(now_ms)) / self.per_unit
    }

    /// Reads the least debts.
    fn read(&mut self, now_ms: u64) {
        let debt = self.debt(now_ms);
        for open in &mut self.open {
            open.least = open.least.min(debt);
        }
    }

    /// Changes the usage.
    fn write(&mut self, now_ms: u64, debt: u64) {
        (self.debt, self.at_ms) = (debt, self.at_ms.max(now_ms));
    }

    fn reserve(&mut self, of: CostSettlement, at_ms: u64) {
        self.read(at_ms);
        self.write(
            at_ms,
            self.debt(at_ms) + of.reservation.units * self.per_unit,
        );
        self.open.push(Open {
            of,
            at_ms,
            least: self.debt,
            settled: false,
        });
        // A bucket has records of its latest thousand.
        if self.open.len() > 1000 {
            self.open.remove(0);
        }
    }

    /// What a settlement gives back, and charges beyond.
    fn settle(&mut self, of: CostSettlement, units: u64, now_ms: u64) -> (u64, u64) {
        let at = self
            .open
            .iter()
            .position(|open| open.of.reservation.number == of.reservation.number);
        let Some(at) = at else {
            return (
                0,
                self.charge(units.saturating_sub(of.reservation.units), now_ms),
            );
        };
        if self.open[at].settled {
            return (0, 0);
        }
        self.read(now_ms);
        let debt = self.debt(now_ms);
        let open = &mut self.open[at];
        open.settled = true;
        if units >= of.reservation.units || now_ms >= open.at_ms + SETTLE_WITHIN_MS {
            return (
                0,
                self.charge(units.saturating_sub(of.reservation.units), now_ms),
            );
        }
        // What has drained since was used: it cannot be given back, to this one or to an older one.
        let least = open.least;
        let parts = least.min((of.reservation.units - units) * self.per_unit);
        if parts > 0 {
            self.write(now_ms, debt - parts);
        }
        for (nth, other) in self.open.iter_mut().enumerate() {
            other.least = if nth > at {
                other.least - parts
            } else {
                other.least.min(least - parts)
            };
        }
        (parts / self.per_unit, 0)
    }

    fn charge(&mut self, units: u64, now_ms: u64) -> u64 {
        if units > 0 {
            self.read(now_ms);
            self.write(now_ms, self.debt(now_ms) + units * self.per_unit);
        }
        units
    }
}

#[expect(clippy::too_many_lines, reason = "the steps of a walk, in their order")]
/// Random requests that reserve, settle late and twice, at a rate that nearly uses the bucket up.
fn walk(seed: u64, steps: u64) -> (u64, usize) {
    let mut random = Random(seed);
    let (units, period_ms) = random.pick(&[(1, 60_000), (100, 60_000), (7, 1000), (1000, 1000)]);
    let capacity = random.pick(&[300, 5000, 20_000]);
    let mut world = World::new(&bucket(units, period_ms, capacity));
    let divisor = (1..=units)
        .rev()
        .find(|d| units.is_multiple_of(*d) && period_ms.is_multiple_of(*d));
    let divisor = divisor.unwrap();
    let mut model = Model {
        per_unit: period_ms / divisor,
        per_ms: units / divisor,
        capacity,
        debt: 0,
        at_ms: START_MS,
        open: Vec::new(),
    };
    let mut flights: Vec<CostSettlement> = Vec::new();
    let (mut given_back, mut most) = (0, 0);
    // First more come than end, then as many.
    let keep = random.below(1100);
    for secret in 0..steps {
        match random.below(60) {
            0 => world.now_ms -= random.below(30),
            1 => world.now_ms += random.below(20_000),
            2 if random.one_in(60) => world.now_ms += SETTLE_WITHIN_MS,
            3..=30 => world.now_ms += random.below(40),
            _ => {}
        }
        let many = flights.len() as u64 > keep;
        if !flights.is_empty() && random.below(10) < if many { 7 } else { 2 } {
            let nth = usize::try_from(random.below(flights.len() as u64)).unwrap();
            let of = if random.one_in(20) {
                flights[nth]
            } else {
                flights.swap_remove(nth)
            };
            let cost = match random.below(5) {
                0 => of.reservation.units + random.below(9),
                _ => random.below(of.reservation.units + 1),
            };
            let expected = model.settle(of, cost, world.now_ms);
            assert_eq!(
                world.settle(of, cost),
                expected,
                "seed {seed} step {secret}"
            );
            given_back += expected.0;
        } else {
            let cost = 1 + random.below(30);
            let reserved = world.reserve(cost, secret);
            assert_eq!(
                reserved.is_some(),
                cost <= model.left(world.now_ms),
                "seed {seed} step {secret}"
            );
            if let Some(of) = reserved {
                model.reserve(of, world.now_ms);
                flights.push(of);
            }
        }
        most = most.max(flights.len());
        assert_eq!(
            world.left(),
            model.left(world.now_ms),
            "seed {seed} step {secret}"
        );
    }
    (given_back, most)
}

#[test]
fn a_bucket_gives_back_what_a_model_that_tracks_every_reservation_does() {
    const STEPS_PER_WALK: u64 = 3000;
    let steps = number("RL_RESERVATION_STEPS", 30_000);
    let walks = steps.div_ceil(STEPS_PER_WALK);
    let all: Vec<_> = (0..walks).map(|seed| walk(seed, STEPS_PER_WALK)).collect();
    let many = all.iter().filter(|(_, most)| *most > 200).count();
    assert!(many * 5 > all.len(), "{many} walks with many open");
    let given_back: u64 = all.iter().map(|(given_back, _)| given_back).sum();
    assert!(given_back > steps / 2, "{all:?}");
}
