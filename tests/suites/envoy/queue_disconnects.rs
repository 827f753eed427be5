//! Clients that disconnect while a queue holds their request.

use std::time::{Duration, Instant};

use harness::until;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::stage::{PATIENCE, Stage, eventually, limits, statuses};

/// One slot an hour, three of them at most.
const SLOW: &str = "{name: slow, match: {path: /slow}, algorithm: leaky_bucket, rate: 1/1h, \
                    burst: 3, over_limit: queue, max_delay: 1000h}";
const DAILY: &str = "{name: daily, match: {path: /slow}, rate: 1000/1d}";

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

#[tokio::test]
async fn a_request_refused_for_lack_of_a_place_is_charged_nowhere() {
    let stage = limits(&[SLOW, DAILY])
        .workers(1)
        .filter(|config| config["hold"] = json!({"max": 1}))
        .await;
    assert_eq!(statuses(&stage.get("/slow", "alice"), 1).await, [200]);
    let held = send(&stage);
    remaining(&stage, "daily", 998).await;

    assert_eq!(statuses(&stage.get("/slow", "alice"), 5).await, [429; 5]);

    remaining(&stage, "daily", 998).await;
    remaining(&stage, "slow", 1).await;
    held.abort();
}

/// The queue admits 20 requests a second; 29 clients a second arrive and wait for one second each.
/// Freed slots must keep the queue at its rate.
#[tokio::test]
async fn a_queue_serves_its_rate_though_clients_give_up() {
    let stage = limits(&[
        "{name: exports, algorithm: leaky_bucket, rate: 20/s, burst: 100, \
                         over_limit: queue, max_delay: 3s}",
    ])
    .await;
    let request = stage.get("/", "alice");
    let clients = tokio::spawn(async move {
        let mut beat = tokio::time::interval(Duration::from_micros(1_000_000 / 29));
        loop {
            beat.tick().await;
            let request = request.clone();
            tokio::spawn(async move {
                let _ = tokio::time::timeout(Duration::from_secs(1), request.send()).await;
            });
        }
    });
    let started = Instant::now();
    until("so many are served", 4 * PATIENCE, async || {
        (stage.upstream.requests() >= 240).then_some(())
    })
    .await
    .unwrap();
    clients.abort();
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{:.1} a second", 240.0 / seconds);
}
