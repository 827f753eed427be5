//! Clients that disconnect while a queue holds their request.

use tokio::task::JoinHandle;

use crate::stage::{Stage, eventually, limits, statuses};

/// One slot an hour, three of them at most.
const SLOW: &str = "{name: slow, match: {path: /slow}, algorithm: leaky_bucket, rate: 1/1h, \
                    burst: 3, over_limit: queue, max_delay: 1000h}";

async fn remaining(stage: &Stage, limit: &str, is: u64) {
    eventually("the bucket has so much left", async || {
        let left = stage.inspect(limit, &[])["remaining"].as_u64();
        (left == Some(is)).then_some(())
    })
    .await;
}

fn send(stage: &Stage) -> JoinHandle<()> {
    let request = stage.get("/slow", "alice");
    tokio::spawn(async move {
        let _ = request.send().await;
    })
}

#[tokio::test]
async fn a_client_that_leaves_a_queue_makes_room_for_the_next() {
    let stage = limits(&[SLOW]).await;
    assert_eq!(statuses(&stage.get("/slow", "alice"), 1).await, [200]);
    let second = send(&stage);
    remaining(&stage, "slow", 1).await;
    let third = send(&stage);
    remaining(&stage, "slow", 0).await;
    assert_eq!(statuses(&stage.get("/slow", "alice"), 1).await, [429]);

    second.abort();

    remaining(&stage, "slow", 1).await;
    let mut others = Vec::new();
    eventually("another has the place", async || {
        // A worker caches for a moment that no slot was free.
        others.push(send(&stage));
        let left = stage.inspect("slow", &[])["remaining"].as_u64();
        (left == Some(0)).then_some(())
    })
    .await;
    third.abort();
    others.iter().for_each(JoinHandle::abort);
    remaining(&stage, "slow", 2).await;
}
