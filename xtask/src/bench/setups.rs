//! The setups: which Envoys run, what each request does, and how they are loaded, by wrk.
//!
//! All Envoys are up for the whole run and idle except the one under load.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Envoy, EnvoyConfig, Ports, Programs};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use Filter::{
    Headers, Lean, Local, Module, ModuleStreams, NoRateLimit, Ours, RateLimit, Sdk, Silent, Streams,
};

use crate::fleet::{Fleet, limits_are_known, text};

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
    _service: Envoy,
    pub fleet: Fleet,
}

impl Stage {
    /// Starts Redis, limiters, and each Envoy that a row needs.
    pub async fn start(
        programs: &Programs,
        noops: &Noops,
        limits: &str,
        blocks: &[Block],
    ) -> Result<Self> {
        let fleet = Fleet::start(programs, limits, 2).await?;
        let workers = blocks.iter().map(|block| block.workers).max().unwrap_or(1);
        // It answers without a filter, so that it is not slower than the Envoy before it.
        let service = without_filter(answered_by_envoy(fleet.config()?)?)?;
        let service = fleet.envoy(service, fleet.ports.upstream, workers).await?;
        let mut envoys = BTreeMap::new();
        for block in blocks {
            for row in block.rows {
                let variant = (row.filter, block.answers, block.workers);
                if envoys.contains_key(&variant) {
                    continue;
                }
                let config = config(&fleet, noops, row.filter, block.answers)?;
                let envoy = fleet.envoy(config, service.port(), block.workers).await?;
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
            _service: service,
            fleet,
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
        let mut limiters = 0;
        for limiter in &self.fleet.limiters {
            limiters += limiter.process().cpu_us()?;
        }
        let checks = self.fleet.metric("rl_checks_total{").await?;
        let redis = self.fleet.redis()?.process().cpu_us()?;
        let [calls, _] = self.fleet.calls_of("evalsha").await?;
        let envoy = envoy.process().cpu_us()?;
        Ok([envoy, limiters, redis, checks.iter().sum(), calls])
    }
}

/// What counters have counted between two readings.
pub fn since<const N: usize>(after: [u64; N], before: [u64; N]) -> [u64; N] {
    let counts = after.into_iter().zip(before);
    let mut counts = counts.map(|(after, before)| after.saturating_sub(before));
    std::array::from_fn(|_| counts.next().unwrap_or(0))
}

/// Removes the first filter.
pub fn without_filter(config: EnvoyConfig) -> Result<EnvoyConfig> {
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

fn config(fleet: &Fleet, noops: &Noops, filter: Filter, answers: Answers) -> Result<EnvoyConfig> {
    let shipped = || fleet.config();
    let ours = || shipped()?.limiter_timeout("1s");
    let mut config = match filter {
        Filter::None => shipped()?,
        Lean => shipped()?.filter_code(&noops.lean)?,
        Sdk => shipped()?.filter_code(&noops.sdk)?,
        Headers => { shipped()?.filter_code(&noops.sdk)? }
            .filter_config(|config| *config = json!("headers"))?,
        Ours => ours()?,
        Streams => ours()?.check_streams()?,
        Module => ours()?.module(&noops.module)?,
        ModuleStreams => ours()?.check_streams()?.module(&noops.module)?,
        Local => local_rate_limit(shipped()?)?,
        Silent => ours()?.filter_config(|config| config["headers"] = json!([]))?,
        RateLimit | NoRateLimit => {
            EnvoyConfig::rate_limit_service(&fleet.programs.root, &Ports::SHIPPED)?
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

/// Puts Envoy's own local rate limit in place of the filter, with its three headers; the filter writes five.
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
        let arguments = [url, "--", text(&file)?, content_type];
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
