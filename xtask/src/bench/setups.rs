//! The setups: which Envoys run, what each request does, and how they are loaded, by wrk.
//!
//! All Envoys are up for the whole run and idle except the one under load.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{Envoy, EnvoyConfig, Ports, Programs};
use serde::Deserialize;
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

use Filter::{
    Headers, Lean, Local, Module, ModuleStreams, NoRateLimit, Ours, RateLimit, Sdk, Silent, Streams,
};

use crate::command::row;
use crate::fleet::{Fleet, limits_are_known, text};

/// What an Envoy does with a request before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
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

/// One load, as setups.yaml has it.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub name: String,
    filter: Filter,
    path: String,
    #[serde(default)]
    denied: bool,
    pub checked: Option<bool>,
    #[serde(default)]
    pub goals: [u64; 2],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Load {
    workers: Vec<u32>,
    connections: Vec<u64>,
    rows: Vec<Row>,
}

/// What is compared, and under which limits.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub limits: String,
    loads: Vec<Load>,
}

/// A load with all that its rows have in common.
#[derive(Clone)]
pub struct Block {
    pub answers: Answers,
    pub workers: u32,
    pub connections: u64,
    /// The first one is the reference of the others.
    pub rows: Vec<Row>,
}

impl Plan {
    pub fn named(name: &str) -> Result<Self> {
        row(include_str!("setups.yaml"), name)
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for load in &self.loads {
            for answers in [Answers::Envoy, Answers::Service] {
                for &workers in &load.workers {
                    blocks.extend(load.connections.iter().map(|&connections| Block {
                        answers,
                        workers,
                        connections,
                        rows: load.rows.clone(),
                    }));
                }
            }
        }
        blocks
    }
}

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
            for row in &block.rows {
                let variant = (row.filter, block.answers, block.workers);
                if envoys.contains_key(&variant) {
                    continue;
                }
                let config = config(&fleet, noops, row.filter, block.answers)?;
                let envoy = fleet.envoy(config, service.port(), block.workers).await?;
                // An Envoy without response headers does not show that it is ready; the warm-up gives it
                // time.
                if matches!(row.filter, Ours | Streams | Module | ModuleStreams) {
                    limits_are_known(&envoy, &row.path).await?;
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
        let url = envoy.url(&row.path);
        let sample = wrk.users(&url, block.connections, wrk.lasts).await?;
        let sample = { sample.whose_errors_are(row.denied) }
            .with_context(|| format!("load `{}`", row.name))?;
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
            for row in &block.rows {
                let url = self.envoy(block, row)?.url(&row.path);
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

/// The users that requests come from.
pub const USER_COUNT: u64 = 1000;

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
        Local => in_place_of_ours(shipped()?, "local_ratelimit")?,
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

const FILTERS: &str = include_str!("filters.yaml");

/// Puts one of Envoy's own filters in place of ours.
pub fn in_place_of_ours(config: EnvoyConfig, filter: &str) -> Result<EnvoyConfig> {
    let filter = row(FILTERS, filter)?;
    without_filter(config)?.http_filters(|filters| filters.insert(0, filter))
}

/// Adds a filter that answers in place of the service, after the first filter.
pub fn answered_by_envoy(config: EnvoyConfig) -> Result<EnvoyConfig> {
    let answer = row(FILTERS, "fault")?;
    config.http_filters(|filters| filters.insert(1, answer))
}

/// The load generator.
pub struct Wrk {
    program: PathBuf,
    script: PathBuf,
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
    /// Answers of an error status.
    refused: u64,
    failed: u64,
}

impl Wrk {
    pub fn new(program: PathBuf, root: &Path, seconds: u64) -> Result<Self> {
        Ok(Self {
            program,
            script: root.join("xtask/src/bench/wrk.lua"),
            dir: tempfile::tempdir()?,
            lasts: Duration::from_secs(seconds),
        })
    }

    async fn users(&self, url: &str, connections: u64, lasts: Duration) -> Result<Sample> {
        let users = USER_COUNT.to_string();
        self.load(connections, lasts, &[url, "--", &users]).await
    }

    /// Loads a URL over some connections for a while.
    pub async fn sample(&self, url: &str, connections: u64, lasts: Duration) -> Result<Sample> {
        let sample = self.users(url, connections, lasts).await?;
        sample.whose_errors_are(false)
    }

    /// Posts one body over and over, on few connections.
    pub async fn post(&self, url: &str, content_type: &str, body: &[u8]) -> Result<Sample> {
        let file = self.dir.path().join("body");
        std::fs::write(&file, body)?;
        let arguments = [url, "--", text(&file)?, content_type];
        let sample = self.load(8, self.lasts, &arguments).await?;
        sample.whose_errors_are(false)
    }

    async fn load(&self, connections: u64, lasts: Duration, arguments: &[&str]) -> Result<Sample> {
        let output = Command::new(&self.program)
            .args(["--threads", "1", "--timeout", "2s"])
            .args(["--connections", &connections.to_string()])
            .args(["--duration", &format!("{}s", lasts.as_secs()), "--script"])
            .arg(&self.script)
            .args(arguments)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        Sample::read(&text).with_context(|| {
            let errors = String::from_utf8_lossy(&output.stderr);
            format!("wrk measured nothing: {text}{errors}")
        })
    }
}

impl Sample {
    /// What the script reports at the end.
    fn read(text: &str) -> Option<Self> {
        let line = { text.lines() }.find_map(|line| line.strip_prefix("figures "))?;
        let numbers = line.split(' ').map_while(|number| number.parse().ok());
        let [requests, micros, p50_us, p99_us, refused, failed] = *numbers.collect::<Vec<u64>>()
        else {
            return None;
        };
        Some(Self {
            requests,
            per_second: requests.saturating_mul(1_000_000).checked_div(micros)?,
            p50_us,
            p99_us,
            refused,
            failed,
        })
    }

    /// Fails unless all but one in a thousand answers were refusals, or none; otherwise the figures are
    /// invalid.
    fn whose_errors_are(self, expected: bool) -> Result<Self> {
        let (requests, refused, failed) = (self.requests, self.refused, self.failed);
        let expected = if expected { requests } else { 0 };
        let tolerated = requests / 1000;
        ensure!(
            refused.abs_diff(expected) <= tolerated && failed <= tolerated,
            "of {requests} answers {refused} had an error status ({expected} expected), {failed} failed"
        );
        Ok(self)
    }
}
