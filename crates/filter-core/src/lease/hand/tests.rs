use super::{
    super::{TERMS, portion},
    *,
};
use crate::{table::Table, time::at};

fn place(n: u32) -> Place {
    let table = Table::new("shop", 16, [7; 16]);
    let value = n.to_le_bytes();
    table.place("per-user", [Some(&value[..])].into_iter())
}

fn lot(epoch: u64, until_ms: u64) -> Lot {
    Lot {
        epoch,
        deadline_us: until_ms * 1000,
        units: 2,
    }
}

fn hands() -> Hands<()> {
    let mut hands = Hands::default();
    let hand = hands.open(place(1), 7, at(1)).unwrap();
    hand.lot = lot(3, 100);
    hands
}

#[test]
fn units_are_used_before_their_deadline_and_under_their_generation() {
    let mut hands = hands();
    assert!(hands.take(place(1), 8, 1, at(2)).is_none(), "edited");
    assert!(hands.take(place(2), 7, 1, at(2)).is_none());
    assert!(hands.take(place(1), 7, 3, at(2)).is_none(), "too few");
    assert!(hands.take(place(1), 7, 1, at(99)).is_some());
    assert!(hands.take(place(1), 7, 1, at(100)).is_none());
    hands.open(place(1), 8, at(3)).unwrap();
    assert!(hands.take(place(1), 8, 1, at(3)).is_none(), "dropped");
}

#[test]
fn a_unit_is_put_back_into_its_own_grant_only() {
    let mut hands = hands();
    let token = hands.take(place(1), 7, 1, at(2)).unwrap();
    let hand = hands.find(place(1), 7).unwrap();
    hand.put_back(token, 1);
    assert_eq!((hand.lot.units, hand.tally.totals()), (2, (0, 0)));
    let token = hand.take(1, at(3)).unwrap();
    hand.lot = lot(3, 150);
    hand.put_back(token, 1);
    // The same epoch, but a later deadline: it is not used any more.
    assert_eq!((hand.lot.units, hand.tally.totals()), (2, (0, 1)));
}

#[test]
fn a_unit_taken_is_not_told_of_before_its_request_is_decided() {
    let mut hands = hands();
    let token = hands.take(place(1), 7, 1, at(2)).unwrap();
    let hand = hands.find(place(1), 7).unwrap();
    assert!(hand.tally.is_empty());
    hand.spend(token, 1);
    assert_eq!(hand.tally.totals(), (1, 0));
}

#[test]
fn a_unit_put_back_after_its_deadline_is_not_used() {
    let mut hands = hands();
    let token = hands.take(place(1), 7, 2, at(99)).unwrap();
    hands.find(place(1), 7).unwrap().put_back(token, 2);
    assert!(hands.take(place(1), 7, 1, at(101)).is_none());
}

#[test]
fn buckets_that_have_nothing_make_room_and_others_do_not() {
    let mut hands = Hands::<()>::default();
    let all = |hands: &mut Hands<()>, ms| {
        let opened = (0..10_000).filter(|n| hands.open(place(*n), 7, at(ms)).is_some());
        opened.count()
    };
    let opened = all(&mut hands, 1);
    assert!((SLOTS / 2..=SLOTS).contains(&opened), "{opened}");
    assert_eq!(all(&mut hands, 100), opened, "all of them are new");
    assert!(
        all(&mut hands, 1000) > opened,
        "one makes room for the next"
    );
    for slot in hands.slots.iter_mut().flatten() {
        slot.look_at_us = 5_000_000;
    }
    let held = hands.slots.iter().flatten().count();
    all(&mut hands, 3000);
    let kept = hands.slots.iter().flatten();
    assert_eq!(
        kept.filter(|hand| hand.look_at_us == 5_000_000).count(),
        held
    );
}

#[test]
fn what_is_put_back_when_nothing_is_left_is_still_told() {
    let mut hands = hands();
    let token = hands.take(place(1), 7, 1, at(2)).unwrap();
    let hand = hands.find(place(1), 7).unwrap();
    hand.emptied();
    assert!(hand.is_at_rest());
    hand.put_back(token, 1);
    assert!(!hand.is_at_rest());
    assert_eq!(hands.due(at(500)), [(place(1), 7)]);
    assert_eq!(hands.next_look_us(), 0);
}

#[test]
fn portions_last_for_about_a_sixteenth_of_the_time() {
    let mut hands = hands();
    let hand = hands.find(place(1), 7).unwrap();
    assert_eq!(hand.next_portion(at(0), &TERMS).units, 8);
    hand.asked_for(portion(64));
    hand.receive(lot(3, 100), at(10));
    assert_eq!(hand.next_portion(at(13), &TERMS).units, 128);
    assert_eq!(hand.next_portion(at(16), &TERMS).units, 64);
    assert_eq!(hand.next_portion(at(23), &TERMS).units, 32);
    hand.asked_for(portion(8));
    assert_eq!(
        hand.next_portion(at(23), &TERMS).units,
        8,
        "not worth a look"
    );
}

/// A hand with two units until 100 ms, whose bucket needed as many in the time of a grant.
fn in_use(hands: &mut Hands<()>, needed: u64) -> &mut Hand<()> {
    let hand = hands.find(place(1), 7).unwrap();
    hand.told = Some(Told {
        at_us: 0,
        limit: Some(256),
        window_ms: 1000,
        remaining: 60,
        reset_after_ms: 1,
    });
    for _ in 0..needed {
        hand.miss(at(1), &TERMS, 1, None);
    }
    let seen = Seen {
        left: 0,
        due_us: 70_000,
        last_deadline_us: 0,
        untold: 0,
    };
    hand.saw(&seen, at(1));
    hand
}

#[test]
fn what_will_be_needed_is_not_looked_after_in_its_time() {
    for (needed, waits) in [(7, true), (5, false)] {
        let mut hands = hands();
        in_use(&mut hands, needed);
        assert_eq!(hands.due(at(69)), []);
        assert_eq!(hands.due(at(70)).is_empty(), waits, "{needed}");
        // A quarter of a grant's time after it has ended, nobody has.
        assert_eq!(hands.due(at(124)).is_empty(), waits);
        assert_eq!(hands.due(at(125)), [(place(1), 7)]);
    }
}

#[test]
fn what_was_needed_after_all_goes_back_in_time_unless_it_is_little() {
    for (left, waits) in [(2, true), (3, false)] {
        let mut hands = hands();
        let hand = in_use(&mut hands, 100);
        hand.lot.units = left;
        assert_eq!(hands.due(at(70)), []);
        assert_eq!(hands.due(at(87)), []);
        // An eighth of a grant's time before its end.
        assert_eq!(hands.due(at(88)).is_empty(), waits, "{left} of 256");
    }
}

#[test]
fn much_that_the_limiter_was_not_told_does_not_wait() {
    for (spent, waits) in [(2, true), (3, false)] {
        let mut hands = hands();
        let hand = in_use(&mut hands, 7);
        hand.tally.add(3, spent, 0);
        assert_eq!(hands.due(at(70)).is_empty(), waits, "{spent} of 256");
    }
}
