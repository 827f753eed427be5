//! Claims with line breaks, paths in other clothes, addresses that are none.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::stage::{alone, limits, statuses};

/// What a verified token may claim, as Lua writes it.
const SUBJECTS: [&str; 16] = [
    r"'alice\r\nx-injected: yes\r\n\r\nHTTP/1.1 200 OK\r\n\r\n'",
    r"'\0\1\2\255'",
    "string.rep('x', 200000)",
    "''",
    "true",
    "-0.5",
    "1e300",
    "0/0",
    "{nested = {deep = 'yes'}}",
    "nil",
    // Text of eight bytes, as numbers have them.
    r"'abcdefg\n'",
    r"'\255\255\255\255\255\255\255\255'",
    r"'\194\133abcdef'",
    "100",
    "2^63",
    "{'admin', 'dev'}",
];

/// Writes the claim that a request asks for by number.
fn claims() -> Value {
    let mut cases = String::new();
    for (n, subject) in SUBJECTS.iter().enumerate() {
        writeln!(cases, "if case == '{n}' then claims.sub = {subject} end").unwrap();
    }
    let code = format!(
        "function envoy_on_request(handle)
           local case, claims = handle:headers():get('x-case'), {{sub = nil}}
           {cases}
           handle:streamInfo():dynamicMetadata():set('jwt', 'payload', claims)
         end"
    );
    json!({
        "name": "claims",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": code}
        }
    })
}

#[tokio::test]
async fn claims_of_any_kind_are_counted_and_split_no_answer() {
    let stage = limits(&["{name: per-subject, per: [subject, case], rate: 2/1h}"])
        .in_memory()
        .filter(|config| {
            let sources = [
                json!({"key": "subject", "metadata": ["jwt", "payload", "sub"]}),
                json!({"key": "case", "header": "x-case"}),
            ];
            config["descriptors"]
                .as_array_mut()
                .unwrap()
                .extend(sources);
        })
        .after(claims())
        .start()
        .await;
    let mut client = stage.raw();
    for (n, subject) in SUBJECTS.iter().enumerate() {
        let case = format!("x-case: {n}");
        let mut seen = Vec::new();
        for _ in 0..3 {
            let reply = client.get(b"/", &[case.as_bytes()]).await;
            let reply = reply.unwrap().unwrap();
            assert!(reply.header("x-injected").is_empty(), "{subject}");
            seen.push(reply.status);
        }
        assert_eq!(seen, [200, 200, 429], "{subject}");
    }
}

#[tokio::test]
async fn whoever_makes_a_claim_is_not_skipped() {
    let limit =
        "{name: per-subject, per: [subject, case], if_missing: skip, rate: 1/1h, scope: proxy}";
    let stage = alone(&[limit])
        .filter(|config| {
            let sources = [
                json!({"key": "subject", "metadata": ["jwt", "payload", "sub"]}),
                json!({"key": "case", "header": "x-case"}),
            ];
            let all = config["descriptors"].as_array_mut().unwrap();
            all.extend(sources);
        })
        .after(claims())
        .start()
        .await;
    let mut client = stage.raw();
    for (n, subject) in SUBJECTS.iter().enumerate() {
        let case = format!("x-case: {n}");
        let mut seen = Vec::new();
        for _ in 0..2 {
            let reply = client.get(b"/", &[case.as_bytes()]).await;
            seen.push(reply.unwrap().unwrap().status);
        }
        let second = if *subject == "nil" { 200 } else { 429 };
        assert_eq!(seen, [200, second], "{subject}");
    }
}

/// Claims, and the text that each is to limits.
fn kinds() -> Vec<(Value, &'static str)> {
    vec![
        (json!("gold"), "gold"),
        (json!(""), ""),
        (json!("alice123"), "alice123"),
        (json!("abcdefg\n"), "abcdefg\n"),
        (json!("\u{85}abcdef"), "\u{85}abcdef"),
        (json!("\0\0\0\0\0\0Y@"), "\0\0\0\0\0\0Y@"),
        (json!("\u{1}"), "\u{1}"),
        (json!(100), "100"),
        (json!(-0.5), "0xbfe0000000000000"),
        (json!(9_223_372_036_854_775_808_u64), "9223372036854775808"),
        (json!(1e300), "0x7e37e43c8800759c"),
        (json!(true), "true"),
        (json!(["a", null, 2]), "[\"a\",null,2]"),
        (
            json!({"b": [], "a": {"c": "d"}}),
            "{\"a\":{\"c\":\"d\"},\"b\":[]}",
        ),
    ]
}

#[tokio::test]
async fn claims_of_every_kind_are_the_text_that_the_manual_says() {
    let mut claims = serde_json::Map::new();
    let (mut limits, mut sources) = (Vec::new(), Vec::new());
    for (n, (claim, text)) in kinds().into_iter().enumerate() {
        let key = format!("claim-{n}");
        let conditions = json!({"path": format!("/{n}"), &key: format!("exact:{text}")});
        let limit = json!({"name": key, "match": conditions, "rate": "1/1h", "scope": "proxy"});
        limits.push(limit.to_string());
        sources.push(json!({"key": key, "metadata": ["jwt", "payload", key]}));
        claims.insert(key, claim);
    }
    let metadata = json!({"metadata_namespace": "jwt", "value": {"payload": claims}});
    let set = "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config";
    let limits: Vec<&str> = limits.iter().map(String::as_str).collect();
    let stage = alone(&limits)
        .filter(move |config| {
            let all = config["descriptors"].as_array_mut().unwrap();
            all.extend(sources.clone());
        })
        .after(json!({
            "name": "envoy.filters.http.set_metadata",
            "typed_config": {"@type": set, "metadata": [metadata]},
        }))
        .start()
        .await;
    let mut client = stage.raw();
    for (n, (claim, _)) in kinds().iter().enumerate() {
        let path = format!("/{n}");
        for expected in [200, 429] {
            let reply = client.get(path.as_bytes(), &[]).await.unwrap().unwrap();
            assert_eq!(reply.status, expected, "{claim}");
        }
    }
}

#[tokio::test]
async fn a_path_reaches_the_service_only_as_it_was_counted() {
    let stage = alone(&["{name: orders, match: {path: /api/orders}, rate: 2/1h, scope: proxy}"])
        .start()
        .await;
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
    // Another path: a pattern that ignores case is for it.
    assert_eq!(stage.upstream.requests_for("/API/orders"), 1);
}

#[tokio::test]
async fn nobody_passes_for_the_filter_on_its_way_to_the_limiter() {
    let stage = alone(&["{name: everything, rate: 1/1h, scope: proxy}"])
        .start()
        .await;
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
async fn where_the_host_is_trusted_the_calls_of_filters_pass_and_nothing_else() {
    let stage = alone(&["{name: everything, rate: 1/1h, scope: proxy}"])
        .filter(|config| {
            config["limiter"]["authority"] = json!("limiter");
            config["limiter"]["trust_host"] = json!(true);
        })
        .start()
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
    // The limiter's own sidecar sees the calls themselves, and lets them in.
    for target in ["/v1/check", "/v1/policy", "/v1/policy?domain=shop&proxy=a"] {
        let reply = client.get(target.as_bytes(), &[b"host: limiter"]).await;
        assert_eq!(reply.unwrap().unwrap().status, 200, "{target}");
    }
    let reply = client.get(b"/v1/check", &[b"host: shop.example"]).await;
    assert_eq!(reply.unwrap().unwrap().status, 429);
}

const PER_ADDRESS: &str = "{name: addresses, per: [remote_address], rate: 2/1h, scope: proxy}";

/// Lines that claim other addresses.
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
async fn no_header_is_another_address() {
    let stage = alone(&[PER_ADDRESS]).start().await;
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
async fn behind_a_trusted_proxy_only_its_word_counts() {
    let stage = alone(&[PER_ADDRESS])
        .config(|config| {
            config
                .manager_edit(|manager| manager["xff_num_trusted_hops"] = json!(1))
                .unwrap()
        })
        .start()
        .await;
    let mut client = stage.raw();
    let mut statuses = Vec::new();
    for forged in ["1.1.1.1", "2.2.2.2", "3.3.3.3", "garbage", ""] {
        // The proxy in front appends whom it saw.
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
async fn a_client_cannot_mark_its_own_requests() {
    let stage = alone(&[]).start().await;
    let mut client = stage.raw();
    let forged: &[&[u8]] = &[b"x-ratelimit-degraded: gold", b"X-RateLimit-Degraded: gold"];
    assert_eq!(client.get(b"/", forged).await.unwrap().unwrap().status, 200);
    assert_eq!(
        stage.upstream.last_headers().get("x-ratelimit-degraded"),
        None
    );
    assert_eq!(statuses(&stage.get("/", "alice"), 1).await, [200]);
}
