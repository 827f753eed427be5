//! Answers to valid and invalid requests.

use anyhow::{Context, Result};
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use protocol::LIMITS_CBOR;
use serde_json::json;

use crate::support::{PER_USER, Service, compact};

#[tokio::test]
async fn every_wrong_request_gets_its_error() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let table = r#"
        {"descriptor": {"User": "a"}} => 400 invalid_request descriptor.User
        {"descriptor": {"user": "a"}, "cost": -1} => 400 invalid_request cost
        {"descriptor": {"user": "a"}, "cots": 1} => 400 invalid_request cots
        {} => 400 invalid_request descriptor
        {"domain": "nowhere", "descriptor": {"user": "a"}} => 404 unknown_domain domain
        {"descriptor": {"user": "a"}, "limits": ["nope"]} => 404 unknown_limit"#;
    for line in table.trim().lines() {
        let (fields, expected) = line.split_once(" => ").context("a row")?;
        let reply = service.ask(serde_json::from_str(fields)?).await?;
        let error = reply.json()?["error"].clone();
        let text = |field: &str| error[field].as_str().unwrap_or_default().to_owned();
        let found = format!(
            "{} {} {}",
            reply.status.as_u16(),
            text("code"),
            text("field")
        );
        assert_eq!(found.trim_end(), expected, "{line}: {error}");
        assert_ne!(text("message"), "", "{line}");
        assert_eq!(reply.header("x-rl-api"), Some("1"), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn unknown_paths_methods_encodings_and_parameters_are_refused() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let get = |path| service.get(path);
    let post = |path| service.post(path, "{}");
    let xml = post("/v1/check").header("content-type", "application/xml");
    let (invalid, not_allowed) = ("invalid_request", "method_not_allowed");
    let cases = [
        (get("/"), 404, "not_found"),
        (get("/v1/check"), 405, not_allowed),
        (post("/v1/policy"), 405, not_allowed),
        (get("/v1/policy"), 400, invalid),
        (get("/v1/policy?domain=A"), 400, invalid),
        (get("/v1/policy?domain=nowhere"), 404, "unknown_domain"),
        (post("/v1/check?deny_status=418"), 400, invalid),
        (post("/v1/check?deny=429"), 400, invalid),
        (xml, 415, "unsupported_media_type"),
    ];
    for (request, status, code) in cases {
        let reply = request.send().await?;
        assert_eq!(reply.json()?["error"]["code"], code, "{request:?}");
        assert_eq!(reply.status, status, "{request:?}");
        assert_eq!(reply.header("x-rl-api"), Some("1"));
    }
    Ok(())
}

#[tokio::test]
async fn another_method_is_answered_with_those_of_the_path() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let stream = || service.get(protocol::CHECK_STREAM);
    let grpc = stream().header("content-type", "application/grpc");
    for (request, allowed) in [
        (service.get("/v1/check"), "POST"),
        (stream(), "POST"),
        (grpc, "POST"),
        (service.post("/v1/policy", ""), "GET, HEAD"),
        (service.post("/v1/health", ""), "GET"),
    ] {
        let reply = request.send().await?;
        assert_eq!(reply.status, 405, "{request:?}");
        assert_eq!(reply.header("allow"), Some(allowed), "{request:?}");
        assert_eq!(reply.json()?["error"]["code"], "method_not_allowed");
    }
    Ok(())
}

/// Random bytes, almost valid requests, and damaged ones.
fn garbage() -> impl Strategy<Value = Vec<u8>> {
    let compact = compact("p", &["alice", "bob"]);
    let json = br#"{"domain":"shop","checks":[{"descriptor":{"user":"alice"},"cost":1}]}"#.to_vec();
    let damaged = (
        prop_oneof![Just(compact), Just(json)],
        any::<prop::sample::Index>(),
        any::<u8>(),
        0..3_usize,
    );
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        damaged.prop_map(|(mut bytes, at, byte, how)| {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => bytes.truncate(at),
                _ => bytes.insert(at, byte),
            }
            bytes
        }),
    ]
}

#[test]
fn arbitrary_bytes_get_a_decision_or_a_client_error() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let service = runtime.block_on(Service::with(PER_USER))?;
    let mut runner = TestRunner::new(Config {
        cases: 400,
        failure_persistence: None,
        ..Config::default()
    });
    let media = prop_oneof![Just(protocol::CHECK_JSON), Just(protocol::CHECK_CBOR)];
    runner.run(&(garbage(), media), |(body, media)| {
        let request = service
            .post("/v1/check", body)
            .header("content-type", media);
        let reply = runtime
            .block_on(request.send())
            .map_err(|error| TestCaseError::fail(format!("{error:#}")))?;
        let known = matches!(reply.status.as_u16(), 200 | 400 | 404);
        prop_assert!(known, "{} {}", reply.status, reply.text());
        Ok(())
    })?;
    Ok(())
}

#[tokio::test]
async fn a_denial_is_200_unless_429_is_asked_for() -> Result<()> {
    let service = Service::with("  - {name: per-user, per: [user], rate: 1/2500ms}\n").await?;
    let body = r#"{"domain":"shop","descriptor":{"user":"a"}}"#;
    let (plain, chosen) = ("/v1/check", "/v1/check?deny_status=429");
    let never = r#"{"domain":"shop","descriptor":{"user":"a"},"cost":2}"#;
    let mut replies = Vec::new();
    for (path, body, status, retry) in [
        (chosen, body, 200, None),
        (plain, body, 200, None),
        (chosen, body, 429, Some("3")),
        (chosen, never, 429, None),
    ] {
        let reply = service.post(path, body).send().await?;
        assert_eq!(reply.status, status, "{path}");
        if path == chosen {
            assert_eq!(reply.header("retry-after"), retry, "{body}");
        }
        replies.push(reply.json()?);
    }
    assert_eq!(replies[1]["allowed"], false);
    assert_eq!(replies[3]["retry_after_ms"], -1);
    Ok(())
}

#[tokio::test]
async fn a_check_that_must_match_is_refused_if_nothing_does() -> Result<()> {
    let service = Service::with("  - {name: api, match: {path: /api}, rate: 1/s}\n").await?;
    let loose = service.ask(json!({"descriptor": {"path": "/"}})).await?;
    assert_eq!(loose.json()?["matched"], 0);
    let strict = json!({"descriptor": {"path": "/"}, "require_match": true});
    let reply = service.ask(strict).await?;
    assert_eq!(reply.status, 404);
    assert_eq!(reply.json()?["error"]["code"], "no_match");
    let unmatched = "rl_unmatched_total{domain=\"shop\"}";
    assert_eq!(service.metric(unmatched).await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_batch_returns_an_answer_or_an_error_for_each_check() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let checks = json!([
        {"descriptor": {"user": "a"}},
        {"descriptor": {"user": "a"}, "limits": ["nope"]},
        {"descriptor": {"user": "a"}, "cost": 0},
    ]);
    let reply = service.ask(json!({"checks": checks})).await?;
    assert_eq!(reply.status, 200);
    let results = reply.json()?["results"].clone();
    assert_eq!(results[0]["remaining"], 9);
    assert_eq!(results[1]["error"]["code"], "unknown_limit");
    assert_eq!(results[2]["remaining"], 9);
    Ok(())
}

#[tokio::test]
async fn a_snapshot_is_sent_once_per_revision_and_without_accept_as_a_limits_file() -> Result<()> {
    let limits = "  - {name: per-user, description: d, per: [user], rate: 1/s, overrides: \
                  [{values: {user: x}, unlimited: true}]}\n";
    let service = Service::with(limits).await?;
    let path = "/v1/policy?domain=shop&proxy=p1&of_a_later_version=1";
    let first = service.get(path).send().await?;
    let etag = first.header("etag").unwrap_or_default().to_owned();
    assert_eq!(first.header("x-rl-revision"), Some("1"));
    let file = format!("domain: shop\nlimits:\n{limits}");
    let mut expected = limits_file::read("shop.yaml", file.as_bytes())?;
    expected.limits[0].overrides.clear();
    assert_eq!(limits_file::read("answer", &first.body)?, expected);
    let compact = service.get(path).header("accept", LIMITS_CBOR);
    let compact = compact.send().await?;
    assert_eq!(compact.header("content-type"), Some(LIMITS_CBOR));
    assert_eq!(compact.header("etag"), Some(etag.as_str()));
    let read = policy::Compiled::from_snapshot(&compact.body)?;
    assert_eq!(read.limits().len(), 1);
    for (has, status) in [
        (etag.clone(), 304),
        (format!("\"other\", W/{etag}"), 304),
        ("*".to_owned(), 304),
        ("\"other\"".to_owned(), 200),
    ] {
        let asked = service.get(path).header("if-none-match", &has);
        let reply = asked.send().await?;
        assert_eq!(reply.status, status, "{has}");
        assert_eq!(reply.header("etag"), Some(&*etag));
        assert_eq!(reply.body.is_empty(), status == 304);
    }
    Ok(())
}
