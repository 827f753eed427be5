//! The pairs of docs/cookbook.md through real Envoy and Redis: responses of language model providers,
//! logins, budgets and plans.

use harness::Host;
use serde_json::{Value, json};

use crate::{
    response_costs::{Act, JSON, Service, chunked, plain, serve_from, wait_for},
    stage::{Stage, limits, statuses},
};

const PAGE: &str = include_str!("../../../../docs/cookbook.md");

/// The page's recipes: the configuration that each begins with, and its text up to the next.
fn recipes() -> impl Iterator<Item = (Value, &'static str)> {
    PAGE.split("```json\n").skip(1).map(|text| {
        let config = text.split("```").next().unwrap();
        (serde_json::from_str(config).unwrap(), text)
    })
}

fn recipe(domain: &str) -> (Value, &'static str) {
    let mut recipes = recipes();
    recipes
        .find(|(config, _)| config["domain"] == domain)
        .unwrap()
}

/// The first block of a kind, in YAML.
fn yaml(text: &str, fence: &str) -> Option<Value> {
    let block = text.split(fence).nth(1)?.split("```").next()?;
    Some(serde_saphyr::from_str(block).unwrap())
}

/// A stage with the pair and this service.
pub async fn stage(domain: &str, service: &Service) -> Stage {
    stage_behind(claims(), domain, service).await
}

/// The same, behind another filter.
async fn stage_behind(first: Value, domain: &str, service: &Service) -> Stage {
    let (config, text) = recipe(domain);
    let file = yaml(text, "```yaml\n").unwrap();
    let items = file["limits"].as_array().unwrap().iter();
    let items: Vec<String> = items.map(Value::to_string).collect();
    let items: Vec<&str> = items.iter().map(String::as_str).collect();
    let port = service.port;
    limits(&items)
        .filter(move |filter| filter["descriptors"] = config["descriptors"].clone())
        .config(move |config| {
            let config = serve_from(config, port, false);
            config
                .http_filters(|filters| filters.insert(0, first.clone()))
                .unwrap()
        })
        .may_use(port)
        .await
}

/// Writes the claim that Envoy's JWT filter would write.
fn claims() -> Value {
    let code = "function envoy_on_request(handle)\n\
        local plan = handle:headers():get('x-plan')\n\
        local data = handle:streamInfo():dynamicMetadata()\n\
        if plan then data:set('envoy.filters.http.jwt_authn', 'jwt', {plan = plan}) end\n\
        end";
    json!({"name": "lua", "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
        "default_source_code": {"inline_string": code}
    }})
}

const EVENTS: &str = "content-type: text/event-stream";
const CHAT: &str = r#"{"id":"chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT","object":"chat.completion","created":1741569952,"model":"gpt-4.1-2025-04-14","choices":[{"index":0,"message":{"role":"assistant","content":"Hello! How can I assist you today?","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":0,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0}},"service_tier":"default"}"#;
const CHAT_EVENT: &str = "data: {\"id\":\"chatcmpl-123\",\"object\":\"chat.completion.chunk\",\"created\":1694268190,\"model\":\"gpt-4o-mini\",\"system_fingerprint\":\"fp_44709d6fcb\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"logprobs\":null,\"finish_reason\":null}],\"usage\":null}\n\n";
const CHAT_USAGE: &str = "data: {\"id\":\"chatcmpl-123\",\"object\":\"chat.completion.chunk\",\"created\":1694268190,\"model\":\"gpt-4o-mini\",\"system_fingerprint\":\"fp_44709d6fcb\",\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n\n";
const RESPONSE: &str = r#"{"id":"resp_67ccd2bed1ec8190b14f964abc0542670bb6a6b452d3795b","object":"response","created_at":1741476542,"status":"completed","model":"gpt-4.1-2025-04-14","output":[{"type":"message","id":"msg_67ccd2bf17f0819081ff3bb2cf6508e6","status":"completed","role":"assistant","content":[{"type":"output_text","text":"Hi","annotations":[]}]}],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":0},"output_tokens":12,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":48},"user":null,"metadata":{}}"#;
const MESSAGE: &str = r#"{"id":"msg_013Zva2CMHLNnXjNJJKqJ2EF","type":"message","role":"assistant","model":"claude-sonnet-4-5","content":[{"type":"text","text":"Hi!"}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":25,"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":15}}"#;
const MESSAGE_EVENTS: [&str; 6] = [
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyY\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\"model\":\"claude-sonnet-4-5\",\"stop_reason\":null,\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n",
    "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\nevent: ping\ndata: {\"type\": \"ping\"}\n\n",
    "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello\"}}\n\n",
    "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":15}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
];
const GENERATED: &str = r#"{"candidates":[{"content":{"parts":[{"text":"Hi"}],"role":"model"},"finishReason":"STOP","index":0}],"usageMetadata":{"promptTokenCount":4,"candidatesTokenCount":5,"totalTokenCount":9},"modelVersion":"gemini-2.5-flash"}"#;

fn streamed(events: &[&str]) -> Vec<Act> {
    let chunks: Vec<Vec<u8>> = events
        .iter()
        .map(|event| event.as_bytes().to_vec())
        .collect();
    chunked(&[EVENTS], &chunks)
}

fn whole(status: &str, body: &str) -> Vec<Act> {
    vec![plain(status, &[JSON], body.as_bytes())]
}

/// The cost of each response, at each of the page's limits that apply to its path.
#[tokio::test]
async fn tokens_of_each_provider_are_charged_whole_and_streamed() {
    let chat: Vec<&str> = [CHAT_EVENT; 20].to_vec();
    let with_usage = [&chat[..], &[CHAT_USAGE, "data: [DONE]\n\n"]].concat();
    let without = [&chat[..], &["data: [DONE]\n\n"]].concat();
    let completed = format!(
        "event: response.created\ndata: {{\"type\":\"response.created\",\"response\":{{\"id\":\"r\",\"usage\":null}}}}\n\n\
         event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{RESPONSE}}}\n\n"
    );
    let first = GENERATED.replace(":9}", ":6}");
    let generated = format!("data: {first}\r\n\r\ndata: {GENERATED}\r\n\r\n");
    let bytes: u64 = without.iter().map(|event| event.len() as u64).sum();
    let (chat, responses, messages) = ("/v1/chat/completions", "/v1/responses", "/v1/messages");
    let gemini = "/v1beta/models/gemini-2.5-flash:generateContent";
    let cases = [
        (chat, whole("200 OK", CHAT), 29, 2),
        (chat, streamed(&with_usage), 29, 2),
        (chat, streamed(&without), bytes / 4, 2),
        (chat, whole("404 Not Found", "{\"error\":{}}"), 0, 2),
        (chat, whole("500 Oh", ""), 0, 2),
        (responses, whole("200 OK", RESPONSE), 48, 2),
        (responses, streamed(&[&completed]), 48, 2),
        (messages, whole("200 OK", MESSAGE), 100, 1),
        (messages, streamed(&MESSAGE_EVENTS), 100, 1),
        (gemini, whole("200 OK", GENERATED), 9, 1),
        (gemini, streamed(&[&generated]), 9, 1),
    ];
    let targets: Vec<&str> = (cases.iter().enumerate())
        .map(|(n, (path, ..))| format!("{path}?case={n}").leak() as &str)
        .collect();
    let acts = cases.iter().map(|(_, acts, ..)| acts.clone());
    let service = Service::start(targets.iter().copied().zip(acts).collect()).await;
    let stage = stage("llm", &service).await;
    let units = async |name: &str| {
        let stat = Host::stat(&format!("wasmcustom.rl_costs.{name}"));
        let path = format!("/stats?filter=^{stat}[.]");
        let page = stage.envoy().admin(&path).await.unwrap_or_default();
        let counts = page.lines().filter_map(|line| line.rsplit_once(": "));
        counts
            .map(|(_, count)| count.parse::<u64>().unwrap())
            .sum::<u64>()
    };
    for (target, (_, _, cost, limits)) in targets.into_iter().zip(cases) {
        let (reserved, settled) = (units("reserved").await, units("settled").await);
        stage.get(target, "alice").send().await.unwrap();
        let what = format!("{target} is settled with {cost}");
        wait_for(&what, async || {
            let ended = units("reserved").await > reserved;
            (ended && units("settled").await - settled == cost * limits).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn an_account_gets_five_failed_logins_and_unlimited_successful_ones() {
    let answers = vec![
        ("/login?account=eve", vec![plain("401 No", &[], b"")]),
        ("/login?account=bob", vec![plain("200 OK", &[], b"")]),
    ];
    let service = Service::start(answers).await;
    let stage = stage("logins", &service).await;
    let login = |account: &str| stage.envoy().post(&format!("/login?account={account}"), "");
    assert_eq!(
        statuses(&login("eve"), 7).await,
        [401, 401, 401, 401, 401, 429, 429]
    );
    for _ in 0..12 {
        let reply = login("bob").send().await.unwrap();
        assert_eq!(reply.status, 200);
        wait_for("the login is settled", async || {
            let shown = stage.inspect(
                "failed-logins",
                &["remote_address=127.0.0.1", "account=bob"],
            );
            (shown["remaining"] == 5).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn an_address_that_goes_on_after_its_denials_is_locked_out() {
    let paths = ["/login", "/api/orders"];
    let answers = paths.map(|path| (path, vec![plain("200 OK", &[], b"")]));
    let service = Service::start(answers.to_vec()).await;
    let stage = stage("lockouts", &service).await;
    let login = || stage.envoy().post("/login", "");
    assert_eq!(statuses(&login(), 6).await, [200, 200, 200, 200, 200, 429]);
    let bucket = ["remote_address=127.0.0.1"];
    wait_for("the penalty begins", async || {
        login().send().await.unwrap();
        let shown = stage.inspect("logins", &bucket);
        (shown["penalty"]["left_ms"].as_u64()? > 0).then_some(())
    })
    .await;
    // The proxy may repeat an earlier denial for a second.
    let reply = wait_for("the answer says its end", async || {
        let reply = login().send().await.unwrap();
        let seconds: u64 = reply.header("retry-after")?.parse().ok()?;
        (seconds > 80_000).then_some(reply)
    })
    .await;
    assert_eq!(reply.status, 429);
    let others = stage.envoy().get("/api/orders").header("x-api-key", "k");
    assert_eq!(statuses(&others, 2).await, [200, 200]);
    stage.rlctl(&["reset", "logins", bucket[0], "--yes"]);
    wait_for("the address is let in again", async || {
        (login().send().await.unwrap().status == 200).then_some(())
    })
    .await;
}

#[tokio::test]
async fn expensive_and_cheap_endpoints_share_one_budget() {
    let paths = ["/export/a", "/search", "/other"];
    let answers = paths.map(|path| (path, vec![plain("200 OK", &[], b"")]));
    let service = Service::start(answers.to_vec()).await;
    let stage = stage("budget", &service).await;
    let mut before = 10_000;
    for (path, units) in paths.into_iter().zip([50, 5, 1]) {
        let reply = stage
            .envoy()
            .get(path)
            .header("x-api-key", "k")
            .send()
            .await
            .unwrap();
        let left: u64 = reply
            .header("x-ratelimit-remaining")
            .unwrap()
            .parse()
            .unwrap();
        // The bucket refills by a few units during the test.
        assert!(
            (before - units..before - units + 5).contains(&left),
            "{path}: {left}"
        );
        before = left;
    }
}

/// Sends the requests of a recipe as a reader types them, and compares what they print with the page.
pub async fn answers_as_the_page_says(domain: &str) {
    let answers = vec![
        ("/v1/chat/completions", whole("200 OK", CHAT)),
        ("/login?account=eve", vec![plain("401 No", &[], b"")]),
        ("/login", whole("200 OK", "")),
        ("/search", whole("200 OK", "")),
        ("/export/2026", whole("200 OK", "")),
        ("/batch/7", whole("200 OK", "")),
        ("/orders", whole("200 OK", "")),
    ];
    let service = Service::start(answers).await;
    let (_, recipe) = recipe(domain);
    let filter = yaml(recipe, "```yaml envoy\n");
    let stage = stage_behind(filter.unwrap_or_else(claims), domain, &service).await;
    let mut variables = String::new();
    let mut compared = 0;
    for block in recipe.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        for part in block.split("$ ").filter(|part| !part.trim().is_empty()) {
            let (command, expected) = part.split_once('\n').unwrap();
            if !command.starts_with("curl") && !command.starts_with("rlctl") && expected.is_empty()
            {
                variables = format!("{variables}{command}\n");
                continue;
            }
            let expected: Vec<&str> = expected.lines().filter(|line| !line.is_empty()).collect();
            assert!(!expected.is_empty(), "{command}");
            let as_expected = |printed: &str| {
                let missing = |line: &&&str| !printed.contains(**line);
                expected.iter().find(missing).copied()
            };
            let script = format!("{variables}{command}");
            if command.starts_with("rlctl") {
                // A cost is settled after the response.
                wait_for(command, async || {
                    as_expected(&stage.shell(&script).await)
                        .is_none()
                        .then_some(())
                })
                .await;
            } else {
                let printed = stage.shell(&script).await;
                assert_eq!(as_expected(&printed), None, "{command}: {printed}");
            }
            compared += 1;
        }
    }
    assert!(compared > 0, "no request in the recipe {domain}");
}

#[tokio::test]
async fn requests_of_each_recipe_but_plans_print_what_the_page_says() {
    for (config, _) in recipes() {
        let domain = config["domain"].as_str().unwrap();
        if domain != "plans" {
            answers_as_the_page_says(domain).await;
        }
    }
}
