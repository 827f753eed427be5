//! Requests whose response does not say their cost, from Envoy to the store: clients that
//! disconnect, responses without usage, errors; and clients that would rather not have it said.

use std::time::Duration;

use serde_json::json;

use crate::{
    once::settled_costs::used,
    response_costs::{
        Act, EVENTS, JSON, Service, chunked, plain, read_until, sent, serve_from, wait_for,
    },
    stage::{Stage, limits},
};

/// Limits without refill, so that counts are exact; each path has its own bucket.
fn limit(name: &str, if_absent: &str) -> String {
    format!(
        "{{name: {name}, match: {{path: \"/llm/**\"}}, per: [path], algorithm: fixed_window, rate: 20000/365d, \
         cost: {{from: {{response_json: /usage/total_tokens}}, reserve: 4000{if_absent}}}}}"
    )
}

async fn stage(service: &Service) -> Stage {
    let port = service.port;
    let items = [
        limit("estimate", ""),
        limit("reserved", ", if_absent: reserved"),
        limit("fixed", ", if_absent: 7000, on_error: 30"),
    ];
    let items = items.each_ref().map(String::as_str);
    limits(&items)
        .config(move |config| serve_from(config, port, false))
        .may_use(port)
        .await
}

/// The end of every stream, before its last event.
const LAST: &str = "data: \"the last\"\n\n";
const USAGE: &[u8] = br#"{"usage":{"total_tokens":29}}"#;

/// A stream of this many bytes whose last event would say its cost, but never arrives.
fn unending(start: &str, len: usize) -> Vec<Act> {
    let filling = "x".repeat(len - start.len() - LAST.len() - "data: \"\"\n\n".len());
    let events = format!("{start}data: \"{filling}\"\n\n{LAST}");
    let mut acts = chunked(&[EVENTS], &[events.into_bytes()]);
    acts.pop();
    acts.push(Act::Wait(Duration::from_mins(1)));
    acts
}

async fn hang_up(stage: &Stage, path: &str) {
    drop(read_until(stage.envoy().port(), path, LAST).await);
}

/// Waits until the buckets of a path have counted these units. `fixed` is never charged the
/// reserve, so once its count is right, the request was settled.
async fn charged(stage: &Stage, path: &str, units: [u64; 3]) {
    let bucket = format!("path={path}");
    let mut last = [0; 3];
    wait_for(&format!("{path} is charged {units:?}"), async || {
        let names = ["fixed", "reserved", "estimate"];
        last = names.map(|name| used(stage, name, &[&bucket], 20_000));
        (last == units).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_client_that_hangs_up_is_charged_as_its_limits_specify() {
    let said = "data: {\"usage\":{\"total_tokens\":5000}}\n\n";
    let service = Service::start(vec![
        ("/llm/long", unending("", 36_000)),
        ("/llm/short", unending("", 400)),
        ("/llm/said", unending(said, 400)),
    ])
    .await;
    let stage = stage(&service).await;
    for (path, units) in [
        ("/llm/long", [7000, 4000, 9000]),
        ("/llm/short", [7000, 4000, 4000]),
        ("/llm/said", [7000, 4000, 5000]),
    ] {
        hang_up(&stage, path).await;
        charged(&stage, path, units).await;
    }
    // Disconnecting gives a client no more streams: 20000 are two of 9000, and no reserve of 4000.
    hang_up(&stage, "/llm/long").await;
    charged(&stage, "/llm/long", [14_000, 8000, 18_000]).await;
    let denied = stage.get("/llm/long", "any").send().await.unwrap();
    assert_eq!(denied.status, 429);
}

#[tokio::test]
async fn answers_without_usage_are_charged_and_errors_keep_no_reserve() {
    let long = json!({"text": "x".repeat(35_989)}).to_string();
    let service = Service::start(vec![
        ("/llm/says", vec![plain("200 OK", &[JSON], USAGE)]),
        ("/llm/long", vec![plain("200 OK", &[JSON], long.as_bytes())]),
        ("/llm/short", vec![plain("200 OK", &[JSON], b"{}")]),
        ("/llm/nothing", vec![plain("204 No", &[], b"")]),
        ("/llm/missing", vec![plain("404 No", &[JSON], USAGE)]),
        ("/llm/fails", vec![plain("500 Oh", &[JSON], USAGE)]),
    ])
    .await;
    let stage = stage(&service).await;
    for (path, units) in [
        ("/llm/says", [29, 29, 29]),
        ("/llm/long", [7000, 4000, 9000]),
        ("/llm/short", [7000, 4000, 4000]),
        ("/llm/nothing", [7000, 4000, 4000]),
        ("/llm/missing", [30, 0, 0]),
        ("/llm/fails", [30, 0, 0]),
    ] {
        stage.get(path, "any").send().await.unwrap();
        charged(&stage, path, units).await;
    }
}

/// What the service below says that each request costs.
const TOKENS: u64 = 30_000;

/// A service that serves its answer in whatever form the request asks for. The answer contains the head
/// of the request.
fn in_any_form(head: &str) -> Vec<Act> {
    let asks = |line: &str| head.contains(&format!("\r\n{line}"));
    let said = json!({"usage": {"total_tokens": TOKENS}, "head": head, "text": "x".repeat(40_000)});
    let said = said.to_string();
    let ok = |headers: &[&str], body: &[u8]| vec![plain("200 OK", headers, body)];
    if asks("if-none-match: \"tag\"") {
        return vec![plain("304 Not Modified", &[], b"")];
    }
    if asks("prefer: return=minimal") {
        return vec![plain("204 No Content", &[], b"")];
    }
    if asks("range: bytes=0-9") {
        let part = said.as_bytes().get(..10).unwrap();
        let headers = [JSON, "content-range: bytes 0-9/40000"];
        return vec![plain("206 Partial Content", &headers, part)];
    }
    if asks("accept-charset: utf-16") {
        let wide: Vec<u8> = said.encode_utf16().flat_map(u16::to_le_bytes).collect();
        return ok(&["content-type: application/json; charset=utf-16"], &wide);
    }
    if asks("accept-encoding: gzip") || head.contains("/llm/always-gzip ") {
        return ok(&[JSON, "content-encoding: gzip"], &[0x1f; 10_000]);
    }
    if asks("accept: text/csv") {
        return ok(&["content-type: text/csv"], b"30000");
    }
    if head.starts_with("HEAD ") {
        let length = format!("content-length: {}", said.len());
        return vec![sent("200 OK", &[JSON, &length], b"")];
    }
    if asks("accept: text/event-stream") {
        return ok(&[EVENTS], format!("\u{feff}data: {said}\n\n").as_bytes());
    }
    ok(&[JSON], said.as_bytes())
}

#[tokio::test]
async fn a_client_pays_the_same_whatever_form_of_the_answer_it_asks_for() {
    const LIMIT: &str = "{name: tokens, match: {path: \"/llm/**\"}, per: [path], algorithm: fixed_window, \
         rate: 1000000/365d, cost: {from: {response_json: /usage/total_tokens}, reserve: 100, max: 50000}}";
    let service = Service::answering(in_any_form).await;
    let port = service.port;
    let stage = limits(&[LIMIT])
        .config(move |config| serve_from(config, port, false))
        .may_use(port)
        .await;
    let get = |path| stage.get(path, "any");
    for (path, request, units) in [
        ("/llm/plain", get("/llm/plain"), TOKENS),
        (
            "/llm/gzip",
            get("/llm/gzip").header("accept-encoding", "gzip, br"),
            TOKENS,
        ),
        (
            "/llm/prefer",
            get("/llm/prefer").header("prefer", "return=minimal"),
            TOKENS,
        ),
        (
            "/llm/range",
            get("/llm/range").header("range", "bytes=0-9"),
            TOKENS,
        ),
        (
            "/llm/tag",
            get("/llm/tag").header("if-none-match", "\"tag\""),
            TOKENS,
        ),
        (
            "/llm/utf-16",
            get("/llm/utf-16").header("accept-charset", "utf-16"),
            TOKENS,
        ),
        (
            "/llm/events",
            get("/llm/events").header("accept", "text/event-stream"),
            TOKENS,
        ),
        // The filter cannot change these, so they cost the most.
        ("/llm/head", get("/llm/head").head(), 50_000),
        (
            "/llm/csv",
            get("/llm/csv").header("accept", "text/csv"),
            50_000,
        ),
        ("/llm/always-gzip", get("/llm/always-gzip"), 50_000),
    ] {
        let reply = request.send().await.unwrap();
        assert_eq!(reply.status, 200, "{path}");
        if units == TOKENS {
            // The client receives what the headers say: the whole answer as it is.
            assert_eq!(reply.header("content-encoding"), None, "{path}");
            assert!(reply.text().contains("\"total_tokens\":30000"), "{path}");
            assert!(reply.text().contains("accept-encoding: identity"), "{path}");
        }
        let bucket = format!("path={path}");
        let mut last = 0;
        wait_for(&format!("{path} is charged {units}"), async || {
            last = used(&stage, "tokens", &[&bucket], 1_000_000);
            assert!([0, 100, units].contains(&last), "{path} is charged {last}");
            (last == units).then_some(())
        })
        .await;
    }
    // Conditions of writes stay.
    let write = stage.envoy().post("/llm/write", "x");
    let reply = write.header("if-none-match", "*").send().await.unwrap();
    assert!(
        reply.text().contains("if-none-match: *"),
        "{}",
        reply.text()
    );
}

/// As many requests pass, whichever coding the client accepts: 34 use up 1,000,000 units, and the bucket
/// takes two minutes to refill what they owe.
#[tokio::test]
async fn as_many_requests_pass_with_accept_encoding_as_without() {
    const LIMIT: &str = "{name: tokens, match: {path: \"/llm/**\"}, per: [path], rate: 1000000/1h, \
         cost: {from: {response_json: /usage/total_tokens}, reserve: 100}}";
    let service = Service::answering(in_any_form).await;
    let port = service.port;
    let stage = limits(&[LIMIT])
        .config(move |config| serve_from(config, port, false))
        .may_use(port)
        .await;
    for (path, coding) in [("/llm/identity", "identity"), ("/llm/gzip", "gzip")] {
        let request = stage.get(path, "any").header("accept-encoding", coding);
        let bucket = format!("path={path}");
        let mut passed = 0;
        while request.send().await.unwrap().status == 200 && passed < 100 {
            passed += 1;
            let least = (passed * TOKENS).min(1_000_000) - 20_000;
            wait_for(&format!("{coding}: {passed} are settled"), async || {
                (used(&stage, "tokens", &[&bucket], 1_000_000) >= least).then_some(())
            })
            .await;
        }
        assert_eq!(passed, 34, "{coding}");
    }
}
