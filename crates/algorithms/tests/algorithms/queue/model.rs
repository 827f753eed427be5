//! Random requests that wait, start and leave, against a schedule of every request: a model that knows no levels,
//! intervals and turns. `RL_QUEUE_STEPS` sets how many steps.

use algorithms::{Algorithm, Kind, Parameters, Rate, SlotOp};

use super::{Bucket, START_MS};
use crate::support::{Random, number};

/// An admitted request.
#[derive(Clone, Copy)]
struct Request {
    name: SlotOp,
    /// When its slot begins, and how long that is at the rate of its admission, in microseconds since
    /// [`START_MS`].
    start_us: u64,
    length_us: u64,
    /// How long before that it starts.
    lead_us: u64,
    /// How often the rate had been raised.
    raised: u64,
    /// Whether its client left before it started.
    left: bool,
}

/// What a walk did.
#[derive(Debug, Default)]
struct Total {
    left: u64,
    given_again: u64,
    edits: u64,
}

/// Units a second: a unit, and a part of a millisecond, are whole microseconds.
const RATES: [u64; 6] = [1, 2, 10, 16, 25, 64];

struct Walk {
    random: Random,
    bucket: Bucket,
    parameters: Parameters,
    requests: Vec<Request>,
    raised: u64,
    total: Total,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let parameters = Parameters {
            burst: Some(1 + random.below(40)),
            max_delay_ms: Some(random.pick(&[0, 300, 5000, 100_000])),
            ..Parameters::new(
                random.pick(&[Kind::LeakyBucket, Kind::TokenBucket, Kind::Gcra]),
                Self::any_rate(&mut random),
                1000,
            )
        };
        Self {
            bucket: Bucket::new(&parameters),
            random,
            parameters,
            requests: Vec::new(),
            raised: 0,
            total: Total::default(),
        }
    }

    fn any_rate(random: &mut Random) -> u64 {
        random.pick(&RATES)
    }

    fn now_us(&self) -> u64 {
        (self.bucket.now_ms - START_MS) * 1000
    }

    fn arrive(&mut self) {
        let cost = self.random.pick(&[1, 1, 1, 2, 5]);
        let (decision, name) = self.bucket.ask(cost, &[]);
        if !decision.allowed {
            return;
        }
        // The name says where the slot starts to a part of a millisecond.
        let name = name.unwrap();
        let parts = self.parts_per_ms();
        let start_us = (name.slot.start_ms - START_MS) * 1000 + name.slot.parts * 1000 / parts;
        let length_us = cost * 1_000_000 / self.parameters.rate.units;
        let lead_us = self.lead_us(cost);
        let held_us = (start_us - self.now_us()).saturating_sub(lead_us);
        assert_eq!(decision.delay_ms, held_us.div_ceil(1000));
        assert!(decision.delay_ms <= self.parameters.max_delay_ms.unwrap());
        self.total.given_again += u64::from(name.slot.turn > 0);
        let request = Request {
            name,
            start_us,
            length_us,
            lead_us,
            raised: self.raised,
            left: false,
        };
        self.assert_alone(&request);
        self.requests.push(request);
    }

    /// The rest of a burst that passes at once, as time.
    fn lead_us(&self, cost: u64) -> u64 {
        let burst = match self.parameters.kind {
            Kind::LeakyBucket => 0,
            _ => self.parameters.burst.unwrap(),
        };
        burst.saturating_sub(cost) * 1_000_000 / self.parameters.rate.units
    }

    fn parts_per_ms(&self) -> u64 {
        // N/g of N units a second.
        let units = self.parameters.rate.units;
        let gcd = (1..=units)
            .rev()
            .find(|d| units.is_multiple_of(*d) && 1000_u64.is_multiple_of(*d));
        units / gcd.unwrap()
    }

    /// No other request starts in its time, and it starts in no other's. Only beside those that were admitted
    /// before the rate was raised it may: they keep their starts.
    fn assert_alone(&self, new: &Request) {
        let stay = self.requests.iter().filter(|of| !of.left);
        for of in stay.filter(|of| of.raised == new.raised) {
            let before = of.start_us + of.length_us <= new.start_us;
            let behind = new.start_us + new.length_us <= of.start_us;
            assert!(
                before || behind,
                "{} for {} beside {} for {} us",
                new.start_us,
                new.length_us,
                of.start_us,
                of.length_us
            );
        }
    }

    /// A client leaves: before its request starts, or later, which has to change nothing.
    fn leave(&mut self) {
        let now_us = self.now_us();
        let Some(nth) = (self.requests.len() as u64).checked_sub(1) else {
            return;
        };
        let nth = usize::try_from(self.random.below(nth + 1)).unwrap();
        let Some(request) = self.requests.get_mut(nth) else {
            return;
        };
        self.bucket.ask(0, &[request.name]);
        if request.start_us > now_us + request.lead_us && !request.left {
            request.left = true;
            self.total.left += 1;
        }
    }

    fn edit(&mut self) {
        let raised = match self.random.below(3) {
            0 => {
                self.parameters.burst = Some(1 + self.random.below(40));
                false
            }
            1 => {
                self.parameters.max_delay_ms = Some(self.random.below(3000));
                false
            }
            _ => {
                let before = self.parameters.rate.units;
                self.parameters.rate = Rate::new(Self::any_rate(&mut self.random), 1000);
                self.parameters.rate.units > before
            }
        };
        self.bucket.algorithm = Algorithm::new(&self.parameters).unwrap();
        self.bucket.generation += 1;
        self.total.edits += 1;
        self.raised += u64::from(raised);
    }

    fn tick(&mut self) {
        let apart_ms = 1000 / self.parameters.rate.units;
        self.bucket.now_ms += match self.random.below(12) {
            0..=5 => 0,
            6..=9 => self.random.below(apart_ms + 2),
            10 => self.random.below(4 * apart_ms + 2),
            _ if self.random.one_in(8) => 60_000,
            _ => 1,
        };
        let now_us = self.now_us();
        // A request that has started keeps its time, and its client may still name it.
        self.requests
            .retain(|of| of.start_us + of.length_us + 2_000_000 > now_us);
    }

    fn run(mut self, steps: u64) -> Total {
        for _ in 0..steps {
            self.tick();
            match self.random.below(20) {
                0..=11 => self.arrive(),
                12..=18 => self.leave(),
                _ if self.random.one_in(4) => self.edit(),
                _ => {}
            }
        }
        self.total
    }
}

#[test]
fn no_two_requests_start_in_each_others_time_whoever_leaves_and_whatever_is_edited() {
    const STEPS_PER_WALK: u64 = 1000;
    let steps = number("RL_QUEUE_STEPS", 30_000);
    let mut sum = Total::default();
    for seed in 0..steps.div_ceil(STEPS_PER_WALK) {
        let total = Walk::new(seed).run(STEPS_PER_WALK);
        sum.left += total.left;
        sum.given_again += total.given_again;
        sum.edits += total.edits;
    }
    let often = steps / 200;
    assert!(
        sum.left > often && sum.given_again > often && sum.edits > often,
        "{sum:?}"
    );
}
