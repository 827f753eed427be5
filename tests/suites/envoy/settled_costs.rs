//! Costs that responses say, from Envoy to the store: failed logins and tokens.

use serde_json::json;

use crate::{
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
        .start()
        .await
}

fn answers(tokens: u64) -> Vec<Act> {
    let body = json!({"usage": {"total_tokens": tokens}}).to_string();
    vec![plain("200 OK", &[JSON], body.as_bytes())]
}

fn remaining(stage: &Stage, limit: &str, user: &str) -> u64 {
    let shown = stage.inspect(limit, &[&format!("user={user}")]);
    shown["remaining"].as_u64().unwrap()
}

#[tokio::test]
async fn of_a_thousand_guesses_at_once_five_pass_and_right_logins_count_nothing() {
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
        // A few units flow back while the test runs.
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
