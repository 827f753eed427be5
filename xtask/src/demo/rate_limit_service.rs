//! The story of Envoy's own rate limit filter: an unchanged file of envoyproxy/ratelimit, exact
//! under concurrency, and edited live.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use harness::{Envoy, EnvoyConfig, Limiter, LimiterPlan, Programs, Redis, Upstream, flood};
use tokio::process::Command;

use super::ports::DemoPorts;
use super::printer::Printer;
use super::stage::fresh_folder;
use super::steps::{EDIT_MAX, eventually};
use crate::workspace::Workspace;

const CONFIG: &str = include_str!("ratelimit.yaml");
const ALLOWED: u64 = 100;
const REQUESTS: u64 = 200;
/// The number of concurrent requests.
const CONNECTIONS: u64 = 200;
/// The longest that the requests and the edit may take to fall in one minute of the limit.
const NEEDED: Duration = Duration::from_secs(15);

/// Redis, a limiter, a service and Envoy.
struct Running {
    store: String,
    _redis: Redis,
    _limiter: Limiter,
    _upstream: Upstream,
    _envoy: Envoy,
}

/// Runs the story.
pub async fn run(
    printer: &Printer,
    workspace: &Workspace,
    programs: &Programs,
    ports: DemoPorts,
) -> Result<()> {
    let dir = fresh_folder(workspace)?;
    let running = start(printer, programs, &ports, &dir).await?;
    wait_for_a_minute(printer).await?;
    send_at_once(printer, &ports).await?;
    edit(printer, programs, &running, &ports).await
}

async fn start(
    printer: &Printer,
    programs: &Programs,
    ports: &DemoPorts,
    dir: &Path,
) -> Result<Running> {
    printer.heading("A file of envoyproxy/ratelimit, as it is");
    let folder = dir.join("ratelimit");
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join("shop.yaml"), CONFIG)?;
    for line in CONFIG.lines() {
        printer.line(line);
    }
    let redis = Redis::start(&programs.valkey, ports.redis, dir).await?;
    let store = redis.url();
    let [port, _] = ports.envoy.limiters;
    let admin = ports.limiter_admins[0];
    let mut plan = LimiterPlan::new(programs, &store, [port, admin], dir);
    plan.arguments = ["--rls-config".into(), folder.display().to_string()].into();
    plan.arguments
        .extend(["--store-timeout", "500ms"].map(str::to_owned));
    printer.line("");
    printer.command(&plan.typed());
    let limiter = plan.start().await?;
    printer.text("Envoy has its own rate limit filter, and no plugin:");
    let upstream = Upstream::start(ports.envoy.upstream).await?;
    let path = dir.join("envoy.json");
    EnvoyConfig::rate_limit_service(&programs.root, &ports.envoy)?.write(&path)?;
    let envoy = Envoy::serve(programs, &path, ports.envoy, 2, dir).await?;
    printer.command(envoy.typed());
    Ok(Running {
        store,
        _redis: redis,
        _limiter: limiter,
        _upstream: upstream,
        _envoy: envoy,
    })
}

/// The window is a minute of the clock, so the story waits until enough of one is left.
async fn wait_for_a_minute(printer: &Printer) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let left = Duration::from_secs(60 - now.as_secs() % 60);
    if left < NEEDED {
        printer.text("The window is a minute of the clock, and this one is almost over: waiting.");
        tokio::time::sleep(left).await;
    }
    Ok(())
}

async fn send(ports: &DemoPorts, requests: u64) -> Result<u64> {
    let request = |_| b"GET / HTTP/1.1\r\nhost: demo\r\nx-user-id: alice\r\n\r\n".to_vec();
    let connections = CONNECTIONS.min(requests);
    flood(ports.envoy.envoy, connections, requests, request).await
}

async fn send_at_once(printer: &Printer, ports: &DemoPorts) -> Result<()> {
    printer.heading("200 requests at once");
    let passed = send(ports, REQUESTS).await?;
    ensure!(
        passed == ALLOWED,
        "{passed} of {REQUESTS} passed; the limit is {ALLOWED} a minute"
    );
    printer.ok(&format!(
        "{passed} of {REQUESTS} passed: exactly the limit."
    ));
    Ok(())
}

async fn edit(
    printer: &Printer,
    programs: &Programs,
    running: &Running,
    ports: &DemoPorts,
) -> Result<()> {
    printer.heading("Raise the limit");
    let rlctl = |arguments: &[&str]| {
        let mut command = Command::new(&programs.rlctl);
        command.args(arguments).env("RL_STORE", &running.store);
        command
    };
    let limits = printer
        .run(&mut rlctl(&["list-limits", "-o", "name"]))
        .await?;
    let name = limits.split_whitespace().next();
    let name = name.context("rlctl list-limits shows no limit")?;
    printer
        .run(&mut rlctl(&["set-limit", name, "--rate", "120/1m"]))
        .await?;
    let mut more = 0;
    let took = eventually(EDIT_MAX, "the raised limit lets alice pass", async || {
        more += send(ports, 1).await?;
        Ok(more > 0)
    })
    .await?;
    more += send(ports, REQUESTS).await?;
    ensure!(more == 20, "{more} more passed under a limit of 120");
    printer.ok(&format!(
        "alice passes again, {took} ms after the edit: {more} more, to the unit."
    ));
    Ok(())
}
