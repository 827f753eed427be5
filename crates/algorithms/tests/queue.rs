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

/// Seven a second, so that slots do not start at whole milliseconds.
fn sevenths() -> Bucket {
    Bucket::of(&Parameters {
        burst: Some(20),
        max_delay_ms: Some(2000),
        ..Parameters::new(Kind::LeakyBucket, 7, 1000)
    })
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

    fn of(parameters: &Parameters) -> Self {
        Self {
            algorithm: Algorithm::new(parameters).unwrap(),
            ..Self::new()
        }
    }

    /// A queue of so many requests, and their slots.
    fn with(requests: u64) -> (Self, Vec<Freed>) {
        Self::new().filled(requests)
    }

    fn filled(mut self, requests: u64) -> (Self, Vec<Freed>) {
        let slots = (0..requests).map(|_| self.take(1).1).collect();
        (self, slots)
    }

    /// When to retry a request that is denied.
    fn retry_after_ms(&mut self, cost: u64) -> Option<u64> {
        let (decision, _) = self.ask(cost, &[]);
        assert!(!decision.allowed);
        decision.retry_after.millis()
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

#[test]
fn a_longest_delay_that_was_lowered_leaves_freed_time_for_later() {
    let (mut bucket, slots) = Bucket::with(40);
    bucket.free(&slots[5..6]);
    bucket.free(&slots[20..23]);
    bucket.algorithm = bucket.algorithm.within_delay(900);
    // Three units start at 1000 ms, one at 250 ms.
    assert_eq!(bucket.ask(0, &[]).0.remaining, 1);
    assert_eq!(bucket.retry_after_ms(2), Some(100));
    assert_eq!(bucket.take(1).0, 250);
    assert_eq!(bucket.ask(0, &[]).0.remaining, 0);
    // The queue itself ends 1100 ms beyond the longest delay.
    assert_eq!(bucket.retry_after_ms(4), Some(1100));
    assert_eq!(bucket.retry_after_ms(3), Some(100));
    bucket.now_ms += 99;
    assert_eq!(bucket.retry_after_ms(3), Some(1));
    bucket.now_ms += 1;
    assert_eq!(bucket.ask(0, &[]).0.remaining, 3);
    assert_eq!(bucket.take(3).0, 900);
}

#[test]
fn freed_time_that_passes_while_a_request_waits_is_waited_for_as_far_as_it_lasts() {
    // A slot from 142 6/7 ms: by the next whole millisecond less than a unit of it is left.
    let (mut bucket, slots) = sevenths().filled(7);
    bucket.free(&slots[1..2]);
    bucket.algorithm = bucket.algorithm.within_delay(0);
    assert_eq!(bucket.retry_after_ms(1), Some(1000));
    bucket.free(&slots[2..3]);
    assert_eq!(bucket.retry_after_ms(1), Some(143));
    assert_eq!(bucket.retry_after_ms(2), Some(1000));
    bucket.now_ms += 142;
    assert_eq!(bucket.retry_after_ms(1), Some(1));
    bucket.now_ms += 1;
    assert_eq!(bucket.take(1).0, 0);
}

#[test]
fn slots_of_a_rate_that_is_no_whole_division_stay_exact() {
    let mut bucket = sevenths();
    let taken: Vec<(u64, Freed)> = (0..7).map(|_| bucket.take(1)).collect();
    let delays: Vec<u64> = taken.iter().map(|(delay_ms, _)| *delay_ms).collect();
    assert_eq!(delays, [0, 143, 286, 429, 572, 715, 858]);
    let starts = taken
        .iter()
        .map(|(_, of)| (of.slot.start_ms - START_MS, of.slot.parts));
    let exact = [
        (0, 0),
        (142, 6),
        (285, 5),
        (428, 4),
        (571, 3),
        (714, 2),
        (857, 1),
    ];
    assert!(starts.eq(exact));
    // It is given again as it was.
    let third = taken[3].1;
    bucket.free(&[third]);
    let (delay_ms, again) = bucket.take(1);
    assert_eq!((delay_ms, again.slot.turn), (429, 1));
    assert_eq!(
        (again.slot.start_ms, again.slot.parts),
        (third.slot.start_ms, 4)
    );
    // With 4 of its 1000 parts gone it holds no unit.
    bucket.free(&[again]);
    bucket.now_ms += 428;
    assert_eq!(bucket.take(1).0, 1);
    let (mut bucket, slots) = sevenths().filled(7);
    bucket.free(&slots[3..4]);
    bucket.now_ms += 429;
    assert_eq!(bucket.take(1).0, 571);
}

#[test]
fn a_slot_that_has_begun_frees_what_is_left_of_it() {
    let (mut bucket, slots) = sevenths().filled(7);
    bucket.now_ms += 500;
    // 500 of its 1000 parts, and the whole slot behind it.
    bucket.free(&slots[3..4]);
    assert_eq!(bucket.ask(0, &[]).0.remaining, 16);
    bucket.free(&slots[4..5]);
    assert_eq!(bucket.take(1).0, 0);
    assert_eq!(bucket.take(1).0, 500);
    // A slot that is over frees nothing.
    let (mut bucket, slots) = sevenths().filled(7);
    bucket.now_ms += 572;
    assert_eq!(bucket.free(&slots[3..4]), 428);
}

#[test]
fn a_slot_within_time_that_was_given_again_divides_its_turns() {
    let mut bucket = Bucket::new();
    bucket.take(1);
    let (_, wide) = bucket.take(5);
    bucket.take(1);
    bucket.free(&[wide]);
    let parts: Vec<(u64, Freed)> = (0..3).map(|_| bucket.take(1)).collect();
    assert_eq!(
        parts.iter().map(|(ms, _)| *ms).collect::<Vec<_>>(),
        [50, 100, 150]
    );
    assert!(parts.iter().all(|(_, of)| of.slot.turn == 1));
    // The third is freed: its time has one turn more than the time on both sides.
    bucket.free(&[parts[2].1]);
    let (delay_ms, across) = bucket.take(2);
    assert_eq!((delay_ms, across.slot.turn), (150, 2));
    let (delay_ms, after) = bucket.take(1);
    assert_eq!((delay_ms, after.slot.turn), (250, 1));
    // Neither the first name of all nor the freed one frees anything now.
    assert_eq!(bucket.free(&[wide, parts[2].1]), 350);
    // Those whose turn it is do.
    assert_eq!(bucket.free(&[parts[0].1]), 50);
    let (delay_ms, before) = bucket.take(1);
    assert_eq!((delay_ms, before.slot.turn), (50, 2));
    assert_eq!(bucket.free(&[across]), 150);
    assert_eq!(bucket.free(&[after]), 150);
    assert_eq!(bucket.take(3).1.slot.turn, 3);
}

#[test]
fn of_more_than_256_turns_the_earliest_are_joined() {
    let freed_odd = |count: usize| {
        let queue = Parameters {
            burst: Some(2000),
            max_delay_ms: Some(2000),
            ..Parameters::new(Kind::LeakyBucket, 1000, 1000)
        };
        let (mut bucket, slots) = Bucket::of(&queue).filled(1000);
        let odd: Vec<Freed> = slots
            .iter()
            .skip(1)
            .step_by(2)
            .take(count)
            .copied()
            .collect();
        bucket.free(&odd);
        (bucket, slots)
    };
    // Slot 2 lies between two that were freed, and so does slot 4.
    for (count, second, fourth) in [(256, 1, 3), (257, 1000, 3), (258, 1000, 1000)] {
        let (mut bucket, slots) = freed_odd(count);
        bucket.free(&slots[2..3]);
        assert_eq!(bucket.take(3).0, second, "{count}");
        let (mut bucket, slots) = freed_odd(count);
        bucket.free(&slots[4..5]);
        assert_eq!(bucket.take(3).0, fourth, "{count}");
    }
}

#[test]
fn joined_turns_are_the_later_of_both() {
    let queue = Parameters {
        burst: Some(2000),
        max_delay_ms: Some(2000),
        ..Parameters::new(Kind::LeakyBucket, 1000, 1000)
    };
    let (mut bucket, slots) = Bucket::of(&queue).filled(1000);
    // The first has had two turns, the third one.
    bucket.free(&slots[1..2]);
    let (_, again) = bucket.take(1);
    bucket.free(&[again]);
    let odd: Vec<Freed> = slots.iter().skip(3).step_by(2).take(256).copied().collect();
    bucket.free(&odd);
    assert_eq!(bucket.take(1).1.slot.turn, 2);
    assert_eq!(bucket.take(1).1.slot.turn, 2, "joined with the first");
    assert_eq!(bucket.take(1).1.slot.turn, 1);
}

#[test]
fn names_that_no_queue_gave_free_nothing() {
    let (mut bucket, slots) = Bucket::with(10);
    let name = slots[5];
    let malformed = |change: &dyn Fn(&mut Freed)| {
        let mut of = name;
        change(&mut of);
        of
    };
    let names = [
        ("no units", malformed(&|of| of.units = 0)),
        (
            "more units than the capacity",
            malformed(&|of| of.units = 101),
        ),
        ("any units", malformed(&|of| of.units = u64::MAX)),
        ("beyond the level", malformed(&|of| of.units = 6)),
        (
            "more parts than a millisecond",
            malformed(&|of| of.slot.parts = 1),
        ),
        ("any parts", malformed(&|of| of.slot.parts = u64::MAX)),
        (
            "beyond the horizon",
            malformed(&|of| of.slot.start_ms += 5001),
        ),
        ("any start", malformed(&|of| of.slot.start_ms = u64::MAX)),
        ("long ago", malformed(&|of| of.slot.start_ms = 0)),
        (
            "the last turn of all",
            malformed(&|of| of.slot.turn = 1 << 50),
        ),
        ("another epoch", malformed(&|of| of.slot.since_ms += 1)),
    ];
    for (why, name) in names {
        assert_eq!(bucket.free(&[name]), 500, "{why}");
    }
    // The latest turn that a name can have, and the end of the queue.
    let last = malformed(&|of| of.slot.turn = (1 << 50) - 1);
    assert_eq!(bucket.free(&[last]), 250);
    let (mut bucket, slots) = Bucket::with(10);
    let to_the_end = Freed {
        units: 5,
        ..slots[5]
    };
    assert_eq!(bucket.free(&[to_the_end]), 250);
}
