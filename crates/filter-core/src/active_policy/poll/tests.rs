//! Several workers of an Envoy, and a limiter that answers, holds polls or stops answering.

use super::{ANSWERED_BEFORE_HOLD, HOLD_MIN_MS, HOLD_SPREAD_MS, SnapshotBody, *};
use crate::{host::at, simulated::SharedData};

fn new_poller(me: u64) -> PolicyPoller {
    PolicyPoller::new("shop", me, Random::new(me))
}

fn snapshot(text: &str) -> Snapshot {
    Snapshot {
        etag: format!("\"{text}\"").into_bytes(),
        body: SnapshotBody::Limits(text.as_bytes().to_vec()),
    }
}

#[test]
fn one_worker_polls_and_its_successor_takes_over() {
    let host = SharedData::default();
    let mut workers = [new_poller(1), new_poller(2), new_poller(3)];
    let mut polls = [0; 3];
    let mut longest = 0;
    let mut last = 0;
    for ms in (0..10_000).step_by(50) {
        for (n, worker) in workers.iter_mut().enumerate() {
            // The first worker is gone after five seconds.
            if (n > 0 || ms < 5000) && worker.is_due(&host, at(ms)) {
                worker.poll_failed();
                polls[n] += 1;
                longest = longest.max(ms - last);
                last = ms;
            }
        }
    }
    assert!(
        polls[0] >= 5000 / 300 && polls[0] <= 5000 / 150 + 1,
        "{polls:?}"
    );
    assert_eq!(
        polls[1..].iter().filter(|polls| **polls > 0).count(),
        1,
        "{polls:?}"
    );
    // A poll, or the rest of the lease of a poller that vanished, and a tick.
    assert!(longest <= 500, "{longest}");
    assert!(polls.iter().sum::<u64>() >= 9_000 / 300, "{polls:?}");
}

#[test]
fn each_worker_loads_a_snapshot_from_shared_data_once() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    assert_eq!(other.load_update(&host), SharedUpdate::default());
    assert!(poller.is_due(&host, at(0)));
    poller.poll_brought(&host, &snapshot("first"), Some(b"per-user=2"));
    let update = other.load_update(&host);
    assert_eq!(update.snapshots, [snapshot("first")]);
    assert_eq!(update.proxies.as_deref(), Some(&b"per-user=2"[..]));
    assert_eq!(other.load_update(&host), SharedUpdate::default());
    assert_eq!(other.etag(), b"\"first\"");
    // The poller itself has the snapshot already, but not the number of proxies.
    let update = poller.load_update(&host);
    assert_eq!(
        (update.snapshots, update.proxies.is_some()),
        (Vec::new(), true)
    );
    poller.poll_unchanged(&host, Some(b"per-user=3"));
    let update = other.load_update(&host);
    assert_eq!(
        (update.snapshots, update.proxies.unwrap()),
        (Vec::new(), b"per-user=3".to_vec())
    );
}

#[test]
fn a_worker_that_starts_later_loads_the_current_snapshot() {
    let host = SharedData::default();
    let mut poller = new_poller(1);
    poller.poll_brought(&host, &snapshot("first"), None);
    poller.poll_brought(
        &host,
        &Snapshot {
            etag: Vec::new(),
            body: SnapshotBody::Unknown,
        },
        None,
    );
    let update = new_poller(2).load_update(&host);
    let bodies = update.snapshots.into_iter().map(|snapshot| snapshot.body);
    assert_eq!(bodies.collect::<Vec<_>>(), [SnapshotBody::Unknown]);
}

fn changes(text: &str) -> Snapshot {
    Snapshot {
        body: SnapshotBody::Changes(text.as_bytes().to_vec()),
        ..snapshot(text)
    }
}

#[test]
fn changes_go_to_those_that_lack_them_and_a_late_worker_gets_the_whole_first() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    poller.poll_brought(&host, &snapshot("first"), None);
    other.load_update(&host);
    for text in ["second", "third"] {
        assert!(poller.poll_brought(&host, &changes(text), None));
    }
    assert_eq!(
        other.load_update(&host).snapshots,
        [changes("second"), changes("third")]
    );
    assert_eq!(other.etag(), b"\"third\"");
    let mut late = new_poller(3);
    assert_eq!(
        late.load_update(&host).snapshots,
        [snapshot("first"), changes("second"), changes("third")]
    );
    // It may poll itself then.
    assert!(late.poll_brought(&host, &changes("fourth"), None));
    assert_eq!(other.load_update(&host).snapshots, [changes("fourth")]);
    // The first poller was away meanwhile: what it got is no change of the newest.
    assert!(!poller.poll_brought(&host, &changes("lost"), None));
    assert!(poller.wants_whole, "in case no notice announces the newest");
    assert_eq!(poller.load_update(&host).snapshots, [changes("fourth")]);
}

#[test]
fn a_long_log_is_replaced_by_a_snapshot_that_only_late_workers_read() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    poller.poll_brought(&host, &snapshot("first"), None);
    let long = "x".repeat(LOG_MAX / 6);
    for text in ["a", "b", "c"] {
        assert!(!poller.wants_whole);
        assert_ne!(poller.etag(), b"");
        poller.poll_brought(&host, &changes(&format!("{long}{text}")), None);
    }
    assert!(poller.wants_whole);
    assert_eq!(poller.etag(), b"", "the next poll is for the whole");
    assert_eq!(other.load_update(&host).snapshots.len(), 4);
    let whole = snapshot(&format!("{long}c"));
    assert!(poller.poll_brought(&host, &whole, None));
    assert!(!poller.wants_whole);
    assert_eq!(host.load(&poller.changes_key).unwrap().bytes.len(), 16);
    assert_eq!(other.load_update(&host), SharedUpdate::default());
    poller.poll_brought(&host, &changes("d"), None);
    assert_eq!(other.load_update(&host).snapshots, [changes("d")]);
    assert_eq!(
        new_poller(3).load_update(&host).snapshots,
        [whole, changes("d")]
    );
}

#[test]
fn a_log_that_another_plugin_overwrote_is_replaced_by_a_snapshot() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    poller.poll_brought(&host, &snapshot("first"), None);
    other.load_update(&host);
    for forged in [&b"garbage"[..], &[0; 64], &Log::after(7), b""] {
        host.overwrite(&poller.changes_key, forged);
        let ahead = forged == Log::after(7);
        assert_eq!(poller.poll_brought(&host, &changes("lost"), None), !ahead);
        if ahead {
            // What is there does not lead anywhere, but is no reason to stay behind for ever.
            assert_eq!(poller.load_update(&host).snapshots, []);
        } else {
            assert!(poller.wants_whole, "{forged:?}");
        }
        let whole = snapshot(&format!("after {forged:?}"));
        assert!(poller.poll_brought(&host, &whole, None));
        assert_eq!(other.load_update(&host).snapshots, [whole]);
    }
}

#[test]
fn changes_that_do_not_fit_make_a_worker_start_again_once() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    poller.poll_brought(&host, &snapshot("first"), None);
    other.load_update(&host);
    poller.poll_brought(&host, &changes("second"), None);
    let both = [snapshot("first"), changes("second")];
    assert_eq!(other.load_update(&host).snapshots, [changes("second")]);
    other.changes_unfit();
    assert_eq!(other.load_update(&host).snapshots, both);
    other.changes_unfit();
    assert_eq!(other.load_update(&host), SharedUpdate::default());
    assert!(other.wants_whole);
    assert_eq!(other.etag, b"", "it did not apply what it loaded");
    let whole = snapshot("second");
    poller.poll_brought(&host, &whole, None);
    poller.poll_brought(&host, &changes("third"), None);
    assert_eq!(
        other.load_update(&host).snapshots,
        [whole, changes("third")]
    );
}

#[test]
fn changes_that_could_not_be_stored_reach_the_others_with_the_whole() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    poller.poll_brought(&host, &snapshot("first"), None);
    other.load_update(&host);
    host.lose_writes(100);
    assert!(poller.poll_brought(&host, &changes("second"), None));
    host.lose_writes(0);
    assert!(poller.wants_whole);
    assert!(poller.poll_brought(&host, &snapshot("second"), None));
    assert_eq!(other.load_update(&host).snapshots, [snapshot("second")]);
}

#[test]
fn changes_after_some_that_could_not_be_stored_are_not_offered_to_the_others() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    poller.poll_brought(&host, &snapshot("first"), None);
    other.load_update(&host);
    host.lose_writes(100);
    poller.poll_brought(&host, &changes("second"), None);
    host.lose_writes(0);
    // The whole comes damaged, and then the next edit.
    poller.poll_rejected(at(0), b"\"second\"".to_vec());
    assert!(poller.poll_brought(&host, &changes("third"), None));
    assert_eq!(other.load_update(&host).snapshots, []);
    poller.poll_brought(&host, &snapshot("third"), None);
    assert_eq!(other.load_update(&host).snapshots, [snapshot("third")]);
}

#[test]
fn limits_that_came_damaged_are_taken_from_another_worker_that_polled_them() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    poller.poll_brought(&host, &snapshot("first"), None);
    other.load_update(&host);
    other.poll_rejected(at(0), b"\"second\"".to_vec());
    poller.poll_brought(&host, &snapshot("second"), None);
    assert_eq!(other.load_update(&host).snapshots, [snapshot("second")]);
}

#[test]
fn a_worker_for_which_nothing_usable_is_shared_polls_beside_the_poller() {
    let host = SharedData::default();
    let (mut poller, mut new) = (new_poller(1), new_poller(2));
    assert!(poller.is_due(&host, at(0)));
    poller.poll_brought(&host, &snapshot("first"), None);
    host.overwrite(&poller.snapshot_key, b"of another plugin");
    for n in 0..READS_MAX {
        assert!(!new.is_due(&host, at(10)), "{n}");
        new.load_update(&host);
    }
    assert!(new.is_due(&host, at(10)));
    assert_eq!(new.etag(), b"");
    assert!(new.poll_brought(&host, &snapshot("first"), None));
    assert!(!new.wants_whole);
}

#[test]
fn a_log_of_many_changes_is_replaced_by_a_snapshot() {
    let host = SharedData::default();
    let mut poller = new_poller(1);
    poller.poll_brought(&host, &snapshot("first"), None);
    for n in 0..LOG_ENTRIES_MAX {
        assert!(!poller.wants_whole, "{n}");
        poller.poll_brought(&host, &changes(&n.to_string()), None);
    }
    assert!(poller.wants_whole);
}

#[test]
fn a_forged_notice_does_not_make_workers_read_limits_again() {
    let host = SharedData::default();
    let (mut poller, mut other) = (new_poller(1), new_poller(2));
    poller.poll_brought(&host, &snapshot("first"), None);
    poller.poll_brought(&host, &changes("second"), None);
    assert_eq!(other.load_update(&host).snapshots.len(), 2);
    let forged = Notice {
        version: u64::MAX,
        proxies: Vec::new(),
    };
    host.overwrite(&poller.notice_key, &forged.write());
    for _ in 0..2 {
        assert_eq!(other.load_update(&host).snapshots, []);
    }
    poller.poll_brought(&host, &changes("third"), None);
    assert_eq!(other.load_update(&host).snapshots, [changes("third")]);
}

/// An answer whose body is too large to be read.
struct Large;

impl CallAnswer for Large {
    fn header(&self, name: &str) -> Option<&[u8]> {
        match name {
            ":status" => Some(b"200"),
            "etag" => Some(b"\"7-ab\""),
            API_HEADER => Some(API_VERSION.as_bytes()),
            _ => None,
        }
    }

    fn body(&self, _: usize) -> Option<Vec<u8>> {
        None
    }
}

#[test]
fn a_snapshot_that_is_too_large_is_not_a_failed_poll() {
    let Polled::TooLarge { etag } = read(&Large) else {
        panic!("it would be fetched again and again");
    };
    assert_eq!(etag, b"\"7-ab\"");
}

/// When a poll that is sent now fails, in milliseconds.
fn released(worker: &mut PolicyPoller, host: &SharedData, left_ms: u64) -> u64 {
    let mut ms = left_ms;
    while !worker.is_overdue(at(ms)) {
        assert!(!worker.is_due(host, at(ms)), "one at a time");
        ms += 1;
    }
    worker.poll_failed();
    ms
}

/// A worker whose polls were all answered, and the time of its next poll.
fn answered_in_a_row(host: &SharedData, seed: u64) -> (PolicyPoller, u64) {
    let mut worker = new_poller(seed);
    let mut ms = 0;
    for _ in 0..ANSWERED_BEFORE_HOLD {
        while !worker.is_due(host, at(ms)) {
            ms += 1;
        }
        assert_eq!(worker.wait_ms(), 0, "the first poll is not held");
        worker.poll_unchanged(host, None);
    }
    while !worker.is_due(host, at(ms)) {
        ms += 1;
    }
    (worker, ms)
}

#[test]
fn unanswered_polls_are_retried_with_growing_timeouts() {
    let host = SharedData::default();
    let mut worker = new_poller(1);
    let mut ms = 0;
    for short_timeout_ms in [250, 500, 1000, 2000, 4000, 4000] {
        assert!(worker.is_due(&host, at(ms)), "at once");
        let up_ms = released(&mut worker, &host, ms);
        assert_eq!(up_ms, ms + short_timeout_ms);
        ms = up_ms;
    }
}

#[test]
fn a_limiter_that_hangs_during_a_long_poll_costs_less_than_a_second() {
    for seed in 0..100 {
        let host = SharedData::default();
        let (mut worker, left_ms) = answered_in_a_row(&host, seed);
        let wait_ms = worker.wait_ms();
        assert!((HOLD_MIN_MS..HOLD_MIN_MS + HOLD_SPREAD_MS).contains(&wait_ms));
        let mut ms = left_ms;
        for short_timeout_ms in [wait_ms + 100, 50, 100] {
            let up_ms = released(&mut worker, &host, ms);
            assert_eq!(up_ms, ms + short_timeout_ms);
            assert!(
                worker.timeout_ms() > short_timeout_ms,
                "Envoy has it in mind"
            );
            assert!(worker.is_due(&host, at(up_ms)), "at once");
            assert_eq!(worker.wait_ms(), 0, "no limiter is to be trusted now");
            ms = up_ms;
        }
        assert!(ms - left_ms <= 950);
    }
}

#[test]
fn a_long_poll_fails_when_a_check_names_another_revision() {
    let host = SharedData::default();
    let (mut worker, left_ms) = answered_in_a_row(&host, 1);
    worker.poll_soon();
    worker.poll_soon();
    assert_eq!(released(&mut worker, &host, left_ms), left_ms + 100);
    assert!(worker.is_due(&host, at(left_ms + 100)));
    let up_ms = released(&mut worker, &host, left_ms + 100);
    assert_eq!(up_ms, left_ms + 150);
}

/// A stale limiter names another revision in each answer, and so may a limiter that is wrong.
#[test]
fn answers_that_all_name_another_revision_do_not_each_cause_a_poll() {
    for brings in [false, true] {
        let host = SharedData::default();
        let mut worker = new_poller(1);
        let mut polls = 0;
        for ms in 0..10_000 {
            if worker.is_due(&host, at(ms)) {
                polls += 1;
                if brings {
                    worker.poll_brought(&host, &snapshot(&ms.to_string()), None);
                } else {
                    worker.poll_unchanged(&host, None);
                }
            }
            worker.poll_soon();
        }
        // One poll every fifty milliseconds, not one every millisecond.
        assert_eq!(polls, 200, "{brings}");
    }
}

#[test]
fn another_worker_polls_only_after_the_long_poll_is_overdue() {
    let host = SharedData::default();
    let (mut worker, left_ms) = answered_in_a_row(&host, 1);
    let mut other = new_poller(2);
    // The poller is replaced if it vanishes now, but not while its poll waits.
    let mut ms = left_ms;
    while !other.is_due(&host, at(ms)) {
        assert!(other.next_us() <= at(left_ms + 850).mono_us);
        ms += 1;
    }
    assert!(
        ms > left_ms + worker.wait_ms() + 100 && ms <= left_ms + 850,
        "{ms}"
    );
    worker.poll_unchanged(&host, None);
    assert!(!worker.is_due(&host, at(ms)));
}

#[test]
fn a_rejected_snapshot_is_requested_again_after_pauses_that_double() {
    let host = SharedData::default();
    let mut worker = new_poller(1);
    let (mut ms, mut pauses) = (0, Vec::new());
    for _ in 0..14 {
        worker.poll_rejected(at(ms), b"\"bad\"".to_vec());
        let since_ms = ms;
        while worker.etag() == b"\"bad\"" {
            ms += 100;
            if worker.is_due(&host, at(ms)) && !worker.etag().is_empty() {
                worker.poll_unchanged(&host, None);
            }
        }
        pauses.push((ms - since_ms) / 1000);
    }
    assert!(pauses.is_sorted(), "{pauses:?}");
    assert!((1..=2).contains(&pauses[0]), "{pauses:?}");
    assert!((600..=602).contains(&pauses[13]), "{pauses:?}");
    worker.poll_brought(&host, &snapshot("good"), None);
    worker.poll_rejected(at(ms), b"\"bad\"".to_vec());
    assert_eq!(worker.again_us, Some(at(ms + 1_000).mono_us));
}

#[test]
fn a_forged_poller_lease_does_not_stop_polling() {
    let host = SharedData::default();
    let mut worker = new_poller(1);
    let forged = PollerLease {
        worker: 9,
        until_us: u64::MAX,
    };
    host.overwrite(&worker.poller_key, &forged.write());
    assert!(worker.is_due(&host, at(1)));
}
