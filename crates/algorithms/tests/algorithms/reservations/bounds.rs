//! The adversary never gets more than the bound of an algorithm, over a thousand histories for
//! each. `RL_RESERVATION_SEEDS` sets how many.

use algorithms::{Align, CalendarUnit, Kind, Parameters, Rate};

use super::adversary::{History, N, SUB_WINDOWS, Total, WINDOW_MS};
use super::{START_MS, bucket, number};

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
