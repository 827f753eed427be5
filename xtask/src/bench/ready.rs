//! Starts what every comparison needs: limits in Redis, limiters, and an Envoy that has the limits.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, free_port, until,
};
use tempfile::TempDir;

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
        load_limits(programs, &redis, dir.path(), limits)?;
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

    /// A count of all script calls of Redis, by its name in `INFO commandstats`.
    pub async fn of_scripts(&self, count: &str) -> Result<u64> {
        let stats = self.redis.command(&["INFO", "commandstats"]).await?;
        let line = { stats.lines() }.find_map(|line| line.strip_prefix("cmdstat_evalsha:"));
        let mut counts = line.context("no script was called")?.split(',');
        let value = counts.find_map(|part| part.strip_prefix(count)?.strip_prefix('='));
        value
            .context("commandstats")?
            .parse()
            .context("commandstats")
    }
}

fn load_limits(programs: &Programs, redis: &Redis, dir: &Path, limits: &str) -> Result<()> {
    let file = dir.join("limits.yaml");
    std::fs::write(&file, limits)?;
    let file = file
        .to_str()
        .context("a temporary folder that is not UTF-8")?;
    for arguments in [&["load-scripts"][..], &["apply", "-f", file]] {
        let output = Command::new(&programs.rlctl)
            .args(arguments)
            .env("RL_STORE", redis.url())
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "rlctl {arguments:?} failed: {said}"
        );
    }
    Ok(())
}

/// Starts another Envoy with listener ports of its own; returns it and its port.
pub async fn start_envoy(
    programs: &Programs,
    config: EnvoyConfig,
    ports: Ports,
    workers: u32,
    dir: &Path,
) -> Result<(Envoy, u16)> {
    let own = Ports {
        envoy: free_port()?,
        envoy_admin: free_port()?,
        ..ports
    };
    let envoy = Envoy::start(programs, config, own, workers, dir).await?;
    Ok((envoy, own.envoy))
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
