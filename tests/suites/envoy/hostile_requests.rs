//! Paths in many spellings, forged addresses, and requests that pose as the filter's calls.

use serde_json::json;

use crate::stage::{alone, limits, statuses};

#[tokio::test]
async fn a_path_reaches_the_service_only_as_it_was_counted() {
    let stage =
        alone(&["{name: orders, match: {path: /api/orders}, rate: 2/1h, scope: proxy}"]).await;
    let mut client = stage.raw();
    for target in [
        "/api/orders",
        "/%61pi/orders",
        "//api/orders",
        "/api//orders",
        "/api/./orders",
        "/api/x/../orders",
        "/x/%2e%2e/api/orders",
        "/x/.%2E/api/orders",
        "/api\\orders",
        "/api%2forders",
        "/api%5Corders",
        "/api/orders?",
        "/api/orders?a=/../..",
        "http://elsewhere.example/api/orders",
        "/.;/api/orders",
        "/api/orders%00",
        "/api/orders#top",
        "/api/orders%23top",
        "/API/orders",
        "/api/orders/",
        "/api/orders;v=1",
        "/api/orders%20",
    ] {
        client.get(target.as_bytes(), &[]).await.unwrap();
    }
    let reached = [
        "/api/orders",
        "/api/orders?",
        "/api/orders?a=/../..",
        "/api/orders/",
        "/api/orders;v=1",
        "/api/orders%20",
    ];
    let reached: u64 = reached
        .iter()
        .map(|path| stage.upstream.requests_for(path))
        .sum();
    assert_eq!(reached, 2, "whatever spelling it came in");
    // A different path; only a pattern that ignores case matches it.
    assert_eq!(stage.upstream.requests_for("/API/orders"), 1);
}

#[tokio::test]
async fn clients_cannot_impersonate_the_filters_calls() {
    let stage = alone(&["{name: everything, rate: 1/1h, scope: proxy}"]).await;
    let mut client = stage.raw();
    let mut statuses = Vec::new();
    for target in [
        "/",
        "/v1/check",
        "/v1/report",
        "/v1/policy?domain=shop&proxy=a",
    ] {
        let reply = client.get(target.as_bytes(), &[b"host: limiter"]).await;
        statuses.push(reply.unwrap().unwrap().status);
    }
    assert_eq!(statuses, [200, 429, 429, 429]);
}

#[tokio::test]
async fn with_trust_host_only_the_filters_calls_pass() {
    let stage = alone(&["{name: everything, rate: 1/1h, scope: proxy}"])
        .filter(|config| {
            config["limiter"]["authority"] = json!("limiter");
            config["limiter"]["trust_host"] = json!(true);
        })
        .await;
    let mut client = stage.raw();
    let mut statuses = Vec::new();
    for target in [
        "/v1/policyholders",
        "/v1/policy/../../api",
        "/v1/policy/x",
        "/v1/check/x",
        "/v1/checkout",
        "/v1/check?x",
    ] {
        let reply = client.get(target.as_bytes(), &[b"host: limiter"]).await;
        statuses.push(reply.unwrap().unwrap().status);
    }
    assert_eq!(statuses, [200, 429, 429, 429, 429, 429]);
    // The limiter's own sidecar receives these calls, and passes them on.
    for target in ["/v1/check", "/v1/policy", "/v1/policy?domain=shop&proxy=a"] {
        let reply = client.get(target.as_bytes(), &[b"host: limiter"]).await;
        assert_eq!(reply.unwrap().unwrap().status, 200, "{target}");
    }
    let reply = client.get(b"/v1/check", &[b"host: shop.example"]).await;
    assert_eq!(reply.unwrap().unwrap().status, 429);
}

const PER_ADDRESS: &str = "{name: addresses, per: [remote_address], rate: 2/1h, scope: proxy}";

/// Headers that claim another address.
const CLAIMS: [&str; 9] = [
    "x-forwarded-for: 10.0.0.1",
    "x-forwarded-for: 10.0.0.2, 10.0.0.3",
    "x-forwarded-for: ::1",
    "x-forwarded-for: 999.999.999.999",
    "x-forwarded-for: , , ,",
    "x-forwarded-for: \u{1F600}",
    "x-real-ip: 10.0.0.4",
    "forwarded: for=10.0.0.5",
    "x-envoy-external-address: 10.0.0.6",
];

#[tokio::test]
async fn headers_do_not_change_the_clients_address() {
    let stage = alone(&[PER_ADDRESS]).await;
    let mut client = stage.raw();
    let mut statuses = Vec::new();
    for line in CLAIMS {
        let reply = client.get(b"/", &[line.as_bytes()]).await.unwrap();
        statuses.push(reply.unwrap().status);
    }
    let long = format!("x-forwarded-for: {}", "10.0.0.1,".repeat(5_000));
    let reply = client.get(b"/", &[long.as_bytes()]).await.unwrap();
    statuses.extend(reply.map(|reply| reply.status));
    assert_eq!(statuses[..2], [200, 200]);
    assert!(statuses[2..].iter().all(|&s| s == 429), "{statuses:?}");
}

#[tokio::test]
async fn behind_a_trusted_proxy_only_its_header_counts() {
    let stage = alone(&[PER_ADDRESS])
        .config(|config| {
            config
                .manager_edit(|manager| manager["xff_num_trusted_hops"] = json!(1))
                .unwrap()
        })
        .await;
    let mut client = stage.raw();
    let mut statuses = Vec::new();
    for forged in ["1.1.1.1", "2.2.2.2", "3.3.3.3", "garbage", ""] {
        // The proxy in front appends the client's address.
        let line = format!("x-forwarded-for: {forged}, 203.0.113.7");
        let reply = client.get(b"/", &[line.as_bytes()]).await.unwrap();
        statuses.push(reply.unwrap().status);
    }
    assert_eq!(statuses, [200, 200, 429, 429, 429]);
    let line = b"x-forwarded-for: 203.0.113.8";
    let reply = client.get(b"/", &[line]).await.unwrap().unwrap();
    assert_eq!(reply.status, 200, "another client");
}

#[tokio::test]
async fn one_ipv6_address_is_banned_or_exempt_and_its_network_has_one_bucket() {
    let stage = limits(&[
        "{name: addresses, per: [remote_address], rate: 2/1h}",
        "{name: banned, match: {remote_address: \"2001:db8::bad\"}, algorithm: fixed_window, rate: 0/1d}",
    ])
    .config(|config| {
        config
            .manager_edit(|manager| manager["xff_num_trusted_hops"] = json!(1))
            .unwrap()
    })
    .await;
    let exempt = ["--match", "remote_address=2001:db8::7", "--wait=20s"];
    stage.rlctl(&[&["set-exemption", "monitor"], &exempt[..]].concat());
    let mut client = stage.raw();
    let mut statuses = Vec::new();
    for host in ["bad", "1", "2", "3", "7", "7", "7"] {
        let line = format!("x-forwarded-for: 2001:db8::{host}");
        let reply = client.get(b"/", &[line.as_bytes()]).await.unwrap();
        statuses.push(reply.unwrap().status);
    }
    assert_eq!(statuses, [429, 200, 200, 429, 200, 200, 200]);
    // Whichever of its addresses names the bucket.
    let bucket = "remote_address=2001:db8::1234";
    assert_eq!(stage.inspect("addresses", &[bucket])["remaining"], 0);
    stage.rlctl(&["reset", "addresses", bucket, "--yes", "--wait=20s"]);
    let line = b"x-forwarded-for: 2001:db8::3";
    assert_eq!(
        client.get(b"/", &[line]).await.unwrap().unwrap().status,
        200
    );
}

#[tokio::test]
async fn a_client_cannot_mark_its_own_requests() {
    let stage = alone(&[]).await;
    let mut client = stage.raw();
    let forged: &[&[u8]] = &[b"x-ratelimit-degraded: gold", b"X-RateLimit-Degraded: gold"];
    assert_eq!(client.get(b"/", forged).await.unwrap().unwrap().status, 200);
    assert_eq!(
        stage.upstream.last_headers().get("x-ratelimit-degraded"),
        None
    );
    assert_eq!(statuses(&stage.get("/", "alice"), 1).await, [200]);
}
