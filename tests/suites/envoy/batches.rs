//! Checks travel together when there are many.

use crate::stage::{at_once, limits};

#[tokio::test]
async fn many_requests_at_once_share_round_trips() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1000/1h}"])
        .start()
        .await;
    let alice = stage.get("/", "alice");
    at_once(&alice, 20).await;
    let callouts = stage
        .envoy()
        .stat("cluster.limiter.upstream_rq_total")
        .await
        .unwrap();

    let (allowed, denied) = at_once(&alice, 200).await;

    assert_eq!((allowed, denied), (200, 0));
    let callouts = stage
        .envoy()
        .stat("cluster.limiter.upstream_rq_total")
        .await
        .unwrap()
        - callouts;
    assert!(callouts < 150, "{callouts} callouts for 200 checks");
}
