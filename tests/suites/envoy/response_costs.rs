//! Costs in responses, through real Envoy: bytes pass unchanged and at once, and each request is
//! settled by its response.

mod peers;

use std::time::Duration;

use harness::{Client, EnvoyConfig, free_port};
use serde_json::{Value, json};

use crate::stage::{Stage, compiled, eventually, limits};
pub use peers::{Act, Limiter, Service, chunked, plain, read_until, sent};

const TOKENS: &str = "{name: tokens, match: {path: \"/llm/**\"}, rate: 1000000/1h, on_failure: deny, \
     cost: {from: [{response_json: /usage/total_tokens}, \
     {sum: [{response_json: /usage/input_tokens}, {response_json: /usage/output_tokens, weight: 4}]}, \
     {response_trailer: x-tokens}, {metadata: [ai, tokens]}], \
     reserve: 1000, max: 100000000}}";
const LOGINS: &str = "{name: logins, match: {path: /login}, rate: 1000/1h, on_failure: deny, \
     cost: {from: {status: 401}}}";

/// Envoy between this service and a limiter that answers every check.
async fn stage(service: &Service, limiter: &Limiter, http2: bool) -> Stage {
    let (at, behind) = (limiter.port, service.port);
    let compiled = compiled("shop", &[TOKENS, LOGINS]);
    limits(&[])
        .filter(move |config| {
            config["limits"] = json!(compiled);
            config["limiter"]["timeout"] = json!("5s");
        })
        .config(move |config| {
            let config = config.limiter_at(at).unwrap();
            let config = serve_from(config, behind, http2);
            config
                .http_filters(|filters| filters.insert(1, metadata_of_a_header()))
                .unwrap()
        })
        .may_use(at)
        .may_use(behind)
        .without_limiters()
        .start_unlimited()
        .await
}

/// Moves the service behind Envoy to a port.
pub fn serve_from(config: EnvoyConfig, port: u16, http2: bool) -> EnvoyConfig {
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    config.edit(|tree| {
        let cluster = &mut tree["static_resources"]["clusters"][1];
        let socket = json!({"socket_address": {"address": "127.0.0.1", "port_value": port}});
        cluster["load_assignment"]["endpoints"] =
            json!([{"lb_endpoints": [{"endpoint": {"address": socket}}]}]);
        if http2 {
            cluster["typed_extension_protocol_options"] = json!({options: {
                "@type": format!("type.googleapis.com/{options}"),
                "explicit_http_config": {"http2_protocol_options": {}}
            }});
        }
    })
}

/// Behind the rate limit filter, like a gateway for models: writes a response header as metadata.
fn metadata_of_a_header() -> Value {
    let code = "function envoy_on_response(handle)\n\
        local tokens = handle:headers():get('x-say')\n\
        if tokens then handle:streamInfo():dynamicMetadata():set('ai', 'tokens', tonumber(tokens)) end\n\
        end";
    json!({"name": "lua", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
        "default_source_code": {"inline_string": code}
    }})
}

const OPENAI: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"H\\\"i\"}}],\"usage\":null}\n\n\
     data: {\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n\n\
     data: [DONE]\n\n";
const ANTHROPIC: &str = "event: message_start\ndata: {\"message\":{\"usage\":{\"input_tokens\":2500,\"output_tokens\":1}}}\n\n\
     event: message_delta\ndata: {\"usage\":{\"output_tokens\":15}}\n\n\
     event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
pub const JSON: &str = "content-type: application/json";
pub const EVENTS: &str = "content-type: text/event-stream";

/// Forty megabytes of JSON with the number at the end.
fn large() -> Vec<u8> {
    let item = r#"{"text":"a \"usage\": {\"total_tokens\": 5}, [é","n":[1,2,{"usage":{"total_tokens":6}}]},"#;
    let mut body = String::from(r#"{"items":["#);
    while body.len() < 40_000_000 {
        body.push_str(item);
    }
    body.push_str(r#"{}],"usage":{"total_tokens":777}}"#);
    body.into_bytes()
}

/// A path, its response, the body that the client gets, and the cost; `None` if it is not settled.
type Case = (&'static str, Vec<Act>, Vec<u8>, Option<u64>);

const USAGE: &[u8] = br#"{"usage":{"total_tokens":29}}"#;

fn cases() -> Vec<Case> {
    let whole = |path, head: &[&str], body: &[u8], cost| {
        let acts = vec![plain("200 OK", head, body)];
        (path, acts, body.to_vec(), cost)
    };
    let events = |path, text: &str, cost| {
        let bytes: Vec<Vec<u8>> = text.bytes().map(|byte| vec![byte]).collect();
        (
            path,
            chunked(&[EVENTS], &bytes),
            text.as_bytes().to_vec(),
            Some(cost),
        )
    };
    let status = |path, status: &str, body: &[u8], cost| {
        let acts = vec![plain(status, &[JSON], body)];
        (path, acts, body.to_vec(), Some(cost))
    };
    let gzip = [JSON, "content-encoding: gzip"];
    vec![
        whole("/llm/json", &[JSON], USAGE, Some(29)),
        whole("/llm/large", &[JSON], &large(), Some(777)),
        events("/llm/openai", OPENAI, 29),
        events("/llm/anthropic", ANTHROPIC, 2560),
        // Compressed bytes say nothing, so it costs the most that a response can.
        whole("/llm/gzip", &gzip, &[0x1f; 40_000], Some(100_000_000)),
        whole("/llm/nothing", &[JSON], b"{}", Some(1000)),
        status("/llm/error", "500 Oh", USAGE, 0),
        whole("/llm/metadata", &["x-say: 1234"], b"text", Some(1234)),
        status("/login", "401 No", b"", 1),
        whole("/free", &[JSON], USAGE, None),
    ]
}

#[tokio::test]
async fn responses_pass_unchanged_and_their_cost_is_charged() {
    let cases = cases();
    let acts = cases.iter().map(|(path, acts, ..)| (*path, acts.clone()));
    let service = Service::start(acts.collect()).await;
    let limiter = Limiter::start().await;
    let stage = stage(&service, &limiter, false).await;
    for (path, _, body, cost) in cases {
        let request = Client::new().get(&stage.envoy().url(path));
        let reply = request.send().await.unwrap();
        assert!(
            reply.body == body,
            "{path}: {} bytes came",
            reply.body.len()
        );
        match cost {
            Some(cost) => assert_eq!(limiter.settled().await, cost, "{path}"),
            None => assert!(limiter.is_settled(), "{path}"),
        }
    }
    let counted = ["settled.tokens", "reserved.tokens", "settled.logins"];
    for stat in counted.map(|stat| format!("wasmcustom.rl_costs.{stat}")) {
        wait_for(&stat, async || {
            (stage.envoy().stat(&stat).await.unwrap() > 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn events_pass_as_they_come_and_a_client_that_hangs_up_is_charged() {
    let event = b"data: {\"usage\":{\"total_tokens\":5000}}\n\n".to_vec();
    let acts = |ends: Vec<Act>| {
        let mut acts = chunked(&[EVENTS], std::slice::from_ref(&event));
        acts.pop();
        acts.extend(ends);
        acts
    };
    let service = Service::start(vec![
        ("/llm/waits", acts(vec![Act::Wait(Duration::from_secs(30))])),
        (
            "/llm/resets",
            acts(vec![Act::Wait(Duration::from_millis(100)), Act::Close]),
        ),
        (
            "/llm/short",
            vec![
                sent("200 OK", &[JSON, "content-length: 99"], b"{\"usage\":{"),
                Act::Close,
            ],
        ),
    ])
    .await;
    let limiter = Limiter::start().await;
    let stage = stage(&service, &limiter, false).await;
    // The first event arrives while the service still waits; then the client disconnects.
    for (path, marker, cost) in [
        ("/llm/waits", "5000}}", 5000),
        ("/llm/resets", "5000}}", 5000),
        ("/llm/short", "usage", 1000),
    ] {
        let stream = read_until(stage.envoy().port(), path, marker).await;
        if path == "/llm/waits" {
            assert!(limiter.is_settled(), "{path}: it is not over");
            drop(stream);
        }
        assert_eq!(limiter.settled().await, cost, "{path}");
    }
}

#[tokio::test]
async fn trailers_say_the_cost() {
    let port = free_port().unwrap();
    let service = Service::with_trailers(port, "x-tokens", "321").await;
    let limiter = Limiter::start().await;
    let stage = stage(&service, &limiter, true).await;
    let reply = Client::new()
        .get(&stage.envoy().url("/llm/x"))
        .send()
        .await
        .unwrap();
    assert_eq!(reply.text(), "body");
    assert_eq!(limiter.settled().await, 321);
}

/// The timeout of settlements in all tests above.
pub async fn wait_for<T>(what: &str, found: impl AsyncFnMut() -> Option<T>) -> T {
    eventually(what, found).await
}
