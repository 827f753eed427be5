//! The setups: which Envoys run, what each request does, and how they are loaded, by wrk.
//!
//! All Envoys are up for the whole run and idle except the one under load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, free_port, until,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use Filter::{
    Bodies, Headers, Lean, Local, Module, ModuleStreams, NoRateLimit, Ours, RateLimit, Sdk, Silent,
    Streams,
};

/// What an Envoy does with a request before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Filter {
    None,
    /// Entered once per request; does nothing.
    Lean,
    /// Built with the SDK, which is entered for each callback; does nothing.
    Sdk,
    /// The same, but it reads and writes the headers that ours does.
    Headers,
    /// The same, but it copies bodies, and does not look at them.
    Bodies,
    Ours,
    /// Ours, with check streams.
    Streams,
    /// Ours, without response headers.
    Silent,
    /// Ours, as a dynamic module.
    Module,
    /// The same, with check streams.
    ModuleStreams,
    /// Envoy's own local rate limit, of one bucket with headers: neither exact across proxies nor by user.
    Local,
    /// Envoy's own.
    RateLimit,
    /// None, in the configuration of [`Self::RateLimit`].
    NoRateLimit,
}

/// What answers requests that pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answers {
    /// Envoy, by its fault filter, so that no upstream hides the filter's cost.
    Envoy,
    /// A service behind Envoy, as in production.
    Service,
    /// A service that answers as models do.
    Model,
}

/// One load, and the one that it is compared with.
#[derive(Clone, Copy)]
pub struct Row {
    pub name: &'static str,
    filter: Filter,
    path: &'static str,
    /// The expected response.
    status: u16,
    /// Whether a limiter must check each request; `None`: either.
    pub checked: Option<bool>,
    /// The row of the same block that it is loaded beside; its own name, if it is only a reference.
    pub reference: &'static str,
    /// The least that it must reach of its reference's requests, in thousandths: where Envoy answers
    /// itself, and before a service.
    pub goals: [u64; 2],
}

const fn row(name: &'static str, filter: Filter, path: &'static str, of: &'static str) -> Row {
    Row {
        name,
        filter,
        path,
        status: 200,
        checked: None,
        reference: of,
        goals: [0, 0],
    }
}

impl Row {
    const fn checked(mut self, checked: Option<bool>, goals: [u64; 2]) -> Self {
        (self.checked, self.goals) = (checked, goals);
        self
    }

    const fn status(mut self, status: u16) -> Self {
        self.status = status;
        self
    }
}

/// Rows that are loaded in turn, each directly before or after its reference.
#[derive(Clone, Copy)]
pub struct Block {
    pub answers: Answers,
    pub workers: u32,
    pub connections: u64,
    pub rows: &'static [Row],
}

/// Limits of [`FILTERS`]: one that is never reached, one that always is, and a leased one.
pub const LIMITS: &str = "\
domain: shop
limits:
  - {name: roomy, match: {path: /strict}, per: [user], rate: 1000000/1s}
  - {name: spent, match: {path: /denied}, per: [user], rate: 1/1h}
  - {name: busy, match: {path: /leased}, rate: 1000000/1s, lease: {ttl: 100ms}}
";
const NOOP: &str = "no-op filter";
const CHECKED: Row = row("every request checked", Ours, "/strict", NOOP);
const STREAMED: Row = row("checked by a stream", Streams, "/strict", NOOP);
const DENIED: Row = row("denied from the cache", Ours, "/denied", NOOP);
const LEASED: Row = row("leased", Ours, "/leased", NOOP);

/// The filter's cost.
pub const FILTERS: [Row; 14] = [
    row(NOOP, Lean, "/strict", NOOP),
    row("no filter", Filter::None, "/strict", NOOP),
    row("no-op by the SDK", Sdk, "/strict", NOOP),
    row("headers alone", Headers, "/strict", NOOP),
    CHECKED.checked(Some(true), [500, 650]),
    STREAMED.checked(Some(true), [500, 650]),
    DENIED.checked(Some(false), [0, 1500]).status(429),
    LEASED.checked(Some(false), [800, 900]),
    row("local rate limit", Local, "/leased", NOOP),
    row("module, checked", Module, "/strict", NOOP).checked(Some(true), [0, 0]),
    row("module, by a stream", ModuleStreams, "/strict", NOOP).checked(Some(true), [0, 0]),
    row("module, denied", Module, "/denied", NOOP)
        .checked(Some(false), [0, 0])
        .status(429),
    row("module, leased", Module, "/leased", NOOP).checked(Some(false), [0, 0]),
    row("module, no limit applies", Module, "/", NOOP),
];

/// Requests that are sent one at a time.
pub const LONE: [Row; 3] = [
    row(NOOP, Lean, "/strict", NOOP),
    CHECKED.checked(Some(true), [0, 0]),
    STREAMED.checked(Some(true), [0, 0]),
];

/// Limits of [`LEASES`]: one busy bucket, leased and not, and a bucket for each of a thousand users.
pub const LEASE_LIMITS: &str = "\
domain: shop
limits:
  - {name: leased, match: {path: /leased}, rate: 1000000/1s, lease: {ttl: 100ms}}
  - {name: users, match: {path: /users}, per: [user], rate: 1000000/1s, lease: {ttl: 100ms}}
  - {name: checked, match: {path: /checked}, rate: 1000000/1s}
";

/// What leases save.
pub const LEASES: [Row; 6] = [
    row(NOOP, Lean, "/leased", NOOP),
    row("headers alone", Headers, "/leased", NOOP),
    row("every request checked", Ours, "/checked", NOOP),
    row("leased, one bucket", Ours, "/leased", NOOP),
    row("leased, no headers", Silent, "/leased", NOOP),
    row("leased, 1000 buckets", Ours, "/users", NOOP),
];

/// Limits of [`RATE_LIMIT_SERVICE`], and of calls of the service.
pub const SERVICE_LIMITS: &str = "\
domain: shop
limits:
  - {name: users, descriptor: [user], algorithm: fixed_window, rate: 1000000/1s}
  - {name: checked, match: {path: /check}, per: [user], algorithm: fixed_window, rate: 1000000/1s}
";
const WITHOUT: &str = "without the filter";

/// Envoy's own filter. The goals are what a fixed-window gRPC service on Redis keeps up with, times 1.2.
pub const RATE_LIMIT_SERVICE: [Row; 2] = [
    row(WITHOUT, NoRateLimit, "/", WITHOUT),
    row("rate limit filter", RateLimit, "/", WITHOUT).checked(None, [140, 280]),
];

/// Limits of [`COSTS`]: the same requests with one number as their cost, and with one that the response
/// says.
pub const COST_LIMITS: &str = "\
domain: shop
limits:
  - {name: checked, match: {path: \"/checked/**\"}, per: [user], rate: 1000000000/1s}
  - name: settled
    match: {path: \"/settled/**\"}
    per: [user]
    rate: 1000000000/1s
    cost: {from: {response_json: /usage/total_tokens}, reserve: 1000}
";
const JSON: &str = "JSON, checked";
const EVENTS: &str = "events, checked";
const LARGE: &str = "1 MB, no-op";
const COPIED: &str = "1 MB, copied";
const LARGE_CHECKED: &str = "1 MB, checked";
const USAGES: &str = "usages, checked";

/// What reading responses costs: small ones, 1 MB of events, and 1 MB of which each event has a usage.
pub const COSTS: [Row; 13] = [
    row(JSON, Ours, "/checked/json", JSON),
    row("JSON, settled", Ours, "/settled/json", JSON),
    row(EVENTS, Ours, "/checked/events", EVENTS),
    row("events, settled", Ours, "/settled/events", EVENTS),
    row(LARGE, Lean, "/settled/large", LARGE),
    row("1 MB, no-op by the SDK", Sdk, "/settled/large", LARGE),
    row(COPIED, Bodies, "/settled/large", LARGE),
    row("1 MB, settled", Ours, "/settled/large", LARGE),
    row("settled, of copied", Ours, "/settled/large", COPIED),
    row(LARGE_CHECKED, Ours, "/checked/large", LARGE_CHECKED),
    row("settled, of checked", Ours, "/settled/large", LARGE_CHECKED),
    row(USAGES, Ours, "/checked/usages", USAGES),
    row("usages, settled", Ours, "/settled/usages", USAGES),
];

/// The wasm filters that decide nothing, and ours as a dynamic module.
pub struct Noops {
    pub lean: PathBuf,
    pub sdk: PathBuf,
    pub module: PathBuf,
}

/// An Envoy: its filter, what answers behind it, and its workers.
type Variant = (Filter, Answers, u32);

/// Everything that runs.
pub struct Stage {
    envoys: BTreeMap<Variant, Envoy>,
    _services: BTreeMap<Answers, Envoy>,
    pub servers: Servers,
}

impl Stage {
    /// Starts Redis, limiters, and each Envoy that a row needs.
    pub async fn start(
        programs: &Programs,
        noops: &Noops,
        limits: &str,
        blocks: &[Block],
    ) -> Result<Self> {
        let ports = Ports::free()?;
        let servers = Servers::start(programs, limits, &ports.limiters).await?;
        let dir = servers.dir.path();
        let workers = blocks.iter().map(|block| block.workers).max().unwrap_or(1);
        let (mut envoys, mut services) = (BTreeMap::new(), BTreeMap::new());
        for block in blocks {
            if block.answers != Answers::Envoy && !services.contains_key(&block.answers) {
                // It answers without a filter, so that it is not slower than the Envoy before it.
                let config = EnvoyConfig::shipped(&programs.root)?;
                let config = match block.answers {
                    Answers::Model => without_filter(config)?.manager_edit(answer_by_path)?,
                    _ => without_filter(answered_by_envoy(config)?)?,
                };
                let own = own_ports(ports)?;
                let service = Envoy::start(programs, config, own, workers, dir).await?;
                services.insert(block.answers, service);
            }
            let service = services.get(&block.answers);
            let upstream = service.map_or(ports.upstream, Envoy::port);
            for row in block.rows {
                let variant = (row.filter, block.answers, block.workers);
                if envoys.contains_key(&variant) {
                    continue;
                }
                let own = own_ports(Ports { upstream, ..ports })?;
                let config = config(programs, noops, row.filter, block.answers, &own)?;
                let envoy = Envoy::start(programs, config, own, block.workers, dir).await?;
                // An Envoy without response headers does not show that it is ready; the warm-up gives it
                // time.
                if matches!(row.filter, Ours | Streams | Module | ModuleStreams) {
                    limits_are_known(&envoy, row.path).await?;
                }
                envoys.insert(variant, envoy);
            }
        }
        Ok(Self {
            envoys,
            _services: services,
            servers,
        })
    }

    fn envoy(&self, block: &Block, row: &Row) -> Result<&Envoy> {
        let variant = (row.filter, block.answers, block.workers);
        self.envoys.get(&variant).context("no such Envoy")
    }

    /// Loads one row for a while, and checks that requests took the path it is named for.
    pub async fn run(&self, wrk: &Wrk, block: &Block, row: &Row) -> Result<Run> {
        let envoy = self.envoy(block, row)?;
        let before = self.used(envoy).await?;
        let url = envoy.url(row.path);
        let loaded = wrk.users(&url, block.connections, wrk.lasts);
        let sample = loaded.await?.sample(row.status >= 400);
        let sample = sample.with_context(|| format!("load `{}`", row.name))?;
        let [envoy, limiters, redis, checks, calls] = since(self.used(envoy).await?, before);
        let requests = sample.requests.max(1);
        match row.checked {
            // A few are in flight when the load ends.
            Some(true) => ensure!(
                checks.saturating_mul(100) >= requests.saturating_mul(99),
                "only {checks} of {requests} requests reached a limiter"
            ),
            // The deny cache holds a denial for a second, and every user is denied.
            Some(false) => ensure!(
                checks <= (wrk.lasts.as_secs() + 2).saturating_mul(USER_COUNT),
                "{checks} of {requests} requests reached a limiter"
            ),
            None => {}
        }
        Ok(Run {
            sample,
            cpu_ns: [envoy, limiters, redis].map(|us| us.saturating_mul(1000) / requests),
            calls: calls.saturating_mul(1_000_000) / requests,
        })
    }

    /// Loads each row for a second without measuring: pools fill, code is compiled.
    pub async fn warm_up(&self, wrk: &Wrk, blocks: &[Block]) -> Result<()> {
        for block in blocks {
            for row in block.rows {
                let url = self.envoy(block, row)?.url(row.path);
                let lasts = Duration::from_secs(1);
                wrk.users(&url, block.connections, lasts).await?;
            }
        }
        Ok(())
    }

    /// CPU time that an Envoy, the limiters and Redis have used, in microseconds; checks that limiters
    /// decided, and Redis's script calls.
    async fn used(&self, envoy: &Envoy) -> Result<[u64; 5]> {
        let (mut limiters, mut checks) = (0, 0);
        for limiter in &self.servers.limiters {
            limiters += limiter.process().cpu_us()?;
            let url = format!("{}/metrics", limiter.admin_url());
            let page = Client::new().get(&url).send().await?.text();
            for line in page.lines() {
                if let Some(line) = line.strip_prefix("rl_checks_total{") {
                    let count = line.rsplit(' ').next().unwrap_or_default();
                    checks += count.parse::<u64>().context("rl_checks_total")?;
                }
            }
        }
        let redis = self.servers.redis.process().cpu_us()?;
        let [calls, _] = self.servers.script_calls().await?;
        Ok([envoy.process().cpu_us()?, limiters, redis, checks, calls])
    }
}

/// What counters have counted between two readings.
pub fn since<const N: usize>(after: [u64; N], before: [u64; N]) -> [u64; N] {
    let counts = after.into_iter().zip(before);
    let mut counts = counts.map(|(after, before)| after.saturating_sub(before));
    std::array::from_fn(|_| counts.next().unwrap_or(0))
}

/// Ports for another Envoy.
pub fn own_ports(mut ports: Ports) -> Result<Ports> {
    (ports.envoy, ports.envoy_admin) = (free_port()?, free_port()?);
    Ok(ports)
}

/// Removes the first filter.
fn without_filter(config: EnvoyConfig) -> Result<EnvoyConfig> {
    config.http_filters(|filters| drop(filters.remove(0)))
}

/// The results of one load of a row.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    pub sample: Sample,
    /// CPU time per request of Envoy, the limiters and Redis, in nanoseconds.
    pub cpu_ns: [u64; 3],
    /// Redis's script calls for a million requests.
    pub calls: u64,
}

fn config(
    programs: &Programs,
    noops: &Noops,
    filter: Filter,
    answers: Answers,
    ports: &Ports,
) -> Result<EnvoyConfig> {
    let shipped = || EnvoyConfig::shipped(&programs.root);
    let sdk = |bodies: &str| {
        let config = shipped()?.filter_code(&noops.sdk)?;
        config.filter_config(|config| *config = json!(bodies))
    };
    let ours = || {
        shipped()?
            .filter_code(&programs.filter)?
            .limiter_timeout("1s")
    };
    let mut config = match filter {
        Filter::None => shipped()?,
        Lean => shipped()?.filter_code(&noops.lean)?,
        Sdk => shipped()?.filter_code(&noops.sdk)?,
        Headers => sdk("headers")?,
        Bodies => sdk("bodies")?,
        Ours => ours()?,
        Streams => ours()?.check_streams()?,
        Module => ours()?.module(&noops.module)?,
        ModuleStreams => ours()?.check_streams()?.module(&noops.module)?,
        Local => local_rate_limit(shipped()?)?,
        Silent => ours()?.filter_config(|config| config["headers"] = json!([]))?,
        RateLimit | NoRateLimit => {
            let config = EnvoyConfig::rate_limit_service(&programs.root, ports)?;
            let own = [ports.envoy, ports.envoy_admin, ports.upstream];
            let own = own.iter().chain(&ports.limiters);
            own.fold(config, |config, port| config.keep_port(*port))
        }
    };
    if answers == Answers::Envoy {
        config = answered_by_envoy(config)?;
    }
    if matches!(filter, Filter::None | NoRateLimit) {
        config = without_filter(config)?;
    }
    Ok(config)
}

/// Puts Envoy's own local rate limit in place of the filter, with the same headers.
fn local_rate_limit(config: EnvoyConfig) -> Result<EnvoyConfig> {
    let always = json!({"default_value": {"numerator": 100}, "runtime_key": "bench.local"});
    config.http_filters(|filters| {
        if let Some(filter) = filters.first_mut() {
            filter["typed_config"] = json!({
                "@type": "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit",
                "stat_prefix": "local",
                "token_bucket": {"max_tokens": 100_000_000, "tokens_per_fill": 100_000_000, "fill_interval": "1s"},
                "filter_enabled": always,
                "filter_enforced": always,
                "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            });
        }
    })
}

/// Adds a filter that answers in place of the service, after the first filter.
pub fn answered_by_envoy(config: EnvoyConfig) -> Result<EnvoyConfig> {
    config.http_filters(|filters| {
        let answer = json!({
            "name": "answer",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
                "abort": {"http_status": 200, "percentage": {"numerator": 100}}
            }
        });
        filters.insert(1, answer);
    })
}

/// Has Envoy answer as models do.
fn answer_by_path(manager: &mut Value) {
    const WORDS: &str = r#"Hi| there|!| \"quoted\"| What| next|?"#;
    let json = r#"{"id":"1","choices":[{"message":{"role":"assistant","content":"Hi"}}],"usage":{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}}"#;
    let usage = r#"{"prompt_tokens":19,"completion_tokens":10,"total_tokens":29}"#;
    // One event of a chat completion.
    let event = |word: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeG\",\"object\":\"chat.completion.chunk\",\
             \"created\":1741570283,\"model\":\"gpt-4o-mini-2024-07-18\",\"system_fingerprint\":\"fp_44709d6fcb\",\
             \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}},\"logprobs\":null,\"finish_reason\":null}}],\
             \"usage\":{usage}}}\n\n"
        )
    };
    let events = |len: usize, each: &str| {
        let mut body = String::new();
        for word in WORDS.split('|').cycle() {
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
    manager["route_config"] = json!({
        "name": "routes",
        "max_direct_response_body_size_bytes": 2_000_000,
        "virtual_hosts": [{"name": "service", "domains": ["*"], "routes": routes}]
    });
}

/// Redis with some limits, limiters of it, and a folder for what they write.
pub struct Servers {
    pub limiters: Vec<Limiter>,
    pub redis: Redis,
    pub dir: TempDir,
}

impl Servers {
    /// Starts Redis, loads the scripts and these limits, in YAML, and starts a limiter on each port.
    pub async fn start(programs: &Programs, limits: &str, ports: &[u16]) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let redis = Redis::start(&programs.redis, free_port()?, dir.path()).await?;
        let file = dir.path().join("limits.yaml");
        std::fs::write(&file, limits)?;
        let file = file
            .to_str()
            .context("a temporary folder that is not UTF-8")?;
        for arguments in [&["load-scripts"][..], &["apply", "-f", file]] {
            let mut rlctl = std::process::Command::new(&programs.rlctl);
            crate::command::output(rlctl.args(arguments).env("RL_STORE", redis.url()))?;
        }
        let mut limiters = Vec::new();
        for &port in ports {
            let ports = [port, free_port()?];
            let mut plan = LimiterPlan::new(programs, &redis.url(), ports, dir.path());
            // The benchmark measures checks and not timeouts.
            plan.arguments
                .extend(["--store-timeout", "1s"].map(str::to_owned));
            limiters.push(plan.start().await?);
        }
        Ok(Self {
            limiters,
            redis,
            dir,
        })
    }

    /// The first limiter.
    pub fn limiter(&self) -> Result<&Limiter> {
        self.limiters.first().context("no limiter was started")
    }

    /// Redis's script calls so far, and the microseconds that they took.
    pub async fn script_calls(&self) -> Result<[u64; 2]> {
        let stats = self.redis.command(&["INFO", "commandstats"]).await?;
        let line = { stats.lines() }.find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let line = line.context("no script was called")?;
        let count = |name| {
            let mut counts = line.split(',');
            let value = counts.find_map(|count| count.strip_prefix(name)?.strip_prefix('='));
            value
                .context("commandstats")?
                .parse()
                .context("commandstats")
        };
        Ok([count("calls")?, count("usec")?])
    }
}

/// Waits until a limit is in force on a path.
pub async fn limits_are_known(envoy: &Envoy, path: &str) -> Result<()> {
    let probe = Client::new().get(&envoy.url(path));
    let probe = probe.header("x-user-id", "nobody");
    let patience = Duration::from_secs(10);
    until("Envoy follows the limits", patience, async || {
        let reply = probe.send().await.ok()?;
        reply.header("ratelimit").map(drop)
    })
    .await
}

/// Starts Envoy without any wasm, with the no-op filter and with ours, one after the other. Returns how long
/// each took until it served, and its CPU time until then, in milliseconds.
pub async fn starts(programs: &Programs, noop: &Path) -> Result<[[u64; 2]; 3]> {
    let shipped = || EnvoyConfig::shipped(&programs.root);
    let configs = [
        without_filter(shipped()?)?,
        shipped()?.filter_code(noop)?,
        shipped()?.filter_code(&programs.filter)?,
    ];
    let mut took = [[0; 2]; 3];
    for (config, took) in configs.into_iter().zip(&mut took) {
        let dir = tempfile::tempdir()?;
        let started = std::time::Instant::now();
        let envoy = Envoy::start(programs, config, Ports::free()?, 1, dir.path()).await?;
        let lasted = u64::try_from(started.elapsed().as_millis())?;
        *took = [lasted, envoy.process().cpu_us()? / 1000];
    }
    Ok(took)
}

/// The users that requests come from.
pub const USER_COUNT: u64 = 1000;

/// Requests come from this many users in turn, so that no single bucket and no
/// single cache line makes the figures.
const USERS: &str = r#"
local users, next_user = {}, 0
init = function(args)
  for n = 1, tonumber(args[1]) do
    users[n] = wrk.format("GET", nil, {["x-user-id"] = "user-" .. n})
  end
end
request = function()
  next_user = next_user % #users + 1
  return users[next_user]
end
"#;

/// One body, from a file, over and over: `wrk -s SCRIPT URL -- FILE TYPE`.
const BODY: &str = r#"
local whole
init = function(args)
  local file = io.open(args[1], "rb")
  whole = wrk.format("POST", nil, {["content-type"] = args[2]}, file:read("*a"))
end
request = function() return whole end
"#;

/// The end of both scripts.
const DONE: &str = r#"
done = function(summary, latency, requests)
  local errors = summary.errors
  print(string.format("figures %d %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
"#;

/// The load generator.
pub struct Wrk {
    program: PathBuf,
    dir: TempDir,
    pub lasts: Duration,
}

/// Answers of a load.
#[derive(Debug, Clone, Copy)]
pub struct Sample {
    pub requests: u64,
    pub per_second: u64,
    /// Half of the answers came within this many microseconds.
    pub p50_us: u64,
    /// 99 of 100 answers came within this many microseconds.
    pub p99_us: u64,
}

impl Wrk {
    pub fn new(program: PathBuf, seconds: u64) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join("users.lua"), format!("{USERS}{DONE}"))?;
        std::fs::write(dir.path().join("body.lua"), format!("{BODY}{DONE}"))?;
        let lasts = Duration::from_secs(seconds);
        Ok(Self {
            program,
            dir,
            lasts,
        })
    }

    async fn users(&self, url: &str, connections: u64, lasts: Duration) -> Result<Figures> {
        let arguments = [url, "--", &USER_COUNT.to_string()];
        self.load("users.lua", connections, lasts, &arguments).await
    }

    /// Loads a URL over some connections for a while.
    pub async fn sample(&self, url: &str, connections: u64, lasts: Duration) -> Result<Sample> {
        self.users(url, connections, lasts).await?.sample(false)
    }

    /// Posts one body over and over, on few connections.
    pub async fn post(&self, url: &str, content_type: &str, body: &[u8]) -> Result<Sample> {
        let file = self.dir.path().join("body");
        std::fs::write(&file, body)?;
        let file = file
            .to_str()
            .context("a temporary folder that is not UTF-8")?;
        let arguments = [url, "--", file, content_type];
        let figures = self.load("body.lua", 8, self.lasts, &arguments).await?;
        figures.sample(false)
    }

    async fn load(
        &self,
        script: &str,
        connections: u64,
        lasts: Duration,
        arguments: &[&str],
    ) -> Result<Figures> {
        let output = Command::new(&self.program)
            .args(["--threads", "1", "--timeout", "2s"])
            .args(["--connections", &connections.to_string()])
            .args(["--duration", &format!("{}s", lasts.as_secs()), "--script"])
            .arg(self.dir.path().join(script))
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Figures::read(&text).with_context(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            format!("wrk measured nothing: {text}{errors}")
        })
    }
}

/// What the script reports at the end: requests, microseconds, p50, p99, answers of an error status,
/// failures.
struct Figures([u64; 6]);

impl Figures {
    fn read(text: &str) -> Option<Self> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("figures "))?;
        let numbers = line.split(' ').map_while(|number| number.parse().ok());
        Some(Self(numbers.collect::<Vec<u64>>().try_into().ok()?))
    }

    /// Fails unless all but one in a thousand answers were refusals, or none; otherwise the figures are
    /// invalid.
    fn sample(self, refusals: bool) -> Result<Sample> {
        let Self([requests, micros, p50_us, p99_us, refused, failed]) = self;
        let expected = if refusals { requests } else { 0 };
        let tolerated = requests / 1000;
        ensure!(
            refused.abs_diff(expected) <= tolerated && failed <= tolerated,
            "of {requests} answers {refused} had an error status ({expected} expected), {failed} failed"
        );
        let per_second = requests.saturating_mul(1_000_000).checked_div(micros);
        Ok(Sample {
            requests,
            per_second: per_second.context("no time passed")?,
            p50_us,
            p99_us,
        })
    }
}
