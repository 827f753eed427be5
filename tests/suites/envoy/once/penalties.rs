//! Penalties, from the denials that cause one to its end.

use std::time::{Duration, Instant};

use harness::{Reply, Request};

use crate::stage::{Stage, eventually, header, limits, statuses};

const LIMIT: &str = "{name: per-user, per: [user], rate: 2/1s, algorithm: fixed_window, \
     on_failure: allow, penalty: {after: 30, within: 1m, for: 1h}}";
const WITHOUT: &str = "{name: per-user, per: [user], rate: 2/1s, algorithm: fixed_window, \
     on_failure: allow}";

/// The time left of a penalty; `None` for other replies, whose `retry-after` is shorter.
fn seconds_left(reply: &Reply) -> Option<u64> {
    let seconds: u64 = reply.header("retry-after")?.parse().ok()?;
    (reply.status == 429 && seconds > 60).then_some(seconds)
}

/// Sends requests until a penalty denies them; returns how many were denied before.
async fn hammer(request: &Request) -> usize {
    let mut denied = 0;
    eventually("the client is penalized", async || {
        let reply = request.send().await.unwrap();
        if let Some(seconds) = seconds_left(&reply) {
            assert!((3500..=3600).contains(&seconds), "{reply:?}");
            return Some(denied);
        }
        denied += usize::from(reply.status == 429);
        None
    })
    .await
}

/// Sends requests until one passes.
async fn until_it_passes(request: &Request) {
    eventually("the client passes", async || {
        (request.send().await.unwrap().status == 200).then_some(())
    })
    .await;
}

async fn stage() -> Stage {
    limits(&[LIMIT]).await
}

#[tokio::test]
async fn only_the_penalized_client_is_denied_long_after_its_window() {
    let stage = stage().await;
    let (alice, bob) = (stage.get("/", "alice"), stage.get("/", "bob"));
    let denied = hammer(&alice).await;
    assert!(denied >= 29, "penalized after {denied} denials");
    let checks = stage.limiter_counter("rl_checks_total").await;
    let started = Instant::now();
    // For more than two windows.
    while started.elapsed() < Duration::from_millis(2500) {
        let reply = alice.send().await.unwrap();
        assert!(seconds_left(&reply).is_some(), "{reply:?}");
        assert!(header(&reply, "ratelimit").contains("r=0"), "{reply:?}");
    }
    // The other worker may send one check.
    let asked = stage.limiter_counter("rl_checks_total").await - checks;
    assert!(asked <= 2, "{asked} checks");
    assert_eq!(statuses(&bob, 2).await, [200; 2]);
    assert_eq!(stage.limiter_counter("rl_penalties_total").await, 1);
    eventually("Envoy counts them", async || {
        let count = stage.envoy().stat("wasmcustom.rl_penalized").await;
        (count.unwrap() > 0).then_some(())
    })
    .await;
}

/// `on_failure: allow` admits requests of others.
#[tokio::test]
async fn a_penalty_holds_while_no_limiter_answers() {
    let mut stage = stage().await;
    let (alice, bob) = (stage.get("/", "alice"), stage.get("/", "bob"));
    hammer(&alice).await;
    stage.stop_limiters().await;
    for _ in 0..50 {
        let reply = alice.send().await.unwrap();
        assert!(seconds_left(&reply).is_some(), "{reply:?}");
        assert_eq!(bob.send().await.unwrap().status, 200);
    }
    // Workers still have it after they read the shared table again.
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1500) {
        assert_eq!(alice.send().await.unwrap().status, 429);
    }
}

#[tokio::test]
async fn a_reset_and_an_edit_that_removes_it_end_a_penalty() {
    let stage = stage().await;
    let alice = stage.get("/", "alice");
    hammer(&alice).await;
    stage.rlctl(&["reset", "per-user", "user=alice", "--yes"]);
    until_it_passes(&alice).await;

    hammer(&alice).await;
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let text = format!("domain: shop\nlimits:\n  - {WITHOUT}\n");
    std::fs::write(&file, text).unwrap();
    stage.rlctl(&["apply", "-f", file.path().to_str().unwrap()]);
    until_it_passes(&alice).await;
    let replies = async || alice.send().await.unwrap();
    for _ in 0..100 {
        assert_eq!(seconds_left(&replies().await), None);
    }
}
