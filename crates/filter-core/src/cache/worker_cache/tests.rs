use super::*;
use crate::{simulated::SharedData, time::at};

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
        own.key("per-user", [Some(&value[..])].into_iter())
    });
    (table, keys)
}

#[test]
fn entries_are_cached_for_a_second_and_not_across_a_failure() {
    let (_, mut keys) = keys();
    let key = keys.next().unwrap();
    let mut worker_cache = WorkerCache::default();
    assert!(worker_cache.get_fresh(key, 1, at(5), 0).is_none());
    worker_cache.store_entry(key, 1, &BucketEntry::default(), at(5));
    assert!(worker_cache.get_fresh(key, 1, at(1004), 0).is_some());
    assert!(worker_cache.get_fresh(key, 1, at(1005), 0).is_none());
    assert!(
        worker_cache.get_fresh(key, 1, at(6), 5000).is_none(),
        "failing"
    );
    assert!(
        worker_cache.get_fresh(key, 2, at(6), 0).is_none(),
        "an edit"
    );
}

#[test]
fn the_first_status_is_written_at_once_and_then_only_significant_ones() {
    let (table, mut keys) = keys();
    let (host, key) = (SharedData::default(), keys.next().unwrap());
    let mut worker_cache = WorkerCache::default();
    let in_table = || {
        let found = table.read::<BucketEntry>(&host, key, 1, at(9));
        found.entry.status.map(|status| status.remaining)
    };
    assert!(worker_cache.store_status(key, 1, status(1, 600), false));
    write_status(&host, at(1), &table, key, 1, status(1, 600));
    for (ms, remaining, expected) in [
        (2, 590, 600),   // A 64th of the limit less is not significant.
        (3, 589, 589),   // More than that.
        (503, 589, 589), // Five were refilled and used again.
        (1503, 579, 579),
    ] {
        assert!(!worker_cache.store_status(key, 1, status(ms, remaining), false));
        worker_cache.write(&host, at(ms), &table);
        assert_eq!(in_table(), Some(expected), "{ms}");
    }
    assert!(!worker_cache.store_status(key, 1, status(1504, 578), false));
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
        worker_cache.store_status(key, 1, status(1, 1), false);
        if worker_cache.is_full() {
            worker_cache.write(&host, at(1), &table);
        }
    }
    assert!(worker_cache.young.list.len() + worker_cache.old.list.len() <= 2 * MAX_BUCKETS);
}
