//! Names of slots that free nothing.

use algorithms::check::Stored;
use algorithms::{Algorithm, Rate, SlotAct, SlotOp, State, TokenBucketState};

use super::bucket::{Bucket, START_MS};

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
    other.rate = Rate::new(40, 1000);
    bucket.algorithm = Algorithm::new(&other).unwrap();
    assert_eq!(bucket.free(&slots[5..6]), 250);
    // A reset.
    let (mut bucket, slots) = Bucket::with(10);
    assert_eq!(bucket.stored.as_ref().unwrap().state.reset(), None);
    bucket.stored = None;
    bucket.now_ms += 1;
    bucket.take(1);
    let (_, second) = bucket.take(1);
    bucket.take(1);
    assert_eq!(bucket.free(&slots[1..2]), 150);
    assert_eq!(bucket.free(&[second]), 50);
    // A clock behind the bucket's.
    let (mut bucket, slots) = Bucket::with(10);
    bucket.now_ms -= 10;
    bucket.ask(1, &[]);
    bucket.now_ms += 10;
    assert_eq!(bucket.free(&slots[5..6]), 550);
}

#[test]
fn the_state_of_a_meter_is_continued() {
    let mut bucket = Bucket::new();
    bucket.stored = Some(Stored {
        reservations: None,
        generation: 1,
        state: State::TokenBucket(TokenBucketState {
            over: 0,
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

#[test]
fn forged_slot_names_free_nothing() {
    let (mut bucket, slots) = Bucket::with(10);
    let name = slots[5];
    let malformed = |change: &dyn Fn(&mut SlotOp)| {
        let mut of = name;
        change(&mut of);
        of
    };
    let names = [
        ("no units", malformed(&|of| of.act = SlotAct::Free(0))),
        (
            "more units than the capacity",
            malformed(&|of| of.act = SlotAct::Free(101)),
        ),
        (
            "any units",
            malformed(&|of| of.act = SlotAct::Free(u64::MAX)),
        ),
        (
            "beyond the level",
            malformed(&|of| of.act = SlotAct::Free(6)),
        ),
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
    let to_the_end = SlotOp {
        act: SlotAct::Free(5),
        ..slots[5]
    };
    assert_eq!(bucket.free(&[to_the_end]), 250);
}

#[test]
fn a_name_that_frees_nothing_takes_no_interval() {
    let (mut bucket, slots) = Bucket::with(40);
    let no_units = SlotOp {
        act: SlotAct::Free(0),
        ..slots[1]
    };
    bucket.now_ms += 60;
    bucket.free(&[no_units, slots[0]]);
    let eight: Vec<SlotOp> = slots.iter().copied().step_by(3).skip(1).take(8).collect();
    bucket.free(&eight);
    let delays: Vec<u64> = (0..9).map(|_| bucket.take(1).0).collect();
    assert_eq!(delays, [90, 240, 390, 540, 690, 840, 990, 1140, 1940]);
}
