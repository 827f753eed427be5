//! The basics: a limit holds exactly, and responses show it.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::stage::{at_once, eventually, header, limits, statuses};

const FIVE_AN_HOUR: &str = "{name: per-user, per: [user], rate: 5/1h}";

#[tokio::test]
async fn a_burst_passes_and_the_next_request_does_not() {
    let stage = limits(&[FIVE_AN_HOUR]).await;
    let before = stage.upstream.requests();
    let alice = stage.get("/", "alice");

    assert_eq!(
        statuses(&alice, 7).await,
        [200, 200, 200, 200, 200, 429, 429]
    );

    assert_eq!(
        stage.upstream.requests() - before,
        5,
        "a denied request reaches no one"
    );
    assert_eq!(
        stage.get("/", "bob").send().await.unwrap().status,
        200,
        "others have their own"
    );
}

#[tokio::test]
async fn many_requests_at_once_are_counted_exactly() {
    let stage = limits(&["{name: per-user, per: [user], rate: 20/1h}"]).await;

    assert_eq!(at_once(&stage.get("/", "alice"), 60).await, (20, 40));
}

#[tokio::test]
async fn two_envoys_share_one_bucket() {
    let stage = limits(&["{name: per-user, per: [user], rate: 20/1h}"])
        .envoys(2)
        .await;
    let requests = [0, 1].map(|n| stage.nth_envoy(n).get("/").header("x-user-id", "alice"));

    let [first, second] = &requests;
    let (one, two) = tokio::join!(at_once(first, 30), at_once(second, 30));

    assert_eq!((one.0 + two.0, one.1 + two.1), (20, 40));
}

#[tokio::test]
async fn an_allowed_answer_says_what_is_left() {
    let stage = limits(&["{name: per-user, per: [user], rate: 10/10s, burst: 20}"]).await;

    let reply = stage.get("/", "alice").send().await.unwrap();

    assert_eq!(reply.status, 200);
    assert_eq!(
        header(&reply, "ratelimit-policy"),
        r#""per-user";q=20;w=20"#
    );
    assert_eq!(header(&reply, "ratelimit"), r#""per-user";r=19;t=1"#);
    assert_eq!(header(&reply, "x-ratelimit-limit"), "20");
    assert_eq!(header(&reply, "x-ratelimit-remaining"), "19");
    assert_eq!(header(&reply, "x-ratelimit-reset"), "1");
    assert_eq!(reply.header("retry-after"), None);
    assert_eq!(reply.header("x-envoy-ratelimited"), None);
}

#[tokio::test]
async fn a_denial_says_why_and_when_to_come_back() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/100s}"]).await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 1).await, [200]);

    let reply = alice.send().await.unwrap();

    assert_eq!(reply.status, 429);
    assert_eq!(header(&reply, "retry-after"), "100");
    assert_eq!(header(&reply, "x-envoy-ratelimited"), "true");
    assert_eq!(header(&reply, "ratelimit"), r#""per-user";r=0;t=100"#);
    assert_eq!(header(&reply, "x-ratelimit-remaining"), "0");
    assert_eq!(header(&reply, "content-type"), "application/problem+json");
    let problem = reply.json().unwrap();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(
        problem["violated-policies"],
        serde_json::json!(["per-user"])
    );
}

/// Neither zone has daylight saving time; the midnight of one of them is not near.
#[tokio::test]
async fn a_calendar_limit_names_the_midnight_of_its_time_zone() {
    const DAY_S: u64 = 86_400;
    let to_midnight_s = |ahead_s: u64| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        DAY_S - (now.as_secs() + ahead_s) % DAY_S
    };
    let zones = [("Asia/Kathmandu", 20_700), ("Pacific/Tahiti", 50_400)];
    let (zone, ahead_s) = zones
        .into_iter()
        .find(|(_, ahead_s)| to_midnight_s(*ahead_s) > 600)
        .unwrap();
    let limit = format!("{{name: per-user, per: [user], rate: 1/day, time_zone: {zone}}}");
    let stage = limits(&[&limit]).await;
    let is_midnight = |seconds: &str| {
        let (expected, seconds) = (to_midnight_s(ahead_s), seconds.parse::<u64>().unwrap());
        // The time is rounded up, and the test may be slow.
        assert!(
            (expected..=expected + 5).contains(&seconds),
            "{seconds}, not {expected}"
        );
    };
    let alice = stage.get("/", "alice");
    let allowed = alice.send().await.unwrap();
    let denied = alice.send().await.unwrap();
    assert_eq!(
        (allowed.status.as_u16(), denied.status.as_u16()),
        (200, 429)
    );
    assert_eq!(
        header(&denied, "ratelimit-policy"),
        r#""per-user";q=1;w=86400"#
    );
    is_midnight(header(&allowed, "ratelimit").rsplit("t=").next().unwrap());
    is_midnight(header(&denied, "retry-after"));
    is_midnight(header(&denied, "x-ratelimit-reset"));
    let window = &stage.inspect("per-user", &["user=alice"])["window"];
    assert_eq!(window["time_zone"], zone);
    let ends = window["ends"].as_str().unwrap();
    assert!(ends.contains("T00:00:00"), "{ends}");
}

#[tokio::test]
async fn a_grpc_client_gets_a_grpc_status() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/1h}"]).await;
    let call = stage
        .get("/shop.Orders/List", "alice")
        .header("content-type", "application/grpc");
    call.send().await.unwrap();

    let reply = call.send().await.unwrap();

    assert_eq!(reply.status, 200);
    assert_eq!(header(&reply, "grpc-status"), "8", "RESOURCE_EXHAUSTED");
}

#[tokio::test]
async fn the_access_log_names_the_limit_and_the_source() {
    let stage = limits(&["{name: per-user, per: [user], rate: 1/1h}"])
        .access_log()
        .await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 2).await, [200, 429]);

    for details in [
        "rl_denied:per-user:limiter",
        "rl_denied:per-user:deny_cache",
    ] {
        let line = format!("access 429 {details} /");
        eventually(&format!("the log has `{line}`"), async || {
            assert_eq!(statuses(&alice, 1).await, [429]);
            stage.envoy().process().log().contains(&line).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_request_that_no_limit_matches_costs_nothing() {
    let stage = limits(&["{name: api, match: {path: /api/**}, rate: 1/1h}"]).await;
    let checks = stage.limiter_counter("rl_checks_total").await;

    assert_eq!(
        statuses(&stage.get("/static/logo.png", "alice"), 5).await,
        [200; 5]
    );

    assert_eq!(
        stage.limiter_counter("rl_checks_total").await,
        checks,
        "no round trip"
    );
}
