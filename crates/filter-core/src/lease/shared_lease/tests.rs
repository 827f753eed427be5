use std::cell::Cell;

use super::{TERMS, portion, *};
use crate::host::{self, CasMismatch, Change, Host, Version, Versioned, at};
use crate::simulated::SharedData;

fn lease(units: u64, epoch: u64) -> Lease {
    let ttl_ms = 100;
    Lease {
        units,
        epoch,
        ttl_ms,
    }
}

/// A shared lease that queried and was granted so many units, sent at 0 and answered at 5 ms.
fn granted(units: u64) -> SharedLease {
    let mut shared_lease = SharedLease::default();
    let lease_query = shared_lease.query(at(0), &TERMS, units, u64::MAX).unwrap();
    assert_eq!(lease_query.want, units);
    shared_lease.answered(at(5), at(0), Some(lease(units, 1)), &TERMS);
    shared_lease
}

fn status(lease_query: Option<LeaseQuery>) -> Vec<(u64, u64, u64)> {
    let settlements = lease_query
        .map(|lease_query| lease_query.settle.by_epoch())
        .unwrap_or_default();
    let all = settlements.iter();
    all.map(|s| (s.epoch, s.spent, s.returned)).collect()
}

#[test]
fn an_older_status_replaces_no_newer_one() {
    let [older, newer] = [1000, 2000].map(|at_us| BucketStatus {
        at_us,
        limit: None,
        window_ms: 1000,
        remaining: 0,
        reset_after_ms: 0,
    });
    let mut entry = LeaseEntry::default();
    entry.update_status(newer);
    entry.update_status(older);
    assert_eq!(entry.status, Some(newer));
}

#[test]
fn a_grant_deadline_counts_from_the_send_time_minus_a_safety_margin() {
    let grant = Grant::new(lease(1, 1), at(7));
    assert_eq!(grant.deadline_us, 7_000 + 99_000 - 99);
    assert!(!grant.is_over(Now {
        mono_us: 105_900,
        wall_ms: 0
    }));
    assert!(grant.is_over(Now {
        mono_us: 105_901,
        wall_ms: 0
    }));
}

#[test]
fn units_are_taken_in_portions_until_their_deadline() {
    let mut shared_lease = granted(100);
    let sizes = [8, 8, 500].map(|units| {
        shared_lease
            .withdraw(at(6), &TERMS, portion(units))
            .unwrap()
            .units
    });
    assert_eq!(sizes, [8, 8, 42]);
    assert_eq!(shared_lease.units(at(98)), 42);
    assert_eq!(shared_lease.units(at(99)), 0);
    assert!(shared_lease.withdraw(at(99), &TERMS, portion(1)).is_none());
    assert_eq!(shared_lease.expire(at(99)), 42);
}

#[test]
fn a_worker_takes_at_most_a_quarter_of_a_scarce_bucket() {
    let mut shared_lease = granted(100);
    let scarce = true;
    let sizes = [500, 2, 500].map(|units| {
        let grant = shared_lease.withdraw(at(6), &TERMS, Portion { units, scarce });
        grant.unwrap().units
    });
    assert_eq!(sizes, [25, 2, 19]);
}

#[test]
fn unused_units_are_returned_before_the_lease_ends() {
    let mut shared_lease = granted(100);
    shared_lease.withdraw(at(6), &TERMS, portion(40));
    shared_lease.withdraw(at(6), &TERMS, portion(20));
    // What was used so fast may be needed in the rest of the time; it was not.
    assert_eq!(status(shared_lease.maintain(at(70), &TERMS)), [(1, 0, 15)]);
    assert_eq!(status(shared_lease.maintain(at(86), &TERMS)), []);
    assert_eq!(status(shared_lease.maintain(at(87), &TERMS)), [(1, 0, 25)]);
    assert_eq!(shared_lease.units(at(87)), 0);
}

#[test]
fn units_of_two_grants_are_kept_apart_and_the_older_ones_go_first() {
    let mut shared_lease = granted(10);
    shared_lease.answered(at(55), at(50), Some(lease(10, 1)), &TERMS);
    assert_eq!(shared_lease.units(at(60)), 20);
    // Never past its own deadline, though of the same epoch as the later grant.
    assert_eq!(shared_lease.expire(at(99)), 10);
    assert_eq!(shared_lease.units(at(99)), 10);
    assert_eq!(shared_lease.units(at(149)), 0);
}

#[test]
fn a_third_grant_returns_the_first() {
    let mut shared_lease = granted(10);
    for sent_ms in [20, 30] {
        shared_lease.answered(at(35), at(sent_ms), Some(lease(10, sent_ms)), &TERMS);
    }
    assert_eq!(shared_lease.units(at(40)), 20);
    assert_eq!(status(shared_lease.take_query()), [(1, 0, 10)]);
}

#[test]
fn one_worker_queries_at_a_time_and_one_settles() {
    let mut shared_lease = SharedLease::default();
    let mut settlements = Settlements::default();
    settlements.add(9, 3, 0);
    shared_lease.deposit(Grant::default(), &settlements);
    assert_eq!(
        status(shared_lease.query(at(0), &TERMS, 2, u64::MAX)),
        [(9, 3, 0)]
    );
    assert_eq!(shared_lease.query(at(39), &TERMS, 2, u64::MAX), None);
    // The worker that queried no longer exists; its settlements are not sent again.
    assert_eq!(status(shared_lease.query(at(40), &TERMS, 2, u64::MAX)), []);
}

#[test]
fn the_requested_lease_size_follows_the_demand() {
    let mut shared_lease = granted(100);
    // Three quarters are used in less than a quarter of the time: the query doubles.
    let used = |shared_lease: &mut SharedLease, ms| {
        while shared_lease.units(at(ms)) > 25 {
            shared_lease.withdraw(at(ms), &TERMS, portion(10));
        }
        shared_lease
            .query(at(ms), &TERMS, 0, 1000)
            .map(|lease_query| lease_query.want)
    };
    assert_eq!(used(&mut shared_lease, 24), Some(200));
    shared_lease.answered(at(26), at(24), Some(lease(50, 1)), &TERMS);
    // A grant smaller than the query says nothing about the demand.
    assert_eq!(used(&mut shared_lease, 30), Some(200));
    shared_lease.answered(at(31), at(30), None, &TERMS);
    assert_eq!(
        used(&mut shared_lease, 35),
        None,
        "little is left for a while"
    );
    // More than half is unspent: the query halves, and units that will not be needed are returned.
    let mut shared_lease = granted(100);
    shared_lease.withdraw(at(6), &TERMS, portion(14));
    assert_eq!(shared_lease.maintain(at(69), &TERMS), None);
    assert_eq!(status(shared_lease.maintain(at(70), &TERMS)), [(1, 0, 80)]);
    assert_eq!(shared_lease.units(at(71)), 6);
    assert_eq!(used(&mut shared_lease, 71), Some(50));
}

#[test]
fn costs_above_one_leave_no_unusable_units() {
    let terms = Terms { cost: 3, ..TERMS };
    let mut shared_lease = SharedLease::default();
    assert_eq!(
        shared_lease.query(at(0), &terms, 6, u64::MAX).unwrap().want,
        6
    );
    shared_lease.answered(at(1), at(0), Some(lease(5, 1)), &terms);
    assert_eq!(shared_lease.units(at(1)), 3);
    assert_eq!(
        shared_lease
            .withdraw(at(1), &terms, portion(1))
            .unwrap()
            .units,
        3
    );
    assert_eq!(shared_lease.withdraw(at(1), &terms, portion(1)), None);
    assert_eq!(
        status(shared_lease.query(at(2), &terms, 6, u64::MAX)),
        [(1, 0, 2)]
    );
}

#[test]
fn a_shared_lease_round_trips_through_bytes() {
    let mut shared_lease = granted(77);
    shared_lease.withdraw(at(6), &TERMS, portion(10));
    shared_lease.expire(at(200));
    let mut bytes = Vec::new();
    shared_lease.write(&mut bytes);
    assert!(bytes.len() < 200, "an entry of the table has 255 bytes");
    assert_eq!(
        SharedLease::read(&mut Reader::new(&bytes)),
        Some(shared_lease)
    );
    assert_eq!(SharedLease::read(&mut Reader::new(&bytes[1..])), None);
}

/// Shared data where another worker always writes between a read and the write after it.
struct Racing<'h> {
    shared: &'h SharedData,
    other: &'h Cell<u64>,
    collides: Cell<bool>,
}

impl Host for Racing<'_> {
    fn load(&self, key: &[u8]) -> Option<Versioned> {
        self.shared.load(key)
    }

    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch> {
        if self.collides.replace(false) {
            self.other.set(self.other.get() + take_one(self.shared));
        }
        self.shared.swap(key, value, expected)
    }
}

fn take_one(host: &impl Host) -> u64 {
    let taken = host::update(host, b"shared_lease", |bytes| {
        let mut shared_lease = SharedLease::read(&mut Reader::new(bytes)).unwrap();
        let grant = shared_lease.withdraw(at(6), &TERMS, portion(1));
        let mut out = Vec::new();
        shared_lease.write(&mut out);
        Change::Write(out, grant.map_or(0, |grant| grant.units))
    });
    taken.unwrap()
}

#[test]
fn two_workers_never_take_the_same_unit() {
    let shared = SharedData::default();
    let mut bytes = Vec::new();
    granted(10).write(&mut bytes);
    shared.overwrite(b"shared_lease", &bytes);
    let other = Cell::new(0);
    let mut own = 0;
    loop {
        let host = Racing {
            shared: &shared,
            other: &other,
            collides: Cell::new(true),
        };
        match take_one(&host) {
            0 => break,
            units => own += units,
        }
    }
    assert_eq!((own, other.get()), (5, 5));
}
