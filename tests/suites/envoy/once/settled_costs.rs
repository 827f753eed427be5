//! Costs in responses, from Envoy to the store: failed logins and tokens.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::{
    request_bodies::{connect, whole},
    response_costs::{Act, JSON, Service, plain, serve_from, wait_for},
    stage::{Plan, Stage, at_once, limits},
};

const LOGINS: &str = "{name: logins, match: {path: \"/login/*\"}, per: [user], rate: 5/15m, \
     cost: {from: {status: [401, 403]}}}";
const TOKENS: &str = "{name: tokens, match: {path: \"/llm/**\"}, per: [user], rate: 100000/1h, \
     cost: {from: {response_json: /usage/total_tokens}, reserve: 4000}}";
const EXPORTS: &str = "{name: exports, match: {path: \"/export/**\"}, per: [user], rate: 100/1h, \
     cost: {table: [{match: {path: \"/export/dear\"}, units: 60}], default: 10}}";

async fn stage(service: &Service) -> Stage {
    let port = service.port;
    let plan: Plan = limits(&[LOGINS, TOKENS, EXPORTS]);
    plan.config(move |config| serve_from(config, port, false))
        .may_use(port)
        .await
}

fn answers(tokens: u64) -> Vec<Act> {
    let body = json!({"usage": {"total_tokens": tokens}}).to_string();
    vec![plain("200 OK", &[JSON], body.as_bytes())]
}

fn remaining(stage: &Stage, limit: &str, user: &str) -> u64 {
    left(stage, limit, &[&format!("user={user}")])
}

fn left(stage: &Stage, limit: &str, bucket: &[&str]) -> u64 {
    let shown = stage.inspect(limit, bucket);
    shown["remaining"].as_u64().unwrap()
}

/// The units that a bucket of this quota has counted.
pub fn used(stage: &Stage, limit: &str, bucket: &[&str], quota: u64) -> u64 {
    quota - left(stage, limit, bucket)
}

#[tokio::test]
async fn of_a_thousand_wrong_logins_five_pass_and_right_ones_cost_nothing() {
    let service = Service::start(vec![
        ("/login/wrong", vec![plain("401 No", &[], b"")]),
        ("/login/right", vec![plain("200 OK", &[], b"")]),
    ])
    .await;
    let stage = stage(&service).await;
    for _ in 0..20 {
        let reply = stage.get("/login/right", "bob").send().await.unwrap();
        assert_eq!(reply.status, 200);
        wait_for("the login is settled", async || {
            (remaining(&stage, "logins", "bob") == 5).then_some(())
        })
        .await;
    }
    let (_, denied) = at_once(&stage.get("/login/wrong", "eve"), 1000).await;
    assert_eq!(denied, 995);
}

#[tokio::test]
async fn tokens_are_charged_by_what_responses_say() {
    let service = Service::start(vec![
        ("/llm/small", answers(500)),
        ("/llm/large", answers(9000)),
        ("/llm/error", vec![plain("500 Oh", &[], b"")]),
        ("/export/dear", answers(0)),
        ("/export/other", answers(0)),
    ])
    .await;
    let stage = stage(&service).await;
    let mut left = 100_000;
    for (path, tokens) in [("/llm/small", 500), ("/llm/large", 9000), ("/llm/error", 0)] {
        let reply = stage.get(path, "alice").send().await.unwrap();
        assert_eq!(reply.status.as_u16() == 500, path == "/llm/error");
        left -= tokens;
        // The bucket refills by a few units during the test.
        wait_for("the request is settled", async || {
            let now = remaining(&stage, "tokens", "alice");
            (left..left + 3000).contains(&now).then_some(())
        })
        .await;
    }
    let mut statuses = Vec::new();
    for path in [
        "/export/dear",
        "/export/other",
        "/export/other",
        "/export/dear",
        "/export/other",
    ] {
        statuses.push(
            stage
                .get(path, "alice")
                .send()
                .await
                .unwrap()
                .status
                .as_u16(),
        );
    }
    assert_eq!(statuses, [200, 200, 200, 429, 200]);
}

/// Ten requests may each reserve a tenth, even if their bodies request more.
#[tokio::test]
async fn a_reserve_that_a_body_asks_for_is_capped() {
    const CAPPED: &str = "{name: capped, match: {path: \"/llm/**\"}, algorithm: fixed_window, rate: 100000/365d, \
         cost: {from: {response_json: /usage/total_tokens}, \
         reserve: {from: {request_json: /max_tokens}, default: 1, cap: 10%}}}";
    let service = Service::start(vec![("/llm/x", vec![Act::Wait(Duration::from_mins(1))])]).await;
    let port = service.port;
    let stage = limits(&[CAPPED])
        .filter(|config| config["request_body"] = json!({"max": 65536}))
        .config(move |config| {
            let config = serve_from(config, port, false);
            let passes_bodies = |filters: &mut Vec<Value>| {
                filters[0]["typed_config"]["config"]["allow_on_headers_stop_iteration"] =
                    json!(true);
            };
            config.http_filters(passes_bodies).unwrap()
        })
        .may_use(port)
        .await;
    let request = whole(&[JSON], b"{\"max_tokens\":32000}");
    let mut waiting = Vec::new();
    for n in 1..=10 {
        let mut stream = connect(&stage).await;
        stream.write_all(&request).await.unwrap();
        waiting.push(stream);
        wait_for("a tenth is reserved", async || {
            let reserved = used(&stage, "capped", &[], 100_000);
            assert!(reserved <= n * 10_000, "{n} requests reserve {reserved}");
            (reserved == n * 10_000).then_some(())
        })
        .await;
    }
    let denied = stage.raw().send(&request).await.unwrap().unwrap();
    assert_eq!(denied.status, 429);
}
