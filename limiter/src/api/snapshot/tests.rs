use prometheus_client::metrics::gauge::Gauge;

use super::*;

#[test]
fn polls_whose_time_is_over_at_about_the_same_time_are_answered_together() {
    let since = Instant::now();
    let at = |us| since + Duration::from_micros(us);
    for (us, answered_us) in [
        (0, 0),
        (19_999, 0),
        (20_000, 20_000),
        (39_999, 20_000),
        (650_001, 640_000),
    ] {
        assert_eq!(wake_instant(since, at(us)), at(answered_us), "{us}");
    }
}

#[test]
fn a_thousand_polls_are_answered_over_twenty_milliseconds_and_a_few_at_once() {
    for (polls, most_us) in [(1, 20), (1000, 20_000)] {
        let held = Inflight::new(polls, Gauge::default());
        let _places: Vec<_> = (0..polls).map(|_| held.enter()).collect();
        let most = Duration::from_micros(most_us);
        let all: Vec<_> = (0..1000).map(|_| spread(&held)).collect();
        assert!(all.iter().all(|wait| *wait <= most));
        assert!(all.iter().any(|wait| *wait > most / 2));
    }
}
