//! Which parameters are refused, and that the value which the error names is accepted.

use algorithms::{Algorithm, Align, Kind, ParameterError, Parameters};

use crate::support::bursting;

const BUCKETS: [Kind; 3] = [Kind::TokenBucket, Kind::Gcra, Kind::LeakyBucket];
const WINDOWS: [Kind; 3] = [
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::SlidingWindowLog,
];
const DAY_MS: u64 = 86_400_000;

fn refusal(parameters: Parameters) -> ParameterError {
    let Err(error) = Algorithm::new(&parameters) else {
        unreachable!("{parameters:?} was accepted")
    };
    error
}

fn accepted(parameters: Parameters) {
    assert!(Algorithm::new(&parameters).is_ok(), "{parameters:?}");
}

fn with(mut parameters: Parameters, change: impl FnOnce(&mut Parameters)) -> Parameters {
    change(&mut parameters);
    parameters
}

#[test]
fn a_period_is_at_least_a_millisecond() {
    for kind in BUCKETS.into_iter().chain(WINDOWS) {
        let error = refusal(Parameters::new(kind, 5, 0));
        assert_eq!(error, ParameterError::NoPeriod);
        let error = refusal(Parameters::new(kind, 5, u64::MAX));
        let ParameterError::PeriodTooLong { largest_ms } = error else {
            panic!("{error}")
        };
        accepted(Parameters::new(kind, 1, largest_ms));
    }
}

#[test]
fn a_bucket_must_refill_but_a_window_may_admit_nothing() {
    for kind in BUCKETS {
        let error = refusal(Parameters::new(kind, 0, 1000));
        assert_eq!(error, ParameterError::NoRefill);
        accepted(bursting(kind, 1, 1000, 0));
    }
    for kind in WINDOWS {
        accepted(Parameters::new(kind, 0, 1000));
    }
}

#[test]
fn a_refused_capacity_error_names_the_largest_valid_one() {
    for kind in BUCKETS {
        let error = refusal(bursting(kind, 1, DAY_MS, u64::MAX));
        let ParameterError::BurstTooLarge { largest } = error else {
            panic!("{error}")
        };
        accepted(bursting(kind, 1, DAY_MS, largest));
        refusal(bursting(kind, 1, DAY_MS, largest + 1));
        // A day's rate of a round number is in large parts of a unit, and so may be large itself.
        accepted(Parameters::new(kind, DAY_MS, DAY_MS));
        let error = refusal(Parameters::new(kind, u64::MAX, 1000));
        let too_large = matches!(error, ParameterError::RateTooLarge { .. });
        assert!(too_large, "{error}");
    }
}

#[test]
fn a_refused_window_rate_error_names_the_largest_valid_one() {
    for kind in WINDOWS {
        let error = refusal(Parameters::new(kind, u64::MAX, DAY_MS));
        let ParameterError::RateTooLarge { largest } = error else {
            panic!("{error}")
        };
        refusal(Parameters::new(kind, largest + 1, DAY_MS));
        let log = kind == Kind::SlidingWindowLog;
        let largest = if log { largest.min(100_000) } else { largest };
        accepted(Parameters::new(kind, largest, DAY_MS));
    }
    let error = refusal(Parameters::new(Kind::SlidingWindowLog, 100_001, 1000));
    assert_eq!(error, ParameterError::RateTooLarge { largest: 100_000 });
}

#[test]
fn sub_windows_divide_the_window() {
    let minute = Parameters::new(Kind::SlidingWindowBuckets, 5, 60_000);
    assert_eq!(refusal(minute), ParameterError::SubWindowsMissing);
    let nearest = [(0, 1), (7, 6), (11, 10), (59, 60), (2000, 1000)];
    for (wanted, nearest) in nearest.into_iter().chain([(u64::MAX, 1000)]) {
        let error = refusal(with(minute, |of| of.sub_windows = Some(wanted)));
        assert_eq!(error, ParameterError::SubWindows { nearest }, "{wanted}");
        accepted(with(minute, |of| of.sub_windows = Some(nearest)));
    }
}

#[test]
fn a_queue_has_a_bounded_delay() {
    for kind in BUCKETS {
        let queue = bursting(kind, 3000, 1000, 500);
        let error = refusal(with(queue, |of| of.max_delay_ms = Some(u64::MAX)));
        let ParameterError::DelayTooLong { largest_ms } = error else {
            panic!("{error}")
        };
        accepted(with(queue, |of| of.max_delay_ms = Some(largest_ms)));
        refusal(with(queue, |of| of.max_delay_ms = Some(largest_ms + 1)));
    }
}

#[test]
fn a_parameter_of_another_algorithm_is_refused_by_name() {
    type Row = (Kind, &'static str, fn(&mut Parameters));
    let (bucket, window) = (Kind::TokenBucket, Kind::SlidingWindow);
    let refused: [Row; 5] = [
        (window, "burst", |of| of.burst = Some(5)),
        (window, "max_delay", |of| of.max_delay_ms = Some(5)),
        (bucket, "align", |of| of.align = Some(Align::Epoch)),
        (window, "sub_windows", |of| of.sub_windows = Some(5)),
        (bucket, "strict", |of| of.strict = Some(true)),
    ];
    for (kind, name, change) in refused {
        let error = refusal(with(Parameters::new(kind, 5, 1000), change));
        let expected = format!("{name} does not belong to {kind}");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn limit_and_window_describe_the_quota_in_user_terms() {
    let of = |parameters: Parameters| {
        let algorithm = Algorithm::new(&parameters).unwrap();
        (
            algorithm.limit(),
            algorithm.window_ms(),
            algorithm.horizon_ms(),
        )
    };
    // 20 units at 7/1m, rounded up.
    assert_eq!(
        of(bursting(Kind::TokenBucket, 7, 60_000, 20)),
        (20, 171_429, 171_428)
    );
    assert_eq!(
        of(Parameters::new(Kind::SlidingWindow, 5, 1000)),
        (5, 1000, 1000)
    );
}
