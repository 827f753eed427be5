//! Slots of requests in flight in a store that fails over without its last writes, and in a Cluster.

use std::time::Instant;

use harness::{Client, HeldRequest, until};
use serde_json::json;

use crate::{
    requests_in_flight::{hold, in_use, used},
    stage::{PATIENCE, Plan, Stage, eventually, limits, statuses},
};

const FIVE: &str = "{name: in-flight, match: {path: \"/held/**\"}, per: [user], algorithm: concurrency, limit: 5, slot_ttl: 3s}";
const KEY: &str = "rl:b:shop:in-flight:alice";

/// The number of Alice's slots, according to a limiter; `None` if its store is unavailable.
async fn held_in_store(stage: &Stage) -> Option<u64> {
    let peek =
        json!({"domain": "shop", "descriptor": {"user": "alice", "path": "/held/x"}, "peek": true});
    let url = format!("{}/v1/check", stage.limiter(0).url());
    let reply = Client::new()
        .post(&url, peek.to_string())
        .send()
        .await
        .ok()?;
    let answer = reply.json().ok()?;
    Some(5 - answer["limits"][0]["remaining"].as_u64()?)
}

/// Two slots are replicated, three are lost with the primary. All five are entered again while their
/// requests run, and freed when those end.
async fn outlives(plan: Plan) {
    let mut stage = plan.envoys(2).await;
    let ports = [0, 1].map(|nth| stage.nth_envoy(nth).port());
    let mut held: Vec<HeldRequest> = Vec::new();
    for port in ports {
        held.push(hold(port).await);
    }
    used(&stage, "alice", 2).await;
    let pair = stage.pair_of(KEY).await;
    pair.in_sync().await.unwrap();
    pair.cut().await.unwrap();
    for port in [ports[0], ports[1], ports[0]] {
        held.push(hold(port).await);
    }
    used(&stage, "alice", 5).await;
    assert_eq!(statuses(&stage.get("/held/y", "alice"), 1).await, [429]);
    let pair = stage.pair_of(KEY).await;
    pair.kill_primary().unwrap();
    let since = Instant::now();
    eventually("the replica is promoted", async || {
        pair.is_promoted().await.then_some(())
    })
    .await;
    eprintln!("promoted after {:?}", since.elapsed());
    until("all five are held again", 3 * PATIENCE, async || {
        (held_in_store(&stage).await? == 5).then_some(())
    })
    .await
    .unwrap();
    eprintln!(
        "all five are held again {:?} after the kill",
        since.elapsed()
    );
    assert_eq!(statuses(&stage.get("/held/y", "alice"), 3).await, [429; 3]);
    for request in held.drain(..3) {
        assert_eq!(request.finish().await.unwrap(), 200);
    }
    eventually("two are held", async || {
        (held_in_store(&stage).await? == 2).then_some(())
    })
    .await;
    assert_eq!(statuses(&stage.get("/held/y", "alice"), 1).await, [200]);
    drop(held);
    let since = Instant::now();
    eventually("none is held", async || {
        (held_in_store(&stage).await? == 0).then_some(())
    })
    .await;
    eprintln!("none is held {:?} after the last left", since.elapsed());
}

#[tokio::test]
async fn slots_that_a_sentinels_failover_lost_are_entered_again() {
    outlives(limits(&[FIVE]).behind_a_sentinel()).await;
}

#[tokio::test]
async fn slots_that_a_node_of_a_cluster_lost_are_entered_again() {
    outlives(limits(&[FIVE]).on_a_replicated_cluster()).await;
}

/// Two limits, whose buckets may be on different nodes: a request gets both slots or none.
#[tokio::test]
async fn on_a_cluster_a_request_has_the_slots_of_all_its_limits_or_none() {
    let all =
        "{name: all, match: {path: \"/held/**\"}, algorithm: concurrency, limit: 4, slot_ttl: 3s}";
    let two = FIVE.replace("limit: 5", "limit: 2");
    let stage = limits(&[all, &two]).on_a_cluster().await;
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
