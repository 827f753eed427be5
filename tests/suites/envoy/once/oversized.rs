//! A check that is too large affects only its own request: no other request, batch or circuit breaker.

use harness::flood;
use serde_json::json;

use crate::stage::{Plan, Stage, limits, statuses};

const CLOSED: &str = "{name: closed, per: [user], rate: 1000/1h, on_failure: deny}";
const OPEN: &str = "{name: open, per: [user], rate: 5/1h, on_failure: allow}";

/// A limiter that reads only small bodies. The timeout is long enough for a busy machine.
fn small_bodies(limit: &str) -> Plan {
    limits(&[limit])
        .limiter_with(&["--max-body", "4096"])
        .filter(|config| config["limiter"]["timeout"] = json!("5s"))
}

/// Requests of many users, of which every tenth is too large for the limiter.
fn one_of_ten_is_large(n: u64) -> Vec<u8> {
    let filling = if n.is_multiple_of(10) {
        "x".repeat(6_000)
    } else {
        String::new()
    };
    format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {n}-{filling}\r\n\r\n").into_bytes()
}

async fn assert_nothing_failed(stage: &Stage) {
    for stat in ["rl_callouts.failed", "rl_breaker_open"] {
        let count = stage.envoy().stat(&format!("wasmcustom.{stat}")).await;
        assert_eq!(count.unwrap(), 0, "{stat}");
    }
}

#[tokio::test]
async fn a_check_that_is_too_large_is_decided_alone() {
    let stage = small_bodies(CLOSED).await;

    // Each of these fails closed alone, and all others pass.
    let passed = flood(stage.envoy().port(), 20, 400, one_of_ten_is_large)
        .await
        .unwrap();

    assert_eq!(passed, 360);
    assert_nothing_failed(&stage).await;
}

#[tokio::test]
async fn an_oversized_check_opens_no_limit_for_other_requests() {
    let stage = small_bodies(OPEN).await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 5).await, [200; 5]);

    for _ in 0..30 {
        let large = stage.get("/", &"x".repeat(6_000));
        assert_eq!(statuses(&large, 1).await, [200], "open for itself");
        assert_eq!(statuses(&alice, 1).await, [429], "and for nobody else");
    }
    assert_nothing_failed(&stage).await;
}

/// No check is too large alone, but several together are.
#[tokio::test]
async fn checks_that_are_too_large_together_are_all_decided() {
    let stage = small_bodies(CLOSED).await;
    let request = |n| {
        let filling = "x".repeat(1_500);
        format!("GET / HTTP/1.1\r\nhost: a\r\nx-user-id: {n}-{filling}\r\n\r\n").into_bytes()
    };

    let passed = flood(stage.envoy().port(), 40, 800, request).await.unwrap();

    assert_eq!(passed, 800);
    assert_nothing_failed(&stage).await;
}
