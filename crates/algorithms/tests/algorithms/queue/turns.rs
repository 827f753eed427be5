//! Time that was freed and given again, and which names free it.

use algorithms::SlotOp;

use super::bucket::{Bucket, long_queue};

#[test]
fn freeing_a_slot_again_does_not_free_the_slot_of_its_new_owner() {
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
fn a_slot_within_time_that_was_given_again_divides_its_turns() {
    let mut bucket = Bucket::new();
    bucket.take(1);
    let (_, wide) = bucket.take(5);
    bucket.take(1);
    bucket.free(&[wide]);
    let parts: Vec<(u64, SlotOp)> = (0..3).map(|_| bucket.take(1)).collect();
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
    // Names of the current turn do.
    assert_eq!(bucket.free(&[parts[0].1]), 50);
    let (delay_ms, before) = bucket.take(1);
    assert_eq!((delay_ms, before.slot.turn), (50, 2));
    assert_eq!(bucket.free(&[across]), 150);
    assert_eq!(bucket.free(&[after]), 150);
    assert_eq!(bucket.take(3).1.slot.turn, 3);
}

#[test]
fn beyond_256_turns_the_earliest_are_joined() {
    let freed_odd = |count: usize| {
        let (mut bucket, slots) = long_queue();
        let odd: Vec<SlotOp> = slots
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
    let (mut bucket, slots) = long_queue();
    // The first has had two turns, the third one.
    bucket.free(&slots[1..2]);
    let (_, again) = bucket.take(1);
    bucket.free(&[again]);
    let odd: Vec<SlotOp> = slots.iter().skip(3).step_by(2).take(256).copied().collect();
    bucket.free(&odd);
    assert_eq!(bucket.take(1).1.slot.turn, 2);
    assert_eq!(bucket.take(1).1.slot.turn, 2, "joined with the first");
    assert_eq!(bucket.take(1).1.slot.turn, 1);
}

#[test]
fn slots_freed_one_after_the_other_are_one_turn() {
    let (mut bucket, slots) = long_queue();
    bucket.free(&slots[1..301]);
    assert_eq!(bucket.take(300).0, 1);
    for slot in [1, 2, 150, 299, 300] {
        assert_eq!(bucket.free(&slots[slot..=slot]), 1000, "{slot}");
    }
}

#[test]
fn a_slot_freed_twice_is_one_turn() {
    let (mut bucket, slots) = long_queue();
    bucket.free(&slots[1..2]);
    let (_, again) = bucket.take(1);
    bucket.free(&[again]);
    let others: Vec<SlotOp> = slots.iter().skip(3).step_by(2).take(255).copied().collect();
    bucket.free(&others);
    bucket.free(&slots[2..3]);
    assert_eq!(bucket.take(3).0, 1);
}
