//! The same behaviour with every store.

use harness::Engine;

use crate::stage::{at_once, header, limits, statuses};

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
