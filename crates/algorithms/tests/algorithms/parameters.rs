//! Which parameters are refused, and that the value which the error names is accepted.

use algorithms::{Algorithm, Align, Kind, ParameterError, Parameters};

const BUCKETS: [Kind; 3] = [Kind::TokenBucket, Kind::Gcra, Kind::LeakyBucket];
const WINDOWS: [Kind; 3] = [
    Kind::FixedWindow,
    Kind::SlidingWindow,
    Kind::SlidingWindowLog,
];

fn refusal(parameters: Parameters) -> ParameterError {
    let Err(error) = Algorithm::new(&parameters) else {
        unreachable!("{parameters:?} was accepted")
    };
    error
}

fn accepted(parameters: Parameters) {
    assert!(Algorithm::new(&parameters).is_ok(), "{parameters:?}");
}

#[test]
fn a_period_is_at_least_a_millisecond() {
    for kind in BUCKETS.into_iter().chain(WINDOWS) {
        assert_eq!(
            refusal(Parameters::new(kind, 5, 0)),
            ParameterError::NoPeriod
        );
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
        assert_eq!(
            refusal(Parameters::new(kind, 0, 1000)),
            ParameterError::NoRefill
        );
        accepted(Parameters {
            burst: Some(0),
            ..Parameters::new(kind, 1, 1000)
        });
    }
    for kind in WINDOWS {
        accepted(Parameters::new(kind, 0, 1000));
    }
}

#[test]
fn a_refused_capacity_error_names_the_largest_valid_one() {
    for kind in BUCKETS {
        let daily = Parameters::new(kind, 1, 86_400_000);
        let error = refusal(Parameters {
            burst: Some(u64::MAX),
            ..daily
        });
        let ParameterError::BurstTooLarge { largest } = error else {
            panic!("{error}")
        };
        accepted(Parameters {
            burst: Some(largest),
            ..daily
        });
        refusal(Parameters {
            burst: Some(largest + 1),
            ..daily
        });
        // A day's rate of a round number is in large parts of a unit, and so may be large itself.
        accepted(Parameters::new(kind, 86_400_000, 86_400_000));
        let error = refusal(Parameters::new(kind, u64::MAX, 1000));
        assert!(
            matches!(error, ParameterError::RateTooLarge { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_refused_window_rate_error_names_the_largest_valid_one() {
    for kind in WINDOWS {
        let error = refusal(Parameters::new(kind, u64::MAX, 86_400_000));
        let ParameterError::RateTooLarge { largest } = error else {
            panic!("{error}")
        };
        refusal(Parameters::new(kind, largest + 1, 86_400_000));
        let log_max = 100_000;
        let largest = if kind == Kind::SlidingWindowLog {
            largest.min(log_max)
        } else {
            largest
        };
        accepted(Parameters::new(kind, largest, 86_400_000));
    }
    let error = refusal(Parameters::new(Kind::SlidingWindowLog, 100_001, 1000));
    assert_eq!(error, ParameterError::RateTooLarge { largest: 100_000 });
}

#[test]
fn sub_windows_divide_the_window() {
    let minute = Parameters::new(Kind::SlidingWindowBuckets, 5, 60_000);
    assert_eq!(refusal(minute), ParameterError::SubWindowsMissing);
    for (wanted, nearest) in [
        (0, 1),
        (7, 6),
        (11, 10),
        (59, 60),
        (2000, 1000),
        (u64::MAX, 1000),
    ] {
        let error = refusal(Parameters {
            sub_windows: Some(wanted),
            ..minute
        });
        assert_eq!(error, ParameterError::SubWindows { nearest }, "{wanted}");
        accepted(Parameters {
            sub_windows: Some(nearest),
            ..minute
        });
    }
}

#[test]
fn a_queue_has_a_bounded_delay() {
    let queue = Parameters::new(Kind::LeakyBucket, 1, 1000);
    let error = refusal(Parameters {
        max_delay_ms: Some(u64::MAX),
        ..queue
    });
    let ParameterError::DelayTooLong { largest_ms } = error else {
        panic!("{error}")
    };
    accepted(Parameters {
        max_delay_ms: Some(largest_ms),
        ..queue
    });
}

#[test]
fn a_parameter_of_another_algorithm_is_refused_by_name() {
    let bucket = Parameters::new(Kind::TokenBucket, 5, 1000);
    let window = Parameters::new(Kind::SlidingWindow, 5, 1000);
    let refused = [
        (
            Parameters {
                burst: Some(5),
                ..window
            },
            "burst does not belong to sliding_window",
        ),
        (
            Parameters {
                max_delay_ms: Some(5),
                ..bucket
            },
            "max_delay does not belong to token_bucket",
        ),
        (
            Parameters {
                align: Some(Align::Epoch),
                ..bucket
            },
            "align does not belong to token_bucket",
        ),
        (
            Parameters {
                sub_windows: Some(5),
                ..window
            },
            "sub_windows does not belong to sliding_window",
        ),
        (
            Parameters {
                strict: Some(true),
                ..bucket
            },
            "strict does not belong to token_bucket",
        ),
    ];
    for (parameters, message) in refused {
        assert_eq!(refusal(parameters).to_string(), message);
    }
}

#[test]
fn limit_and_window_describe_the_quota_in_user_terms() {
    let bucket = Parameters {
        burst: Some(20),
        ..Parameters::new(Kind::TokenBucket, 7, 60_000)
    };
    let bucket = Algorithm::new(&bucket).unwrap();
    assert_eq!(
        (bucket.limit(), bucket.window_ms()),
        (20, 171_429),
        "20 units at 7/1m, rounded up"
    );
    assert_eq!(bucket.horizon_ms(), 171_428);
    let window = Algorithm::new(&Parameters::new(Kind::SlidingWindow, 5, 1000)).unwrap();
    assert_eq!(
        (window.limit(), window.window_ms(), window.horizon_ms()),
        (5, 1000, 1000)
    );
}
