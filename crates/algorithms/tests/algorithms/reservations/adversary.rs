//! An adversary that loses, delays, repeats and reorders settlements, edits, resets and credits the limit,
//! fails over to an older state or to none, and forgets records.
//!
//! The bound: a request's cost counts at its check, and its excess over the reservation at its
//! settlement. Then a bucket admits at most C + rΔ in any Δ that ends with an admission, and a
//! window N, plus what was credited and what an edit forgave. What a failover or a reset lost is
//! not counted; the rest of the history has to keep the bound without it.

use algorithms::{
    Align, CalendarUnit, CostSettlement, Edges, Kind, Parameters, Rate, SETTLE_WITHIN_MS, State,
};

use super::{Random, START_MS, World, bucket, number};

const STEPS: u64 = 300;
const N: u64 = 100;
const WINDOW_MS: u64 = 10_000;
const SUB_WINDOWS: u64 = 10;

/// A request that reserved units.
#[derive(Clone, Copy)]
struct Flight {
    of: CostSettlement,
    truth: u64,
    /// Units given back.
    back: u64,
    settled: bool,
}

/// Units that were used.
#[derive(Clone, Copy)]
struct Use {
    units: u64,
    at_ms: u64,
    /// What the bucket drained before, in thousandths of a unit.
    drained: u64,
    /// The start or label of a fixed window.
    window: u64,
}

/// What a failover goes back to.
#[derive(Clone)]
struct Copy {
    stored: Option<algorithms::check::Stored>,
    written_ms: u64,
    drained: u64,
    flights: Vec<Flight>,
    uses: usize,
}

/// The totals of the histories of one kind.
#[derive(Default)]
struct Total {
    given_back: u64,
    excess: u64,
    failovers: u64,
}

struct History {
    seed: u64,
    random: Random,
    world: World,
    kind: Kind,
    /// Units a second, and the capacity.
    rate: u64,
    capacity: u64,
    drained: u64,
    flights: Vec<Flight>,
    /// Requests whose reservations the state has lost.
    lost: Vec<Flight>,
    uses: Vec<Use>,
    copy: Option<Copy>,
    /// Units that were credited, or that edits forgave.
    forgiven: u64,
    total: Total,
}

impl History {
    fn new(seed: u64, parameters: &Parameters) -> Self {
        Self {
            seed,
            random: Random(seed),
            world: World::new(parameters),
            kind: parameters.kind,
            rate: 20,
            capacity: N,
            drained: 0,
            flights: Vec::new(),
            lost: Vec::new(),
            uses: Vec::new(),
            copy: None,
            forgiven: 0,
            total: Total::default(),
        }
    }

    fn is_bucket(&self) -> bool {
        self.kind == Kind::TokenBucket
    }

    fn run(mut self) -> Total {
        let (edits, credits, failovers) = (
            self.random.one_in(3),
            self.random.one_in(3),
            self.random.one_in(2),
        );
        for secret in 0..STEPS {
            self.tick();
            match self.random.below(8) {
                0..=3 => self.reserve(secret),
                4..=5 => self.settle(),
                6 => self.settle_lost(),
                _ if self.random.one_in(3) => self.copy(),
                _ if failovers && self.random.one_in(2) => self.fail_over(),
                _ if edits && self.random.one_in(3) => self.edit(),
                _ if edits && self.random.one_in(2) => self.plain(),
                _ if credits && self.random.one_in(3) => self.credit(),
                _ if self.random.one_in(5) => self.forget(),
                _ => {}
            }
        }
        self.total
    }

    fn tick(&mut self) {
        let by = match self.random.below(80) {
            0 => SETTLE_WITHIN_MS,
            1..=3 => WINDOW_MS,
            4..=40 => 400,
            _ => 1,
        };
        self.world.now_ms += self.random.below(by);
        if self.world.algorithm.parameters().rate.calendar.is_some() {
            let serial = self.world.now_ms / WINDOW_MS - 1;
            let starts_ms = [0, 1, 2, 3, 4, 5].map(|nth| (serial + nth) * WINDOW_MS);
            let edges = Edges::new(u32::try_from(serial).unwrap(), starts_ms);
            self.world.algorithm = self.world.algorithm.with_edges(edges);
        }
    }

    /// Runs an action on the bucket, and adds up what it drained.
    fn act<T>(&mut self, act: impl FnOnce(&mut World) -> T) -> T {
        let before_ms = self.world.written_ms;
        let done = act(&mut self.world);
        self.drained += self.rate * (self.world.written_ms - before_ms);
        done
    }

    fn used(&mut self, units: u64) {
        let window = match self.world.stored.as_ref().map(|stored| &stored.state) {
            Some(State::FixedWindow(state)) => state.start_ms,
            Some(State::CalendarWindow(state)) => state.serial,
            _ => 0,
        };
        self.uses.push(Use {
            units,
            at_ms: self.world.now_ms,
            drained: self.drained,
            window,
        });
    }

    fn reserve(&mut self, secret: u64) {
        // Sometimes the request reserves and uses all that is left.
        let all = self.random.one_in(4);
        let units = if all {
            self.world.left()
        } else {
            1 + self.random.below(40)
        };
        let Some(of) = self.act(|world| world.reserve(units, secret)) else {
            return;
        };
        let truth = match self.random.below(8) {
            _ if all => units,
            0 => units + self.random.below(60),
            1..=3 => 0,
            _ => self.random.below(units + 1),
        };
        self.flights.push(Flight {
            of,
            truth,
            back: 0,
            settled: false,
        });
        self.used(truth.min(units));
        self.assert_within_bound();
    }

    /// Settles a reservation, which may have been settled before.
    fn settle(&mut self) {
        if self.flights.is_empty() {
            return;
        }
        let nth = usize::try_from(self.random.below(self.flights.len() as u64)).unwrap();
        let Flight { of, truth, .. } = *self.flights.get(nth).unwrap();
        let (back, excess) = self.act(|world| world.settle(of, truth));
        let flight = self.flights.get_mut(nth).unwrap();
        flight.back += back;
        let twice = flight.back > of.reservation.units.saturating_sub(truth);
        assert!(!twice, "seed {}: given back twice", self.seed);
        let first = !std::mem::replace(&mut flight.settled, true);
        if first && excess > 0 {
            self.used(excess);
        }
        self.total.given_back += back;
        self.total.excess += excess;
    }

    fn settle_lost(&mut self) {
        let nth = self.random.below(self.lost.len() as u64);
        let lost = self.lost.get(usize::try_from(nth).unwrap()).copied();
        if let Some(Flight { of, truth, .. }) = lost {
            let (back, _) = self.act(|world| world.settle(of, truth));
            assert_eq!(back, 0, "seed {}: {of:?} was forgotten", self.seed);
        }
    }

    fn copy(&mut self) {
        self.copy = Some(Copy {
            stored: self.world.stored.clone(),
            written_ms: self.world.written_ms,
            drained: self.drained,
            flights: self.flights.clone(),
            uses: self.uses.len(),
        });
    }

    /// Replaces the state by an older one, or none.
    fn fail_over(&mut self) {
        let Some(copy) = self.copy.clone().filter(|_| !self.random.one_in(5)) else {
            self.world.stored = None;
            self.lose_all();
            return;
        };
        self.lost
            .extend(self.flights.iter().skip(copy.flights.len()));
        self.flights = copy.flights;
        self.uses.truncate(copy.uses);
        self.drained = copy.drained;
        self.world.written_ms = copy.written_ms;
        self.world.stored = copy.stored;
        // A capacity that was lowered since cuts the debt once more.
        self.forgiven += N - self.capacity;
        self.total.failovers += 1;
    }

    fn lose_all(&mut self) {
        self.lost.append(&mut self.flights);
        self.uses.clear();
        self.copy = None;
    }

    fn edit(&mut self) {
        let (rate, capacity) = match self.random.below(6) {
            0 => {
                self.world.stored = None;
                self.world.generation += 1;
                return self.lose_all();
            }
            1 => (60, N),
            2 => (20, 60),
            3 => (1, N),
            _ => (20, N),
        };
        self.forgiven += self.capacity.saturating_sub(capacity);
        (self.rate, self.capacity) = (rate, capacity);
        let old = *self.world.algorithm.parameters();
        self.world.edit(&match (self.kind, rate) {
            (Kind::TokenBucket, 1) => bucket(1, 1000, capacity),
            // In the same parts of a unit.
            (Kind::TokenBucket, _) => bucket(rate / 20, 50, capacity),
            _ => Parameters {
                rate: Rate {
                    units: capacity,
                    ..old.rate
                },
                ..old
            },
        });
    }

    /// For some time the limit's responses state no cost.
    fn plain(&mut self) {
        self.world.generation += 1;
        self.world.now_ms += self.random.below(4000);
        for _ in 0..self.random.below(6) {
            self.tick();
            let units = 1 + self.random.below(60);
            let verdict = self.act(|world| world.check_by(units, None));
            if verdict.limits.iter().any(|limit| limit.charged > 0) {
                self.used(units);
                self.assert_within_bound();
            }
        }
        self.world.generation += 1;
    }

    fn credit(&mut self) {
        let units = self.random.below(30);
        if let Some(stored) = &mut self.world.stored {
            let World {
                algorithm,
                generation,
                now_ms,
                ..
            } = self.world;
            *stored = algorithm.credit_stored(stored, generation, (now_ms, 0), units, true);
            self.forgiven += units;
        }
        self.drained += self.rate * (self.world.now_ms - self.world.written_ms);
        self.world.written_ms = self.world.now_ms;
    }

    /// Drops the records, as if they had expired or been evicted.
    fn forget(&mut self) {
        if let Some(stored) = &mut self.world.stored {
            stored.reservations = None;
        }
    }

    /// Checks the bound for every interval that the last admission ends.
    fn assert_within_bound(&self) {
        let last = *self.uses.last().unwrap();
        let may = N + self.forgiven;
        let sum = |counts: &dyn Fn(&Use) -> bool| -> u64 {
            let counted = self.uses.iter().filter(|of| counts(of));
            counted.map(|of| of.units).sum()
        };
        let used = match self.kind {
            _ if self.is_bucket() => {
                let mut used = 0;
                let beyond = self.uses.iter().rev().map(|of| {
                    used += of.units * 1000;
                    used.saturating_sub(last.drained - of.drained)
                });
                beyond.max().unwrap_or(0).div_ceil(1000)
            }
            Kind::FixedWindow => sum(&|of| of.window == last.window),
            Kind::SlidingWindow => {
                let start_ms = last.at_ms - last.at_ms % WINDOW_MS;
                let before = sum(&|of| of.at_ms < start_ms && of.at_ms + WINDOW_MS >= start_ms);
                let overlap_ms = start_ms + WINDOW_MS - last.at_ms;
                sum(&|of| of.at_ms >= start_ms) + (before * overlap_ms).div_ceil(WINDOW_MS)
            }
            _ => {
                let loose = self.world.algorithm.parameters().strict == Some(false);
                let less_ms = if loose { WINDOW_MS / SUB_WINDOWS } else { 0 };
                sum(&|of| of.at_ms + WINDOW_MS - less_ms > last.at_ms)
            }
        };
        assert!(used <= may, "seed {}: {used} of {may} units", self.seed);
    }
}

// -----------------------------------------------------------------------------
// The adversary never gets more than the bound of an algorithm, over a thousand histories for
// each. `RL_RESERVATION_SEEDS` sets how many.

/// What many histories gave back.
fn histories(parameters: &Parameters) -> u64 {
    let seeds = number("RL_RESERVATION_SEEDS", 1000);
    let mut sum = Total::default();
    for seed in 0..seeds {
        let total = History::new(seed, parameters).run();
        sum.given_back += total.given_back;
        sum.excess += total.excess;
        sum.failovers += total.failovers;
    }
    let Total {
        given_back,
        excess,
        failovers,
    } = sum;
    assert!(
        excess > 20 * seeds && failovers > seeds,
        "{given_back} {excess} {failovers}"
    );
    given_back / seeds
}

fn window(kind: Kind) -> Parameters {
    Parameters::new(kind, N, WINDOW_MS)
}

fn sub_windows(strict: bool) -> Parameters {
    Parameters {
        sub_windows: Some(SUB_WINDOWS),
        strict: Some(strict),
        ..window(Kind::SlidingWindowBuckets)
    }
}

#[test]
fn a_bucket_admits_its_capacity_and_rate() {
    assert!(histories(&bucket(1, 50, N)) > 100);
}

#[test]
fn a_fixed_window_admits_n() {
    assert_eq!(START_MS % WINDOW_MS, 0, "the first window is whole");
    assert!(histories(&window(Kind::FixedWindow)) > 100);
}

#[test]
fn a_window_from_the_first_request_admits_n() {
    let parameters = Parameters {
        align: Some(Align::FirstRequest),
        ..window(Kind::FixedWindow)
    };
    assert!(histories(&parameters) > 100);
}

/// With edges that are as far apart as those of the other windows here.
#[test]
fn a_calendar_window_admits_n() {
    let parameters = Parameters {
        rate: Rate::in_each(N, CalendarUnit::Day),
        ..Parameters::new(Kind::FixedWindow, N, 1)
    };
    assert!(histories(&parameters) > 100);
}

#[test]
fn a_sliding_window_admits_n_by_its_estimate() {
    assert!(histories(&window(Kind::SlidingWindow)) > 100);
}

#[test]
fn strict_sub_windows_admit_n() {
    assert!(histories(&sub_windows(true)) > 100);
}

#[test]
fn loose_sub_windows_admit_n_in_all_but_one_of_them() {
    assert!(histories(&sub_windows(false)) > 100);
}

#[test]
fn a_log_admits_n_and_gives_nothing_back() {
    assert_eq!(histories(&window(Kind::SlidingWindowLog)), 0);
}
