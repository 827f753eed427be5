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
//! the CPU time of the clients.

mod attacks;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{Limiter, LimiterPlan, RawClient, Redis, free_port};
use tokio::task::LocalSet;

use crate::bench::{interruptible, release};
use crate::command::Workspace;
use crate::tools::{Tool, Tools};
use crate::ui::Ui;

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
    /// Honest checks only: what the machine can do
    #[arg(long)]
    peace: bool,
    /// Only the attacks whose names contain one of these
    #[arg(long, value_name = "WORDS", value_delimiter = ',', default_value = "")]
    only: Vec<String>,
    /// A limiter that is built already, of an earlier commit perhaps
    #[arg(long, value_name = "PROGRAM")]
    limiter: Option<PathBuf>,
}

/// Runs the soak and prints its results; an error if a bound was exceeded.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let redis = Tools::new(workspace, ui).get(Tool::Redis)?;
    let limiter = match &args.limiter {
        Some(program) => program.clone(),
        None => release(workspace, &["limiter"])?.join("limiter"),
    };
    interruptible(soak(args, ui, &redis, limiter))
}

async fn soak(args: &Args, ui: &Ui, redis: &Path, program: PathBuf) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let redis = Redis::start(redis, free_port()?, dir.path()).await?;
    let (files, second) = (dir.path().join("rls"), [free_port()?, free_port()?]);
    std::fs::create_dir(&files)?;
    let to = To {
        data: free_port()?,
        admin: free_port()?,
        management: free_port()?,
        // Attackers run until the program ends.
        files: Box::leak(files.into_boxed_path()),
    };
    let limiters = start(program, &redis, to, second, dir.path()).await?;
    let honest = Honest::start([to.data, second[0]]);
    let attackers = (!args.peace)
        .then(|| Attackers::start(to, &args.only))
        .transpose()?;
    ui.heading("Honest checks, and the limiter's memory");
    let mut memory = 0;
    let mut all = Seen::default();
    for minute in 1..=args.minutes {
        let mut seen = Seen::default();
        for _ in 0..600 {
            seen.add(honest.work(Duration::from_millis(100)).await);
            for limiter in &limiters {
                memory = memory.max(limiter.process().memory_bytes()?);
            }
        }
        ui.line(&format!(
            "minute {minute}: {}, {}",
            seen.summary(),
            mib(memory)
        ));
        all.add(seen);
    }
    if let Some(attackers) = &attackers {
        ui.heading("Attacks");
        attackers.counts().for_each(|line| ui.line(&line));
    }
    ui.heading("In all");
    ui.line(&all.summary());
    for (why, times) in &all.undecided {
        ui.line(&format!("not decided, {times} times: {}", why.trim()));
    }
    ui.line(&format!("a limiter's memory at its peak: {}", mib(memory)));
    ui.line(&cpu_times(&limiters, &redis)?);
    let (late, checks) = (all.late(), all.checks());
    ensure!(
        late * 1000 <= checks,
        "more than one check of a thousand took longer than {} ms, or was not answered: {late} of {checks}",
        IN_TIME.as_millis()
    );
    ensure!(memory < MEMORY_MAX, "a limiter took {}", mib(memory));
    Ok(())
}

fn cpu_times(limiters: &[Limiter], redis: &Redis) -> Result<String> {
    let mut limiters_us = 0;
    for limiter in limiters {
        limiters_us += limiter.process().cpu_us()?;
    }
    Ok(format!(
        "CPU: clients {} s, limiters {} s, Redis {} s",
        own_cpu_s()?,
        limiters_us / 1_000_000,
        redis.process().cpu_us()? / 1_000_000
    ))
}

/// The limiter with files, and the one with a management server.
async fn start(
    program: PathBuf,
    redis: &Redis,
    to: To,
    second: [u16; 2],
    dir: &Path,
) -> Result<[Limiter; 2]> {
    let file = |name: &str, text: &str| -> Result<String> {
        let path = dir.join(name);
        std::fs::write(&path, text)?;
        let path = path.to_str().context("a folder that is not UTF-8")?;
        Ok(path.to_owned())
    };
    let (tokens, limits) = (file("tokens", TOKEN)?, file("limits.yaml", LIMITS)?);
    let rls = to.files.to_str().context("a folder that is not UTF-8")?;
    let management = format!("http://127.0.0.1:{}", to.management);
    let plan = |name: &str, [port, admin_port]: [u16; 2], own: &[&str]| LimiterPlan {
        name: name.to_owned(),
        port,
        admin_port,
        store: redis.url(),
        arguments: ["--token-file", &tokens, "--log", "error"]
            .iter()
            .chain(own)
            .map(ToString::to_string)
            .collect(),
        program: program.clone(),
        dir: dir.to_path_buf(),
    };
    let files = ["--limits", &limits, "--rls-config", rls];
    let first = plan("limiter", [to.data, to.admin], &files);
    let second = plan("limiter-xds", second, &["--xds-server", &management]);
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

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// CPU time of this process, in seconds (Linux only).
fn own_cpu_s() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let times = fields.split_whitespace().skip(11).take(2);
    let ticks: Result<Vec<u64>, _> = times.map(str::parse).collect();
    Ok(ticks?.iter().sum::<u64>() / 100)
}

// Honest clients, with a token and a steady rate, and what they measure

/// The default store timeout, plus 5 ms for the connection to the limiter.
const IN_TIME: Duration = Duration::from_millis(15);

/// Clients, each with a connection of its own.
const CLIENTS: u64 = 4;

/// The pause between two checks of a client.
const PERIOD: Duration = Duration::from_millis(20);

/// The results of checks.
#[derive(Default)]
struct Seen {
    /// The duration of each decided check, in microseconds.
    took_us: Vec<u64>,
    /// Checks without a decision, by what came in its place.
    undecided: BTreeMap<String, u64>,
}

impl Seen {
    /// All checks.
    fn checks(&self) -> u64 {
        u64::try_from(self.took_us.len()).unwrap_or(u64::MAX) + self.undecided()
    }

    fn undecided(&self) -> u64 {
        self.undecided.values().sum()
    }

    /// Checks that were not decided in time.
    fn late(&self) -> u64 {
        let late = |took_us: &&u64| u128::from(**took_us) > IN_TIME.as_micros();
        let late = self.took_us.iter().filter(late).count();
        u64::try_from(late).unwrap_or(u64::MAX) + self.undecided()
    }

    /// A summary in one line.
    fn summary(&mut self) -> String {
        self.took_us.sort_unstable();
        let (checks, late) = (self.checks(), self.late());
        let in_time = (checks - late) * 100_000 / checks.max(1);
        format!(
            "{checks} checks, p50 {}, p99 {}, p99.9 {}, {}.{:03} % within {} ms, {} not decided",
            self.at(500),
            self.at(990),
            self.at(999),
            in_time / 1000,
            in_time % 1000,
            IN_TIME.as_millis(),
            self.undecided(),
        )
    }

    /// The duration that this share of the checks, in thousandths, did not exceed.
    fn at(&self, per_mille: usize) -> String {
        let last = self.took_us.len().saturating_sub(1);
        let us = self.took_us.get(last * per_mille / 1000).unwrap_or(&0);
        format!("{}.{:02} ms", us / 1000, us % 1000 / 10)
    }

    /// Adds later results.
    fn add(&mut self, mut later: Self) {
        self.took_us.append(&mut later.took_us);
        for (why, times) in later.undecided {
            *self.undecided.entry(why).or_default() += times;
        }
    }
}

/// The clients; dropping this ends them.
struct Honest {
    seen: Rc<RefCell<Seen>>,
    clients: LocalSet,
}

impl Honest {
    /// The clients run only while [`Honest::work`] is awaited.
    fn start(ports: [u16; 2]) -> Self {
        let (seen, clients) = (Rc::default(), LocalSet::new());
        for (client, port) in (0..CLIENTS).zip(ports.into_iter().cycle()) {
            clients.spawn_local(check_on(port, client, Rc::clone(&seen)));
        }
        Self { seen, clients }
    }

    /// Runs the clients for this long and returns their results.
    async fn work(&self, time: Duration) -> Seen {
        let rest = tokio::time::sleep(time);
        self.clients.run_until(rest).await;
        self.seen.take()
    }
}

async fn check_on(port: u16, client: u64, seen: Rc<RefCell<Seen>>) {
    let body =
        format!(r#"{{"domain":"soak","descriptor":{{"what":"honest","user":"u{client}"}}}}"#);
    let request = post("/v1/check", "application/json", body.as_bytes());
    let mut connection = RawClient::new(port);
    let mut turns = tokio::time::interval(PERIOD);
    loop {
        turns.tick().await;
        let started = Instant::now();
        let reply = connection.send(&request).await;
        let took = started.elapsed();
        let mut seen = seen.borrow_mut();
        match reply {
            Ok(Some(reply)) if reply.status == 200 => {
                seen.took_us
                    .push(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
            }
            Ok(Some(reply)) => {
                let why = String::from_utf8_lossy(&reply.body).into_owned();
                *seen.undecided.entry(why).or_default() += 1;
            }
            Ok(None) => *seen.undecided.entry("closed".to_owned()).or_default() += 1,
            Err(error) => *seen.undecided.entry(error.to_string()).or_default() += 1,
        }
    }
}
