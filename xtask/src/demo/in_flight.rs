//! The story of requests in flight: three Envoys, a limit of ten, and one Envoy that is killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::{
    Envoy, EnvoyConfig, HeldRequest, Limiter, LimiterPlan, Ports, Programs, Redis, Signal,
    Upstream, free_port, until,
};
use serde_json::Value;
use tokio::process::Command;

use super::ports::DemoPorts;
use super::printer::Printer;
use super::stage::fresh_folder;
use crate::workspace::Workspace;

const LIMITS: &str = "domain: shop
limits:
  - name: in-flight
    match: {path: \"/reports/**\"}
    per: [user]
    algorithm: concurrency
    limit: 10
    slot_ttl: 3s
";
const LIMIT: u64 = 10;
const ENVOYS: u64 = 3;
/// Requests at each Envoy.
const EACH: u64 = 10;
const PATIENCE: Duration = Duration::from_secs(20);

/// The running programs.
struct Running {
    store: String,
    envoys: Vec<Envoy>,
    _redis: Redis,
    _limiter: Limiter,
    _upstream: Upstream,
}

/// Runs the story.
pub async fn run(
    printer: &Printer,
    workspace: &Workspace,
    programs: &Programs,
    ports: DemoPorts,
) -> Result<()> {
    let dir = fresh_folder(workspace)?;
    let mut running = start(printer, programs, &ports, &dir).await?;
    let held = requests_at_once(printer, programs, &running).await?;
    kill_one(printer, programs, &mut running, held).await
}

async fn start(
    printer: &Printer,
    programs: &Programs,
    ports: &DemoPorts,
    dir: &Path,
) -> Result<Running> {
    printer.heading("Ten in flight, over three Envoys");
    for line in LIMITS.lines() {
        printer.line(line);
    }
    printer.line("");
    let redis = Redis::start(&programs.valkey, ports.redis, dir).await?;
    let store = redis.url();
    let [port, _] = ports.envoy.limiters;
    let mut plan = LimiterPlan::new(programs, &store, [port, ports.limiter_admins[0]], dir);
    plan.arguments
        .extend(["--store-timeout", "500ms"].map(str::to_owned));
    printer.command(&plan.typed());
    let limiter = plan.start().await?;
    let file = dir.join("limits.yaml");
    std::fs::write(&file, LIMITS)?;
    let mut apply = rlctl(programs, &store, &["apply", "-f"]);
    printer.run(apply.arg(&file)).await?;
    let upstream = Upstream::start(ports.envoy.upstream).await?;
    let mut envoys = Vec::new();
    for n in 0..ENVOYS {
        let own = match n {
            0 => ports.envoy,
            _ => Ports {
                envoy: free_port()?,
                envoy_admin: free_port()?,
                ..ports.envoy
            },
        };
        let path = dir.join(format!("envoy-{n}.json"));
        EnvoyConfig::shipped(&programs.root)?
            .filter_code(&programs.filter)?
            .limiter_timeout("1s")?
            .ports(&own)?
            .write(&path)?;
        let envoy = Envoy::serve(programs, &path, own, 2, dir).await?;
        printer.command(envoy.typed());
        limits_are_in_force(&envoy).await?;
        envoys.push(envoy);
    }
    Ok(Running {
        store,
        envoys,
        _redis: redis,
        _limiter: limiter,
        _upstream: upstream,
    })
}

/// Waits for the limits: until Envoy has them, requests pass.
async fn limits_are_in_force(envoy: &Envoy) -> Result<()> {
    let request = envoy.get("/reports/any").header("x-user-id", "nobody");
    until("Envoy has the limits", PATIENCE, async || {
        let reply = request.send().await.ok()?;
        reply.header("ratelimit-policy").map(|_| ())
    })
    .await
}

fn rlctl(programs: &Programs, store: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(&programs.rlctl);
    command.args(arguments).env("RL_STORE", store);
    command
}

/// The number of requests in flight, according to the store.
async fn in_flight(programs: &Programs, store: &str) -> Result<u64> {
    let inspect = ["inspect", "in-flight", "user=alice", "-o", "json"];
    let output = rlctl(programs, store, &inspect).output().await?;
    let bucket: Value = serde_json::from_slice(&output.stdout)?;
    let used = bucket.get("used").and_then(Value::as_u64);
    used.context("rlctl inspect shows no use")
}

async fn becomes(programs: &Programs, store: &str, count: u64) -> Result<Duration> {
    let since = Instant::now();
    let what = format!("{count} requests are in flight");
    until(&what, PATIENCE, async || {
        let now = in_flight(programs, store).await.ok()?;
        (now == count).then(|| since.elapsed())
    })
    .await
}

/// Each Envoy's requests that are unanswered while the service waits for the rest of their bodies.
async fn requests_at_once(
    printer: &Printer,
    programs: &Programs,
    running: &Running,
) -> Result<Vec<Vec<HeldRequest>>> {
    printer.heading("Thirty uploads at once");
    let mut held = Vec::new();
    for envoy in &running.envoys {
        let mut own = Vec::new();
        for _ in 0..EACH {
            own.push(HeldRequest::send(envoy.port(), "/reports/x", "alice").await?);
        }
        held.push(own);
    }
    let mut denied = 0;
    for own in &mut held {
        let mut waiting = Vec::new();
        for mut request in std::mem::take(own) {
            match request.status_within(Duration::from_secs(2)).await? {
                None => waiting.push(request),
                Some(429) => denied += 1,
                Some(other) => anyhow::bail!("a request was answered {other}"),
            }
        }
        *own = waiting;
    }
    let waiting: usize = held.iter().map(Vec::len).sum();
    ensure!(
        denied == EACH * ENVOYS - LIMIT && waiting == usize::try_from(LIMIT)?,
        "{waiting} are in flight, {denied} were denied"
    );
    let inspect = ["inspect", "in-flight", "user=alice"];
    printer
        .run(&mut rlctl(programs, &running.store, &inspect))
        .await?;
    printer.ok(&format!("{waiting} are in flight, {denied} were denied."));
    Ok(held)
}

async fn kill_one(
    printer: &Printer,
    programs: &Programs,
    running: &mut Running,
    mut held: Vec<Vec<HeldRequest>>,
) -> Result<()> {
    printer.heading("One Envoy is killed");
    let (at, _) = held
        .iter()
        .enumerate()
        .max_by_key(|(_, own)| own.len())
        .context("there are Envoys")?;
    let lost = u64::try_from(held.remove(at).len())?;
    let envoy = running.envoys.remove(at);
    envoy.process().signal(Signal::KILL)?;
    let took = becomes(programs, &running.store, LIMIT - lost).await?;
    printer.ok(&format!(
        "Its {lost} slots were free {} ms later; slot_ttl is 3 s.",
        took.as_millis()
    ));
    printer.text("The others keep theirs, and end:");
    printer.line("");
    for request in held.into_iter().flatten() {
        let status = request.finish().await?;
        ensure!(
            status == 200,
            "a request that was in flight was answered {status}"
        );
    }
    let took = becomes(programs, &running.store, 0).await?;
    printer.ok(&format!("None is in flight {} ms later.", took.as_millis()));
    Ok(())
}
