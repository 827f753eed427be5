//! The same behaviour with every store.

use harness::{Engine, HeldRequest};

use crate::{
    requests_in_flight::{in_use, used},
    stage::{at_once, eventually, header, limits, statuses},
};

#[tokio::test]
async fn valkey_decides_as_redis_does() {
    let stage = limits(&["{name: per-user, per: [user], rate: 20/1h}"])
        .engine(Engine::Valkey)
        .await;

    assert_eq!(at_once(&stage.get("/", "alice"), 60).await, (20, 40));
}

#[tokio::test]
async fn a_limiter_without_redis_decides_from_memory() {
    let stage = limits(&["{name: per-user, per: [user], rate: 5/1h}"])
        .in_memory()
        .await;
    let alice = stage.get("/", "alice");

    let first = alice.send().await.unwrap();

    assert_eq!(header(&first, "ratelimit").split(';').nth(1), Some("r=4"));
    assert_eq!(statuses(&alice, 6).await, [200, 200, 200, 200, 429, 429]);
}

/// Two limits, whose buckets may be on different nodes: a request gets both slots or none.
#[tokio::test]
async fn on_a_cluster_a_request_has_the_slots_of_all_its_limits_or_none() {
    let all =
        "{name: all, match: {path: \"/held/**\"}, algorithm: concurrency, limit: 4, slot_ttl: 3s}";
    let two = "{name: in-flight, match: {path: \"/held/**\"}, per: [user], algorithm: concurrency, limit: 2, slot_ttl: 3s}";
    let stage = limits(&[all, two]).on_a_cluster().await;
    let port = stage.envoy().port();
    let total = || stage.inspect("all", &[])["used"].as_u64().unwrap();
    let mut held = Vec::new();
    for user in ["alice", "bob", "carol"] {
        for _ in 0..2 {
            held.push(HeldRequest::send(port, "/held/x", user).await.unwrap());
        }
        if user != "carol" {
            used(&stage, user, 2).await;
            assert_eq!(statuses(&stage.get("/held/y", user), 3).await, [429; 3]);
        }
    }
    // The other limit denied Carol's requests, and her slots were freed.
    eventually("carol has none", async || {
        (in_use(&stage, "carol") == 0 && total() == 4).then_some(())
    })
    .await;
    drop(held);
    for user in ["alice", "bob", "carol"] {
        used(&stage, user, 0).await;
    }
    eventually("none is held", async || (total() == 0).then_some(())).await;
}
