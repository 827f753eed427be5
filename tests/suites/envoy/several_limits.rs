//! Several limits on one request: all or nothing.

use crate::stage::{header, limits, statuses};

#[tokio::test]
async fn a_request_denied_by_one_limit_is_charged_to_no_other() {
    let stage = limits(&[
        "{name: everything, rate: 100/1h}",
        "{name: per-user, per: [user], rate: 3/1h}",
    ])
    .await;
    let used = stage.inspect("everything", &[])["used"].as_u64().unwrap();

    assert_eq!(statuses(&stage.get("/", "alice"), 10).await[3..], [429; 7]);

    assert_eq!(
        stage.inspect("everything", &[])["used"].as_u64().unwrap() - used,
        3
    );
    assert_eq!(stage.inspect("per-user", &["user=alice"])["used"], 3);
}

#[tokio::test]
async fn a_denial_names_only_the_limits_that_deny() {
    let stage = limits(&[
        "{name: everything, rate: 100/1h}",
        "{name: per-user, per: [user], rate: 1/1h}",
    ])
    .await;
    let alice = stage.get("/", "alice");
    assert_eq!(statuses(&alice, 1).await, [200]);

    let reply = alice.send().await.unwrap();

    assert_eq!(
        reply.json().unwrap()["violated-policies"],
        serde_json::json!(["per-user"])
    );
    assert!(header(&reply, "ratelimit-policy").contains("\"everything\";q=100"));
}

#[tokio::test]
async fn a_denial_shows_no_numbers_of_limits_that_pass_or_that_waiting_does_not_help() {
    let stage = limits(&[
        "{name: everything, rate: 100/1h}",
        "{name: secret, match: {path: /secret}, per: [user], rate: 1/1h, hidden: true}",
        "{name: dear, match: {path: /dear}, rate: 2/1h, cost: 3}",
    ])
    .await;
    let secret = stage.get("/secret", "alice");
    assert_eq!(statuses(&secret, 1).await, [200]);
    // By the limiter first, then by the cache.
    for _ in 0..2 {
        let reply = secret.send().await.unwrap();
        assert_eq!(reply.status, 429);
        assert!(header(&reply, "retry-after").parse::<u64>().unwrap() > 3000);
        for other in ["x-ratelimit-remaining", "x-ratelimit-reset", "ratelimit"] {
            assert_eq!(reply.header(other), None, "{other}");
        }
        assert_eq!(reply.json().unwrap().get("violated-policies"), None);
    }
    let reply = stage.get("/dear", "alice").send().await.unwrap();
    assert_eq!(reply.status, 429);
    assert_eq!(header(&reply, "ratelimit"), "\"dear\";r=2");
    assert_eq!(header(&reply, "x-ratelimit-limit"), "2");
    for absent in ["retry-after", "x-ratelimit-reset"] {
        assert_eq!(reply.header(absent), None, "{absent}");
    }
}
