//! What a cost from the response takes: settled requests beside checked ones, and a megabyte of
//! server-sent events beside filters that do nothing.
//!
//! Every round loads each row directly before or after its reference, and only such pairs are compared.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use harness::{Envoy, EnvoyConfig, Ports, Programs};
use serde_json::{Value, json};

use super::load::Load;
use super::pairs::alternate;
use super::ready::{Servers, limits_are_known, start_envoy};
use super::report::median;
use super::setups::{Noops, Setup};

/// The same requests with one number as their cost, and with one that the response says.
const LIMITS: &str = "\
domain: shop
limits:
  - {name: checked, match: {path: \"/checked/**\"}, per: [user], rate: 1000000000/1s}
  - name: settled
    match: {path: \"/settled/**\"}
    per: [user]
    rate: 1000000000/1s
    cost: {from: {response_json: /usage/total_tokens}, reserve: 1000}
";

/// One of the Envoys.
type Which = fn(&Stage) -> &Envoy;
/// A row: its name, and the Envoy and path of it and of its reference.
type Row = (&'static str, (Which, &'static str), (Which, &'static str));
const ROWS: [Row; 8] = [
    (
        "settled JSON, of checked",
        (|of| &of.ours, "/settled/json"),
        (|of| &of.ours, "/checked/json"),
    ),
    (
        "settled events, of checked",
        (|of| &of.ours, "/settled/events"),
        (|of| &of.ours, "/checked/events"),
    ),
    (
        "1 MB of events, of the no-op filter",
        (|of| &of.ours, "/settled/large"),
        (|of| &of.lean, "/settled/large"),
    ),
    (
        "1 MB of events, of the SDK's no-op",
        (|of| &of.ours, "/settled/large"),
        (|of| &of.sdk, "/settled/large"),
    ),
    (
        "1 MB copied, of the no-op filter",
        (|of| &of.copying, "/settled/large"),
        (|of| &of.lean, "/settled/large"),
    ),
    (
        "1 MB of events, of copied",
        (|of| &of.ours, "/settled/large"),
        (|of| &of.copying, "/settled/large"),
    ),
    (
        "1 MB of events, of checked",
        (|of| &of.ours, "/settled/large"),
        (|of| &of.ours, "/checked/large"),
    ),
    (
        "1 MB with usage in each, of checked",
        (|of| &of.ours, "/settled/usages"),
        (|of| &of.ours, "/checked/usages"),
    ),
];

struct Stage {
    _service: Envoy,
    lean: Envoy,
    sdk: Envoy,
    /// Copies bodies, and does not look at them.
    copying: Envoy,
    ours: Envoy,
    _servers: Servers,
}

/// Runs the rounds; returns the comparison.
pub async fn run(
    programs: &Programs,
    noops: &Noops,
    wrk: &Path,
    rounds: u64,
    seconds: u64,
) -> Result<String> {
    let stage = Stage::start(programs, noops).await?;
    let load = Load::new(wrk.to_owned(), Duration::from_secs(seconds), 8)?;
    let mut table = format!(
        "{:<37}{:>11}{:>8}{:>9}{:>8}\n",
        "", "requests/s", "ratio", "CPU us", "ratio"
    );
    for (name, own, reference) in ROWS {
        let (mut rates, mut cpus) = (Vec::new(), Vec::new());
        let (ours, other) = (
            async || stage.load(&load, own).await,
            async || stage.load(&load, reference).await,
        );
        for (own, reference) in alternate(rounds, ours, other).await? {
            rates.push((own.0 * 1000 / reference.0.max(1), own.0));
            cpus.push((own.1 * 1000 / reference.1.max(1), own.1));
        }
        let of = |pairs: &[(u64, u64)]| {
            let (ratios, values) = pairs.iter().copied().unzip();
            (median(ratios), median(values))
        };
        let ((rate_ratio, rate), (cpu_ratio, cpu)) = (of(&rates), of(&cpus));
        let thousandths = |value: u64| format!("{}.{:03}", value / 1000, value % 1000);
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "{name:<37}{rate:>11}{:>8}{cpu:>9}{:>8}",
            thousandths(rate_ratio),
            thousandths(cpu_ratio)
        );
    }
    Ok(table)
}

impl Stage {
    async fn start(programs: &Programs, noops: &Noops) -> Result<Self> {
        let ports = Ports::free()?;
        let servers = Servers::start(programs, LIMITS, &ports.limiters).await?;
        let shipped = || EnvoyConfig::shipped(&programs.root);
        let start = async |config: EnvoyConfig, upstream| {
            let ports = Ports { upstream, ..ports };
            start_envoy(programs, config, ports, 1, servers.dir.path()).await
        };
        let service = shipped()?
            .http_filters(|filters| drop(filters.remove(0)))?
            .manager_edit(answer_by_path)?;
        let (service, behind) = start(service, ports.upstream).await?;
        let with = async |code: &Path| {
            let config = shipped()?.filter_code(code)?.limiter_timeout("1s")?;
            anyhow::Ok(start(config, behind).await?.0)
        };
        let copying = shipped()?.filter_code(&noops.sdk)?;
        let copying = copying.filter_config(|config| *config = json!("bodies"))?;
        let stage = Self {
            lean: with(&noops.lean).await?,
            sdk: with(&noops.sdk).await?,
            copying: start(copying, behind).await?.0,
            ours: with(&programs.filter).await?,
            _service: service,
            _servers: servers,
        };
        limits_are_known(&stage.ours, "/checked/json").await?;
        Ok(stage)
    }

    /// Requests per second, and Envoy's CPU for one in microseconds.
    async fn load(&self, load: &Load, (which, path): (Which, &str)) -> Result<(u64, u64)> {
        let envoy = which(self);
        let setup = Setup {
            name: "costs",
            url: envoy.url(path),
            status: 200,
            reference: "costs",
            checked: None,
            envoy: 0,
        };
        let before = envoy.process().cpu_us()?;
        let sample = load.run(&setup).await?;
        let used = envoy.process().cpu_us()? - before;
        Ok((sample.per_second, used / sample.requests.max(1)))
    }
}

/// Has Envoy answer as models do.
fn answer_by_path(manager: &mut Value) {
    let json = r#"{"id":"1","choices":[{"message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}"#;
    let usage = r#"{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}"#;
    let events = |len: usize, each: &str| {
        let mut body = String::new();
        for word in [
            "Hi",
            " there",
            "!",
            " \\\"quoted\\\"",
            " What",
            " next",
            "?",
        ]
        .iter()
        .cycle()
        {
            if body.len() >= len {
                break;
            }
            body.push_str(&event(word, each));
        }
        body + &event("", usage) + "data: [DONE]\n\n"
    };
    let routes = ["checked", "settled"].into_iter().flat_map(|prefix| {
        let bodies = [
            ("json", "application/json", json.to_owned()),
            ("events", "text/event-stream", events(3_000, "null")),
            ("large", "text/event-stream", events(1_000_000, "null")),
            ("usages", "text/event-stream", events(1_000_000, usage)),
        ];
        bodies.map(|(name, media_type, body)| {
            json!({
                "match": {"path": format!("/{prefix}/{name}")},
                "direct_response": {"status": 200, "body": {"inline_string": body}},
                "response_headers_to_add": [{
                    "header": {"key": "content-type", "value": media_type},
                    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"
                }]
            })
        })
    });
    let routes: Vec<Value> = routes.collect();
    let config = json!({
        "name": "routes",
        "max_direct_response_body_size_bytes": 2_000_000,
        "virtual_hosts": [{"name": "service", "domains": ["*"], "routes": routes}]
    });
    if let Some(manager) = manager.as_object_mut() {
        manager.insert("route_config".to_owned(), config);
    }
}

/// One event of a chat completion.
fn event(word: &str, usage: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG\",\"object\":\"chat.completion.chunk\",\
         \"created\":1741570283,\"model\":\"gpt-4o-mini-2024-07-18\",\"system_fingerprint\":\"fp_44709d6fcb\",\
         \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}},\"logprobs\":null,\"finish_reason\":null}}],\
         \"usage\":{usage}}}\n\n"
    )
}
