//! Reactions to a request over a limit other than denial: shadow, degrade, queue.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::stage::{alone, at_once, eventually, limits, statuses};

#[tokio::test]
async fn a_shadow_limit_reports_and_lets_pass() {
    let stage = limits(&["{name: trial, match: {path: /}, rate: 2/1h, enforce: 0%}"]).await;

    assert_eq!(statuses(&stage.get("/", "alice"), 7).await, [200; 7]);

    let name = "wasmcustom.rl_decisions.would_deny.limiter.trial";
    eventually("five are reported", async || {
        (stage.envoy().stat(name).await.unwrap() == 5).then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_service_gets_a_header_over_a_degrading_limit() {
    let stage = limits(&["{name: search, per: [user], rate: 2/1h, over_limit: degrade}"]).await;
    let alice = stage
        .get("/search", "alice")
        .header("x-ratelimit-degraded", "forged");
    let mut degraded_by = Vec::new();
    for _ in 0..4 {
        assert_eq!(alice.send().await.unwrap().status, 200);
        let headers = stage.upstream.last_headers();
        let values = headers.get_all("x-ratelimit-degraded").iter();
        let values: Vec<&str> = values.map(|value| value.to_str().unwrap()).collect();
        degraded_by.push(values.join("|"));
    }
    assert_eq!(degraded_by, ["", "", "search", "search"]);
}

/// By exactly the routes of envoy.yaml.
#[tokio::test]
async fn a_request_over_a_degrading_limit_gets_the_degraded_route() {
    let stage =
        limits(&["{name: recommended, per: [user], rate: 2/1h, over_limit: degrade}"]).await;
    let answers = async |path: &str, user: &str| {
        let request = stage
            .get(path, user)
            .header("x-ratelimit-degraded", "forged");
        let mut answers = Vec::new();
        for _ in 0..4 {
            let reply = request.send().await.unwrap();
            assert_eq!(reply.status, 200);
            let text = String::from_utf8(reply.body.to_vec()).unwrap();
            answers.push(text == r#"{"items":[]}"#);
        }
        answers
    };
    // Also a client that marks its request itself gets the service's answer.
    let marked = answers("/recommendations/42?page=1", "alice").await;
    assert_eq!(marked, [false, false, true, true]);
    assert_eq!(stage.upstream.requests_for("/recommendations/42?page=1"), 2);
    assert_eq!(answers("/recommendations-of-bob", "bob").await, [false; 4]);
}

const QUEUE: &str = "{name: exports, match: {path: /export}, algorithm: leaky_bucket, rate: 5/s, \
                     burst: 10, over_limit: queue, max_delay: 5s}";

#[tokio::test]
async fn requests_in_a_queue_start_one_after_the_other() {
    let stage = limits(&[QUEUE]).await;
    let started = Instant::now();

    let (passed, denied) = at_once(&stage.get("/export", "alice"), 12).await;

    assert_eq!(
        (passed, denied),
        (10, 2),
        "ten fit, the one that starts included"
    );
    // The tenth request starts nine slots after the first.
    assert!(started.elapsed() >= Duration::from_millis(1_800));
}

#[tokio::test]
async fn an_upload_in_a_queue_reaches_the_service_when_its_turn_has_come() {
    let stage = limits(&[QUEUE]).await;
    assert_eq!(statuses(&stage.get("/export", "alice"), 1).await, [200]);
    let bytes = 4 << 20;
    let upload = stage.envoy().post("/export", vec![b'x'; bytes]);
    let (before, requests) = (stage.upstream.body_bytes(), stage.upstream.requests());

    let reply = tokio::spawn(async move { upload.send().await.unwrap() });
    // The request is held: neither its head nor its body has reached the service.
    assert_eq!(stage.upstream.requests(), requests);
    let reply = reply.await.unwrap();

    assert_eq!(reply.status, 200);
    assert!(
        reply.took >= Duration::from_millis(150),
        "{} ms",
        reply.took.as_millis()
    );
    assert_eq!(stage.upstream.body_bytes() - before, bytes as u64);
}

/// One slot an hour: every later request is held for longer than the test.
const NEVER: &str = "{name: slow, match: {path: /slow}, algorithm: leaky_bucket, rate: 1/1h, \
                     burst: 1000, over_limit: queue, max_delay: 1000h, scope: proxy}";

#[tokio::test]
async fn held_requests_are_bounded_and_one_that_leaves_makes_room() {
    let stage = alone(&[NEVER])
        .workers(1)
        .filter(|config| config["hold"] = json!({"max": 3}))
        .await;
    let alice = stage.get("/slow", "alice");
    assert_eq!(
        statuses(&alice, 1).await,
        [200],
        "the first goes on at once"
    );
    let send = || {
        let alice = alice.clone();
        tokio::spawn(async move { alice.send().await })
    };
    let held = [send(), send(), send()];
    let full = "wasmcustom.rl_hold_full";
    eventually("three are held, and no more", async || {
        active(&stage).await.ge(&3).then_some(())
    })
    .await;
    assert_eq!(statuses(&alice, 2).await, [429, 429]);
    eventually("it is counted", async || {
        (stage.envoy().stat(full).await.unwrap() == 2).then_some(())
    })
    .await;

    for request in held {
        request.abort();
    }
    eventually("they have gone", async || {
        (active(&stage).await == 0).then_some(())
    })
    .await;

    let again = send();
    eventually("another is held", async || {
        (active(&stage).await == 1).then_some(())
    })
    .await;
    again.abort();
}

/// The number of requests that clients wait for.
async fn active(stage: &crate::stage::Stage) -> u64 {
    let name = "http.ingress.downstream_rq_active";
    stage.envoy().stat(name).await.unwrap()
}
