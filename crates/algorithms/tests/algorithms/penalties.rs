//! When a bucket is penalized, and until when.
use algorithms::check::{LimitVerdict, Mode, Options, Part, PenaltyRequest, Stored, check};
use algorithms::{Algorithm, Denials, Kind, Parameters, Penalty, PenaltyStatus};

use crate::support::part;

const START_MS: u64 = 1_763_000_000_000;

/// A bucket of one unit a second, penalized for ten minutes after three denials in a minute.
struct Bucket {
    algorithm: Algorithm,
    penalty: Penalty,
    stored: Option<Stored>,
    denials: Option<Denials>,
    mode: Mode,
    patience_ms: u64,
}

impl Bucket {
    fn new() -> Self {
        Self {
            algorithm: Algorithm::new(&Parameters::new(Kind::TokenBucket, 1, 1000)).unwrap(),
            penalty: Penalty::new(3, 60_000, 600_000),
            stored: None,
            denials: None,
            mode: Mode::Enforce,
            patience_ms: 0,
        }
    }

    fn ask(&mut self, at_ms: u64, cost: u64, reported: u64) -> LimitVerdict {
        let part = Part {
            penalty: Some(PenaltyRequest {
                penalty: self.penalty,
                stored: self.denials.as_ref(),
                reported,
            }),
            mode: self.mode,
            ..part(&self.algorithm, self.stored.as_ref(), cost)
        };
        let options = Options {
            patience_ms: self.patience_ms,
            ..Options::default()
        };
        let (verdict, mut writes) = check(&[part], START_MS + at_ms, options).unwrap();
        if let Some(stored) = writes.remove(0) {
            self.stored = Some(stored);
        }
        let limit = verdict.limits[0];
        let enforced = self.mode == Mode::Enforce;
        assert_eq!(verdict.allowed, limit.decision.allowed || !enforced);
        self.denials = limit.denials.or(self.denials);
        limit
    }

    /// Admits a request, and denies so many after it.
    fn deny(&mut self, at_ms: u64, denials: u64) -> PenaltyStatus {
        assert!(self.ask(at_ms, 1, 0).decision.allowed);
        let mut status = PenaltyStatus::default();
        for _ in 0..denials {
            status = self.ask(at_ms, 1, 0).penalty;
        }
        status
    }
}

#[test]
fn denials_count_within_their_period_from_the_first_one() {
    let mut bucket = Bucket::new();
    assert_eq!(bucket.deny(0, 1).denials, 1);
    assert_eq!(bucket.deny(59_000, 1).denials, 2);
    // The first is a minute ago: this is the first of a new count.
    assert_eq!(bucket.deny(60_000, 1).denials, 1);
    assert_eq!(bucket.deny(119_999, 1).denials, 2);
    assert!(bucket.ask(119_999, 1, 0).penalty.begun);
}

#[test]
fn a_penalty_ends_and_the_next_needs_as_many_denials() {
    let mut bucket = Bucket::new();
    assert_eq!(bucket.deny(0, 3).left_ms, 600_000);
    let last = bucket.ask(599_999, 1, 0);
    assert!(!last.decision.allowed && !last.penalty.begun);
    assert_eq!((last.penalty.left_ms, last.penalty.denials), (1, 0));
    assert_eq!(bucket.deny(600_000, 2).left_ms, 0);
    assert_eq!(bucket.deny(601_500, 1).left_ms, 600_000);
}

#[test]
fn a_penalty_grows_if_it_begins_soon_after_the_last_and_starts_anew_later() {
    let mut bucket = Bucket::new();
    (bucket.penalty.grow, bucket.penalty.max_ms) = (2, 3_000_000);
    // Each begins the moment before twice the last one's length has passed since its end, and names the next.
    let mut now_ms = 0;
    for (lasts_ms, next_ms) in [
        (600_000, 1_200_000),
        (1_200_000, 2_400_000),
        (2_400_000, 3_000_000),
        (3_000_000, 3_000_000),
    ] {
        let begun = bucket.deny(now_ms, 3);
        assert_eq!((begun.left_ms, begun.next_ms), (lasts_ms, next_ms));
        now_ms += 3 * lasts_ms - 1;
    }
    now_ms += 1;
    assert_eq!(bucket.ask(now_ms, 0, 0).penalty.next_ms, 600_000);
    assert_eq!(bucket.deny(now_ms, 3).left_ms, 600_000);
    // The record lives as long as it matters.
    let denials = bucket.denials.unwrap();
    let forgotten_ms = bucket.penalty.forgotten_at_ms(&denials) - START_MS;
    assert_eq!(forgotten_ms, now_ms + 3 * 600_000);
}

#[test]
fn an_edit_with_a_shorter_max_shortens_a_penalty_that_has_grown() {
    let mut bucket = Bucket::new();
    (bucket.penalty.grow, bucket.penalty.max_ms) = (3, 3_000_000);
    bucket.deny(0, 3);
    assert_eq!(bucket.deny(600_000, 3).left_ms, 1_800_000);
    bucket.penalty.max_ms = 700_000;
    assert_eq!(bucket.ask(600_000, 1, 0).penalty.left_ms, 700_000);
    // One that no longer grows lasts as long as the first.
    bucket.penalty.grow = 1;
    let status = bucket.ask(600_000, 1, 0).penalty;
    assert_eq!((status.left_ms, status.next_ms), (600_000, 600_000));
}

#[test]
fn denials_before_a_penalty_do_not_count_after_it() {
    let mut bucket = Bucket::new();
    bucket.penalty.for_ms = 1000;
    bucket.deny(0, 3);
    assert_eq!(bucket.deny(1000, 2).denials, 2);
}

#[test]
fn a_penalized_bucket_that_is_only_observed_charges_nothing() {
    let mut bucket = Bucket::new();
    bucket.mode = Mode::Observe;
    bucket.deny(0, 3);
    let verdict = bucket.ask(2000, 1, 0);
    assert!(!verdict.decision.allowed);
    assert_eq!(verdict.charged, 0);
}

#[test]
fn a_denial_during_a_penalty_does_not_make_it_longer() {
    let mut bucket = Bucket::new();
    bucket.deny(0, 3);
    for at_ms in [1, 1000, 300_000] {
        bucket.ask(at_ms, 1, 5);
    }
    assert_eq!(bucket.ask(300_000, 0, 0).penalty.left_ms, 300_000);
}

#[test]
fn a_penalty_is_never_longer_than_one_that_begins_now() {
    let mut bucket = Bucket::new();
    bucket.deny(3_600_000, 3);
    // The clock stepped back by an hour.
    assert_eq!(bucket.ask(0, 0, 0).penalty.left_ms, 600_000);
    // An edit makes it shorter.
    bucket.penalty.for_ms = 1000;
    assert_eq!(bucket.ask(0, 0, 0).penalty.left_ms, 1000);
}

#[test]
fn denials_from_the_future_count_from_now_on() {
    let mut bucket = Bucket::new();
    bucket.deny(3_600_000, 2);
    assert_eq!(bucket.ask(0, 0, 0).penalty.denials, 2);
    assert!(bucket.ask(1000, 0, 1).penalty.begun);
}

#[test]
fn reported_denials_are_counted_before_the_check_is_decided() {
    let mut bucket = Bucket::new();
    let verdict = bucket.ask(0, 1, 3);
    assert!(!verdict.decision.allowed && verdict.penalty.begun);
    assert_eq!(verdict.charged, 0);
    assert_eq!(bucket.ask(600_000, 1, 2).penalty.denials, 2);
}

#[test]
fn a_penalty_does_not_shorten_the_buckets_longer_wait() {
    let mut bucket = Bucket::new();
    bucket.penalty.for_ms = 10;
    bucket.deny(0, 3);
    let verdict = bucket.ask(1, 1, 0);
    assert_eq!(verdict.penalty.left_ms, 9);
    assert_eq!(verdict.decision.retry_after.millis(), Some(999));
    assert_eq!(verdict.decision.reset_after_ms, 999);
}

#[test]
fn a_shortened_penalty_ends_relative_to_its_start() {
    let mut bucket = Bucket::new();
    bucket.deny(0, 3);
    bucket.penalty.for_ms = 100_000;
    // Each check reports the same end, so there is one penalty.
    assert_eq!(bucket.ask(40_000, 1, 0).penalty.left_ms, 60_000);
    assert_eq!(bucket.ask(99_999, 1, 0).penalty.left_ms, 1);
    assert!(bucket.ask(100_000, 1, 0).decision.allowed);
    // Making it longer again does not revive a penalty that has ended.
    bucket.penalty.for_ms = 600_000;
    assert_eq!(bucket.ask(601_000, 0, 0).penalty.left_ms, 0);
}

#[test]
fn a_penalty_does_not_outlive_a_step_back_of_the_clock() {
    for (peek_cost, cost) in [(0, 1), (1, 0)] {
        let mut bucket = Bucket::new();
        bucket.penalty.for_ms = 3000;
        bucket.deny(20_000, 3);
        assert_eq!(bucket.ask(0, peek_cost, 0).penalty.left_ms, 3000);
        assert_eq!(bucket.ask(1000, cost, 0).penalty.left_ms, 2000);
        assert!(!bucket.ask(2999, 1, 0).decision.allowed);
        assert_eq!(bucket.ask(3000, 0, 0).penalty.left_ms, 0);
    }
}

#[test]
fn denials_from_the_future_do_not_count_for_longer_than_their_time() {
    let mut bucket = Bucket::new();
    bucket.deny(3_600_000, 2);
    assert_eq!(bucket.ask(0, 0, 0).penalty.denials, 2);
    assert_eq!(bucket.ask(59_999, 0, 0).penalty.denials, 2);
    assert_eq!(bucket.ask(60_000, 0, 0).penalty.denials, 0);
}

/// A unit is back after a second.
#[test]
fn a_denial_after_which_the_caller_waits_does_not_count() {
    let mut bucket = Bucket::new();
    bucket.patience_ms = 1000;
    assert_eq!(bucket.deny(0, 2).denials, 0);
    // It no longer waits: the answer is final.
    bucket.patience_ms = 999;
    assert_eq!(bucket.ask(0, 1, 0).penalty.denials, 1);
    // What proxies report counts in any case.
    bucket.patience_ms = 1000;
    assert_eq!(bucket.ask(0, 1, 1).penalty.denials, 2);
}
