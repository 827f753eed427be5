//! Delays and waits with freed time.

use algorithms::{Charged, Parameters, SlotOp};

use super::bucket::{Bucket, START_MS, queue_of, sevenths};

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

/// Freed time is not given while the caller's clock is behind, and is given again once it is not.
#[test]
fn a_clock_behind_the_bucket_delays_freed_time_only_until_it_catches_up() {
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
fn retry_after_ignores_freed_time_that_passes_during_the_wait() {
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
fn slots_of_a_fractional_rate_stay_exact() {
    let mut bucket = sevenths();
    let taken: Vec<(u64, SlotOp)> = (0..7).map(|_| bucket.take(1)).collect();
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
fn a_slot_whose_start_has_passed_frees_nothing() {
    // The request of the fourth slot, from 428 4/7 ms, has started.
    for later_ms in [429, 500, 571] {
        let (mut bucket, slots) = sevenths().filled(7);
        bucket.now_ms += later_ms;
        assert_eq!(bucket.free(&slots[3..4]), 1000 - later_ms);
        // With the rest of it the slot behind it would begin at once.
        bucket.free(&slots[4..5]);
        assert_eq!(bucket.take(1).0, 572 - later_ms);
    }
    let (mut bucket, slots) = sevenths().filled(7);
    bucket.now_ms += 572;
    assert_eq!(bucket.free(&slots[3..5]), 428);
    // Nor does one that starts at once, whose request was never held.
    let (mut bucket, slots) = Bucket::with(1);
    assert_eq!(bucket.free(&slots), 50);
}

#[test]
fn a_client_that_frees_what_it_has_used_gets_no_more_than_the_rate() {
    let mut bucket = Bucket::with_parameters(&Parameters {
        burst: Some(10),
        ..queue_of(1, 5000)
    });
    let mut starts = Vec::new();
    for _ in 0..2000 {
        let (decision, slot) = bucket.ask(1, &[]);
        if decision.allowed && decision.delay_ms == 0 {
            starts.push(bucket.now_ms - START_MS);
        }
        bucket.ask(0, slot.as_slice());
        bucket.now_ms += 1;
    }
    assert!(starts == [0, 1000], "{} starts", starts.len());
}

/// A check that another node of a Cluster denies has not started, whatever the time.
#[test]
fn a_denied_request_frees_the_rest_of_a_slot_whose_start_has_passed() {
    let (mut bucket, slots) = sevenths().filled(7);
    bucket.now_ms += 500;
    let stored = bucket.stored.as_mut().unwrap();
    let charge = Charged {
        at_ms: START_MS,
        units: 1,
        lease_ttl_ms: 0,
        slot: slots.get(3).map(|of| of.slot),
    };
    stored.state = bucket
        .algorithm
        .refund(&stored.state, bucket.now_ms, &charge);
    // 500 of its 1000 parts are left: less than a unit, until the slot behind it is freed.
    assert_eq!(bucket.ask(0, &[]).0.remaining, 16);
    bucket.free(&slots[4..5]);
    assert_eq!(bucket.take(1).0, 0);
    assert_eq!(bucket.take(1).0, 500);
}

#[test]
fn remaining_is_the_widest_freed_interval_and_a_wait_is_for_the_earliest() {
    let (mut bucket, slots) = Bucket::with(61);
    bucket.free(&slots[10..14]);
    bucket.free(&slots[20..22]);
    bucket.free(&slots[40..43]);
    assert_eq!(bucket.ask(0, &[]).0.remaining, 4);
    bucket.algorithm = bucket.algorithm.within_delay(400);
    assert_eq!(bucket.ask(0, &[]).0.remaining, 0);
    assert_eq!(bucket.retry_after_ms(2), Some(100));
    assert_eq!(bucket.take_after(100, 4), 400);
    assert_eq!(bucket.retry_after_ms(2), Some(500));
    assert_eq!(bucket.retry_after_ms(3), Some(1500));
}

#[test]
fn a_slot_that_starts_within_this_millisecond_is_freed_whole() {
    let (mut bucket, slots) = sevenths().filled(7);
    bucket.now_ms += 428;
    bucket.free(&slots[3..4]);
    assert_eq!(bucket.take(1).0, 1);
}
