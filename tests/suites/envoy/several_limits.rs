//! Several limits on one request: all or nothing.

use crate::stage::{header, limits, statuses};

#[tokio::test]
async fn a_request_denied_by_one_limit_is_charged_to_no_other() {
    let stage = limits(&[
        "{name: everything, rate: 100/1h}",
        "{name: per-user, per: [user], rate: 3/1h}",
    ])
    .start()
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
    .start()
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
