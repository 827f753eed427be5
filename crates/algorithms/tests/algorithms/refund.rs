//! A charge that is refunded leaves the bucket no better off than if it had never been made.

use algorithms::{Algorithm, Charged, Kind, Parameters, State};

use crate::support::Random;

const KINDS: [Kind; 7] = [
    Kind::TokenBucket,
    Kind::Gcra,
    Kind::LeakyBucket,
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::SlidingWindowLog,
    Kind::SlidingWindowBuckets,
];

fn algorithm(kind: Kind, units: u64, period_ms: u64) -> Algorithm {
    let sub_windows = (kind == Kind::SlidingWindowBuckets).then_some(1);
    let parameters = Parameters::new(kind, units, period_ms);
    Algorithm::new(&Parameters {
        sub_windows,
        ..parameters
    })
    .unwrap()
}

fn remaining(algorithm: &Algorithm, state: Option<&State>, now_ms: u64) -> u64 {
    let asked = algorithm.evaluate(state, now_ms, 0).leave();
    asked.verdict.decision.remaining
}

fn charged(algorithm: &Algorithm, state: Option<&State>, now_ms: u64, cost: u64) -> Option<State> {
    let outcome = algorithm.evaluate(state, now_ms, cost).charge();
    outcome.write.or(state.cloned())
}

const fn charge(at_ms: u64, units: u64) -> Charged {
    Charged {
        at_ms,
        units,
        lease_ttl_ms: 0,
        slot: None,
    }
}

#[test]
fn a_refund_at_the_same_instant_undoes_the_charge() {
    for kind in KINDS {
        let algorithm = algorithm(kind, 10, 1000);
        let before = charged(&algorithm, None, 5_000, 3).unwrap();
        let during = charged(&algorithm, Some(&before), 5_100, 4).unwrap();
        let after = algorithm.refund(&during, 5_100, &charge(5_100, 4));
        assert_eq!(
            remaining(&algorithm, Some(&after), 5_100),
            remaining(&algorithm, Some(&before), 5_100),
            "{kind}"
        );
    }
}

#[test]
fn a_later_refund_never_gives_more_than_was_charged() {
    let mut random = Random(7);
    let mut given = 0;
    for round in 0..20_000 {
        let kind = KINDS[round % KINDS.len()];
        let (units, period_ms) = (1 + random.below(9), 1 + random.below(700));
        let algorithm = algorithm(kind, units, period_ms);
        let mut now_ms = 1_000_000 + random.below(1000);
        let mut without = None;
        for _ in 0..random.below(5) {
            without = charged(&algorithm, without.as_ref(), now_ms, 1);
            now_ms += random.below(200);
        }
        let cost = 1 + random.below(units);
        let outcome = algorithm.evaluate(without.as_ref(), now_ms, cost).charge();
        let (true, Some(state)) = (outcome.verdict.decision.allowed, outcome.write) else {
            continue;
        };
        let charged_at_ms = now_ms;
        let mut with = state;
        for _ in 0..random.below(3) {
            now_ms += random.below(300);
            // Only what passes in both worlds, so that they differ by the one charge.
            if algorithm.evaluate(Some(&with), now_ms, 1).fits() {
                with = charged(&algorithm, Some(&with), now_ms, 1).unwrap();
                without = charged(&algorithm, without.as_ref(), now_ms, 1);
            }
        }
        now_ms += random.below(300);
        let before = remaining(&algorithm, Some(&with), now_ms);
        let back = algorithm.refund(&with, now_ms, &charge(charged_at_ms, cost));
        let after = remaining(&algorithm, Some(&back), now_ms);
        let never = remaining(&algorithm, without.as_ref(), now_ms);
        assert!(
            (before..=never).contains(&after),
            "{kind} {units}/{period_ms}ms: {before} left, {after} after, {never} without"
        );
        given += after - before;
    }
    assert!(given > 1000, "{given}");
}

#[test]
fn a_queue_and_a_clock_that_stepped_back_give_nothing() {
    let queue = Parameters {
        max_delay_ms: Some(5000),
        ..Parameters::new(Kind::LeakyBucket, 10, 1000)
    };
    let queue = Algorithm::new(&queue).unwrap();
    let state = charged(&queue, None, 5_000, 2).unwrap();
    assert_eq!(queue.refund(&state, 5_000, &charge(5_000, 2)), state);
    let bucket = Algorithm::new(&Parameters::new(Kind::TokenBucket, 10, 1000)).unwrap();
    let state = charged(&bucket, None, 5_000, 2).unwrap();
    assert_eq!(bucket.refund(&state, 5_000, &charge(5_001, 2)), state);
}
