use super::*;
use crate::{host::at, simulated::SharedData};

fn status(ms: u64, remaining: u64) -> BucketStatus {
    BucketStatus {
        at_us: ms * 1000,
        limit: Some(640),
        window_ms: 64_000,
        remaining,
        reset_after_ms: 1,
    }
}

fn keys() -> (Table, impl Iterator<Item = BucketKey>) {
    let table = Table::new("shop", 16, [7; 16]);
    let own = table.clone();
    let keys = (0_u32..).map(move |n| {
        let value = n.to_le_bytes();
        own.key(("per-user", 1), [Some(&value[..])].into_iter())
    });
    (table, keys)
}

#[test]
fn a_cached_entry_expires_after_a_second_a_failure_or_an_edit() {
    let (_, mut keys) = keys();
    let key = keys.next().unwrap();
    let mut worker_cache = WorkerCache::default();
    assert!(worker_cache.get_fresh(key.at(1), at(5), 0).is_none());
    worker_cache.store_entry(key.at(1), &BucketEntry::default(), at(5));
    assert!(worker_cache.get_fresh(key.at(1), at(1004), 0).is_some());
    assert!(worker_cache.get_fresh(key.at(1), at(1005), 0).is_none());
    assert!(
        worker_cache.get_fresh(key.at(1), at(6), 5000).is_none(),
        "failing"
    );
    assert!(
        worker_cache.get_fresh(key.at(2), at(6), 0).is_none(),
        "an edit"
    );
}

#[test]
fn an_older_status_replaces_no_newer_one() {
    let [newer, same_time] = [status(2000, 5), status(2000, 4)];
    let mut entry = BucketEntry::default();
    for (next, is_stored) in [
        (newer, true),
        (status(1000, 9), false),
        (newer, false),
        (same_time, true),
    ] {
        assert_eq!(entry.update_status(next), is_stored, "{next:?}");
    }
    assert_eq!(entry.status, Some(same_time));
}

#[test]
fn an_older_status_of_the_table_replaces_no_newer_one() {
    let (_, mut keys) = keys();
    let bucket = keys.next().unwrap().at(1);
    let mut worker_cache = WorkerCache::default();
    worker_cache.store_status(bucket, status(2000, 4), false);
    let entry = BucketEntry {
        status: Some(status(1000, 9)),
        ..BucketEntry::default()
    };
    worker_cache.store_entry(bucket, &entry, at(2001));
    let cached = worker_cache.get_fresh(bucket, at(2002), 0).unwrap();
    assert_eq!(cached.status, Some(status(2000, 4)));
}

#[test]
fn the_first_status_is_written_at_once_and_then_only_significant_ones() {
    let (table, mut keys) = keys();
    let (host, key) = (SharedData::default(), keys.next().unwrap());
    let mut worker_cache = WorkerCache::default();
    let in_table = || {
        let found = table.read::<BucketEntry>(&host, key.at(1), at(9));
        found.entry.status.map(|status| status.remaining)
    };
    assert!(worker_cache.store_status(key.at(1), status(1, 600), false));
    write_answer(&host, at(1), &table, key.at(1), status(1, 600), None);
    for (ms, remaining, expected) in [
        (2, 590, 600),   // A 64th of the limit less is not significant.
        (3, 589, 589),   // More than that.
        (503, 589, 589), // Five were refilled and used again.
        (1503, 579, 579),
    ] {
        assert!(!worker_cache.store_status(key.at(1), status(ms, remaining), false));
        worker_cache.write(&host, at(ms), &table);
        assert_eq!(in_table(), Some(expected), "{ms}");
    }
    assert!(!worker_cache.store_status(key.at(1), status(1504, 578), false));
    worker_cache.queue_write(key);
    worker_cache.write(&host, at(1504), &table);
    assert_eq!(in_table(), Some(578));
}

#[test]
fn the_cache_is_bounded() {
    let (table, keys) = keys();
    let host = SharedData::default();
    let mut worker_cache = WorkerCache::default();
    for key in keys.take(10 * MAX_BUCKETS) {
        worker_cache.store_status(key.at(1), status(1, 1), false);
        if worker_cache.is_full() {
            worker_cache.write(&host, at(1), &table);
        }
    }
    assert!(worker_cache.young.list.len() + worker_cache.old.list.len() <= 2 * MAX_BUCKETS);
}

#[test]
fn a_penalty_stays_unless_a_later_check_says_otherwise() {
    let (table, mut keys) = keys();
    let (host, key) = (SharedData::default(), keys.next().unwrap());
    let plain = CachedDenial::new(at(1), Some(1000), 1000, 1);
    let penalty = |at_ms: u64| CachedDenial {
        penalty_us: at_ms * 1000,
        ..CachedDenial::new(at(1), Some(60_000), 60_000, 0)
    };
    let write = |ms: u64, sent_ms: u64, denial: Option<CachedDenial>| {
        let denial = Some((denial, at(sent_ms)));
        write_answer(&host, at(ms), &table, key.at(1), status(ms, 1), denial);
        table
            .read::<BucketEntry>(&host, key.at(1), at(ms))
            .entry
            .denial
    };
    assert_eq!(write(4, 3, Some(penalty(4))), Some(penalty(4)));
    // These were perhaps decided before the penalty began.
    assert_eq!(write(5, 3, Some(plain)), Some(penalty(4)));
    assert_eq!(write(6, 2, None), Some(penalty(4)));
    assert_eq!(write(7, 3, Some(penalty(7))), Some(penalty(7)));
    assert_eq!(write(9, 8, Some(plain)), Some(plain));
    assert_eq!(write(9, 8, Some(penalty(9))), Some(penalty(9)));
    assert_eq!(write(11, 10, None), None);
    // The penalty has ended.
    assert_eq!(write(12, 3, Some(penalty(12))), Some(penalty(12)));
    assert_eq!(write(60_001, 3, Some(plain)), Some(plain));
}

#[test]
fn a_cached_penalty_holds_only_for_its_limits_generation() {
    let (_, mut keys) = keys();
    let key = keys.next().unwrap();
    let mut worker_cache = WorkerCache::default();
    let denial = CachedDenial {
        penalty_us: 1000,
        ..CachedDenial::new(at(1), Some(60_000), 60_000, 0)
    };
    worker_cache.store_denial(key.at(1), status(1, 0), denial);
    assert_eq!(worker_cache.denial(key.at(1)), Some(denial));
    assert_eq!(worker_cache.denial(key.at(2)), None);
    assert!(worker_cache.store_status(key.at(1), status(2, 1), true));
    assert_eq!(worker_cache.denial(key.at(1)), None);
    let plain = CachedDenial::new(at(1), Some(1000), 1000, 1);
    worker_cache.store_denial(key.at(1), status(3, 0), plain);
    let penalty = |denial: &CachedDenial| denial.is_penalty();
    assert_eq!(worker_cache.denial(key.at(1)).filter(penalty), None);
}
