//! Starts what every comparison needs: limits in Redis, limiters, and an Envoy that has the limits.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, free_port, until,
};

/// Starts a limiter on each of these ports.
pub async fn start_limiters(
    programs: &Programs,
    redis: &Redis,
    ports: &[u16],
    dir: &Path,
) -> Result<Vec<Limiter>> {
    let mut limiters = Vec::new();
    for &port in ports {
        let mut plan = LimiterPlan::new(programs, &redis.url(), [port, free_port()?], dir);
        // The benchmark measures checks and not timeouts.
        plan.arguments
            .extend(["--store-timeout", "1s"].map(str::to_owned));
        limiters.push(plan.start().await?);
    }
    Ok(limiters)
}

/// Loads the scripts and these limits, in YAML, into Redis.
pub fn load_limits(programs: &Programs, redis: &Redis, dir: &Path, limits: &str) -> Result<()> {
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
