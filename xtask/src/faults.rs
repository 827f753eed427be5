//! `cargo xtask faults`: what fails against what is promised, with real programs. In each row two Envoys with two
//! limiters and a store of their own get a steady load; then something fails, and returns. The columns are what docs
//! promise of any such time, each figure beside its bound. The table goes to `target/faults.md`.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, Sentinel,
    StoppedRedis, free_port, serve,
};
use http_body_util::Full;
use hyper::{Response, StatusCode};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, sleep_until};

use crate::bench::{self, interruptible};
use crate::command::{self, Workspace};
use crate::ui::Ui;

/// How long all is well, something fails, and all is well again.
const BEFORE: Duration = Duration::from_secs(3);
const FAULT: Duration = Duration::from_secs(5);
const AFTER: Duration = Duration::from_secs(6);
/// A client that has no answer by then counts it as lost. Nothing in the filter takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Units of a second, and the capacity, of the limits that are counted.
const CHECKED: u64 = 20;
const LEASED: u64 = 200;

const LIMITS: &str = "\
domain: shop
limits:
  - {name: checked, match: {path: /checked}, rate: 20/s, burst: 20}
  - {name: leased, match: {path: /leased}, rate: 200/s, burst: 200, lease: {ttl: 250ms}}
  - {name: denied, match: {path: /denied}, rate: 100000/s, on_failure: deny}
  - {name: edited, match: {path: /edited}, rate: 99999/s}
";

/// What is asked of each Envoy: a path, and how often in a second.
const LOADS: [(Load, &str, u64); 4] = [
    (Load::Checked, "/checked", 2 * CHECKED),
    (Load::Leased, "/leased", LEASED),
    (Load::Denied, "/denied", 20),
    (Load::Unlimited, "/unlimited", 50),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    Checked,
    Leased,
    /// Of a limit that refuses while nobody decides.
    Denied,
    /// No limit matches: a neighbour.
    Unlimited,
}

/// Arguments of `cargo xtask faults`.
#[derive(clap::Args)]
pub struct Args {
    /// Only the rows whose names contain one of these
    #[arg(long, value_name = "WORDS", value_delimiter = ',', default_value = "")]
    only: Vec<String>,
    /// Programs as the tests have them, which are built sooner
    #[arg(long)]
    debug: bool,
}

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    LimiterKilled,
    LimiterHangs,
    LimitersKilled,
    LimitersHang,
    StoreKilled,
    StoreHangs,
    StoreFull,
    StoreWithoutReplicas,
    StoreBusy,
    ScriptsFlushed,
    PrimaryKilled,
    PrimaryDeposed,
    ReplicaDiverged,
    EnvoyKilled,
    EnvoyHangs,
}

/// A row: its name, what fails, and by how many capacities more than the limit all that passes may exceed it.
struct Row(&'static str, Fault, u64);

/// While some limiter answers, a proxy that got no decision, as for calls that timed out while it hung, starts with all
/// that was last reported as left: one capacity more. What the store loses can be used again: another one.
const ROWS: [Row; 16] = [
    Row("nothing", Fault::None, 0),
    Row("one limiter of two is killed", Fault::LimiterKilled, 1),
    Row("one limiter of two hangs", Fault::LimiterHangs, 1),
    Row("both limiters are killed", Fault::LimitersKilled, 1),
    Row("both limiters hang", Fault::LimitersHang, 1),
    Row("Redis is killed, and returns empty", Fault::StoreKilled, 2),
    Row("Redis hangs", Fault::StoreHangs, 1),
    Row("Redis is full (`noeviction`)", Fault::StoreFull, 1),
    Row(
        "Redis misses its replicas (`NOREPLICAS`)",
        Fault::StoreWithoutReplicas,
        1,
    ),
    Row(
        "Redis runs a stranger's script of 5 s (`BUSY`)",
        Fault::StoreBusy,
        1,
    ),
    Row(
        "Redis loses its scripts 20 times a second",
        Fault::ScriptsFlushed,
        1,
    ),
    Row("Sentinel: the primary is killed", Fault::PrimaryKilled, 2),
    Row(
        "Sentinel: the primary is deposed, and lives",
        Fault::PrimaryDeposed,
        2,
    ),
    Row(
        "Sentinel: killed 1 s after its replica was cut off",
        Fault::ReplicaDiverged,
        2,
    ),
    Row("one Envoy of two is killed", Fault::EnvoyKilled, 0),
    Row("one Envoy of two hangs", Fault::EnvoyHangs, 1),
];

impl Fault {
    fn needs_sentinel(self) -> bool {
        matches!(
            self,
            Self::PrimaryKilled | Self::PrimaryDeposed | Self::ReplicaDiverged
        )
    }

    /// Whether the store accepts nothing for as long as it lasts.
    fn stops_store(self) -> bool {
        matches!(
            self,
            Self::StoreKilled
                | Self::StoreHangs
                | Self::StoreFull
                | Self::StoreWithoutReplicas
                | Self::StoreBusy
        )
    }

    /// Whether nobody decides for as long as it lasts.
    fn stops_decisions(self) -> bool {
        self.stops_store() || matches!(self, Self::LimitersKilled | Self::LimitersHang)
    }

    /// Whether edits can be written meanwhile.
    fn takes_edits(self) -> bool {
        !self.stops_store() && !self.needs_sentinel()
    }
}

/// Runs the rows and writes their table; an error if a bound was exceeded.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let programs = bench::programs(workspace, ui, args.debug)?;
    let wanted = |row: &&Row| args.only.iter().any(|words| row.0.contains(words.as_str()));
    let mut table = vec![heading(workspace)?];
    let mut exceeded = Vec::new();
    interruptible(async {
        for Row(name, fault, more) in ROWS.iter().filter(wanted) {
            ui.heading(name);
            let played = async {
                let mut stage = Stage::start(&programs, *fault).await?;
                stage.play(*fault, *more).await
            };
            let cells = match played.await {
                Ok(cells) => cells,
                Err(error) => {
                    ui.line(&format!("{error:#}"));
                    exceeded.push(format!("{name}: {error:#}"));
                    table.push(format!("| {name} | ✗ {error} |\n"));
                    continue;
                }
            };
            for cell in &cells {
                ui.line(&format!("{}: {}", cell.promise, cell.shown()));
                if !cell.holds() {
                    exceeded.push(format!("{name}: {}: {}", cell.promise, cell.shown()));
                }
            }
            let shown: Vec<String> = cells.iter().map(Cell::shown).collect();
            table.push(format!("| {name} | {} |\n", shown.join(" | ")));
        }
        Ok(())
    })?;
    let path = workspace.target.join("faults.md");
    std::fs::write(&path, table.concat())?;
    ui.line(&format!("the table: {}", workspace.short(&path).display()));
    ensure!(
        exceeded.is_empty(),
        "beyond their bounds:\n{}",
        exceeded.join("\n")
    );
    Ok(())
}

fn heading(workspace: &Workspace) -> Result<String> {
    let commit =
        command::output(&mut workspace.program("git", &["describe", "--always", "--dirty"]))?;
    let cpus = std::thread::available_parallelism()?;
    let rule = "|---".repeat(PROMISES.len() + 1);
    Ok(format!(
        "# Faults and promises\n\n`cargo xtask faults` at {}, {cpus} CPUs. A cell has a figure and its bound; ✗ exceeds it.\n\n\
         | what fails | {} |\n{rule}|\n",
        commit.trim(),
        PROMISES.join(" | "),
    ))
}

/// The columns.
const PROMISES: [&str; 8] = [
    "requests without an answer",
    "checked: passed, of what it may",
    "leased: passed, of what it may",
    "checked: passed in the fault, at least",
    "`deny`: passed while nobody decides, by its share (10 s)",
    "p99 of an unlimited request, ms",
    "ms from its end until limiters decide, as counted each second",
    "ms until an edit is in force at all proxies",
];

/// A figure and its bound.
struct Cell {
    promise: &'static str,
    figure: Option<u64>,
    at_most: Option<u64>,
    at_least: Option<u64>,
}

impl Cell {
    fn holds(&self) -> bool {
        self.figure.is_none_or(|figure| {
            self.at_most.is_none_or(|bound| figure <= bound)
                && self.at_least.is_none_or(|bound| figure >= bound)
        })
    }

    fn shown(&self) -> String {
        let Some(figure) = self.figure else {
            return "–".to_owned();
        };
        let bound = match (self.at_most, self.at_least) {
            (Some(most), _) => format!(" ≤ {most}"),
            (_, Some(least)) => format!(" ≥ {least}"),
            (None, None) => String::new(),
        };
        format!("{figure}{bound}{}", if self.holds() { "" } else { " ✗" })
    }
}

// --- The stage.

/// The store of a row.
enum Store {
    Running(Redis),
    Killed(StoppedRedis),
    Sentinel(Sentinel),
    /// Being replaced.
    None,
}

struct Stage {
    programs: Programs,
    envoys: Vec<Envoy>,
    limiters: Vec<Limiter>,
    killed: Vec<LimiterPlan>,
    store: Store,
    url: String,
    nuisance: Option<JoinHandle<()>>,
    _serving: JoinHandle<()>,
    dir: TempDir,
}

impl Stage {
    async fn start(programs: &Programs, fault: Fault) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let ports = Ports {
            upstream: listener.local_addr()?.port(),
            ..Ports::free()?
        };
        let serving = tokio::spawn(serve(listener, |_| async {
            Response::new(Full::from("hello\n"))
        }));
        let (store, url) = if fault.needs_sentinel() {
            let sentinel = Sentinel::start(&programs.redis, dir.path()).await?;
            let url = sentinel.url();
            (Store::Sentinel(sentinel), url)
        } else {
            let redis = Redis::start(&programs.redis, free_port()?, dir.path()).await?;
            let url = redis.url();
            (Store::Running(redis), url)
        };
        let mut stage = Self {
            programs: programs.clone(),
            envoys: Vec::new(),
            limiters: Vec::new(),
            killed: Vec::new(),
            store,
            url,
            nuisance: None,
            _serving: serving,
            dir,
        };
        let file = stage.dir.path().join("limits.yaml");
        std::fs::write(&file, LIMITS)?;
        stage.rlctl(&["load-scripts"]).await?;
        stage.rlctl(&["apply", "-f", path(&file)?]).await?;
        for port in ports.limiters {
            let plan =
                LimiterPlan::new(programs, &stage.url, [port, free_port()?], stage.dir.path());
            stage.limiters.push(plan.start().await?);
        }
        for _ in 0..2 {
            let config = EnvoyConfig::shipped(&programs.root)?.filter_code(&programs.filter)?;
            let ports = bench::setups::own_ports(ports)?;
            let envoy = Envoy::start(programs, config, ports, 1, stage.dir.path()).await?;
            bench::setups::limits_are_known(&envoy, "/edited").await?;
            stage.envoys.push(envoy);
        }
        Ok(stage)
    }

    /// Runs `rlctl` beside the loads.
    async fn rlctl(&self, arguments: &[&str]) -> Result<()> {
        let mut rlctl = std::process::Command::new(&self.programs.rlctl);
        rlctl.args(arguments).env("RL_STORE", &self.url);
        let ran = tokio::task::spawn_blocking(move || command::output(&mut rlctl));
        ran.await?.map(drop)
    }

    fn redis(&self) -> Result<&Redis> {
        match &self.store {
            Store::Running(redis) => Ok(redis),
            _ => anyhow::bail!("Redis does not run"),
        }
    }

    fn sentinel(&mut self) -> Result<&mut Sentinel> {
        match &mut self.store {
            Store::Sentinel(sentinel) => Ok(sentinel),
            _ => anyhow::bail!("there is no sentinel"),
        }
    }

    async fn begin(&mut self, fault: Fault) -> Result<()> {
        match fault {
            Fault::None => {}
            Fault::LimiterKilled | Fault::LimitersKilled => {
                let left = usize::from(fault == Fault::LimiterKilled);
                for limiter in self.limiters.split_off(left) {
                    self.killed.push(limiter.kill().await?);
                }
            }
            Fault::LimiterHangs | Fault::LimitersHang => {
                let first = usize::from(fault == Fault::LimiterHangs);
                for limiter in self.limiters.iter().skip(first) {
                    limiter.process().pause()?;
                }
            }
            Fault::StoreKilled => {
                if let Store::Running(redis) = std::mem::replace(&mut self.store, Store::None) {
                    self.store = Store::Killed(redis.kill().await?);
                }
            }
            Fault::StoreHangs => self.redis()?.process().pause()?,
            Fault::StoreFull => self.configure("maxmemory", "1").await?,
            Fault::StoreWithoutReplicas => self.configure("min-replicas-to-write", "1").await?,
            Fault::StoreBusy => {
                self.configure("busy-reply-threshold", "10").await?;
                self.nuisance = Some(tokio::spawn(run_long(self.redis()?.port())));
            }
            Fault::ScriptsFlushed => {
                self.nuisance = Some(tokio::spawn(flush(self.redis()?.port())));
            }
            Fault::PrimaryKilled => {
                let pair = self.sentinel()?.pair();
                pair.in_sync().await?;
                pair.kill_primary()?;
            }
            Fault::PrimaryDeposed => {
                let sentinel = self.sentinel()?;
                sentinel.pair().in_sync().await?;
                sentinel.fail_over().await?;
            }
            // What is lost is written in that second. Sentinel promotes no replica that was cut off for long.
            Fault::ReplicaDiverged => {
                let pair = self.sentinel()?.pair();
                pair.cut().await?;
                sleep(Duration::from_secs(1)).await;
                pair.kill_primary()?;
            }
            Fault::EnvoyKilled => drop(self.envoys.pop()),
            Fault::EnvoyHangs => {
                if let Some(envoy) = self.envoys.last() {
                    envoy.process().pause()?;
                }
            }
        }
        Ok(())
    }

    async fn end(&mut self, fault: Fault) -> Result<()> {
        if let Some(nuisance) = self.nuisance.take() {
            if fault == Fault::StoreBusy {
                nuisance.await?;
            } else {
                nuisance.abort();
            }
        }
        for limiter in &self.limiters {
            limiter.process().resume()?;
        }
        for plan in std::mem::take(&mut self.killed) {
            self.limiters.push(plan.start().await?);
        }
        match std::mem::replace(&mut self.store, Store::None) {
            Store::Killed(redis) => self.store = Store::Running(redis.start().await?),
            store => self.store = store,
        }
        match fault {
            Fault::StoreHangs => self.redis()?.process().resume()?,
            Fault::StoreFull => self.configure("maxmemory", "0").await?,
            Fault::StoreWithoutReplicas => self.configure("min-replicas-to-write", "0").await?,
            Fault::EnvoyHangs => {
                if let Some(envoy) = self.envoys.last() {
                    envoy.process().resume()?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn configure(&self, setting: &str, value: &str) -> Result<()> {
        self.redis()?
            .command(&["CONFIG", "SET", setting, value])
            .await
            .map(drop)
    }
}

/// Decisions of limiters that an Envoy has counted; it adds to them once a second.
async fn decided(envoy: &Envoy) -> u64 {
    let page = envoy
        .admin("/stats?filter=rl_decisions.*\\.limiter\\.")
        .await;
    let page = page.unwrap_or_default();
    let counts = page
        .lines()
        .filter_map(|line| line.rsplit_once(": ")?.1.parse::<u64>().ok());
    counts.sum()
}

fn path(file: &Path) -> Result<&str> {
    file.to_str()
        .context("a temporary folder that is not UTF-8")
}

/// Runs a script for as long as the fault lasts.
async fn run_long(port: u16) {
    let ms = FAULT.as_millis();
    let script = format!(
        "local function ms() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
         local ends = ms() + {ms} while ms() < ends do end"
    );
    // Its answer comes when it ends.
    let _ = ask(port, &format!("EVAL \"{script}\" 0\r\n")).await;
}

/// Removes all scripts, again and again.
async fn flush(port: u16) {
    loop {
        let _ = ask(port, "SCRIPT FLUSH\r\n").await;
        sleep(Duration::from_millis(50)).await;
    }
}

/// Sends a command in one line; returns once there is an answer.
async fn ask(port: u16, line: &str) -> Result<()> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
    stream.write_all(line.as_bytes()).await?;
    stream.read_u8().await?;
    Ok(())
}

// --- A row.

/// A request: to which Envoy, when it was sent and how long it took, and the status of its answer.
struct Sent {
    load: Load,
    envoy: usize,
    at: Instant,
    took: Duration,
    status: Option<StatusCode>,
}

type Log = Arc<Mutex<Vec<Sent>>>;

fn lock(log: &Log) -> std::sync::MutexGuard<'_, Vec<Sent>> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    async fn play(&mut self, fault: Fault, more: u64) -> Result<Vec<Cell>> {
        let log = Log::default();
        let mut loads = JoinSet::new();
        for (nth, envoy) in self.envoys.iter().enumerate() {
            for (load, path, per_second) in LOADS {
                loads.spawn(send(
                    load,
                    nth,
                    envoy.url(path),
                    per_second,
                    Arc::clone(&log),
                ));
            }
        }
        let started = Instant::now();
        sleep(BEFORE).await;
        self.begin(fault).await?;
        let begun = Instant::now();
        sleep(FAULT / 2).await;
        let mut edited = None;
        if fault.takes_edits() {
            edited = Some(self.edit(fault).await?);
        }
        sleep_until((begun + FAULT).into()).await;
        self.end(fault).await?;
        let ended = Instant::now();
        let in_force = async {
            let edited = match edited {
                Some(edited) => edited,
                None => self.edit_when_possible(fault).await?,
            };
            self.in_force(edited.max(ended)).await
        };
        let (recovered, in_force) = tokio::join!(self.recovered(ended), in_force);
        let (recovered, in_force) = (recovered?, in_force?);
        sleep_until((ended + AFTER).into()).await;
        let lasted = started.elapsed();
        loads.shutdown().await;
        let sent = std::mem::take(&mut *lock(&log));
        Ok(judge(
            &Times {
                fault,
                more,
                lasted,
                begun,
                recovered,
                in_force,
            },
            &sent,
        ))
    }

    /// The time until each Envoy has a decision of a limiter.
    async fn recovered(&self, ended: Instant) -> Result<Duration> {
        for envoy in &self.envoys {
            let before = decided(envoy).await;
            harness::until("limiters decide", 2 * AFTER, async || {
                (decided(envoy).await > before).then_some(())
            })
            .await?;
        }
        Ok(ended.elapsed())
    }

    /// Edits a limit; returns when that was done. A store that lost the limits gets them again.
    async fn edit(&self, fault: Fault) -> Result<Instant> {
        if fault == Fault::StoreKilled {
            let file = self.dir.path().join("edited.yaml");
            std::fs::write(&file, LIMITS.replace("rate: 99999/s", "rate: 77777/s"))?;
            self.rlctl(&["apply", "-f", path(&file)?]).await?;
        } else {
            self.rlctl(&["set-limit", "edited", "--rate", "77777/s", "--yes"])
                .await?;
        }
        Ok(Instant::now())
    }

    async fn edit_when_possible(&self, fault: Fault) -> Result<Instant> {
        let started = Instant::now();
        loop {
            match self.edit(fault).await {
                Ok(edited) => return Ok(edited),
                Err(error) if started.elapsed() > 2 * AFTER => return Err(error),
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// The time from then until each Envoy shows the edit.
    async fn in_force(&self, since: Instant) -> Result<Duration> {
        for envoy in &self.envoys {
            let probe = Client::new().get(&envoy.url("/edited"));
            harness::until(
                "the edit is in force",
                Duration::from_secs(20),
                async || {
                    let reply = probe.send().await.ok()?;
                    reply
                        .header("ratelimit-policy")?
                        .contains("77777")
                        .then_some(())
                },
            )
            .await?;
        }
        Ok(since.elapsed())
    }
}

/// Sends requests at a steady rate, whether or not earlier ones have their answers.
async fn send(load: Load, envoy: usize, url: String, per_second: u64, log: Log) {
    let get = Client::new().get(&url);
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / per_second));
    let mut requests = JoinSet::new();
    loop {
        ticks.tick().await;
        let (get, log) = (get.clone(), Arc::clone(&log));
        requests.spawn(async move {
            let at = Instant::now();
            let reply = tokio::time::timeout(PATIENCE, get.send()).await;
            let status = reply.ok().and_then(Result::ok).map(|reply| reply.status);
            let took = at.elapsed();
            lock(&log).push(Sent {
                load,
                envoy,
                at,
                took,
                status,
            });
        });
        while requests.try_join_next().is_some() {}
    }
}

/// What a row did, and when.
struct Times {
    fault: Fault,
    more: u64,
    lasted: Duration,
    begun: Instant,
    recovered: Duration,
    in_force: Duration,
}

fn judge(times: &Times, sent: &[Sent]) -> Vec<Cell> {
    let fault = times.fault;
    let one_is_gone = matches!(fault, Fault::EnvoyKilled | Fault::EnvoyHangs);
    // What was sent to a dead Envoy is nobody's to answer.
    let alive = || sent.iter().filter(|sent| !one_is_gone || sent.envoy == 0);
    let passed = |load: Load| {
        let of = sent.iter().filter(move |sent| sent.load == load);
        of.filter(|sent| sent.status == Some(StatusCode::OK))
    };
    let within = |from: Duration, to: Duration| {
        let (from, to) = (times.begun + from, times.begun + to);
        move |sent: &&Sent| sent.at >= from && sent.at < to
    };
    let may = |per_second: u64| {
        let refilled = u128::from(per_second) * times.lasted.as_millis() / 1000;
        per_second * (1 + times.more) + u64::try_from(refilled).unwrap_or(u64::MAX) + 1
    };
    let lost = alive().filter(|sent| sent.status.is_none());
    // The first second is the fault's to be noticed.
    let second = Duration::from_secs(1);
    let unattended = passed(Load::Denied).filter(within(second, FAULT));
    let unattended = fault.stops_decisions().then(|| count(unattended));
    let unlimited = alive().filter(|sent| sent.load == Load::Unlimited);
    let mut took: Vec<Duration> = unlimited.map(|sent| sent.took).collect();
    took.sort_unstable();
    let p99 = took.get(took.len() * 99 / 100).copied().unwrap_or_default();
    // A proxy whose neighbour is gone has its own share.
    let least = CHECKED * FAULT.as_secs().saturating_sub(1) / if one_is_gone { 2 } else { 1 };
    let in_fault = count(passed(Load::Checked).filter(within(Duration::ZERO, FAULT)));
    let cells = [
        (Some(count(lost)), Some(0), None),
        (Some(count(passed(Load::Checked))), Some(may(CHECKED)), None),
        (Some(count(passed(Load::Leased))), Some(may(LEASED)), None),
        (Some(in_fault), None, Some(least * 8 / 10)),
        (unattended, None, None),
        (Some(millis(p99)), Some(20), None),
        (Some(millis(times.recovered)), Some(3000), None),
        (Some(millis(times.in_force)), Some(2000), None),
    ];
    let cells = PROMISES.into_iter().zip(cells);
    let cell = |(promise, (figure, at_most, at_least))| Cell {
        promise,
        figure,
        at_most,
        at_least,
    };
    cells.map(cell).collect()
}

fn count<'s>(sent: impl Iterator<Item = &'s Sent>) -> u64 {
    u64::try_from(sent.count()).unwrap_or(u64::MAX)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
