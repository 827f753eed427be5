//! Requests in flight: a slot is held until the stream ends, however it ends.

use std::time::{Duration, Instant};

use harness::{Client, HeldRequest, rapid_resets, until};
use serde_json::{Value, json};

use crate::{
    reconfiguration::Delivered,
    stage::{PATIENCE, Stage, eventually, limits, statuses},
};

const THREE: &str = "{name: in-flight, match: {path: \"/held/**\"}, per: [user], algorithm: concurrency, limit: 3, slot_ttl: 3s}";
const MANY: &str = "{name: in-flight, match: {path: \"/held/**\"}, per: [user], algorithm: concurrency, limit: 5000, slot_ttl: 20s}";

async fn hold(port: u16) -> HeldRequest {
    HeldRequest::send(port, "/held/x", "alice").await.unwrap()
}

pub fn in_use(stage: &Stage, user: &str) -> u64 {
    let bucket = stage.inspect("in-flight", &[&format!("user={user}")]);
    bucket["used"].as_u64().unwrap()
}

/// Waits until this many slots are in use; returns how long that took.
pub async fn used(stage: &Stage, user: &str, is: u64) -> Duration {
    let since = Instant::now();
    until("so many are in use", 3 * PATIENCE, async || {
        (in_use(stage, user) == is).then_some(())
    })
    .await
    .unwrap();
    since.elapsed()
}

/// Waits until a slot that nobody renews has lapsed, as others would have; alice has so many all the while.
pub async fn for_a_ttl(stage: &Stage, path: &str, alice: u64) {
    let taking = json!({"domain": "shop", "descriptor": {"path": path, "user": "nobody"}});
    let url = format!("{}/v1/check", stage.limiter(0).url());
    let asked = Client::new().post(&url, taking.to_string());
    let taken = asked
        .header("content-type", "application/json")
        .send()
        .await;
    assert_eq!(taken.unwrap().status, 200);
    eventually("a slot lapses", async || {
        assert_eq!(in_use(stage, "alice"), alice);
        (in_use(stage, "nobody") == 0).then_some(())
    })
    .await;
}

#[tokio::test]
async fn no_more_than_the_limit_run_at_once_and_each_end_makes_room() {
    let stage = limits(&[THREE]).await;
    let port = stage.envoy().port();
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(hold(port).await);
    }
    used(&stage, "alice", 3).await;
    let get = stage.get("/held/y", "alice");
    let denied = get.send().await.unwrap();
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("retry-after"), None, "nobody can say when");
    assert_eq!(statuses(&get, 5).await, [429; 5]);
    assert_eq!(statuses(&stage.get("/held/y", "bob"), 3).await, [200; 3]);
    assert_eq!(statuses(&stage.get("/free", "alice"), 3).await, [200; 3]);

    // Ended by its response.
    assert_eq!(held.pop().unwrap().finish().await.unwrap(), 200);
    used(&stage, "alice", 2).await;
    assert_eq!(statuses(&get, 1).await, [200], "a denial is not cached");
    used(&stage, "alice", 2).await;
    // Ended by its client.
    drop(held.pop());
    let took = used(&stage, "alice", 1).await;
    eprintln!("freed within {took:?} after its client left");
    assert_eq!(held.pop().unwrap().finish().await.unwrap(), 200);
    used(&stage, "alice", 0).await;
}

#[tokio::test]
async fn many_at_once_get_the_limit_and_all_slots_come_back() {
    let stage = limits(&[THREE]).await;
    let port = stage.envoy().port();
    let mut held = Vec::new();
    for _ in 0..40 {
        held.push(hold(port).await);
    }
    used(&stage, "alice", 3).await;
    let mut statuses = Vec::new();
    for held in held {
        statuses.push(held.finish().await.unwrap());
    }
    let passed = statuses.iter().filter(|status| **status == 200).count();
    let denied = statuses.iter().filter(|status| **status == 429).count();
    assert_eq!((passed, denied), (3, 37));
    used(&stage, "alice", 0).await;
}

#[tokio::test]
async fn a_long_request_keeps_its_slot_and_one_that_lapsed_is_entered_again() {
    let stage = limits(&[THREE]).await;
    let held = hold(stage.envoy().port()).await;
    used(&stage, "alice", 1).await;
    for _ in 0..2 {
        for_a_ttl(&stage, "/held/x", 1).await;
    }
    // The bucket is lost, as after a failover.
    let key = stage.inspect("in-flight", &["user=alice"])["redis_key"].clone();
    stage
        .redis()
        .command(&["DEL", key.as_str().unwrap()])
        .await
        .unwrap();
    let took = used(&stage, "alice", 1).await;
    eprintln!("entered again after {took:?}");
    // A reset frees the slot for good.
    stage.rlctl(&["reset", "in-flight", "user=alice", "--yes"]);
    for_a_ttl(&stage, "/held/x", 0).await;
    assert_eq!(held.finish().await.unwrap(), 200);
}

#[tokio::test]
async fn two_thousand_streams_that_are_reset_leave_no_slot() {
    let stage = limits(&[MANY]).await;
    let headers = [
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/held/x"),
        (":authority", "any"),
        ("x-user-id", "alice"),
    ];
    rapid_resets(stage.envoy().port(), &headers, 2000)
        .await
        .unwrap();
    // Those were reset before their checks were sent; these while their checks are answered, or
    // later.
    for round in 0..20 {
        let taken = stage.limiter_counter("rl_slots_taken_total").await;
        let mut held = Vec::new();
        for _ in 0..100 {
            held.push(hold(stage.envoy().port()).await);
        }
        let some = taken + 5 * round;
        eventually("some have their slots", async || {
            let taken = stage.limiter_counter("rl_slots_taken_total").await;
            (taken >= some).then_some(())
        })
        .await;
        drop(held);
    }
    let took = used(&stage, "alice", 0).await;
    let taken = stage.limiter_counter("rl_slots_taken_total").await;
    let freed = stage.limiter_counter("rl_slots_freed_total").await;
    eprintln!("none in use after {took:?}; taken {taken}, freed {freed}");
    assert!(took < Duration::from_secs(5), "{took:?}");
    assert!(taken > 500 && freed >= taken, "{freed} of {taken}");
}

#[tokio::test]
async fn a_killed_envoy_loses_its_slots_within_the_ttl_and_the_other_keeps_its() {
    let mut stage = limits(&[THREE]).envoys(2).await;
    let first = hold(stage.nth_envoy(0).port()).await;
    let _others = [
        hold(stage.nth_envoy(1).port()).await,
        hold(stage.nth_envoy(1).port()).await,
    ];
    used(&stage, "alice", 3).await;
    assert_eq!(statuses(&stage.get("/held/y", "alice"), 1).await, [429]);
    stage.kill_an_envoy();
    let took = used(&stage, "alice", 1).await;
    eprintln!("gone after {took:?}");
    assert!(took < Duration::from_secs(6), "{took:?}");
    for_a_ttl(&stage, "/held/x", 1).await;
    assert_eq!(first.finish().await.unwrap(), 200);
    used(&stage, "alice", 0).await;
}

#[tokio::test]
async fn without_limiters_a_proxy_has_its_share_and_its_slots_come_back_with_them() {
    let mut stage = limits(&[THREE]).await;
    let port = stage.envoy().port();
    let before = hold(port).await;
    used(&stage, "alice", 1).await;
    stage.stop_limiters().await;
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(hold(port).await);
    }
    // The slot of the first lapses.
    used(&stage, "alice", 0).await;
    let mut statuses = Vec::new();
    for held in held {
        statuses.push(held.finish().await.unwrap());
    }
    let passed = statuses.iter().filter(|status| **status == 200).count();
    assert_eq!(passed, 3, "{statuses:?}");
    stage.start_limiters().await;
    let took = used(&stage, "alice", 1).await;
    eprintln!("held again {took:?} after the limiters came back");
    assert_eq!(before.finish().await.unwrap(), 200);
    used(&stage, "alice", 0).await;
}

#[tokio::test]
async fn a_filter_configured_anew_loses_no_slot_and_leaks_none() {
    let plan = limits(&[MANY]).config(|config| config.arguments(&["--drain-time-s", "1"]));
    let delivered = Delivered::from_plan(plan).await;
    let (stage, port) = (&delivered.stage, delivered.port);
    for round in 0..4 {
        let mut held = Vec::new();
        for _ in 0..25 {
            held.push(hold(port).await);
        }
        used(stage, "alice", 25).await;
        delivered
            .change("update_success", |config: &mut Value| {
                config["deny"] = json!({"message": format!("round {round}")});
            })
            .await;
        // The drain closes the old connections, unless their clients close them first.
        held.truncate(12);
        if round % 2 == 0 {
            drop(held);
        } else {
            for request in held {
                request.ended().await;
            }
        }
        let took = used(stage, "alice", 0).await;
        eprintln!("round {round}: none in use after {took:?}");
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
