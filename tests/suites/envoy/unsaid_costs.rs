//! Requests whose response does not say their cost, from Envoy to the store: clients that
//! disconnect, responses without usage, errors.

use std::time::Duration;

use serde_json::json;

use crate::{
    response_costs::{
        Act, EVENTS, JSON, Service, chunked, plain, read_until, serve_from, wait_for,
    },
    settled_costs::used,
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
        .start()
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
