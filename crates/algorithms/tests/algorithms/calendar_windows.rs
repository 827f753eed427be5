//! Calendar windows: which count a check finds, for edges that the caller passes.

use algorithms::{
    Algorithm, CalendarUnit, Decision, Edges, Kind, Parameters, Rate, RetryAfter, State,
};

const DAY_MS: u64 = 86_400_000;
const NOON_MS: u64 = 20_000 * DAY_MS + DAY_MS / 2;

fn parameters(unit: CalendarUnit) -> Parameters {
    Parameters {
        rate: Rate::in_each(10, unit),
        ..Parameters::new(Kind::FixedWindow, 10, 1)
    }
}

/// Edges of windows of nominal length, the second of which has this time.
fn edges(unit: CalendarUnit, now_ms: u64) -> Edges {
    let length_ms = unit.nominal_ms();
    let serial = now_ms / length_ms - 1;
    let starts_ms = [0, 1, 2, 3, 4, 5].map(|nth| (serial + nth) * length_ms);
    Edges::new(u32::try_from(serial).unwrap(), starts_ms)
}

fn by(unit: CalendarUnit, now_ms: u64) -> Algorithm {
    let algorithm = Algorithm::new(&parameters(unit)).unwrap();
    algorithm.with_edges(edges(unit, now_ms))
}

/// A bucket with so many units used at noon.
fn used(units: u64) -> State {
    let day = by(CalendarUnit::Day, NOON_MS);
    day.evaluate(None, NOON_MS, units).charge().write.unwrap()
}

fn peek(algorithm: &Algorithm, state: &State, now_ms: u64, cost: u64) -> Decision {
    let evaluated = algorithm.evaluate(Some(state), now_ms, cost);
    evaluated.leave().decision
}

#[test]
fn a_later_window_starts_at_0_and_an_earlier_one_keeps_the_count() {
    let state = used(7);
    for (days, remaining, ends_in) in [(0, 3, 1), (1, 10, 0), (2, 10, 0)] {
        let now_ms = NOON_MS + days * DAY_MS;
        let found = peek(&by(CalendarUnit::Day, now_ms), &state, now_ms, 0);
        let reset_ms = ends_in * (DAY_MS / 2);
        assert_eq!(
            (found.remaining, found.reset_after_ms),
            (remaining, reset_ms)
        );
    }
    for days in [1, 2] {
        let now_ms = NOON_MS - days * DAY_MS;
        let found = peek(&by(CalendarUnit::Day, now_ms), &state, now_ms, 4);
        let ends_ms = days * DAY_MS + DAY_MS / 2;
        assert_eq!(found.remaining, 3, "{days} days before");
        assert_eq!(found.retry_after, RetryAfter::Millis(ends_ms));
    }
}

#[test]
fn a_window_three_ahead_is_treated_as_a_clock_error() {
    let state = used(7);
    let now_ms = NOON_MS - 3 * DAY_MS;
    let day = by(CalendarUnit::Day, now_ms);
    let outcome = day.evaluate(Some(&state), now_ms, 4).charge();
    assert!(!outcome.decision.allowed);
    assert_eq!(outcome.decision.reset_after_ms, DAY_MS / 2, "it ends today");
    // A denial stores it, too.
    let moved = outcome.write.unwrap();
    let tomorrow = by(CalendarUnit::Day, now_ms + DAY_MS);
    assert_eq!(peek(&tomorrow, &moved, now_ms + DAY_MS, 0).remaining, 10);
}

#[test]
fn a_changed_calendar_unit_keeps_a_count_begun_in_its_window() {
    let today = used(7);
    let year = by(CalendarUnit::Year, NOON_MS);
    let this_year = year.evaluate(None, NOON_MS, 6).charge().write.unwrap();
    assert_eq!(peek(&year, &today, NOON_MS, 0).remaining, 3);
    assert_eq!(
        peek(&by(CalendarUnit::Day, NOON_MS), &this_year, NOON_MS, 0).remaining,
        10,
        "the year did not begin today"
    );
}

#[test]
fn windows_beyond_the_known_edges_have_nominal_length() {
    let (day, state) = (by(CalendarUnit::Day, NOON_MS), used(10));
    for days in [4, 5, 400] {
        let now_ms = NOON_MS + days * DAY_MS;
        assert!(!day.covers(now_ms), "no store decides then");
        let next = day.evaluate(Some(&state), now_ms, 10).charge();
        assert!(next.decision.allowed, "{days}");
        assert_eq!(next.decision.reset_after_ms, DAY_MS / 2);
        let full = peek(&day, &next.write.unwrap(), now_ms + 1, 1);
        assert_eq!(full.retry_after, RetryAfter::Millis(DAY_MS / 2 - 1));
    }
}

#[test]
fn grouping_joins_several_calendar_windows_into_one() {
    let day = edges(CalendarUnit::Day, NOON_MS);
    let grouped = day.grouped(3, DAY_MS);
    let length_ms = 3 * DAY_MS;
    for now_ms in [NOON_MS, NOON_MS + length_ms, NOON_MS + 5 * length_ms] {
        let (window, own) = (grouped.at(now_ms, length_ms), now_ms / DAY_MS);
        assert_eq!(window.serial, own / 3);
        assert_eq!(window.start_ms, own / 3 * length_ms);
        assert_eq!(window.end_ms, window.start_ms + length_ms);
    }
    assert_eq!(day.grouped(1, DAY_MS), day);
    let moved = day.moved(NOON_MS, NOON_MS - 1_000).at(NOON_MS, DAY_MS);
    assert_eq!(moved.end_ms + 1_000, day.at(NOON_MS, DAY_MS).end_ms);
}
