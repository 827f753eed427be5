//! What benchmarks and `cargo xtask faults` run: a store with limits, limiters of it, Envoys before them, and requests
//! at times of their own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, Request, Sentinel,
    StoppedRedis, free_port, until,
};
use hyper::StatusCode;
use tempfile::TempDir;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep_until, timeout};

use crate::command::{self, Workspace};
use crate::tools::{Tool, Tools};
use crate::ui::Ui;
use crate::wasm;

/// A client that has no answer by then leaves. Nothing in the filter takes a tenth of it.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs to completion, or fails on Ctrl-C or SIGTERM.
pub fn interruptible<T>(measured: impl Future<Output = Result<T>>) -> Result<T> {
    terminable(async {
        tokio::select! {
            // The task is polled first: one that waits for Ctrl-C itself ends well.
            biased;
            measured = measured => measured,
            _ = tokio::signal::ctrl_c() => Err(std::io::Error::from(ErrorKind::Interrupted).into()),
        }
    })
}

/// The same for a task that goes on after Ctrl-C, to judge what it has seen.
pub fn terminable<T>(measured: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::select! {
            biased;
            measured = measured => measured,
            _ = terminate.recv() => Err(std::io::Error::from(ErrorKind::Interrupted).into()),
        }
    })
}

/// The programs of a run, on this Redis; `debug`: as the tests have them.
pub fn programs(workspace: &Workspace, ui: &Ui, redis: PathBuf, debug: bool) -> Result<Programs> {
    let envoy = Tools::new(workspace, ui).get(Tool::Envoy)?;
    let filter = wasm::build(workspace, ui)?;
    ui.heading("Limiter and rlctl");
    let built = if debug {
        command::run(&mut workspace.native(&["build", "--bin=limiter", "--bin=rlctl"]))?;
        workspace.target.join("debug")
    } else {
        release(workspace, &["limiter", "ctl"])?
    };
    Ok(Programs {
        root: workspace.root.clone(),
        envoy,
        valkey: redis.clone(),
        redis,
        limiter: built.join("limiter"),
        rlctl: built.join("rlctl"),
        filter,
    })
}

/// Builds release programs; returns their folder.
pub fn release(workspace: &Workspace, packages: &[&str]) -> Result<PathBuf> {
    let mut build = workspace.cargo(&["build", "--release", "--bins"]);
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    command::run(build.args(packages))?;
    Ok(workspace.target.join("release"))
}

/// What has the limits.
pub enum Store {
    Redis(Redis),
    Killed(StoppedRedis),
    Sentinel(Sentinel),
    /// Being replaced.
    None,
}

/// Everything that runs, and a folder for what it writes.
pub struct Fleet {
    pub programs: Programs,
    pub store: Store,
    url: String,
    pub limiters: Vec<Limiter>,
    killed: Vec<LimiterPlan>,
    pub ports: Ports,
    pub dir: TempDir,
}

impl Fleet {
    /// A Redis with limits, in YAML, and so many limiters of it, whose checks do not time out on a busy machine.
    pub async fn start(programs: &Programs, limits: &str, limiters: usize) -> Result<Self> {
        let patience = ["--store-timeout", "1s"];
        Self::with(programs, false, limits, limiters, &patience).await
    }

    /// The same with these arguments of the limiters; `sentinel`: Redis has a replica, and is replaced by it.
    pub async fn with(
        programs: &Programs,
        sentinel: bool,
        limits: &str,
        limiters: usize,
        arguments: &[&str],
    ) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let (store, url) = if sentinel {
            let sentinel = Sentinel::start(&programs.redis, dir.path()).await?;
            let url = sentinel.url();
            (Store::Sentinel(sentinel), url)
        } else {
            let redis = Redis::start(&programs.redis, free_port()?, dir.path()).await?;
            let url = redis.url();
            (Store::Redis(redis), url)
        };
        let mut fleet = Self {
            programs: programs.clone(),
            store,
            url,
            limiters: Vec::new(),
            killed: Vec::new(),
            ports: Ports::free()?,
            dir,
        };
        fleet.apply(limits).await?;
        for port in fleet.ports.limiters.into_iter().take(limiters) {
            let ports = [port, free_port()?];
            let mut plan = LimiterPlan::new(programs, &fleet.url, ports, fleet.dir.path());
            plan.arguments = arguments.iter().map(ToString::to_string).collect();
            fleet.limiters.push(plan.start().await?);
        }
        Ok(fleet)
    }

    /// Loads the scripts, and makes these the limits.
    pub async fn apply(&self, limits: &str) -> Result<()> {
        let file = self.dir.path().join("limits.yaml");
        std::fs::write(&file, limits)?;
        self.rlctl(&["load-scripts"]).await?;
        self.rlctl(&["apply", "-f", text(&file)?]).await.map(drop)
    }

    /// Runs `rlctl`, beside any loads; returns what it prints.
    pub async fn rlctl(&self, arguments: &[&str]) -> Result<String> {
        let mut rlctl = std::process::Command::new(&self.programs.rlctl);
        rlctl.args(arguments).env("RL_STORE", &self.url);
        spawn_blocking(move || command::output(&mut rlctl)).await?
    }

    /// envoy.yaml with the filter that was built.
    pub fn config(&self) -> Result<EnvoyConfig> {
        EnvoyConfig::shipped(&self.programs.root)?.filter_code(&self.programs.filter)
    }

    /// Starts an Envoy before this service, on ports of its own.
    pub async fn envoy(&self, config: EnvoyConfig, upstream: u16, workers: u32) -> Result<Envoy> {
        let ports = Ports {
            envoy: free_port()?,
            envoy_admin: free_port()?,
            upstream,
            ..self.ports
        };
        Envoy::start(&self.programs, config, ports, workers, self.dir.path()).await
    }

    /// The first limiter.
    pub fn limiter(&self) -> Result<&Limiter> {
        self.limiters.first().context("no limiter was started")
    }

    pub fn redis(&self) -> Result<&Redis> {
        match &self.store {
            Store::Redis(redis) => Ok(redis),
            _ => bail!("Redis does not run"),
        }
    }

    /// Kills the limiters from this one on.
    pub async fn kill_limiters(&mut self, from: usize) -> Result<()> {
        for limiter in self.limiters.split_off(from) {
            self.killed.push(limiter.kill().await?);
        }
        Ok(())
    }

    pub async fn kill_redis(&mut self) -> Result<()> {
        if let Store::Redis(redis) = std::mem::replace(&mut self.store, Store::None) {
            self.store = Store::Killed(redis.kill().await?);
        }
        Ok(())
    }

    /// Starts what was killed.
    pub async fn restart(&mut self) -> Result<()> {
        self.store = match std::mem::replace(&mut self.store, Store::None) {
            Store::Killed(redis) => Store::Redis(redis.start().await?),
            store => store,
        };
        for plan in std::mem::take(&mut self.killed) {
            self.limiters.push(plan.start().await?);
        }
        Ok(())
    }

    /// Calls of a command that Redis has answered, and the microseconds that they took.
    pub async fn calls_of(&self, command: &str) -> Result<[u64; 2]> {
        let stats = self.redis()?.command(&["INFO", "commandstats"]).await?;
        let head = format!("cmdstat_{command}:");
        let line = { stats.lines() }.find_map(|line| line.strip_prefix(&*head));
        let count = |name: &str| {
            let mut counts = line?.split(',');
            counts.find_map(|count| count.strip_prefix(name)?.parse().ok())
        };
        Ok(["calls=", "usec="].map(|name| count(name).unwrap_or(0)))
    }

    /// The values that limiters' metrics with this beginning have.
    pub async fn metric(&self, name: &str) -> Result<Vec<u64>> {
        let mut values = Vec::new();
        for limiter in &self.limiters {
            let url = format!("{}/metrics", limiter.admin_url());
            let page = Client::new().get(&url).send().await?.text();
            let lines = page.lines().filter(|line| line.starts_with(name));
            values.extend(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()));
        }
        Ok(values)
    }
}

/// Waits until a limit is in force on a path.
pub async fn limits_are_known(envoy: &Envoy, path: &str) -> Result<()> {
    let probe = envoy.get(path).header("x-user-id", "nobody");
    shows(&probe, "ratelimit", "", 5 * PATIENCE).await
}

/// Waits until answers have a header with this part.
pub async fn shows(probe: &Request, header: &str, part: &str, limit: Duration) -> Result<()> {
    until(
        &format!("answers have {header} {part}"),
        limit,
        async || {
            let reply = probe.send().await.ok()?;
            reply.header(header)?.contains(part).then_some(())
        },
    )
    .await
}

/// Decisions that an Envoy has counted, by who made them.
pub async fn decisions(envoy: &Envoy, by: &str) -> Result<u64> {
    let stats = format!("/stats?filter=rl_decisions.*\\.{by}\\.");
    let page = envoy.admin(&stats).await?;
    let counts = page.lines().filter_map(|line| line.rsplit_once(": "));
    Ok(counts
        .filter_map(|(_, count)| count.parse::<u64>().ok())
        .sum())
}

/// A path for a program's arguments.
pub fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .context("a temporary folder that is not UTF-8")
}

/// Requests that are sent whether or not earlier ones have their answers.
#[derive(Default)]
pub struct Loads {
    running: JoinSet<()>,
    sent: Arc<Mutex<Vec<Sent>>>,
}

/// A request: what was asked of which Envoy, when it was sent and how long it took, and the status of its answer.
pub struct Sent {
    pub path: &'static str,
    pub envoy: usize,
    pub at: Instant,
    pub took: Duration,
    pub status: Option<StatusCode>,
}

impl Loads {
    /// Sends a GET after each of these pauses.
    pub fn add(
        &mut self,
        envoy: (usize, &Envoy),
        path: &'static str,
        mut pause: impl FnMut() -> Duration + Send + 'static,
    ) {
        let (nth, get, log) = (envoy.0, envoy.1.get(path), Arc::clone(&self.sent));
        self.running.spawn(async move {
            let (mut due, mut requests) = (Instant::now(), JoinSet::new());
            loop {
                due += pause();
                sleep_until(due.into()).await;
                let (get, log) = (get.clone(), Arc::clone(&log));
                requests.spawn(async move {
                    let at = Instant::now();
                    let reply = timeout(PATIENCE, get.send()).await;
                    let sent = Sent {
                        path,
                        envoy: nth,
                        at,
                        took: at.elapsed(),
                        status: reply.ok().and_then(Result::ok).map(|reply| reply.status),
                    };
                    lock(&log).push(sent);
                });
                while requests.try_join_next().is_some() {}
            }
        });
    }

    /// Ends the loads; returns what was answered, or given up.
    pub async fn end(mut self) -> Vec<Sent> {
        self.running.shutdown().await;
        std::mem::take(&mut *lock(&self.sent))
    }
}

/// What several tasks share.
pub fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The value that this share of some, in thousandths, does not exceed.
pub fn quantile<T: Copy + Default + Ord>(mut values: Vec<T>, per_mille: usize) -> T {
    values.sort_unstable();
    let at = values.len() * per_mille / 1000;
    let value = values.get(at).or(values.last());
    value.copied().unwrap_or_default()
}

pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

pub fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
