use super::{SLOTS, *};
use crate::lease::shared_lease::TERMS;
use crate::{cache::Table, host::at};

fn key(n: u32) -> BucketKey {
    let table = Table::new("shop", 16, [7; 16]);
    let value = n.to_le_bytes();
    table.key(("per-user", 1), [Some(&value[..])].into_iter())
}

fn grant(epoch: u64, until_ms: u64) -> Grant {
    Grant {
        epoch,
        deadline_us: until_ms * 1000,
        units: 2,
    }
}

fn leases() -> WorkerLeases<()> {
    let mut leases = WorkerLeases::default();
    let worker_lease = leases.open(key(1).at(7), at(1)).unwrap();
    worker_lease.grant = grant(3, 100);
    leases
}

#[test]
fn units_are_used_before_their_deadline_and_under_their_generation() {
    let mut leases = leases();
    assert!(leases.take(key(1).at(8), 1, at(2)).is_none(), "edited");
    assert!(leases.take(key(2).at(7), 1, at(2)).is_none());
    assert!(leases.take(key(1).at(7), 3, at(2)).is_none(), "too few");
    assert!(leases.take(key(1).at(7), 1, at(99)).is_some());
    assert!(leases.take(key(1).at(7), 1, at(100)).is_none());
    leases.open(key(1).at(8), at(3)).unwrap();
    assert!(leases.take(key(1).at(8), 1, at(3)).is_none(), "dropped");
}

#[test]
fn a_unit_is_put_back_into_its_own_grant_only() {
    let mut leases = leases();
    let reservation = leases.take(key(1).at(7), 1, at(2)).unwrap();
    let worker_lease = leases.find(key(1).at(7)).unwrap();
    worker_lease.release(reservation);
    assert_eq!(
        (worker_lease.grant.units, worker_lease.settlements.totals()),
        (2, (0, 0))
    );
    let reservation = worker_lease.take(1, at(3)).unwrap();
    worker_lease.grant = grant(3, 150);
    worker_lease.release(reservation);
    // The same epoch with a later deadline: the units are not used again.
    assert_eq!(
        (worker_lease.grant.units, worker_lease.settlements.totals()),
        (2, (0, 1))
    );
}

#[test]
fn a_reserved_unit_is_not_settled_before_its_request_is_decided() {
    let mut leases = leases();
    let reservation = leases.take(key(1).at(7), 1, at(2)).unwrap();
    let worker_lease = leases.find(key(1).at(7)).unwrap();
    assert!(worker_lease.settlements.is_empty());
    worker_lease.spend(reservation);
    assert_eq!(worker_lease.settlements.totals(), (1, 0));
}

#[test]
fn a_unit_put_back_after_its_deadline_is_not_used() {
    let mut leases = leases();
    let reservation = leases.take(key(1).at(7), 2, at(99)).unwrap();
    leases.find(key(1).at(7)).unwrap().release(reservation);
    assert!(leases.take(key(1).at(7), 1, at(101)).is_none());
}

#[test]
fn only_idle_leases_make_room_for_new_buckets() {
    let mut leases = WorkerLeases::<()>::default();
    let all = |leases: &mut WorkerLeases<()>, ms| {
        let opened = (0..10_000).filter(|n| leases.open(key(*n).at(7), at(ms)).is_some());
        opened.count()
    };
    let opened = all(&mut leases, 1);
    assert!((SLOTS / 2..=SLOTS).contains(&opened), "{opened}");
    assert_eq!(all(&mut leases, 100), opened, "all of them are new");
    assert!(
        all(&mut leases, 1000) > opened,
        "one makes room for the next"
    );
    for slot in leases.slots.iter_mut().flatten() {
        slot.maintain_at_us = 5_000_000;
    }
    let held = leases.slots.iter().flatten().count();
    all(&mut leases, 3000);
    let kept = leases.slots.iter().flatten();
    assert_eq!(
        kept.filter(|worker_lease| worker_lease.maintain_at_us == 5_000_000)
            .count(),
        held
    );
}

#[test]
fn a_unit_released_into_an_empty_lease_is_still_settled() {
    let mut leases = leases();
    let reservation = leases.take(key(1).at(7), 1, at(2)).unwrap();
    let worker_lease = leases.find(key(1).at(7)).unwrap();
    worker_lease.clear();
    assert!(worker_lease.is_idle());
    worker_lease.release(reservation);
    assert!(!worker_lease.is_idle());
    assert_eq!(leases.due(at(500)), [key(1).at(7)]);
    assert_eq!(leases.next_maintenance_us(), 0);
}

#[test]
fn portions_last_for_about_a_sixteenth_of_the_time() {
    let mut leases = leases();
    let worker_lease = leases.find(key(1).at(7)).unwrap();
    assert_eq!(worker_lease.next_portion(at(0), &TERMS).units, 8);
    worker_lease.portion = 64;
    worker_lease.receive(grant(3, 100), at(10));
    assert_eq!(worker_lease.next_portion(at(13), &TERMS).units, 128);
    assert_eq!(worker_lease.next_portion(at(16), &TERMS).units, 64);
    assert_eq!(worker_lease.next_portion(at(23), &TERMS).units, 32);
    worker_lease.portion = 8;
    assert_eq!(
        worker_lease.next_portion(at(23), &TERMS).units,
        8,
        "not worth a look"
    );
}

/// A lease with two units until 100 ms, whose bucket needed two units in a lease time.
fn in_use(leases: &mut WorkerLeases<()>, needed: u64) -> &mut WorkerLease<()> {
    let worker_lease = leases.find(key(1).at(7)).unwrap();
    worker_lease.status = Some(BucketStatus {
        at_us: 0,
        limit: Some(256),
        window_ms: 1000,
        remaining: 60,
        reset_after_ms: 1,
    });
    for _ in 0..needed {
        worker_lease.record_miss(at(1), &TERMS, 1, None);
    }
    let view = SharedView {
        left: 0,
        due_us: 70_000,
        last_deadline_us: 0,
        unsettled: 0,
    };
    worker_lease.apply_view(&view, at(1));
    worker_lease
}

#[test]
fn maintenance_is_skipped_while_the_remaining_units_are_needed() {
    for (needed, waits) in [(7, true), (5, false)] {
        let mut leases = leases();
        in_use(&mut leases, needed);
        assert_eq!(leases.due(at(69)), []);
        assert_eq!(leases.due(at(70)).is_empty(), waits, "{needed}");
        // A quarter of a lease time after its end, no query has carried the settlements.
        assert_eq!(leases.due(at(124)).is_empty(), waits);
        assert_eq!(leases.due(at(125)), [key(1).at(7)]);
    }
}

#[test]
fn leftover_units_are_returned_before_the_end_unless_few() {
    for (left, waits) in [(2, true), (3, false)] {
        let mut leases = leases();
        let worker_lease = in_use(&mut leases, 100);
        worker_lease.grant.units = left;
        assert_eq!(leases.due(at(70)), []);
        assert_eq!(leases.due(at(87)), []);
        // An eighth of the lease time before its end.
        assert_eq!(leases.due(at(88)).is_empty(), waits, "{left} of 256");
    }
}

#[test]
fn large_settlements_do_not_wait() {
    for (spent, waits) in [(2, true), (3, false)] {
        let mut leases = leases();
        let worker_lease = in_use(&mut leases, 7);
        worker_lease.settlements.add(3, spent, 0);
        assert_eq!(leases.due(at(70)).is_empty(), waits, "{spent} of 256");
    }
}
