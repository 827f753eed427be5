//! GCRA: one time, when the bucket will be free of debt, as an exact fraction.

use algorithms::check::{Options, Part};
use algorithms::{Algorithm, Debits, Kind};

use crate::support::bursting;

use super::{Random, START_MS, STEPS_PER_WALK, ask, assert_decides, count, part, walks};

/// Parts of a millisecond: each rate below has its units in a whole number of them.
const MS: i128 = 2 * 2 * 3 * 5 * 7 * 11 * 100;
const RATES: [(u64, u64); 7] = [
    (1, 1),
    (3, 1000),
    (10, 1000),
    (7, 60),
    (11, 100),
    (50, 7),
    (1000, 1500),
];

/// All times in parts.
#[derive(Clone, Copy, Default)]
struct Model {
    units: u64,
    period_ms: u64,
    burst: u64,
    /// When nothing is owed any more.
    free_at: i128,
    /// What was charged beyond the capacity as of a time. It drains first, and no other rule lessens it.
    beyond: i128,
    beyond_at: i128,
}

impl Model {
    /// So long a unit blocks the bucket.
    fn unit(&self) -> i128 {
        i128::from(self.period_ms) * MS / i128::from(self.units)
    }

    fn full(&self) -> i128 {
        i128::from(self.burst) * self.unit()
    }

    /// Times count in what a unit and a millisecond have in common; an edit of the rate rounds them up to that, so that
    /// it forgives nothing.
    fn rounded(&self, time: i128) -> i128 {
        let (mut common, mut rest) = (self.units, self.period_ms);
        while rest > 0 {
            (common, rest) = (rest, common % rest);
        }
        let step = MS / i128::from(self.units / common);
        (time + step - 1).div_euclid(step) * step
    }

    /// As the limit sees it at this time. Owed is at most the capacity, beside what was charged beyond it: of a clock
    /// that steps back further, and of an edit that lowers the burst, the bucket sees no more. Returns whether it cut.
    fn read(mut self, now: i128) -> (Self, bool) {
        let owed = (self.rounded(self.free_at) - now).max(0);
        let drained = (now - self.beyond_at).max(0);
        self.beyond = (self.rounded(self.beyond) - drained).clamp(0, owed);
        let cut = owed - self.beyond > self.full();
        self.free_at = now + owed.min(self.full() + self.beyond);
        // A small step back of the clock gives no credit, also not afterwards.
        let far = self.beyond_at - now > self.full() || self.beyond == 0;
        self.beyond_at = if far { now } else { self.beyond_at.max(now) };
        (self, cut)
    }

    fn fits(&self, now: i128, cost: u64) -> bool {
        let (read, _) = self.read(now);
        read.free_at - now + i128::from(cost) * self.unit() <= self.full()
    }

    fn debit(&mut self, now: i128, kind: Debits, units: u64) {
        let (owed, units) = (self.free_at - now, i128::from(units) * self.unit());
        let after = match kind {
            Debits::Admitted => owed.max((owed + units).min(self.full())),
            // At most 100 capacities, but what an edit left stays.
            Debits::Reported => owed.max((owed + units).min(100 * self.full())),
            Debits::Refunded => (owed - units).max(0),
        };
        if kind == Debits::Reported {
            self.beyond += (after - owed.max(self.full())).max(0);
        }
        self.beyond = self.beyond.min(after);
        self.free_at = now + after;
    }
}

impl Model {
    /// Decides a check; returns the bucket after it, whether it was allowed, and whether the debt was cut.
    fn check(&mut self, now: i128, options: Options, debit: u64, cost: u64) -> (Self, bool, bool) {
        let (mut read, cut) = self.read(now);
        let before = read.free_at;
        if debit > 0 {
            read.debit(now, options.debits, debit);
        }
        let allowed = read.fits(now, cost);
        if allowed && !options.peek {
            read.free_at += i128::from(cost) * read.unit();
        }
        // What changes nothing is not stored.
        if cut || read.free_at != before {
            *self = read;
        }
        (read, allowed, cut)
    }
}

fn walk(mut random: Random) -> [u64; 4] {
    let mut seen = [0; 4];
    let (mut now_ms, mut stored) = (START_MS, None);
    let (units, period_ms) = random.pick(&RATES);
    let burst = random.pick(&[0, 1, 2, 5, 20, 100]);
    let mut model = Model {
        units,
        period_ms,
        burst,
        ..Model::default()
    };
    for _ in 0..STEPS_PER_WALK {
        if random.one_in(100) {
            (model.units, model.period_ms) = random.pick(&RATES);
            model.burst = random.pick(&[1, 2, 5, 20, 100]);
        }
        let drain_ms = u64::try_from(model.full() / MS).unwrap();
        now_ms = random.tick(now_ms, (drain_ms / 3).max(2));
        let parameters = bursting(Kind::Gcra, model.units, model.period_ms, model.burst);
        let algorithm = Algorithm::new(&parameters).unwrap();
        let debit = (1 + random.below(2 * model.burst + 2)) * u64::from(random.one_in(12));
        let options = Options {
            peek: random.one_in(8),
            debits: random.pick(&[Debits::Admitted, Debits::Reported, Debits::Refunded]),
            ..Options::default()
        };
        // A caller that gives back charges nothing in the same check.
        let gives_back = debit > 0 && options.debits == Debits::Refunded;
        let cost = random.pick(&[0, 1, 1, 1, 2, 3, 7]) * u64::from(!gives_back);
        let asked = Part {
            debit,
            ..part(&algorithm, cost)
        };
        let (verdict, write) = ask((&asked, stored.as_ref(), None), now_ms, options);
        stored = write.or(stored);

        let at = |ms: u64| i128::from(ms) * MS;
        let (bucket, allowed, cut) = model.check(at(now_ms), options, debit, cost);
        let cases = [!allowed, cut, bucket.beyond > 0, allowed && cost > 0];
        count(&mut seen, cases);
        let fits = |ms, cost| bucket.fits(at(ms), cost);
        let left = (0..=bucket.burst).rev().find(|cost| fits(now_ms, *cost));
        let unused = |ms| bucket.free_at <= at(ms);
        let expected = (allowed, left.unwrap_or(0), cost > bucket.burst);
        let fits = |ms| fits(ms, cost);
        assert_decides(verdict.decision, now_ms, expected, fits, unused);
    }
    seen
}

#[test]
fn gcra_decides_as_a_model_of_one_time() {
    walks(walk);
}
