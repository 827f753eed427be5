use super::{FAILURES_IN_A_ROW, *};
use crate::simulated::SharedData;

fn at(ms: u64) -> Now {
    Now {
        mono_us: ms * 1000,
        wall_ms: 1,
    }
}

fn workers<const N: usize>() -> [Breaker; N] {
    std::array::from_fn(|n| Breaker::new("shop", 20, Random::new(n as u64)))
}

fn opened(breaker: &mut Breaker, host: &SharedData, ms: u64) {
    for _ in 0..FAILURES_IN_A_ROW {
        breaker.report(host, at(ms), Gate::Closed, CallResult::Failed, false);
    }
    assert_eq!(breaker.gate(host, at(ms)), Gate::Open);
}

#[test]
fn failures_of_all_workers_open_the_breaker_for_all() {
    let host = SharedData::default();
    let mut workers = workers::<3>();
    for n in 0..5 {
        assert_eq!(workers[0].gate(&host, at(n)), Gate::Closed);
        let worker = usize::try_from(n % 3).unwrap();
        workers[worker].report(&host, at(n), Gate::Closed, CallResult::Failed, false);
    }
    for worker in &mut workers {
        assert_eq!(worker.gate(&host, at(6)), Gate::Open);
    }
}

#[test]
fn an_answer_resets_the_count_of_consecutive_failures() {
    let host = SharedData::default();
    let [mut worker] = workers();
    for n in 0..8 {
        let result = if n % 4 == 3 {
            CallResult::Answered { decides: true }
        } else {
            CallResult::Failed
        };
        worker.report(&host, at(n), Gate::Closed, result, false);
    }
    assert_eq!(worker.gate(&host, at(9)), Gate::Closed);
}

#[test]
fn the_breaker_opens_when_half_of_the_calls_fail_but_not_a_tenth() {
    for (every, gate) in [(2, Gate::Open), (10, Gate::Closed)] {
        let host = SharedData::default();
        let [mut worker] = workers();
        for n in 0..200 {
            let result = if n % every == 0 {
                CallResult::Failed
            } else {
                CallResult::Answered { decides: true }
            };
            worker.report(&host, at(n), Gate::Closed, result, false);
        }
        assert_eq!(worker.gate(&host, at(200)), gate, "one in {every}");
    }
}

#[test]
fn failures_long_apart_do_not_add_up() {
    let host = SharedData::default();
    let [mut worker] = workers();
    for n in 0..50 {
        worker.report(&host, at(n * 3000), Gate::Closed, CallResult::Failed, false);
        worker.report(
            &host,
            at(n * 3000 + 1),
            Gate::Closed,
            CallResult::Answered { decides: true },
            false,
        );
    }
    assert_eq!(worker.gate(&host, at(150_000)), Gate::Closed);
}

#[test]
fn one_worker_probes_and_its_answer_closes_it() {
    let host = SharedData::default();
    let mut workers = workers::<4>();
    opened(&mut workers[0], &host, 0);
    let later = at(400);
    let gates: Vec<Gate> = workers.iter_mut().map(|w| w.gate(&host, later)).collect();
    assert_eq!(gates, [Gate::Probe, Gate::Open, Gate::Open, Gate::Open]);
    // An answer to a call from before it opened changes nothing.
    workers[1].report(
        &host,
        at(401),
        Gate::Closed,
        CallResult::Answered { decides: true },
        false,
    );
    assert_eq!(workers[1].gate(&host, at(401)), Gate::Open);
    workers[0].report(
        &host,
        at(402),
        Gate::Probe,
        CallResult::Answered { decides: true },
        false,
    );
    assert_eq!(workers[1].gate(&host, at(402)), Gate::Closed);
}

#[test]
fn failed_probes_wait_longer_and_longer_up_to_a_bound() {
    let host = SharedData::default();
    let [mut worker] = workers();
    opened(&mut worker, &host, 0);
    let mut waits = Vec::new();
    let (mut ms, mut since) = (0, 0);
    while waits.len() < 8 {
        ms += 1;
        if worker.gate(&host, at(ms)) == Gate::Probe {
            waits.push(ms - since);
            since = ms;
            worker.report(&host, at(ms), Gate::Probe, CallResult::Failed, false);
        }
    }
    assert!(
        waits[0] <= 313 && waits[1] >= 375 && waits[2] >= 750,
        "{waits:?}"
    );
    assert!(
        waits[4..].iter().all(|wait| (1500..=2500).contains(wait)),
        "{waits:?}"
    );
}

#[test]
fn a_prober_that_never_reports_is_replaced() {
    let host = SharedData::default();
    let mut workers = workers::<2>();
    opened(&mut workers[0], &host, 0);
    assert_eq!(workers[0].gate(&host, at(400)), Gate::Probe);
    assert_eq!(workers[1].gate(&host, at(500)), Gate::Open);
    assert_eq!(workers[1].gate(&host, at(521)), Gate::Probe);
}

#[test]
fn an_invalid_stored_breaker_counts_as_closed() {
    let host = SharedData::default();
    let [mut worker] = workers();
    for junk in [&b""[..], b"\x02", b"\x07 something else", &[0xff; 64]] {
        host.overwrite(&worker.key, junk);
        assert_eq!(worker.gate(&host, at(1)), Gate::Closed);
        opened(&mut worker, &host, 1);
    }
}

#[test]
fn intervals_do_not_grow_while_some_limiter_answers() {
    for (answering, most_ms) in [(true, 4 * 400), (false, 4 * 1500)] {
        let host = SharedData::default();
        let [mut worker] = workers();
        opened(&mut worker, &host, 0);
        let mut ms = 0;
        for _ in 0..4 {
            while worker.gate(&host, at(ms)) != Gate::Probe {
                ms += 1;
            }
            worker.report(&host, at(ms), Gate::Probe, CallResult::Failed, answering);
        }
        assert!(ms <= most_ms, "{answering}: {ms}");
        assert_eq!(ms > 4 * 400, !answering, "{answering}: {ms}");
    }
}

#[test]
fn a_limiter_that_fails_at_once_opens_nothing_while_others_answer() {
    let host = SharedData::default();
    let mut workers = workers::<2>();
    for ms in 0..100 {
        workers[0].report(&host, at(ms), Gate::Closed, CallResult::OneFailed, true);
    }
    assert_eq!(workers[1].gate(&host, at(100)), Gate::Closed);
    assert!(
        workers[1].failed_lately(at(100)),
        "debts may have been made"
    );
    assert!(!workers[1].others_are_answered(at(100)));
    workers[0].report(
        &host,
        at(101),
        Gate::Closed,
        CallResult::Answered { decides: true },
        true,
    );
    assert!(workers[0].others_are_answered(at(101)));
    // All workers know it, also once the breaker is open for another reason.
    opened(&mut workers[0], &host, 102);
    assert_eq!(workers[1].gate(&host, at(103)), Gate::Open);
    assert!(workers[1].others_are_answered(at(10_101)));
    assert!(!workers[1].others_are_answered(at(10_102)));
    // A probe's answer ends the trouble.
    assert_eq!(workers[1].gate(&host, at(500)), Gate::Probe);
    workers[1].report(
        &host,
        at(501),
        Gate::Probe,
        CallResult::Answered { decides: true },
        true,
    );
    assert!(!workers[1].others_are_answered(at(501)));
}
