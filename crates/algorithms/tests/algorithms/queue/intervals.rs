//! Slots that are freed, rule by rule.

use algorithms::SlotOp;

use super::bucket::Bucket;

#[test]
fn a_slot_that_is_given_up_goes_to_the_next_request() {
    let (mut bucket, slots) = Bucket::with(10);
    assert_eq!(bucket.free(&slots[5..6]), 250);
    assert_eq!(bucket.take(1).0, 250);
    assert_eq!(bucket.take(1).0, 500);
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
fn freeing_the_last_slots_lowers_the_level() {
    let (mut bucket, slots) = Bucket::with(10);
    bucket.free(&slots[7..9]);
    bucket.free(&slots[9..]);
    assert_eq!(bucket.take(5).0, 350);
    let all: Vec<SlotOp> = slots[..7].to_vec();
    bucket.free(&all);
    assert_eq!(bucket.take(5).0, 50, "the first has started");
}

#[test]
fn freed_time_that_has_passed_is_lost() {
    let (mut bucket, slots) = Bucket::with(10);
    bucket.free(&slots[2..4]);
    bucket.now_ms += 120;
    // 80 ms are left of two slots: enough for one.
    assert_eq!(bucket.take(2).0, 380);
    assert_eq!(bucket.take(1).0, 0);
    assert_eq!(bucket.take(1).0, 480);
    bucket.now_ms += 200;
    assert_eq!(bucket.free(&slots[4..5]), 330);
}

#[test]
fn remaining_counts_the_level_or_a_freed_interval() {
    let mut bucket = Bucket::new();
    let slots: Vec<SlotOp> = (0..61).map(|_| bucket.take(1).1).collect();
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
fn a_queue_keeps_only_the_earliest_freed_intervals() {
    let (mut bucket, slots) = Bucket::with(40);
    let apart: Vec<SlotOp> = slots.iter().copied().step_by(3).take(10).skip(1).collect();
    bucket.free(&apart);
    let given: Vec<u64> = (0..9).map(|_| bucket.take(1).0).collect();
    assert_eq!(given, [150, 300, 450, 600, 750, 900, 1050, 1200, 2000]);
}

#[test]
fn a_freed_interval_that_is_reused_or_has_passed_makes_room_for_another() {
    let freed = || {
        let (mut bucket, slots) = Bucket::with(40);
        let eight: Vec<SlotOp> = slots.iter().copied().step_by(3).skip(1).take(8).collect();
        bucket.free(&eight);
        (bucket, slots)
    };
    // The ninth interval, behind all others.
    let (mut bucket, slots) = freed();
    assert_eq!(bucket.take(1).0, 150);
    bucket.free(&slots[30..32]);
    assert_eq!(bucket.take(2).0, 1500);
    let (mut bucket, slots) = freed();
    bucket.now_ms += 200;
    bucket.free(&slots[30..32]);
    assert_eq!(bucket.take(2).0, 1300);
    // With eight there is no room for it.
    let (mut bucket, slots) = freed();
    bucket.free(&slots[30..32]);
    assert_eq!(bucket.take(2).0, 2000);
}

#[test]
fn a_request_of_all_that_is_left_frees_its_slot() {
    let mut bucket = Bucket::new();
    bucket.take(1);
    let (_, rest) = bucket.take(99);
    assert!(!bucket.ask(1, &[]).0.allowed);
    bucket.free(&[rest]);
    assert_eq!(bucket.take(1).0, 50);
}
