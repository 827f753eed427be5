//! Slots of a queue that are given up, rule by rule.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should stop with the reason"
)]

use algorithms::check::{Options, Part, Stored, check};
use algorithms::{
    Algorithm, Decision, Freed, Kind, LeaseAsk, Parameters, Rate, State, TokenBucketState,
};

const START_MS: u64 = 1_763_000_040_000;

/// Twenty a second, so that slots are 50 ms apart.
fn queue() -> Algorithm {
    Algorithm::new(&Parameters {
        burst: Some(100),
        max_delay_ms: Some(3000),
        ..Parameters::new(Kind::LeakyBucket, 20, 1000)
    })
    .unwrap()
}

struct Bucket {
    algorithm: Algorithm,
    generation: u64,
    stored: Option<Stored>,
    now_ms: u64,
}

impl Bucket {
    fn new() -> Self {
        Self {
            algorithm: queue(),
            generation: 1,
            stored: None,
            now_ms: START_MS,
        }
    }

    /// As many requests as fill so many milliseconds.
    fn with(requests: u64) -> (Self, Vec<Freed>) {
        let mut bucket = Self::new();
        let slots = (0..requests).map(|_| bucket.take(1).1).collect();
        (bucket, slots)
    }

    fn ask(&mut self, cost: u64, free: &[Freed]) -> (Decision, Option<Freed>) {
        let part = Part {
            algorithm: &self.algorithm,
            generation: self.generation,
            stored: self.stored.as_ref(),
            cost,
            debit: 0,
            lease: LeaseAsk::default(),
            free,
            mode: algorithms::check::Mode::Enforce,
        };
        let (verdict, writes) = check(&[part], self.now_ms, Options::default()).unwrap();
        let limit = verdict.limits.first().unwrap();
        self.stored = writes.into_iter().next().unwrap().or(self.stored.take());
        let units = limit.charged;
        (limit.decision, limit.slot.map(|slot| Freed { slot, units }))
    }

    /// The delay and the slot of a request that is admitted.
    fn take(&mut self, cost: u64) -> (u64, Freed) {
        let (decision, slot) = self.ask(cost, &[]);
        assert!(decision.allowed);
        (decision.delay_ms, slot.unwrap())
    }

    /// The delay that the next request would have after slots were freed.
    fn free(&mut self, slots: &[Freed]) -> u64 {
        self.ask(0, slots);
        let state = self.stored.as_ref().map(|stored| &stored.state);
        let asked = self.algorithm.evaluate(state, self.now_ms, 1);
        asked.leave().decision.delay_ms
    }
}

#[test]
fn a_slot_that_is_given_up_goes_to_the_next_request() {
    let (mut bucket, slots) = Bucket::with(10);
    assert_eq!(bucket.free(&slots[5..6]), 250);
    assert_eq!(bucket.take(1).0, 250);
    assert_eq!(bucket.take(1).0, 500);
}

#[test]
fn who_gives_up_a_slot_again_does_not_give_up_that_of_another() {
    let (mut bucket, slots) = Bucket::with(10);
    bucket.free(&slots[5..6]);
    let (delay_ms, other) = bucket.take(1);
    assert_eq!(delay_ms, 250);
    assert_eq!(bucket.free(&slots[5..6]), 500);
    assert_eq!(bucket.free(&[other]), 250);
    // As the last in the queue.
    let (mut bucket, slots) = Bucket::with(10);
    bucket.free(&slots[9..]);
    assert_eq!(bucket.take(1).0, 450);
    assert_eq!(bucket.free(&slots[9..]), 500);
}

#[test]
fn a_cost_takes_the_earliest_time_that_holds_it_whole() {
    let (mut bucket, slots) = Bucket::with(10);
    bucket.free(&[slots[2], slots[5], slots[6], slots[7]]);
    assert_eq!(bucket.take(2).0, 250);
    assert_eq!(bucket.take(2).0, 500);
    assert_eq!(bucket.take(1).0, 100);
    assert_eq!(bucket.take(1).0, 350);
}

#[test]
fn the_last_slots_lower_the_level() {
    let (mut bucket, slots) = Bucket::with(10);
    bucket.free(&slots[7..9]);
    bucket.free(&slots[9..]);
    assert_eq!(bucket.take(5).0, 350);
    let all: Vec<Freed> = slots[..7].to_vec();
    bucket.free(&all);
    assert_eq!(bucket.take(5).0, 0);
}

#[test]
fn what_has_passed_is_lost() {
    let (mut bucket, slots) = Bucket::with(10);
    bucket.free(&slots[2..4]);
    bucket.now_ms += 120;
    // 80 ms are left of two slots, which hold one.
    assert_eq!(bucket.take(2).0, 380);
    assert_eq!(bucket.take(1).0, 0);
    assert_eq!(bucket.take(1).0, 480);
    bucket.now_ms += 200;
    assert_eq!(bucket.free(&slots[4..5]), 330);
}

#[test]
fn what_remains_is_what_either_holds() {
    let mut bucket = Bucket::new();
    let slots: Vec<Freed> = (0..61).map(|_| bucket.take(1).1).collect();
    let (denied, _) = bucket.ask(1, &[]);
    assert!(!denied.allowed);
    let (decision, _) = bucket.ask(0, &slots[10..14]);
    assert_eq!(decision.remaining, 4);
    let (decision, _) = bucket.ask(1, &[]);
    assert_eq!(
        (decision.allowed, decision.delay_ms, decision.remaining),
        (true, 500, 3)
    );
}

#[test]
fn of_many_intervals_the_latest_are_lost() {
    let (mut bucket, slots) = Bucket::with(40);
    let apart: Vec<Freed> = slots.iter().copied().step_by(3).take(10).skip(1).collect();
    bucket.free(&apart);
    let given: Vec<u64> = (0..9).map(|_| bucket.take(1).0).collect();
    assert_eq!(given, [150, 300, 450, 600, 750, 900, 1050, 1200, 2000]);
}

#[test]
fn no_slot_starts_later_than_the_longest_delay() {
    let (mut bucket, slots) = Bucket::with(40);
    bucket.free(&slots[20..21]);
    bucket.algorithm = bucket.algorithm.within_delay(900);
    assert!(!bucket.ask(1, &[]).0.allowed);
    bucket.algorithm = bucket.algorithm.within_delay(900);
    bucket.now_ms += 100;
    assert_eq!(bucket.take(1).0, 900);
}

#[test]
fn an_edit_a_reset_and_a_clock_that_stepped_back_refuse_older_names() {
    // An edit that leaves the numbers as they are.
    let (mut bucket, slots) = Bucket::with(10);
    bucket.generation = 2;
    assert_eq!(bucket.free(&slots[5..6]), 500);
    bucket.take(1);
    assert_eq!(bucket.free(&slots[5..6]), 550);
    // Other numbers without one: an override has run out.
    let (mut bucket, slots) = Bucket::with(10);
    let mut other = *bucket.algorithm.parameters();
    other.rate = Rate {
        units: 40,
        period_ms: 1000,
    };
    bucket.algorithm = Algorithm::new(&other).unwrap();
    assert_eq!(bucket.free(&slots[5..6]), 250);
    // A reset.
    let (mut bucket, slots) = Bucket::with(10);
    assert_eq!(bucket.stored.as_ref().unwrap().state.reset(), None);
    bucket.stored = None;
    bucket.now_ms += 1;
    let (_, first) = bucket.take(1);
    bucket.take(1);
    assert_eq!(bucket.free(&slots[1..2]), 100);
    assert_eq!(bucket.free(&[first]), 0);
    // A clock behind the bucket's.
    let (mut bucket, slots) = Bucket::with(10);
    bucket.now_ms -= 10;
    bucket.ask(1, &[]);
    bucket.now_ms += 10;
    assert_eq!(bucket.free(&slots[5..6]), 550);
}

#[test]
fn a_state_of_before_there_were_slots_is_read() {
    let mut bucket = Bucket::new();
    bucket.stored = Some(Stored {
        generation: 1,
        state: State::TokenBucket(TokenBucketState {
            debt: 500,
            at_ms: START_MS,
            parts_per_unit: 50,
            leases: None,
        }),
    });
    let (delay_ms, slot) = bucket.take(1);
    assert_eq!(delay_ms, 500);
    bucket.take(1);
    assert_eq!(bucket.free(&[slot]), 500);
}

/// Freed time is not given while the caller's clock is behind, and again once it is not.
#[test]
fn a_clock_behind_the_buckets_waits_for_freed_time_no_longer_than_that() {
    let (mut bucket, slots) = Bucket::with(61);
    bucket.free(&slots[30..31]);
    bucket.now_ms -= 100;
    let (denied, _) = bucket.ask(1, &[]);
    assert!(!denied.allowed);
    assert_eq!(denied.retry_after, algorithms::RetryAfter::Millis(100));
    bucket.now_ms += 99;
    assert!(!bucket.ask(1, &[]).0.allowed);
    bucket.now_ms += 1;
    assert!(bucket.ask(1, &[]).0.allowed);
}
