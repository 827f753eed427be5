//! Harmful input from clients.

use crate::stage::{limits, statuses};

const FIVE_AN_HOUR: &str = "{name: per-user, per: [user], rate: 5/1h}";

#[tokio::test]
async fn a_header_that_is_not_utf8_is_limited_like_any_other() {
    let stage = limits(&[FIVE_AN_HOUR]).await;
    let odd = stage.envoy().get("/").header("x-user-id", b"al\xffice");
    let other = stage.envoy().get("/").header("x-user-id", b"al\xfeice");

    assert_eq!(statuses(&odd, 6).await, [200, 200, 200, 200, 200, 429]);
    assert_eq!(
        statuses(&other, 1).await,
        [200],
        "another value is another bucket"
    );
    assert_eq!(
        statuses(&stage.get("/", "alice"), 1).await,
        [200],
        "and the filter still lives"
    );
}

#[tokio::test]
async fn all_spellings_of_a_path_share_one_limit() {
    let stage = limits(&["{name: orders, match: {path: /api/orders}, rate: 2/1h}"]).await;
    let mut allowed = 0;
    for path in [
        "/api/orders",
        "/api//orders",
        "/api/./orders",
        "/x/../api/orders?q=1",
    ] {
        let reply = stage.envoy().get(path).send().await.unwrap();
        allowed += usize::from(reply.status == 200);
    }
    assert_eq!(allowed, 2);
}

#[tokio::test]
async fn values_with_separators_do_not_meet_in_one_bucket() {
    let stage = limits(&["{name: pair, per: [tenant, user], rate: 1/1h}"]).await;
    for (tenant, user) in [
        ("a:b", "c"),
        ("a", "b:c"),
        ("a|b", "c"),
        ("{a}", "c"),
        ("a%3Ab", "c"),
    ] {
        let request = stage
            .envoy()
            .get("/")
            .header("x-tenant-id", tenant)
            .header("x-user-id", user);
        assert_eq!(statuses(&request, 2).await, [200, 429], "{tenant} {user}");
    }
}

#[tokio::test]
async fn a_client_cannot_choose_its_address() {
    let stage =
        limits(&["{name: addresses, match: {path: /}, per: [remote_address], rate: 2/1h}"]).await;
    let mut seen = Vec::new();
    for n in 0..3 {
        let address = format!("10.0.0.{n}");
        let request = stage.envoy().get("/").header("x-forwarded-for", address);
        seen.extend(statuses(&request, 1).await);
    }
    assert_eq!(seen, [200, 200, 429]);
}

#[tokio::test]
async fn very_long_and_very_many_headers_pass_or_are_refused_but_never_hang() {
    let stage = limits(&[FIVE_AN_HOUR]).await;
    let long = "x".repeat(50_000);
    let reply = stage.get("/", &long).send().await.unwrap();
    assert!(
        [200, 403, 429, 431].contains(&reply.status.as_u16()),
        "{}",
        reply.status
    );
    assert_eq!(
        statuses(&stage.get("/", "alice"), 1).await,
        [200],
        "and the filter still lives"
    );
}

#[tokio::test]
async fn an_upload_waits_for_its_decision_and_arrives_whole() {
    let stage = limits(&[FIVE_AN_HOUR]).await;
    let bytes = 8 * 1024 * 1024;
    let before = stage.upstream.body_bytes();
    let upload = stage
        .envoy()
        .post("/upload", vec![b'x'; bytes])
        .header("x-user-id", "alice");

    assert_eq!(upload.send().await.unwrap().status, 200);

    assert_eq!(stage.upstream.body_bytes() - before, bytes as u64);
}
