//! Edits while requests are held: when those start, and the new ones.

use algorithms::{Algorithm, Parameters, Rate};

use super::bucket::{Bucket, START_MS, queue_of};

/// Ten a second, of which twenty wait at most.
fn ten() -> Parameters {
    Parameters {
        burst: Some(20),
        ..queue_of(10, 60_000)
    }
}

/// When requests start, in milliseconds since [`START_MS`]: twenty before the edit, then one asked for
/// in each ten milliseconds.
fn starts(edited: Parameters, until_ms: u64) -> Vec<u64> {
    let mut bucket = Bucket::with_parameters(&ten());
    let mut starts: Vec<u64> = (0..20).map(|_| bucket.take(1).0).collect();
    (bucket.algorithm, bucket.generation) = (Algorithm::new(&edited).unwrap(), 2);
    while bucket.now_ms < START_MS + until_ms {
        bucket.now_ms += 10;
        let (decision, _) = bucket.ask(1, &[]);
        if decision.allowed {
            starts.push(bucket.now_ms - START_MS + decision.delay_ms);
        }
    }
    starts.sort_unstable();
    starts
}

/// The most starts in a second.
fn most(starts: &[u64]) -> usize {
    let from = |at: &u64| {
        starts
            .iter()
            .filter(|of| (*at..at + 1000).contains(of))
            .count()
    };
    starts.iter().map(from).max().unwrap_or(0)
}

#[test]
fn a_burst_that_is_lowered_lets_nothing_start_between_held_requests() {
    for burst in [1, 5, 19, 20] {
        let edited = Parameters {
            burst: Some(burst),
            ..ten()
        };
        let starts = starts(edited, 5000);
        assert_eq!(most(&starts), 10, "{burst}");
        // Nor is any time lost.
        assert!(
            starts.windows(2).all(|two| two[1] - two[0] == 100),
            "{burst}"
        );
    }
}

#[test]
fn a_rate_that_is_lowered_with_the_burst_lets_nothing_start_between_held_requests() {
    // The parts of a unit change with both rates.
    for (units, period_ms) in [(3, 1000), (1, 7000)] {
        let edited = Parameters {
            rate: Rate::new(units, period_ms),
            burst: Some(2),
            ..ten()
        };
        let starts = starts(edited, 200_000);
        assert_eq!(most(&starts), 10, "{units} in {period_ms} ms");
        assert!(starts.len() > 25, "{units} in {period_ms} ms");
    }
}

#[test]
fn a_rate_that_is_raised_adds_the_new_one_until_the_last_held_request_starts() {
    let edited = Parameters {
        rate: Rate::new(30, 1000),
        burst: Some(5),
        ..ten()
    };
    let starts = starts(edited, 5000);
    // Starts are whole milliseconds: 34, 67 and 100 ms of three slots.
    assert!(most(&starts) <= 10 + 30 + 1, "{}", most(&starts));
    let after: Vec<u64> = starts.into_iter().filter(|at| *at >= 2000).collect();
    assert!(most(&after) <= 31, "{}", most(&after));
}

#[test]
fn the_wait_for_a_place_counts_the_requests_that_a_lowered_burst_no_longer_holds() {
    let mut bucket = Bucket::with_parameters(&ten());
    for _ in 0..20 {
        bucket.take(1);
    }
    let edited = Parameters {
        burst: Some(5),
        ..ten()
    };
    (bucket.algorithm, bucket.generation) = (Algorithm::new(&edited).unwrap(), 2);
    let (denied, _) = bucket.ask(1, &[]);
    assert_eq!(denied.retry_after.millis(), Some(1600));
    assert_eq!((denied.remaining, denied.reset_after_ms), (0, 2000));
    // A debit adds nothing to it.
    bucket.now_ms += 1599;
    assert!(!bucket.ask(1, &[]).0.allowed);
    bucket.now_ms += 1;
    assert_eq!(bucket.take(1).0, 400);
}
