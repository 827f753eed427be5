//! Recovery after an outage: each Envoy sends one probe, and further calls only after its answer.

use std::collections::BTreeSet;

use harness::{Bytes, Gate, flood};
use protocol::compact::Batch;
use serde_json::json;
use tokio::task::JoinSet;

use crate::stage::{Stage, eventually, limits};

const ENVOYS: usize = 3;
const WORKERS: u32 = 3;
/// Requests to each Envoy per round, and the connections that spread them over all its workers.
const REQUESTS: u64 = 120;
const CONNECTIONS: u64 = 12;

fn request(_: u64) -> Vec<u8> {
    b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec()
}

/// Sends requests to each Envoy, all of which must pass; returns their number.
async fn send(stage: &Stage) -> u64 {
    let mut passed = 0;
    for n in 0..ENVOYS {
        let port = stage.nth_envoy(n).port();
        passed += flood(port, CONNECTIONS, REQUESTS, request).await.unwrap();
    }
    assert_eq!(passed, REQUESTS * ENVOYS as u64);
    passed
}

/// Sends requests until every Envoy's breaker is open (1) or closed (0); returns their number.
async fn until_breakers_are(stage: &Stage, open: u64) -> u64 {
    let mut passed = 0;
    eventually("the breakers are as wanted", async || {
        passed += send(stage).await;
        for n in 0..ENVOYS {
            let is = stage.nth_envoy(n).stat("wasmcustom.rl_breaker_open").await;
            (is.unwrap() == open).then_some(())?;
        }
        Some(())
    })
    .await;
    passed
}

/// Checks that each Envoy has sent one probe, without settlements.
fn assert_one_peek_each(calls: &[Bytes]) {
    let calls: Vec<Batch> = calls
        .iter()
        .map(|call| Batch::decode(call).unwrap())
        .collect();
    let proxies: BTreeSet<&str> = calls.iter().map(|call| call.proxy.as_str()).collect();
    assert_eq!(calls.len(), ENVOYS, "one call each: {calls:#?}");
    assert_eq!(proxies.len(), ENVOYS);
    for call in &calls {
        let [check] = call.checks.as_slice() else {
            panic!("{call:?}")
        };
        assert!(
            check.cost == 0 && check.limits.iter().all(|of| of.debit.is_none()),
            "{check:?}"
        );
    }
}

/// Sends requests, and checks that the limiter decides each of them once.
async fn assert_each_is_decided_once(stage: &Stage) -> u64 {
    let decided = stage.limiter_counter("rl_checks_total").await;
    let sent = send(stage).await;
    let now = stage.limiter_counter("rl_checks_total").await;
    assert_eq!(now, decided + sent);
    sent
}

#[tokio::test]
async fn each_envoy_probes_once_for_all_its_workers() {
    let gate = Gate::start().await.unwrap();
    let mut stage =
        limits(&["{name: all, match: {path: /}, algorithm: fixed_window, rate: 500000/30d}"])
            .envoys(ENVOYS)
            .workers(WORKERS)
            // A long timeout, so that held calls do not time out.
            .filter(|config| config["limiter"]["timeout"] = json!("10s"))
            .behind(&gate)
            .await;
    let mut passed = send(&stage).await;

    // The limiters stop, and their address refuses connections.
    gate.shut().await;
    stage.stop_limiters().await;
    passed += until_breakers_are(&stage, 1).await;
    let asked = gate.checks().len();

    // The limiters are back, and answer the first call slowly.
    gate.hold();
    stage.start_limiters().await;
    gate.listen().await.unwrap();
    let mut waiting = JoinSet::new();
    eventually("every Envoy asks", async || {
        for n in 0..ENVOYS {
            waiting.spawn(flood(stage.nth_envoy(n).port(), 1, 1, request));
        }
        (gate.checks().len() >= asked + ENVOYS).then_some(())
    })
    .await;
    // Only the requests in these calls wait for them. A call that only settles has none.
    passed += send(&stage).await;
    eventually("the others went on", async || {
        while let Some(done) = waiting.try_join_next() {
            passed += done.unwrap().unwrap();
        }
        (waiting.len() <= ENVOYS).then_some(())
    })
    .await;

    assert_one_peek_each(&gate.checks().split_off(asked));
    assert_eq!(stage.limiter_counter("rl_checks_total").await, 0);

    gate.open();
    for done in waiting.join_all().await {
        passed += done.unwrap();
    }
    passed += until_breakers_are(&stage, 0).await;

    passed += assert_each_is_decided_once(&stage).await;
    // Requests admitted meanwhile were charged once.
    assert_eq!(stage.inspect("all", &[])["used"], passed);
}
