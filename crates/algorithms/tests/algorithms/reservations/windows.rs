//! Windows as counts by index, written from the rules: what fits, what a settlement gives back, what it charges
//! beyond, and small steps back of the clock. `RL_RESERVATION_STEPS` sets how many steps.

use std::collections::BTreeMap;

use algorithms::{CostSettlement, Kind, Parameters, SETTLE_WITHIN_MS};

use super::{Random, World, number};

const N: u64 = 60;
const WINDOW_MS: u64 = 6000;
const SUB_WINDOWS: u64 = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Fixed,
    Sliding,
    Strict,
    Loose,
    Log,
}

struct Model {
    rule: Rule,
    /// How long one count is.
    width_ms: u64,
    counts: BTreeMap<u64, u64>,
    /// The index of the latest write: an earlier time counts as this.
    newest: u64,
    open: Vec<(CostSettlement, u64, bool)>,
}

impl Model {
    fn new(rule: Rule) -> Self {
        Self {
            rule,
            width_ms: match rule {
                Rule::Fixed | Rule::Sliding => WINDOW_MS,
                Rule::Strict | Rule::Loose => WINDOW_MS / SUB_WINDOWS,
                Rule::Log => 1,
            },
            counts: BTreeMap::new(),
            newest: 0,
            open: Vec::new(),
        }
    }

    fn parameters(&self) -> Parameters {
        let kind = match self.rule {
            Rule::Fixed => Kind::FixedWindow,
            Rule::Sliding => Kind::SlidingWindow,
            Rule::Strict | Rule::Loose => Kind::SlidingWindowBuckets,
            Rule::Log => Kind::SlidingWindowLog,
        };
        let sub_windows = kind == Kind::SlidingWindowBuckets;
        Parameters {
            sub_windows: sub_windows.then_some(SUB_WINDOWS),
            strict: sub_windows.then_some(self.rule == Rule::Strict),
            ..Parameters::new(kind, N, WINDOW_MS)
        }
    }

    fn index(&self, now_ms: u64) -> u64 {
        (now_ms / self.width_ms).max(self.newest)
    }

    fn sum(&self, from: u64, to: u64) -> u64 {
        self.counts.range(from..=to).map(|(_, units)| units).sum()
    }

    fn left(&self, now_ms: u64) -> u64 {
        let index = self.index(now_ms);
        let used = match self.rule {
            Rule::Fixed => self.sum(index, index),
            Rule::Sliding => {
                let into_ms = now_ms.saturating_sub(index * WINDOW_MS);
                let before = self.sum(index - 1, index - 1) * (WINDOW_MS - into_ms);
                self.sum(index, index) + before.div_ceil(WINDOW_MS)
            }
            Rule::Strict => self.sum(index - SUB_WINDOWS, index),
            Rule::Loose => self.sum(index - SUB_WINDOWS + 1, index),
            Rule::Log => self.sum(index - WINDOW_MS + 1, index),
        };
        N.saturating_sub(used)
    }

    fn charge(&mut self, now_ms: u64, units: u64) {
        if units > 0 {
            self.newest = self.index(now_ms);
            *self.counts.entry(self.newest).or_default() += units;
        }
    }

    /// What a settlement gives back, and charges beyond.
    fn settle(&mut self, of: CostSettlement, units: u64, now_ms: u64) -> (u64, u64) {
        let known = self
            .open
            .iter_mut()
            .find(|(open, ..)| open.reservation.number == of.reservation.number);
        let Some((_, at_ms, settled)) = known else {
            let excess = units.saturating_sub(of.reservation.units);
            self.charge(now_ms, excess);
            return (0, excess);
        };
        if std::mem::replace(settled, true) {
            return (0, 0);
        }
        let (at_ms, excess) = (*at_ms, units.saturating_sub(of.reservation.units));
        let late = now_ms >= at_ms + SETTLE_WITHIN_MS;
        if excess > 0 || late || at_ms > now_ms || self.rule == Rule::Log {
            self.charge(now_ms, excess);
            return (0, excess);
        }
        // The count of its check, while that is held.
        let (at, index) = (at_ms / self.width_ms, self.index(now_ms));
        let held = match self.rule {
            Rule::Fixed => 0,
            Rule::Sliding => 1,
            Rule::Strict => SUB_WINDOWS,
            _ => SUB_WINDOWS - 1,
        };
        let count = self.counts.get_mut(&at).filter(|_| at + held >= index);
        let back = count.map_or(0, |count| {
            let back = (*count).min(of.reservation.units - units);
            *count -= back;
            back
        });
        if back > 0 && held <= 1 {
            self.newest = index;
        } else if back > 0 {
            // The write drops what no longer counts, though the clock may step back.
            self.counts.retain(|of, _| of + held >= index);
        }
        (back, 0)
    }
}

fn walk(rule: Rule, seed: u64, steps: u64) -> [u64; 2] {
    let (mut random, mut model) = (Random(seed), Model::new(rule));
    let mut world = World::new(&model.parameters());
    let mut flights: Vec<CostSettlement> = Vec::new();
    let mut sum = [0; 2];
    for secret in 0..steps {
        let at = format!("{rule:?} seed {seed} step {secret}");
        match random.below(30) {
            0 => {
                // No further back than a window before the latest write.
                let earliest_ms = (model.newest * model.width_ms).saturating_sub(WINDOW_MS / 2);
                let back_ms = random.below(WINDOW_MS / 4);
                world.now_ms = (world.now_ms - back_ms).max(earliest_ms);
            }
            1 => world.now_ms += random.below(2 * WINDOW_MS),
            2 if random.one_in(20) => world.now_ms += SETTLE_WITHIN_MS,
            3..=20 => world.now_ms += random.below(300),
            _ => {}
        }
        if !flights.is_empty() && random.one_in(2) {
            let nth = usize::try_from(random.below(flights.len() as u64)).unwrap();
            let of = if random.one_in(10) {
                flights[nth]
            } else {
                flights.swap_remove(nth)
            };
            let cost = match random.below(4) {
                0 => of.reservation.units + random.below(9),
                _ => random.below(of.reservation.units + 1),
            };
            let expected = model.settle(of, cost, world.now_ms);
            assert_eq!(world.settle(of, cost), expected, "{at}");
            sum[0] += expected.0;
            sum[1] += expected.1;
        } else {
            let cost = 1 + random.below(12);
            let reserved = world.reserve(cost, secret);
            assert_eq!(reserved.is_some(), cost <= model.left(world.now_ms), "{at}");
            if let Some(of) = reserved {
                model.charge(world.now_ms, cost);
                model.open.push((of, world.now_ms, false));
                flights.push(of);
            }
        }
        if model.open.len() > 1000 {
            model.open.remove(0);
        }
        assert_eq!(world.left(), model.left(world.now_ms), "{at}");
    }
    sum
}

#[test]
fn windows_settle_as_a_model_of_counts_does() {
    const STEPS_PER_WALK: u64 = 2000;
    let steps = number("RL_RESERVATION_STEPS", 30_000);
    let rules = [
        Rule::Fixed,
        Rule::Sliding,
        Rule::Strict,
        Rule::Loose,
        Rule::Log,
    ];
    for rule in rules {
        let mut sum = [0; 2];
        for seed in 0..steps.div_ceil(STEPS_PER_WALK * 5) {
            let [given_back, excess] = walk(rule, seed, STEPS_PER_WALK);
            sum = [sum[0] + given_back, sum[1] + excess];
        }
        assert_eq!(sum[0] > steps / 50, rule != Rule::Log, "{rule:?} {sum:?}");
        assert!(sum[1] > steps / 50, "{rule:?} {sum:?}");
    }
}
