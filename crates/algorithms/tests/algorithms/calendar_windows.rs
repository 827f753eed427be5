//! Calendar windows, for edges that the caller passes: what the model of local dates does not ask.

use algorithms::{Algorithm, CalendarUnit, Edges, Kind, Parameters, Rate, RetryAfter};

const DAY_MS: u64 = 86_400_000;
const NOON_MS: u64 = 20_000 * DAY_MS + DAY_MS / 2;

/// Edges of days, the second of which has noon.
fn edges() -> Edges {
    let serial = NOON_MS / DAY_MS - 1;
    let starts_ms = [0, 1, 2, 3, 4, 5].map(|nth| (serial + nth) * DAY_MS);
    Edges::new(u32::try_from(serial).unwrap(), starts_ms)
}

#[test]
fn windows_beyond_the_known_edges_have_nominal_length() {
    let parameters = Parameters {
        rate: Rate::in_each(10, CalendarUnit::Day),
        ..Parameters::new(Kind::FixedWindow, 10, 1)
    };
    let day = Algorithm::new(&parameters).unwrap().with_edges(edges());
    let used = day.evaluate(None, NOON_MS, 10).charge().write;
    for days in [4, 5, 400] {
        let now_ms = NOON_MS + days * DAY_MS;
        assert!(!day.covers(now_ms), "no store decides then");
        let next = day.evaluate(used.as_ref(), now_ms, 10).charge();
        assert!(next.verdict.decision.allowed, "{days}");
        assert_eq!(next.verdict.decision.reset_after_ms, DAY_MS / 2);
        let full = day.evaluate(next.write.as_ref(), now_ms + 1, 1).leave();
        let ends = RetryAfter::Millis(DAY_MS / 2 - 1);
        assert_eq!(full.verdict.decision.retry_after, ends);
    }
}

#[test]
fn grouping_joins_several_calendar_windows_into_one() {
    let day = edges();
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
