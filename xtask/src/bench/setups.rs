//! What is compared: one Envoy of one worker for each setup, all of them up for
//! the whole run and idle except the one under load.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use harness::{
    Client, Engine, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, free_port,
    until,
};
use serde_json::json;
use tempfile::TempDir;

/// Limits that the setups' paths match: one that is never reached, and one that
/// always is.
const LIMITS: &str = "\
domain: shop
limits:
  - {name: roomy, match: {path: /strict}, per: [user], rate: 1000000/1s}
  - {name: spent, match: {path: /denied}, per: [user], rate: 1/1h}
";

/// One thing to be loaded.
pub struct Setup {
    /// What the report calls it.
    pub name: &'static str,
    /// Where requests go.
    pub url: String,
    /// What each answer must be.
    pub status: u16,
}

/// Everything that runs.
pub struct Bench {
    setups: Vec<Setup>,
    limiters: Vec<Limiter>,
    redis: Redis,
    _envoys: Vec<Envoy>,
    _dir: TempDir,
}

impl Bench {
    /// Starts it all.
    pub async fn start(programs: Programs, noop: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let redis = Redis::start(&programs, Engine::Redis, free_port()?, dir.path()).await?;
        load_limits(&programs, &redis, dir.path())?;
        let ports = Ports::free()?;
        let limiters = start_limiters(&programs, &redis, ports, dir.path()).await?;
        let shipped = || EnvoyConfig::shipped(&programs.root)?.http_filters(answer_at_once);
        let without = shipped()?.http_filters(|filters| drop(filters.remove(0)))?;
        let ours = shipped()?
            .filter_code(&programs.filter)?
            .limiter_timeout("1s")?;
        let mut envoys = Vec::new();
        for config in [without, shipped()?.filter_code(noop)?, ours] {
            let own = Ports {
                envoy: free_port()?,
                envoy_admin: free_port()?,
                ..ports
            };
            envoys.push(Envoy::start(&programs, config, own, 1, dir.path()).await?);
        }
        let [without, noop, ours] = envoys.as_slice() else {
            bail!("three Envoys were to be started")
        };
        limits_are_known(ours).await?;
        let setups = vec![
            Setup {
                name: "no filter",
                url: without.url("/strict"),
                status: 200,
            },
            Setup {
                name: "no-op filter",
                url: noop.url("/strict"),
                status: 200,
            },
            Setup {
                name: "every request checked",
                url: ours.url("/strict"),
                status: 200,
            },
            Setup {
                name: "denied from the cache",
                url: ours.url("/denied"),
                status: 429,
            },
        ];
        Ok(Self {
            setups,
            limiters,
            redis,
            _envoys: envoys,
            _dir: dir,
        })
    }

    /// A limiter and its Redis, to be loaded directly.
    pub fn limiter(&self) -> Result<(&Limiter, u16)> {
        Ok((
            self.limiters.first().context("no limiter was started")?,
            self.redis.port(),
        ))
    }

    /// What is to be loaded, in order.
    pub fn setups(&self) -> &[Setup] {
        &self.setups
    }
}

/// Puts a filter that answers in the place of the service.
pub(super) fn answer_at_once(filters: &mut Vec<serde_json::Value>) {
    let fault = json!({
        "name": "answer",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault",
            "abort": {"http_status": 200, "percentage": {"numerator": 100}}
        }
    });
    filters.insert(1, fault);
}

async fn start_limiters(
    programs: &Programs,
    redis: &Redis,
    ports: Ports,
    dir: &Path,
) -> Result<Vec<Limiter>> {
    let mut limiters = Vec::new();
    for port in ports.limiters {
        let mut plan = LimiterPlan::new(programs, &redis.url(), [port, free_port()?], dir);
        // What is measured is checks, not what happens when one comes too late.
        plan.arguments
            .extend(["--store-timeout", "1s"].map(str::to_owned));
        limiters.push(plan.start().await?);
    }
    Ok(limiters)
}

fn load_limits(programs: &Programs, redis: &Redis, dir: &Path) -> Result<()> {
    let file = dir.join("limits.yaml");
    std::fs::write(&file, LIMITS)?;
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

async fn limits_are_known(envoy: &Envoy) -> Result<()> {
    let client = Client::new();
    let probe = client
        .get(&envoy.url("/strict"))
        .header("x-user-id", "nobody");
    until(
        "Envoy follows the limits",
        Duration::from_secs(10),
        async || {
            probe
                .send()
                .await
                .ok()
                .filter(|reply| reply.header("ratelimit").is_some())
        },
    )
    .await?;
    Ok(())
}
