//! One bucket, its limit, and the history that brought it to its state.

use algorithms::{
    Algorithm, Align, BucketRequest, Decision, Kind, Outcome, ParameterError, Parameters, Rate,
    SlotOp, State,
};

use crate::support::number;

pub const BUCKETS: &[Kind] = &[Kind::TokenBucket, Kind::Gcra, Kind::LeakyBucket];
pub const WINDOWS: &[Kind] = &[
    Kind::FixedWindow,
    Kind::SlidingWindowLog,
    Kind::SlidingWindowBuckets,
    Kind::SlidingWindow,
];
pub const ALL: &[Kind] = &[
    Kind::TokenBucket,
    Kind::Gcra,
    Kind::LeakyBucket,
    Kind::FixedWindow,
    Kind::SlidingWindowLog,
    Kind::SlidingWindowBuckets,
    Kind::SlidingWindow,
];

/// How the clock of a history moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    Monotone,
    Chaotic,
}

/// A bucket at one instant.
#[derive(Clone, Debug)]
pub struct World {
    pub algorithm: Algorithm,
    pub state: Option<State>,
    pub now_ms: u64,
    /// Slots that a queue gave.
    pub given: Vec<SlotOp>,
}

impl World {
    /// A bucket with a history of checks.
    pub fn with_history(choices: &mut Choices, kinds: &[Kind], clock: ClockKind) -> Self {
        let mut world = Self::fresh(choices, kinds);
        for _ in 0..choices.below(25) {
            world.tick(choices, clock);
            let cost = world.cost(choices);
            world.check(cost);
        }
        world.tick(choices, clock);
        world
    }

    /// A bucket never used.
    pub fn fresh(choices: &mut Choices, kinds: &[Kind]) -> Self {
        let kind = choices.pick(kinds);
        let algorithm = algorithm(choices, kind);
        let now_ms = choices.pick(&[1_763_000_040_000, 1_763_000_041_234, 0, 77, (1 << 52) >> 1]);
        Self {
            algorithm,
            state: None,
            now_ms,
            given: Vec::new(),
        }
    }

    /// The parts of its time that a request of this cost starts before its slot begins.
    pub fn lead(&self, cost: u64) -> u64 {
        let (kind, numbers) = (self.algorithm.kind(), self.algorithm.numbers());
        let queue = self.algorithm.parameters().max_delay_ms.is_some();
        let units = (numbers.limit - cost) * u64::from(queue && kind != Kind::LeakyBucket);
        units * numbers.x
    }

    /// As [`Self::with_history`], where some requests gave up their slots.
    pub fn with_leavers(choices: &mut Choices, kinds: &[Kind], clock: ClockKind) -> Self {
        let mut world = Self::fresh(choices, kinds);
        for _ in 0..choices.below(25) {
            world.tick(choices, clock);
            let cost = world.cost(choices);
            world.check(cost);
            if !world.given.is_empty() && choices.one_in(2) {
                let freed = choices.pick(&world.given.clone());
                world.free(freed);
            }
        }
        world.tick(choices, clock);
        world
    }

    /// A request gives up its slot.
    pub fn free(&mut self, freed: SlotOp) -> bool {
        let ask = BucketRequest {
            free: &[freed],
            ..BucketRequest::default()
        };
        let state = self.state.as_ref();
        let outcome = self
            .algorithm
            .evaluate_request(state, self.now_ms, ask)
            .leave();
        let changed = outcome.changed;
        self.store(outcome);
        changed
    }

    /// Checks now, and stores what is to be stored.
    pub fn check(&mut self, cost: u64) -> Decision {
        let outcome = self.evaluate(self.now_ms, cost).charge();
        self.store(outcome)
    }

    /// As [`World::check`], charging nothing; a step back of the clock is stored all the same.
    pub fn ask(&mut self, cost: u64) -> Decision {
        let outcome = self.evaluate(self.now_ms, cost).leave();
        self.store(outcome)
    }

    /// The answer to a cost at some time; charges and stores nothing.
    pub fn peek(&self, at_ms: u64, cost: u64) -> Decision {
        self.evaluate(at_ms, cost).leave().verdict.decision
    }

    pub fn evaluate(&self, at_ms: u64, cost: u64) -> algorithms::Evaluation<'_> {
        self.algorithm.evaluate(self.state.as_ref(), at_ms, cost)
    }

    pub fn store(&mut self, outcome: Outcome) -> Decision {
        let units = outcome.verdict.charged;
        self.given
            .extend(outcome.verdict.slot.map(|slot| SlotOp::free(slot, units)));
        if let Some(state) = outcome.write {
            self.state = Some(state);
        }
        outcome.verdict.decision
    }

    /// Moves the clock by an amount that matters to this limit.
    pub fn tick(&mut self, choices: &mut Choices, clock: ClockKind) {
        let window_ms = self.algorithm.window_ms();
        let by = match choices.below(8) {
            0..=2 => 0,
            3 => choices.below(4),
            4 | 5 => choices.below(window_ms / 4 + 2),
            6 => choices.below(window_ms.saturating_mul(3).min(1 << 50) + 1),
            _ => (window_ms + choices.below(3)).saturating_sub(1),
        };
        if clock == ClockKind::Chaotic && choices.one_in(4) {
            self.now_ms = self.now_ms.saturating_sub(by);
        } else {
            self.now_ms = (self.now_ms + by).min(1 << 51);
        }
    }

    /// A cost: mostly one that may fit.
    pub fn cost(&self, choices: &mut Choices) -> u64 {
        let limit = self.algorithm.limit();
        match choices.below(8) {
            0..=3 => 1,
            4 | 5 => choices.below(limit / 3 + 2),
            6 => choices.below(limit + 1),
            _ => limit,
        }
    }
}

/// A valid limit of a kind, from everyday numbers to large ones.
pub fn algorithm(choices: &mut Choices, kind: Kind) -> Algorithm {
    let parameters = parameters(choices, kind);
    Algorithm::new(&parameters).unwrap_or_else(|_| {
        Algorithm::new(&Parameters {
            burst: None,
            ..everyday(choices, kind)
        })
        .unwrap()
    })
}

fn parameters(choices: &mut Choices, kind: Kind) -> Parameters {
    let mut parameters = everyday(choices, kind);
    if choices.one_in(5) {
        parameters.rate = Rate::new(1 + choices.magnitude(30), 1 + choices.magnitude(40));
    }
    let bucket = BUCKETS.contains(&kind);
    if bucket && choices.one_in(2) {
        parameters.burst = Some(choices.magnitude(12));
    }
    // Corrects numbers that are too large as the error suggests.
    match Algorithm::new(&parameters) {
        Err(ParameterError::RateTooLarge { largest }) => parameters.rate.units = largest,
        Err(ParameterError::BurstTooLarge { largest }) => parameters.burst = Some(largest),
        Err(ParameterError::SubWindows { nearest }) => parameters.sub_windows = Some(nearest),
        _ => {}
    }
    parameters
}

fn everyday(choices: &mut Choices, kind: Kind) -> Parameters {
    let units = choices.pick(&[1, 2, 3, 5, 7, 10, 9, 100, 1000]);
    let period_ms = choices.pick(&[1000, 1, 7, 60, 1500, 10_000, 60_000, 86_400_000]);
    let mut parameters = Parameters::new(kind, units, period_ms);
    match kind {
        _ if BUCKETS.contains(&kind) && choices.one_in(2) => {
            parameters.max_delay_ms = Some(choices.below(period_ms * 2));
        }
        Kind::FixedWindow => {
            parameters.align = Some(choices.pick(&[Align::Epoch, Align::FirstRequest]));
        }
        Kind::SlidingWindowBuckets => {
            let divisors: Vec<_> = (1..=20).filter(|n| period_ms.is_multiple_of(*n)).collect();
            parameters.sub_windows = Some(choices.pick(&divisors));
            parameters.strict = Some(choices.one_in(2));
        }
        _ => {}
    }
    parameters
}

// -----------------------------------------------------------------------------
// Streams of choices that a case is built from.

/// A stream of numbers; once used up, every choice is the first.
pub struct Choices {
    numbers: std::vec::IntoIter<u64>,
}

impl Choices {
    pub fn new(numbers: Vec<u64>) -> Self {
        Self {
            numbers: numbers.into_iter(),
        }
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.numbers
            .next()
            .unwrap_or(0)
            .checked_rem(bound)
            .unwrap_or(0)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == n - 1
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }

    /// A number of any magnitude up to `2^bits`.
    pub fn magnitude(&mut self, bits: u64) -> u64 {
        let bits = self.below(bits + 1);
        self.below((1 << bits) + 1)
    }
}

/// How many numbers a case may use.
const LENGTH: usize = 200;

pub fn with_proptest(property: fn(&mut Choices)) {
    use proptest::prelude::*;

    let config = ProptestConfig {
        cases: u32::try_from(number("RL_PROPERTY_CASES", 1000)).unwrap(),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    proptest!(config, |(numbers in proptest::collection::vec(any::<u64>(), 0..LENGTH))| {
        property(&mut Choices::new(numbers));
    });
}
