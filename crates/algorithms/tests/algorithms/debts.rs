//! Units that are reported after use, beyond the capacity of a bucket: no edit and no clock
//! forgives them.
use algorithms::{Algorithm, BucketRequest, Debits, Kind, Parameters, Rate, State};

const NOW: u64 = 1_763_000_000_000;
const DAY_MS: u64 = 86_400_000;
/// A unit drains in 60 ms.
const RATE: Rate = Rate {
    calendar: None,
    units: 1000,
    period_ms: 60_000,
};
const KINDS: [Kind; 3] = [Kind::TokenBucket, Kind::Gcra, Kind::LeakyBucket];

fn algorithm(kind: Kind, rate: Rate, burst: u64) -> Algorithm {
    let parameters = Parameters {
        burst: Some(burst),
        ..Parameters::new(kind, rate.units, rate.period_ms)
    };
    Algorithm::new(&parameters).unwrap()
}

/// A bucket of 1000 units to which 1200 were reported.
fn owing(kind: Kind) -> State {
    let report = BucketRequest {
        debit: 1200,
        debits: Debits::Reported,
        ..BucketRequest::default()
    };
    let bucket = algorithm(kind, RATE, 1000);
    let evaluation = bucket.evaluate_request(None, NOW, report);
    evaluation.leave().write.unwrap()
}

/// The time until a unit is left.
fn wait_ms(bucket: &Algorithm, state: &State, now_ms: u64) -> u64 {
    let decision = bucket
        .evaluate(Some(state), now_ms, 1)
        .leave()
        .verdict
        .decision;
    assert!(!decision.allowed);
    decision.retry_after.millis().unwrap()
}

#[test]
fn debt_beyond_the_capacity_drains_before_any_unit_is_left() {
    for kind in KINDS {
        let (bucket, state) = (algorithm(kind, RATE, 1000), owing(kind));
        assert_eq!(wait_ms(&bucket, &state, NOW), 201 * 60, "{kind:?}");
        assert_eq!(wait_ms(&bucket, &state, NOW + 6000), 101 * 60, "{kind:?}");
        let passes = bucket.evaluate(Some(&state), NOW + 201 * 60, 1);
        assert!(passes.fits(), "{kind:?}");
    }
}

#[test]
fn lowering_the_capacity_forgives_only_debt_within_it() {
    for kind in KINDS {
        let (bucket, state) = (algorithm(kind, RATE, 100), owing(kind));
        assert_eq!(wait_ms(&bucket, &state, NOW), 201 * 60, "{kind:?}");
        // The debt beyond the capacity drains first.
        let later = NOW + 150 * 60;
        assert_eq!(wait_ms(&bucket, &state, later), 51 * 60, "{kind:?}");
    }
}

#[test]
fn a_clock_far_behind_neither_forgives_nor_adds_debt() {
    for kind in KINDS {
        let (bucket, state) = (algorithm(kind, RATE, 1000), owing(kind));
        let before = NOW - DAY_MS;
        assert_eq!(wait_ms(&bucket, &state, before), 201 * 60, "{kind:?}");
        let shifted = bucket.evaluate(Some(&state), before, 0).leave().write;
        let later = before + 6000;
        assert_eq!(
            wait_ms(&bucket, &shifted.unwrap(), later),
            101 * 60,
            "{kind:?}"
        );
    }
}

/// A GCRA stores its debt as time.
#[test]
fn an_arrival_time_keeps_its_debt_through_an_edit_of_the_rate() {
    let twice = Rate {
        units: 2000,
        ..RATE
    };
    let bucket = algorithm(Kind::Gcra, twice, 200);
    // 72 s beyond now, of which 12 s are owed beyond the capacity and 6 s within the lowered one.
    assert_eq!(wait_ms(&bucket, &owing(Kind::Gcra), NOW), 12_000 + 30);
}

/// The bucket that owed `state` and to which so many units more are reported.
fn reported(bucket: &Algorithm, state: Option<&State>, units: u64) -> State {
    let report = BucketRequest {
        debit: units,
        debits: Debits::Reported,
        ..BucketRequest::default()
    };
    let outcome = bucket.evaluate_request(state, NOW, report).leave();
    outcome.write.or_else(|| state.cloned()).unwrap()
}

/// A bucket of 1000 units refills in a minute.
#[test]
fn no_report_makes_a_bucket_owe_more_than_a_hundred_capacities() {
    for kind in KINDS {
        let bucket = algorithm(kind, RATE, 1000);
        let once = reported(&bucket, None, u64::MAX);
        let until_unused = bucket
            .evaluate(Some(&once), NOW, 0)
            .leave()
            .verdict
            .decision;
        assert_eq!(until_unused.reset_after_ms, 100 * 60_000, "{kind:?}");
        assert_eq!(wait_ms(&bucket, &once, NOW), 99 * 60_000 + 60, "{kind:?}");
        let again = reported(&bucket, Some(&once), 50_000);
        assert_eq!(again, once, "{kind:?}");
        // A lowered capacity forgives nothing, and a report adds nothing to so large a debt.
        let lowered = algorithm(kind, RATE, 10);
        let more = reported(&lowered, Some(&once), 1);
        assert_eq!(wait_ms(&lowered, &more, NOW), 99 * 60_000 + 60, "{kind:?}");
    }
}
