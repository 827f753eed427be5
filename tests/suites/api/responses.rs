//! Each documented status occurs, and each response matches its schema.

use std::collections::BTreeSet;
use std::time::Duration;

use harness::{Redis, Reply, Request, free_port, until};
use serde_json::{Value, json};

use crate::service::{Service, document, variable};

const TOKEN: &str = "0123456789abcdef-token";

/// Descriptions that were cut, and fields without a value: in `{a: b, c}` a comma ends `b`.
fn cut(place: &str, value: &Value, found: &mut Vec<String>) {
    for (key, value) in value.as_object().into_iter().flatten() {
        let here = format!("{place}.{key}");
        let ends = |text: &str| text.trim_end().ends_with(['.', '?', '!']);
        let is_sentence = key != "description" || value.as_str().is_none_or(ends);
        let is_cut = key.contains(' ') || value.is_null() || !is_sentence;
        if is_cut {
            found.push(here.clone());
        }
        cut(&here, value, found);
    }
    for value in value.as_array().into_iter().flatten() {
        cut(place, value, found);
    }
}

#[test]
fn two_readers_of_yaml_find_the_same_complete_description() {
    let path = document("openapi.yaml");
    let ours: Value = serde_saphyr::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let program = "import json, sys, yaml; print(json.dumps(yaml.safe_load(open(sys.argv[1]))))";
    let output = std::process::Command::new("python3")
        .args(["-c", program])
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "PyYAML: {said}");
    let theirs: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(ours, theirs);
    let mut found = Vec::new();
    cut("", &ours, &mut found);
    assert_eq!(found, [""; 0]);
}

/// The description, and the statuses that occurred.
struct Description {
    document: Value,
    seen: BTreeSet<String>,
    /// The token of a reservation.
    token: String,
}

impl Description {
    fn read() -> Self {
        let text = std::fs::read_to_string(document("openapi.yaml")).unwrap();
        Self {
            document: serde_saphyr::from_str(&text).unwrap(),
            seen: BTreeSet::new(),
            token: String::new(),
        }
    }

    /// Sends a request, and validates its response against the description.
    async fn check(&mut self, request: &Request, method: &str, path: &str, status: u16) -> Reply {
        let reply = request.send().await.unwrap();
        let place = format!("{method} {path} {status}");
        assert_eq!(reply.status, status, "{place}: {}", reply.text());
        let escaped = path.replace('/', "~1");
        let at = self.resolved(&format!("/paths/{escaped}/{method}/responses/{status}"));
        let response = self
            .document
            .pointer(&at)
            .unwrap_or_else(|| panic!("{place} is not documented"));
        self.seen.insert(place.clone());
        for (name, header) in response["headers"].as_object().into_iter().flatten() {
            let Some(text) = reply.header(name) else {
                assert_eq!(header["required"], false, "{place}: no {name}");
                continue;
            };
            let header = match header["$ref"].as_str() {
                Some(to) => self.document.pointer(to.trim_start_matches('#')).unwrap(),
                None => header,
            };
            if header["schema"]["type"] == "integer" {
                text.parse::<u64>()
                    .unwrap_or_else(|error| panic!("{place}: {name}: {text}: {error}"));
            }
            if let Some(only) = header["schema"]["const"].as_str() {
                assert_eq!(text, only, "{place}: {name}");
            }
        }
        let Some(content) = response["content"].as_object() else {
            assert!(reply.body.is_empty(), "{place}: {}", reply.text());
            return reply;
        };
        let kind = reply
            .header("content-type")
            .unwrap()
            .split(';')
            .next()
            .unwrap();
        assert!(content.contains_key(kind), "{place}: {kind}");
        let body = if kind == "application/json" {
            reply.json().unwrap()
        } else {
            json!(reply.text())
        };
        let schema = format!("{at}/content/{}/schema", kind.replace('/', "~1"));
        json_schema::validate_within(&self.document, &schema, &body)
            .unwrap_or_else(|error| panic!("{place}: {error:#}"));
        reply
    }

    /// The path of a response's description, with `$ref` followed.
    fn resolved(&self, place: &str) -> String {
        let found = self.document.pointer(place);
        let reference = found.and_then(|found| found["$ref"].as_str());
        reference.map_or_else(
            || place.to_owned(),
            |to| to.trim_start_matches('#').to_owned(),
        )
    }

    fn documented(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        for (path, methods) in self.document["paths"].as_object().unwrap() {
            for (method, operation) in methods.as_object().unwrap() {
                let responses = operation["responses"].as_object().unwrap();
                all.extend(
                    responses
                        .keys()
                        .map(|status| format!("{method} {path} {status}")),
                );
            }
        }
        all
    }
}

#[tokio::test]
async fn every_documented_response_occurs_as_documented() {
    let mut described = Description::read();
    decisions(&mut described).await;
    refusals(&mut described).await;
    snapshots_and_reports(&mut described).await;
    outage(&mut described).await;
    let missing: Vec<_> = described
        .documented()
        .difference(&described.seen)
        .cloned()
        .collect();
    assert_eq!(missing, [""; 0], "documented, and did not occur");
}

async fn decisions(described: &mut Description) {
    let service = Service::start(&["--max-waiters", "1"]).await;
    let url = format!("{}/v1/check", service.limiter.url());
    let ask = |body: Value| service.client.post(&url, body.to_string());
    let check = |path: &str, user: &str| json!({"domain": "shop", "descriptor": {"path": path, "user": user}});
    for allowed in [true, true, true, true, true, false] {
        let reply = described
            .check(&ask(check("/api", "a")), "post", "/v1/check", 200)
            .await;
        assert_eq!(reply.json().unwrap()["allowed"], allowed);
    }
    let denied = service.client.post(
        &format!("{url}?deny_status=429"),
        check("/api", "a").to_string(),
    );
    described.check(&denied, "post", "/v1/check", 429).await;
    let queued = described
        .check(&ask(check("/export", "a")), "post", "/v1/check", 200)
        .await;
    assert!(queued.json().unwrap()["limits"][0]["slot"].is_string());
    held_slots(described, &service).await;
    reserved_units(described, &service).await;
    let batch = json!({"domain": "shop", "checks": [
        {"descriptor": {"path": "/api", "user": {"base64": "/w=="}}, "cost": 2},
        {"descriptor": {"path": "/none"}, "require_match": true},
        {"descriptor": {"path": "/api", "user": null}, "peek": true},
    ]});
    let batch = described.check(&ask(batch), "post", "/v1/check", 200).await;
    let codes = &batch.json().unwrap()["results"];
    assert_eq!(
        (&codes[0]["allowed"], &codes[1]["error"]["code"]),
        (&json!(true), &json!("no_match"))
    );
    let mut dear = check("/wait", "a");
    dear["cost"] = json!(3);
    dear["wait_ms"] = json!(1000);
    let dear = described.check(&ask(dear), "post", "/v1/check", 200).await;
    assert_eq!(dear.json().unwrap()["reason"], "exceeds_capacity");
    too_many_waiters(described, &service, &url).await;
    descriptors(described, &service).await;
    let health = service
        .client
        .get(&format!("{}/v1/health", service.limiter.url()));
    described.check(&health, "get", "/v1/health", 200).await;
    for path in ["/healthz", "/readyz", "/metrics"] {
        let request = service
            .client
            .get(&format!("{}{path}", service.limiter.admin_url()));
        described.check(&request, "get", path, 200).await;
    }
}

/// Envoy's rate limit service, as JSON.
async fn descriptors(described: &mut Description, service: &Service) {
    let url = format!("{}/json", service.limiter.url());
    let entries = [("user", "called"), ("path", "/api")];
    let entries = entries.map(|(key, value)| json!({"key": key, "value": value}));
    let own = json!({"requestsPerUnit": 9, "unit": "MONTH"});
    let call = json!({"domain": "shop", "hitsAddend": 3, "descriptors": [
        {"entries": entries},
        {"entries": [{"key": "other", "value": "x"}], "limit": own, "hitsAddend": 2},
        {"entries": [{"key": "none", "value": "x"}], "hitsAddend": 1, "isNegativeHits": true},
    ]});
    let call = service.client.post(&url, call.to_string());
    let reply = described.check(&call, "post", "/json", 200).await;
    let answer = reply.json().unwrap();
    assert_eq!(answer["statuses"][0]["limitRemaining"], 2, "{answer}");
    assert_eq!(answer["statuses"][1]["limitRemaining"], 7, "{answer}");
    let reply = described.check(&call, "post", "/json", 429).await;
    assert_eq!(reply.json().unwrap()["overallCode"], "OVER_LIMIT");
}

/// The slot of a request in flight is renewed, freed, and then gone.
async fn held_slots(described: &mut Description, service: &Service) {
    let check = json!({"domain": "shop", "descriptor": {"path": "/held"}});
    let held = described
        .check(
            &service.client.post(
                &format!("{}/v1/check", service.limiter.url()),
                check.to_string(),
            ),
            "post",
            "/v1/check",
            200,
        )
        .await;
    let slot = &held.json().unwrap()["limits"][0]["slot"];
    let slots =
        json!({"domain": "shop", "descriptor": {"path": "/held"}, "slots": {"in-flight": slot}});
    for (path, missing) in [
        ("/v1/renew", json!([])),
        ("/v1/release", json!([])),
        ("/v1/renew", json!(["in-flight"])),
    ] {
        let request = service.client.post(
            &format!("{}{path}", service.limiter.url()),
            slots.to_string(),
        );
        let reply = described.check(&request, "post", path, 200).await;
        assert_eq!(reply.json().unwrap()["missing"], missing);
    }
}

/// A reservation is settled twice.
async fn reserved_units(described: &mut Description, service: &Service) {
    let post = |path: &str, body: Value| {
        let url = format!("{}{path}", service.limiter.url());
        service.client.post(&url, body.to_string())
    };
    let check = json!({"domain": "shop", "descriptor": {"path": "/chat"}, "reserve": true});
    let reserved = post("/v1/check", check);
    let reserved = described.check(&reserved, "post", "/v1/check", 200).await;
    let token = reserved.json().unwrap()["token"].clone();
    for _ in 0..2 {
        let settle = post("/v1/settle", json!({"token": token, "cost": 30}));
        let settled = described.check(&settle, "post", "/v1/settle", 200).await;
        assert_eq!(settled.json().unwrap()["remaining"], 970);
    }
    token.as_str().unwrap().clone_into(&mut described.token);
}

/// The one check that may wait waits for up to an hour; the next is refused.
async fn too_many_waiters(described: &mut Description, service: &Service, url: &str) {
    let body = |user: &str| {
        json!({"domain": "shop", "descriptor": {"path": "/wait", "user": user}, "cost": 2, "wait_ms": 20_000}).to_string()
    };
    for user in ["b", "c"] {
        service.client.post(url, body(user)).send().await.unwrap();
    }
    let first = service.client.post(url, json!({"domain": "shop", "descriptor": {"path": "/export"}, "cost": 10, "max_delay_ms": 0, "wait_ms": 4000}).to_string());
    let first = tokio::spawn(async move { first.send().await });
    let metrics = format!("{}/metrics", service.limiter.admin_url());
    until("a check waits", Duration::from_secs(20), async || {
        let page = service.client.get(&metrics).send().await.ok()?.text();
        page.contains("rl_waiting_checks 1").then_some(())
    })
    .await
    .unwrap();
    for user in ["b", "c"] {
        // The bucket may have refilled by one unit by now.
        for _ in 0..3 {
            service
                .client
                .post(
                    url,
                    json!({"domain": "shop", "descriptor": {"path": "/wait", "user": user}})
                        .to_string(),
                )
                .send()
                .await
                .unwrap();
        }
    }
    let second = service.client.post(url, body("b"));
    let reply = described.check(&second, "post", "/v1/check", 429).await;
    assert_eq!(reply.json().unwrap()["error"]["code"], "too_many_waiters");
    first.abort();
}

#[expect(clippy::too_many_lines, reason = "one request after the other")]
async fn refusals(described: &mut Description) {
    let tokens = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(tokens.path(), TOKEN).unwrap();
    let service = Service::start(&[
        "--token-file",
        tokens.path().to_str().unwrap(),
        "--max-body",
        "4KiB",
    ])
    .await;
    let base = service.limiter.url();
    let with = |request: Request| request.header("authorization", format!("Bearer {TOKEN}"));
    for (method, path) in [
        ("post", "/v1/check"),
        ("get", "/v1/policy"),
        ("post", "/v1/report"),
        ("post", "/json"),
        ("post", "/v1/release"),
        ("post", "/v1/renew"),
        ("post", "/v1/settle"),
    ] {
        let url = format!("{base}{path}");
        let request = if method == "get" {
            service.client.get(&url)
        } else {
            service.client.post(&url, "{}")
        };
        described.check(&request, method, path, 401).await;
    }
    let check = |body: String| with(service.client.post(&format!("{base}/v1/check"), body));
    for body in [
        "",
        "{",
        "{}",
        "[]",
        "{\"domain\":\"shop\",\"descriptor\":{},\"x\":1}",
    ] {
        described
            .check(&check(body.to_owned()), "post", "/v1/check", 400)
            .await;
    }
    described
        .check(
            &check(json!({"domain": "none", "descriptor": {}}).to_string()),
            "post",
            "/v1/check",
            404,
        )
        .await;
    described
        .check(&check("x".repeat(5000)), "post", "/v1/check", 413)
        .await;
    let form = check("{}".to_owned()).header("content-type", "text/plain");
    described.check(&form, "post", "/v1/check", 415).await;
    let call = |body: String| with(service.client.post(&format!("{base}/json"), body));
    for body in ["", "{}", "{\"domain\":\"shop\",\"descriptors\":[]}"] {
        let call = call(body.to_owned());
        described.check(&call, "post", "/json", 400).await;
    }
    let large = call("x".repeat(5000));
    described.check(&large, "post", "/json", 413).await;
    let plain = call("{}".to_owned()).header("content-type", "text/plain");
    described.check(&plain, "post", "/json", 415).await;
    let settle = |token: &str| {
        let body = json!({"token": token, "cost": 1}).to_string();
        with(service.client.post(&format!("{base}/v1/settle"), body))
    };
    // A token begins with the domain, and the other name has the same length.
    let unknown = described.token.replacen("hmRzaG9w", "hmRub25l", 1);
    for (token, status) in [("x", 400), (&*unknown, 404), (&*"x".repeat(5000), 413)] {
        let settle = settle(token);
        described.check(&settle, "post", "/v1/settle", status).await;
    }
    for path in ["/v1/release", "/v1/renew"] {
        let slots = |body: &str| {
            with(
                service
                    .client
                    .post(&format!("{base}{path}"), body.to_owned()),
            )
        };
        let unknown = r#"{"domain":"none","descriptor":{},"slots":{"in-flight":"1.2.1000.4.1"}}"#;
        let long = "x".repeat(5000);
        for (body, status) in [("{}", 400), (unknown, 404), (long.as_str(), 413)] {
            described.check(&slots(body), "post", path, status).await;
        }
    }
    let report = |body: String| with(service.client.post(&format!("{base}/v1/report"), body));
    described
        .check(&report("nonsense".to_owned()), "post", "/v1/report", 400)
        .await;
    described
        .check(&report("x".repeat(5000)), "post", "/v1/report", 413)
        .await;
    for (query, status) in [("", 400), ("?domain=none", 404), ("?domain=shop", 200)] {
        let request = with(service.client.get(&format!("{base}/v1/policy{query}")));
        described.check(&request, "get", "/v1/policy", status).await;
    }
}

async fn snapshots_and_reports(described: &mut Description) {
    let service = Service::start(&[]).await;
    let url = format!("{}/v1/policy?domain=shop", service.limiter.url());
    let snapshot = described
        .check(&service.client.get(&url), "get", "/v1/policy", 200)
        .await;
    let tag = snapshot.header("etag").unwrap();
    let again = service.client.get(&url).header("if-none-match", tag);
    described.check(&again, "get", "/v1/policy", 304).await;
    for (domain, status) in [("shop", 204), ("none", 404)] {
        let report = protocol::compact::Report {
            domain: domain.parse().unwrap(),
            proxy: "0".repeat(32),
            requests: protocol::compact::RequestCounts::default(),
            tallies: Vec::new(),
            denied: Vec::new(),
        };
        let request = service.client.post(
            &format!("{}/v1/report", service.limiter.url()),
            report.encode(),
        );
        described
            .check(&request, "post", "/v1/report", status)
            .await;
    }
}

/// A store that stops, and one that never existed.
async fn outage(described: &mut Description) {
    let dir = tempfile::tempdir().unwrap();
    let redis = Redis::start(&variable("RL_TEST_REDIS"), free_port().unwrap(), dir.path())
        .await
        .unwrap();
    let service = Service::before(&redis.url(), &[]).await;
    let stopped = redis.stop().await.unwrap();
    let check = json!({"domain": "shop", "descriptor": {"path": "/api", "user": "a"}});
    let request = service.client.post(
        &format!("{}/v1/check", service.limiter.url()),
        check.to_string(),
    );
    until(
        "checks get no decision",
        Duration::from_secs(20),
        async || (request.send().await.ok()?.status == 503).then_some(()),
    )
    .await
    .unwrap();
    described.check(&request, "post", "/v1/check", 503).await;
    let call =
        json!({"domain": "shop", "descriptors": [{"entries": [{"key": "path", "value": "/api"}]}]});
    let url = format!("{}/json", service.limiter.url());
    let call = service.client.post(&url, call.to_string());
    described.check(&call, "post", "/json", 503).await;
    let settle = json!({"token": described.token, "cost": 1}).to_string();
    let url = format!("{}/v1/settle", service.limiter.url());
    let settle = service.client.post(&url, settle);
    described.check(&settle, "post", "/v1/settle", 503).await;
    for path in ["/v1/release", "/v1/renew"] {
        let body = r#"{"domain":"shop","descriptor":{"path":"/held"},"slots":{"in-flight":"1.2.1000.4.1"}}"#;
        let url = format!("{}{path}", service.limiter.url());
        let request = service.client.post(&url, body.to_owned());
        described.check(&request, "post", path, 503).await;
    }
    let ready = format!("{}/readyz", service.limiter.admin_url());
    described
        .check(&service.client.get(&ready), "get", "/readyz", 200)
        .await;
    described
        .check(
            &service.client.get(&format!("{ready}?strict")),
            "get",
            "/readyz",
            503,
        )
        .await;
    drop(stopped);
    without_limits(described).await;
}

async fn without_limits(described: &mut Description) {
    let dir = tempfile::tempdir().unwrap();
    let [port, admin] = [free_port().unwrap(), free_port().unwrap()];
    let mut command = std::process::Command::new(variable("RL_TEST_BIN").join("limiter"));
    command.args([
        "--listen",
        &format!("127.0.0.1:{port}"),
        "--admin",
        &format!("127.0.0.1:{admin}"),
    ]);
    command.args([
        "--store",
        &format!("redis://127.0.0.1:{}", free_port().unwrap()),
    ]);
    let _limiter = harness::Process::start("limiter", &mut command, dir.path()).unwrap();
    let client = harness::Client::new();
    let base = format!("http://127.0.0.1:{port}");
    let health = client.get(&format!("{base}/v1/health"));
    until("it answers", Duration::from_secs(20), async || {
        health.send().await.ok()
    })
    .await
    .unwrap();
    described.check(&health, "get", "/v1/health", 503).await;
    described
        .check(
            &client.get(&format!("{base}/v1/policy?domain=shop")),
            "get",
            "/v1/policy",
            503,
        )
        .await;
    let report = protocol::compact::Report {
        domain: "shop".parse().unwrap(),
        proxy: "0".repeat(32),
        requests: protocol::compact::RequestCounts::default(),
        tallies: Vec::new(),
        denied: Vec::new(),
    };
    let report = client.post(&format!("{base}/v1/report"), report.encode());
    described.check(&report, "post", "/v1/report", 503).await;
}
