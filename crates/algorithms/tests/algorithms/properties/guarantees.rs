//! What the table of algorithms guarantees, counted from the admissions alone.

use algorithms::{Align, Kind, Parameters, SlotOp};

use super::choices::Choices;
use super::world::{BUCKETS, ClockKind, World};

/// An admission: when, how much, and how long it was held.
struct Admission {
    at_ms: u64,
    cost: u64,
    delay_ms: u64,
}

/// A busy history on a fresh bucket: what was admitted.
fn traffic(choices: &mut Choices, world: &mut World) -> Vec<Admission> {
    let mut admissions = Vec::new();
    for _ in 0..60 {
        world.tick(choices, ClockKind::Monotone);
        let cost = world.cost(choices).max(1);
        let decision = world.check(cost);
        if decision.allowed {
            let delay_ms = decision.delay_ms;
            admissions.push(Admission {
                at_ms: world.now_ms,
                cost,
                delay_ms,
            });
        }
    }
    admissions
}

/// The most admitted in any interval that `within` accepts, by its first and last admission.
fn for_every_interval(admissions: &[Admission], mut look: impl FnMut(u64, u64, u64)) {
    for (index, first) in admissions.iter().enumerate() {
        let mut sum = 0;
        for last in &admissions[index..] {
            sum += last.cost;
            look(first.at_ms, last.at_ms, sum);
        }
    }
}

/// At most C + r·Δ in any interval Δ.
pub fn a_bucket_admits_at_most_its_capacity_and_refill(choices: &mut Choices) {
    let mut world = World::fresh(choices, BUCKETS);
    let admissions = traffic(choices, &mut world);
    let numbers = world.algorithm.numbers();
    for_every_interval(&admissions, |first_ms, last_ms, sum| {
        let refill = u128::from(last_ms - first_ms) * u128::from(numbers.y);
        let most = u128::from(numbers.limit) * u128::from(numbers.x) + refill;
        assert!(u128::from(sum) * u128::from(numbers.x) <= most, "{world:?}");
    });
}

/// At most N per window: in every W, or per aligned window for a fixed one.
pub fn a_window_admits_at_most_its_limit(choices: &mut Choices) {
    let kinds = [
        Kind::FixedWindow,
        Kind::SlidingWindowLog,
        Kind::SlidingWindowBuckets,
    ];
    let mut world = World::fresh(choices, &kinds);
    let admissions = traffic(choices, &mut world);
    let parameters = *world.algorithm.parameters();
    let (limit, window_ms) = (parameters.rate.units, parameters.rate.period_ms);
    let loose_ms = match parameters {
        Parameters {
            strict: Some(false),
            sub_windows: Some(n),
            ..
        } => window_ms / n,
        _ => 0,
    };
    for_every_interval(&admissions, |first_ms, last_ms, sum| {
        match parameters.align {
            Some(Align::Epoch) => {
                assert!(
                    first_ms / window_ms != last_ms / window_ms || sum <= limit,
                    "{world:?}"
                );
            }
            Some(Align::FirstRequest) => {
                assert!(
                    last_ms - first_ms >= window_ms || sum <= 2 * limit,
                    "{world:?}"
                );
            }
            None => {
                let inside = last_ms - first_ms < window_ms - loose_ms;
                assert!(
                    !inside || sum <= limit,
                    "{sum} in {first_ms}..={last_ms} {world:?}"
                );
            }
        }
    });
}

/// Every admission keeps prev·(W − e) + cur·W <= N·W, counted afresh.
pub fn two_counts_stay_within_the_estimate(choices: &mut Choices) {
    let mut world = World::fresh(choices, &[Kind::SlidingWindow]);
    let admissions = traffic(choices, &mut world);
    let rate = world.algorithm.parameters().rate;
    let window_ms = rate.period_ms;
    for (index, last) in admissions.iter().enumerate() {
        let window = last.at_ms / window_ms;
        let count = |wanted: Option<u64>| -> u64 {
            let so_far = &admissions[..=index];
            so_far
                .iter()
                .filter(|a| Some(a.at_ms / window_ms) == wanted)
                .map(|a| a.cost)
                .sum()
        };
        let overlap_ms = window_ms - last.at_ms % window_ms;
        let previous = u128::from(count(window.checked_sub(1))) * u128::from(overlap_ms);
        let current = u128::from(count(Some(window))) * u128::from(window_ms);
        assert!(
            previous + current <= u128::from(rate.units) * u128::from(window_ms),
            "{world:?}"
        );
    }
}

/// Starts come in the order of the checks, cost/r apart (to the rounding of one delay), and
/// nothing is held longer than the longest delay.
pub fn a_queue_spaces_what_it_admits(choices: &mut Choices) {
    let mut world = World::fresh(choices, &[Kind::LeakyBucket]);
    let Some(max_delay_ms) = world.algorithm.parameters().max_delay_ms else {
        return;
    };
    let admissions = traffic(choices, &mut world);
    let numbers = world.algorithm.numbers();
    for pair in admissions.windows(2) {
        let start = |a: &Admission| u128::from(a.at_ms + a.delay_ms);
        let apart_ms = start(&pair[1]) - start(&pair[0]);
        let spacing = u128::from(pair[0].cost) * u128::from(numbers.x);
        assert!(
            (apart_ms + 1) * u128::from(numbers.y) > spacing,
            "{world:?}"
        );
    }
    assert!(
        admissions
            .iter()
            .all(|admission| admission.delay_ms <= max_delay_ms)
    );
}

/// Whichever requests leave a queue, however often they free their slots, and whatever other names
/// are freed: no two requests that stay have the same part of its time.
pub fn a_queue_never_gives_the_same_time_to_two_requests(choices: &mut Choices) {
    let mut world = World::fresh(choices, &[Kind::LeakyBucket]);
    let Some(max_delay_ms) = world.algorithm.parameters().max_delay_ms else {
        return;
    };
    let numbers = world.algorithm.numbers();
    let (x, y) = (u128::from(numbers.x), u128::from(numbers.y));
    let start_of = |of: &SlotOp| u128::from(of.slot.start_ms) * y + u128::from(of.slot.parts);
    // The time of each request that goes on or may, by the name of its slot.
    let mut taken: Vec<(SlotOp, u128, u128)> = Vec::new();
    for _ in 0..80 {
        if choices.one_in(3) {
            world.tick(choices, ClockKind::Monotone);
        }
        let now = u128::from(world.now_ms) * y;
        if !world.given.is_empty() && choices.one_in(2) {
            let freed = choices.pick(&world.given.clone());
            world.free(freed);
            for (name, _, end) in &mut taken {
                if *name == freed {
                    *end = (*end).min(now); // what has passed was used
                }
            }
        }
        let cost = world.cost(choices).max(1);
        let decision = world.check(cost);
        if !decision.allowed {
            continue;
        }
        assert!(decision.delay_ms <= max_delay_ms, "{world:?}");
        let name = *world.given.last().unwrap();
        let (start, length) = (start_of(&name), u128::from(cost) * x);
        assert_eq!((start - now).div_ceil(y), u128::from(decision.delay_ms));
        for (other, from, to) in &taken {
            let apart = start + length <= *from || *to <= start;
            assert!(apart || from >= to, "{name:?} and {other:?} {world:?}");
        }
        taken.push((name, start, start + length));
    }
}

/// Token bucket, GCRA and the leaky meter are one algorithm as long as time runs on.
pub fn bucket_algorithms_agree_under_a_monotone_clock(choices: &mut Choices) {
    let mut token = World::fresh(choices, &[Kind::TokenBucket]);
    let mut others = [Kind::Gcra, Kind::LeakyBucket].map(|kind| same_limit(&token, kind));
    for _ in 0..30 {
        token.tick(choices, ClockKind::Monotone);
        let cost = token.cost(choices);
        let decision = token.check(cost);
        for other in &mut others {
            other.now_ms = token.now_ms;
            assert_eq!(other.check(cost), decision, "{token:?} {other:?}");
        }
    }
}

/// The leaky meter equals the token bucket, whatever the clock does.
pub fn a_meter_is_a_token_bucket(choices: &mut Choices) {
    let mut token = World::fresh(choices, &[Kind::TokenBucket]);
    let mut meter = same_limit(&token, Kind::LeakyBucket);
    for _ in 0..30 {
        token.tick(choices, ClockKind::Chaotic);
        meter.now_ms = token.now_ms;
        let cost = token.cost(choices);
        assert_eq!(meter.check(cost), token.check(cost), "{token:?}");
    }
}

fn same_limit(world: &World, kind: Kind) -> World {
    let parameters = Parameters {
        kind,
        ..*world.algorithm.parameters()
    };
    let algorithm = algorithms::Algorithm::new(&parameters).unwrap();
    World {
        algorithm,
        ..world.clone()
    }
}
