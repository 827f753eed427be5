//! `cargo xtask soak`: two limiters with their default flags and a real Redis, under every attack of
//! [`attacks`] at once, beside honest checks over connections of their own. The first one has its
//! limits from files, the second one from a management server, which are attackers as well.
//!
//! Honest checks have a token and come at a steady rate. 99.9 % of them must be answered within the
//! store timeout plus 5 ms, and each limiter's memory must stay below 128 MiB. The time is measured at
//! the client, its own scheduling included: run it on an otherwise idle machine.
//!
//! All clients are in this process. Attackers share one thread of the lowest priority, each at a rate
//! of its own, so that they cost the limiter work and memory rather than the machine its CPU: two
//! cores suffice for limiter, Redis and clients. The report shows how often each attack struck, and
//! the CPU time of the clients. `--proxy` is another soak: [`proxy`].

mod attacks;
mod proxy;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use harness::{Limiter, LimiterPlan, Programs, RawClient, Redis, cpu_us, free_port};
use tokio::signal::ctrl_c;
use tokio::time::{interval, sleep};

use crate::bench::Unit;
use crate::command::Workspace;
use crate::fleet::{lock, micros, quantile, release, terminable, text};
use crate::tools::{Tool, Tools};
use crate::ui::Ui;
use crate::{module, wasm};

use attacks::{Attackers, To};

/// The most memory that the limiter may take.
const MEMORY_MAX: u64 = 128 << 20;

/// A token that the limiter accepts: no placeholder.
const TOKEN: &str = "5f0c6a2e9d7b41c88e31";

const LIMITS: &str = "
domain: soak
limits:
  - {name: honest, match: {what: honest}, per: [user], rate: 1000000/1s}
  - {name: slow, match: {what: slow}, rate: 1/20s}
  - {name: windows, match: {what: windows}, per: [user], algorithm: sliding_window_buckets, rate: 100000/1m, sub_windows: 1000}
  - {name: service, descriptor: [service], algorithm: fixed_window, rate: 1000000/1s}
  - {name: slots, match: {what: slots}, algorithm: concurrency, limit: 10, slot_ttl: 3s}
  - {name: tokens, match: {what: tokens}, rate: 1000/1h, cost: {from: {response_json: /n}, reserve: 10, max: 1000}}
";

/// Arguments of `cargo xtask soak`.
#[derive(clap::Args)]
pub struct Args {
    /// How long
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
    /// Not of limiters but of the filter, in an Envoy whose configuration changes 20 times a second
    #[arg(long, value_name = "module|wasm|FILE", conflicts_with_all = ["peace", "only"])]
    proxy: Option<PathBuf>,
    /// Honest checks only: what the machine can do
    #[arg(long)]
    peace: bool,
    /// Only the attacks whose names contain one of these
    #[arg(long, value_name = "WORDS", value_delimiter = ',', default_value = "")]
    only: Vec<String>,
    /// A limiter that is built already, of an earlier commit perhaps, with `rlctl` beside it
    #[arg(long, value_name = "PROGRAM")]
    limiter: Option<PathBuf>,
}

/// Runs the soak and prints its results; an error if a bound was exceeded.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let redis = Tools::new(workspace, ui).get(Tool::Redis)?;
    let limiter = match &args.limiter {
        Some(program) => program.clone(),
        None => release(workspace, &["limiter", "ctl"])?.join("limiter"),
    };
    let mut programs = Programs {
        root: workspace.root.clone(),
        envoy: PathBuf::new(),
        valkey: redis.clone(),
        redis,
        rlctl: limiter.with_file_name("rlctl"),
        limiter,
        filter: PathBuf::new(),
    };
    let Some(filter) = &args.proxy else {
        return terminable(soak(args, ui, &programs));
    };
    programs.envoy = Tools::new(workspace, ui).get(Tool::Envoy)?;
    programs.filter = match filter.to_str() {
        Some("module") => module::build(workspace, ui)?,
        Some("wasm") => wasm::build(workspace, ui)?,
        _ => filter.clone(),
    };
    terminable(proxy::soak(args.minutes, &programs, ui))
}

async fn soak(args: &Args, ui: &Ui, programs: &Programs) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let redis = Redis::start(&programs.redis, free_port()?, dir.path()).await?;
    let (files, second) = (dir.path().join("rls"), [free_port()?, free_port()?]);
    std::fs::create_dir(&files)?;
    let to = To {
        data: free_port()?,
        admin: free_port()?,
        management: free_port()?,
        // Attackers run until the program ends.
        files: Box::leak(files.into_boxed_path()),
    };
    let limiters = start(programs, &redis, to, second, dir.path()).await?;
    let log = Log::default();
    for (client, port) in (0..CLIENTS).zip([to.data, second[0]].into_iter().cycle()) {
        tokio::spawn(check_on(port, client, Arc::clone(&log)));
    }
    let attackers = (!args.peace)
        .then(|| Attackers::start(to, &args.only))
        .transpose()?;
    ui.heading("Honest checks, and the limiter's memory");
    let (mut memory, mut all) = (0, Vec::new());
    // Ctrl-C: what there is of a minute is still in the results.
    let interrupted = tokio::spawn(ctrl_c());
    let goes_on = |_: &u64| !interrupted.is_finished();
    for minute in (1..=args.minutes).take_while(goes_on) {
        for _ in (0..600).take_while(goes_on) {
            sleep(Duration::from_millis(100)).await;
            for limiter in &limiters {
                memory = memory.max(limiter.process().memory_bytes()?);
            }
        }
        let mut checks = std::mem::take(&mut *lock(&log));
        let (_, summary) = summary(&checks);
        ui.line(&format!("minute {minute}: {summary}, {} MiB", memory >> 20));
        all.append(&mut checks);
    }
    if let Some(attackers) = &attackers {
        ui.heading("Attacks");
        attackers.counts().for_each(|line| ui.line(&line));
    }
    ui.heading("In all");
    let (late, summary) = summary(&all);
    ui.line(&summary);
    for (why, times) in undecided(&all) {
        ui.line(&format!("not decided, {times} times: {}", why.trim()));
    }
    ui.line(&format!(
        "a limiter's memory at its peak: {} MiB",
        memory >> 20
    ));
    ui.line(&cpu_times(&limiters, &redis)?);
    ensure!(
        late * 1000 <= all.len(),
        "more than one check of a thousand took longer than {} ms, or was not answered: {late} of {}",
        IN_TIME.as_millis(),
        all.len()
    );
    ensure!(memory < MEMORY_MAX, "a limiter took {} MiB", memory >> 20);
    Ok(())
}

fn cpu_times(limiters: &[Limiter], redis: &Redis) -> Result<String> {
    let mut limiters_us = 0;
    for limiter in limiters {
        limiters_us += limiter.process().cpu_us()?;
    }
    let all = [
        cpu_us(std::process::id())?,
        limiters_us,
        redis.process().cpu_us()?,
    ];
    let [clients, limiters, redis] = all.map(|us| us / 1_000_000);
    Ok(format!(
        "CPU: clients {clients} s, limiters {limiters} s, Redis {redis} s"
    ))
}

/// The limiter with files, and the one with a management server.
async fn start(
    programs: &Programs,
    redis: &Redis,
    to: To,
    second: [u16; 2],
    dir: &Path,
) -> Result<[Limiter; 2]> {
    let [tokens, limits] = [dir.join("tokens"), dir.join("limits.yaml")];
    std::fs::write(&tokens, TOKEN)?;
    std::fs::write(&limits, LIMITS)?;
    let management = format!("http://127.0.0.1:{}", to.management);
    let common = ["--token-file", text(&tokens)?, "--log", "error"];
    let plan = |ports, own: &[&str]| LimiterPlan {
        arguments: common.iter().chain(own).map(ToString::to_string).collect(),
        ..LimiterPlan::new(programs, &redis.url(), ports, dir)
    };
    let files = ["--limits", text(&limits)?, "--rls-config", text(to.files)?];
    let first = plan([to.data, to.admin], &files);
    let second = plan(second, &["--xds-server", &management]);
    Ok([first.start().await?, second.start().await?])
}

/// The bytes of a POST with the token.
fn post(path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-type: {kind}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

// Honest clients, with a token and a steady rate, and what they measure

/// The default store timeout, plus 5 ms for the connection to the limiter.
const IN_TIME: Duration = Duration::from_millis(15);

/// Clients, each with a connection of its own.
const CLIENTS: u64 = 4;

/// The pause between two checks of a client.
const PERIOD: Duration = Duration::from_millis(20);

/// How long each check took until it was decided, or what came in place of a decision.
type Log = Arc<Mutex<Vec<Checked>>>;
type Checked = Result<Duration, String>;

async fn check_on(port: u16, client: u64, log: Log) {
    let body =
        format!(r#"{{"domain":"soak","descriptor":{{"what":"honest","user":"u{client}"}}}}"#);
    let request = post("/v1/check", "application/json", body.as_bytes());
    let mut connection = RawClient::new(port);
    let mut turns = interval(PERIOD);
    loop {
        turns.tick().await;
        let started = Instant::now();
        let reply = connection.send(&request).await;
        let took = started.elapsed();
        lock(&log).push(match reply {
            Ok(Some(reply)) if reply.status == 200 => Ok(took),
            Ok(Some(reply)) => Err(String::from_utf8_lossy(&reply.body).into_owned()),
            Ok(None) => Err("closed".to_owned()),
            Err(error) => Err(error.to_string()),
        });
    }
}

/// What came in place of decisions, and how often.
fn undecided(checks: &[Checked]) -> BTreeMap<&str, u64> {
    let mut undecided = BTreeMap::new();
    for why in checks.iter().filter_map(|checked| checked.as_ref().err()) {
        *undecided.entry(&**why).or_default() += 1;
    }
    undecided
}

/// How many checks were not decided in time, and a line about all of them.
fn summary(checks: &[Checked]) -> (usize, String) {
    let took: Vec<Duration> = checks.iter().flatten().copied().collect();
    let in_time = took.iter().filter(|took| **took <= IN_TIME).count();
    let (all, undecided) = (checks.len(), checks.len() - took.len());
    let share = in_time * 100_000 / all.max(1);
    let at = |part| Unit::Micros.text(micros(quantile(took.clone(), part)));
    let line = format!(
        "{all} checks, p50 {}, p99 {}, p99.9 {}, {}.{:03} % within {} ms, {undecided} not decided",
        at(500),
        at(990),
        at(999),
        share / 1000,
        share % 1000,
        IN_TIME.as_millis(),
    );
    (all - in_time, line)
}
