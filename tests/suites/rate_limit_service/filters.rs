//! The answers that Envoy's clients get.

use harness::{Client, until};

use crate::stage::{PATIENCE, Stage};

const LIMITS: &str = "  - {name: limited, descriptor: [path=/limited, user], algorithm: fixed_window, rate: 2/365d}
  - {name: shadow, descriptor: [path=/shadow, user], algorithm: fixed_window, rate: 1/365d, enforce: 0%}
  - {name: tokens, descriptor: [path=/tokens, user], algorithm: fixed_window, rate: 1000/365d}
  - {name: connections, descriptor: [listener=tcp], algorithm: fixed_window, rate: 1/365d}
";

#[tokio::test]
async fn a_request_over_the_limit_is_denied_by_envoy() {
    let stage = Stage::with(LIMITS).await;
    stage.healthy_becomes(1).await;
    let get = || stage.envoy.get("/limited").header("x-user", "alice");
    for left in ["1", "0"] {
        let passed = get().send().await.unwrap();
        assert_eq!(passed.status, 200);
        assert_eq!(
            passed.header("x-ratelimit-remaining"),
            Some(left),
            "{:?}",
            passed.headers
        );
    }
    let denied = get().send().await.unwrap();
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let other = stage.envoy.get("/limited").header("x-user", "bob");
    assert_eq!(other.send().await.unwrap().status, 200);
    // A request without a descriptor has no limit.
    assert_eq!(stage.envoy.get("/other").send().await.unwrap().status, 200);
    assert_eq!(
        stage
            .envoy
            .stat("cluster.upstream.ratelimit.over_limit")
            .await
            .unwrap(),
        1
    );
    assert_eq!(
        stage
            .envoy
            .stat("cluster.upstream.ratelimit.ok")
            .await
            .unwrap(),
        3
    );
}

/// Envoy's header has no parts of a second.
#[tokio::test]
async fn a_denial_does_not_say_that_its_wait_is_over() {
    let limits = "  - {name: second, descriptor: [path=/limited, user], rate: 1/1s, burst: 1}\n";
    let stage = Stage::with(limits).await;
    stage.healthy_becomes(1).await;
    let get = || stage.envoy.get("/limited").header("x-user", "alice");
    until("a request is denied", PATIENCE, async || {
        let reply = get().send().await.ok()?;
        assert_eq!(
            reply.header("x-ratelimit-reset"),
            Some("1"),
            "{:?}",
            reply.headers
        );
        (reply.status == 429).then_some(())
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_shadow_limit_lets_requests_pass() {
    let stage = Stage::with(LIMITS).await;
    for _ in 0..3 {
        let get = stage.envoy.get("/shadow").header("x-user", "alice");
        assert_eq!(get.send().await.unwrap().status, 200);
    }
    assert_eq!(stage.upstream.requests(), 3);
    let page = stage.limiter.as_ref().unwrap().admin_url() + "/metrics";
    let page = Client::new().get(&page).send().await.unwrap().text();
    let counted = "limit=\"shadow\",decision=\"would_deny\"} 2";
    assert!(page.contains(counted), "{page}");
}

#[tokio::test]
async fn the_cost_of_a_response_is_charged_when_it_ends() {
    let stage = Stage::with(LIMITS).await;
    stage.upstream.answer_with(&[("x-cost", "1200")]);
    let get = || stage.envoy.get("/tokens").header("x-user", "alice");
    assert_eq!(get().send().await.unwrap().status, 200);
    // Envoy reports after the response has ended, and the response does not wait for that.
    until("the next request is denied", PATIENCE, async || {
        let reply = get().send().await.ok()?;
        (reply.status == 429).then_some(())
    })
    .await
    .unwrap();
    let other = stage.envoy.get("/tokens").header("x-user", "bob");
    assert_eq!(other.send().await.unwrap().status, 200);
}

#[tokio::test]
async fn without_the_limiter_requests_pass_or_fail_as_configured() {
    let mut stage = Stage::with(LIMITS).await;
    stage.healthy_becomes(1).await;
    let plan = stage.stop_limiter().await;
    for _ in 0..3 {
        let passed = stage.envoy.get("/limited").header("x-user", "alice");
        assert_eq!(passed.send().await.unwrap().status, 200);
        let refused = stage.strictly("/limited").header("x-user", "alice");
        assert_eq!(refused.send().await.unwrap().status, 500);
    }
    stage.limiter = Some(plan.start().await.unwrap());
    stage.healthy_becomes(1).await;
    let decided = stage.strictly("/limited").header("x-user", "alice");
    let decided = decided.send().await.unwrap();
    assert_eq!(decided.status, 200);
    assert_eq!(decided.header("x-ratelimit-remaining"), Some("1"));
}

#[tokio::test]
async fn connections_are_limited_by_the_network_filter() {
    let stage = Stage::with(LIMITS).await;
    let url = format!("http://127.0.0.1:{}/", stage.network);
    let first = Client::new().get(&url).send().await.unwrap();
    assert_eq!(first.status, 200);
    let second = Client::new().get(&url).send().await;
    assert!(second.is_err(), "{second:?}");
    assert_eq!(
        stage.envoy.stat("ratelimit.tcp.over_limit").await.unwrap(),
        1
    );
}
