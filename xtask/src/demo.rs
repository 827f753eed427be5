//! `cargo xtask demo`: runs the whole system on this machine and shows what it does. Every claim
//! it prints is checked, so a demo that completes is a test that passed.

mod stories;

use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use console::style;
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, Reply, Request,
    Upstream, shown,
};
use tokio::process::Command;

use crate::command::Workspace;
use crate::fleet::{self, interruptible};
use crate::tools::Tools;
use crate::ui::{Ui, help};

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Leave everything running after the demo, until Ctrl-C
    #[arg(long, conflicts_with = "story")]
    keep: bool,
    /// Show something else instead
    #[arg(long, value_enum)]
    story: Option<Story>,
    /// Use the ports from this one on instead of those in envoy.yaml
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..=65528))]
    port_base: Option<u16>,
}

/// A short demo of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Story {
    /// Envoy's own rate limit filter, with a file of envoyproxy/ratelimit
    RateLimitService,
    /// Ten requests in flight over three Envoys, one of which is killed
    InFlight,
}

/// Fetches missing tools, builds, starts everything and runs the demo.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    // If a port is in use, the demo must fail now and not after minutes.
    let ports = free_ports(args.port_base)?;
    // Keeps the printed commands short.
    std::env::set_current_dir(&workspace.root).context("cannot enter the checkout")?;
    let redis = Tools::new(workspace, ui).any_redis()?;
    let mut programs = fleet::programs(workspace, ui, redis, true)?;
    for path in [
        &mut programs.envoy,
        &mut programs.redis,
        &mut programs.limiter,
        &mut programs.rlctl,
        &mut programs.filter,
    ] {
        *path = workspace.short(path).to_path_buf();
    }
    // Ending the future stops everything it has started.
    interruptible(demo(args, workspace, programs, ports))
}

/// The ports of the demo, all on 127.0.0.1: Envoy's two, two of each limiter, the service's and the store's. Not 6379,
/// which the owner of this machine may use.
type DemoPorts = [u16; 8];
const PORTS: DemoPorts = [10000, 9901, 8090, 8091, 8092, 8093, 8080, 6390];

/// The documented ports, or eight in a row. Fails if any is in use, and names all of them.
fn free_ports(base: Option<u16>) -> Result<DemoPorts> {
    let mut ports = PORTS;
    if let Some(base) = base {
        for (port, chosen) in ports.iter_mut().zip(base..) {
            *port = chosen;
        }
    }
    let taken = { ports.iter() }
        .filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, **port)).is_err())
        .map(ToString::to_string);
    let taken: Vec<String> = taken.collect();
    let problem = format!("in use on 127.0.0.1: port {}", taken.join(", "));
    let others = "use others: cargo xtask demo --port-base 20000";
    let stop = "or stop what listens there; perhaps a demo left with --keep";
    ensure!(taken.is_empty(), help(problem, &[others, stop]));
    Ok(ports)
}

async fn demo(
    args: &Args,
    workspace: &Workspace,
    programs: Programs,
    ports: DemoPorts,
) -> Result<()> {
    let mut stage = Stage::start(workspace, programs, ports).await?;
    match args.story {
        Some(Story::RateLimitService) => stories::rate_limit_service(&mut stage).await?,
        Some(Story::InFlight) => stories::in_flight(&mut stage).await?,
        None => stories::whole_system(&mut stage).await?,
    }
    if args.keep {
        stories::what_to_try(&stage);
        return Ok(tokio::signal::ctrl_c().await?);
    }
    drop(stage);
    heading("Done");
    let keep = "; `cargo xtask demo --keep` leaves it running";
    let keep = if args.story.is_none() { keep } else { "" };
    text(&format!(
        "Every step was checked. Everything is stopped now{keep}."
    ));
    Ok(())
}

// ---- The programs: Redis, limiters, a service and Envoys

/// Everything that runs.
struct Stage {
    programs: Programs,
    ports: Ports,
    limiter_admins: [u16; 2],
    dir: PathBuf,
    redis: Redis,
    upstream: Upstream,
    envoys: Vec<Envoy>,
    limiters: Vec<Limiter>,
    client: Client,
}

impl Stage {
    /// Starts a store and a service, with an empty folder for their files.
    async fn start(workspace: &Workspace, programs: Programs, ports: DemoPorts) -> Result<Self> {
        let [
            envoy,
            envoy_admin,
            first,
            first_admin,
            second,
            second_admin,
            upstream,
            redis,
        ] = ports;
        let dir = workspace.short(&workspace.target).join("demo");
        if dir.exists() {
            std::fs::remove_dir_all(&dir)
                .with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self {
            redis: Redis::start(&programs.redis, redis, &dir).await?,
            upstream: Upstream::start(upstream).await?,
            programs,
            ports: Ports {
                envoy,
                envoy_admin,
                limiters: [first, second],
                upstream,
            },
            limiter_admins: [first_admin, second_admin],
            dir,
            envoys: Vec::new(),
            limiters: Vec::new(),
            client: Client::new(),
        })
    }

    /// Starts another limiter, and shows the command. It has more patience than by default, so that the
    /// story holds on a busy machine.
    async fn limiter(&mut self, arguments: &[&str]) -> Result<()> {
        let mut ports = self.ports.limiters.into_iter().zip(self.limiter_admins);
        let (port, admin) = { ports.nth(self.limiters.len()) }.context("there are two limiters")?;
        let store = self.redis.url();
        let mut plan = LimiterPlan::new(&self.programs, &store, [port, admin], &self.dir);
        let arguments = arguments.iter().chain(&["--store-timeout", "500ms"]);
        plan.arguments.extend(arguments.map(ToString::to_string));
        command(&plan.typed());
        self.limiters.push(plan.start().await?);
        Ok(())
    }

    /// Starts another Envoy, and shows the command.
    async fn envoy(&mut self, config: EnvoyConfig, ports: Ports) -> Result<&Envoy> {
        let path = self.dir.join(format!("envoy-{}.json", self.envoys.len()));
        config.write(&path)?;
        let envoy = Envoy::serve(&self.programs, &path, ports, 2, &self.dir).await?;
        command(envoy.typed());
        self.envoys.push(envoy);
        self.envoys.last().context("an Envoy")
    }

    /// envoy.yaml with these ports and more patience.
    fn config(&self, ports: &Ports) -> Result<EnvoyConfig> {
        EnvoyConfig::shipped(&self.programs.root)?
            .filter_code(&self.programs.filter)?
            .limiter_timeout("1s")?
            .ports(ports)
    }

    /// A POST to a path through Envoy, as a user.
    fn post(&self, path: &str, user: &str) -> Request {
        let request = self.client.post(&format!("{}{path}", self.url()), "");
        request.header("x-user-id", user)
    }

    /// Envoy's URL.
    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports.envoy)
    }

    /// rlctl, on this store.
    fn rlctl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.programs.rlctl);
        command.args(arguments).env("RL_STORE", self.redis.url());
        command
    }

    /// Shows a command of rlctl, runs it, shows its output and returns its stdout.
    async fn run_rlctl(&self, arguments: &[&str]) -> Result<String> {
        let mut rlctl = self.rlctl(arguments);
        let typed = shown(rlctl.as_std());
        command(&typed);
        rlctl.stdin(std::process::Stdio::null()).kill_on_drop(true);
        let done = rlctl.output().await;
        let done = done.with_context(|| format!("cannot start `{typed}`"))?;
        let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
        output(&String::from_utf8_lossy(&done.stderr));
        output(&stdout);
        if !done.status.success() {
            bail!("`{typed}` failed ({})", done.status);
        }
        Ok(stdout)
    }

    /// Shows a file of limits that is written into the stage's folder; returns its path.
    fn file(&self, name: &str, content: &str) -> Result<String> {
        let path: &Path = &self.dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap_or(path))?;
        std::fs::write(path, content)?;
        text(content);
        Ok(path.display().to_string())
    }
}

// ---- The output, with colours only on a terminal

/// Begins a step.
fn heading(title: &str) {
    let rule = "─".repeat(76_usize.saturating_sub(title.chars().count()));
    println!("\n{}", style(format!("── {title} {rule}")).bold());
}

/// A paragraph.
fn text(text: &str) {
    println!();
    text.lines().for_each(line);
}

/// A line of one, such as of a table.
fn line(text: &str) {
    println!("  {text}");
}

/// A command as typed.
fn command(command: &str) {
    println!("\n  {}", style(format!("$ {command}")).cyan());
}

/// A program's output.
fn output(text: &str) {
    for text in text.trim_end().lines() {
        println!("  {}", style(text).dim());
    }
}

/// One line for a request and its answer, with the quota of `limit` only.
fn exchange(request: &str, limit: &str, reply: &Reply) {
    let name = format!("\"{limit}\"");
    let quotas = reply.header("ratelimit").unwrap_or_default();
    let quota = match reply.header("retry-after") {
        Some(seconds) => format!("Retry-After: {seconds}"),
        None => { quotas.split(", ") }
            .find(|item| item.starts_with(&name))
            .map_or_else(String::new, |quota| format!("RateLimit: {quota}")),
    };
    let status = style(reply.status.as_str());
    let status = if reply.status == 200 {
        status.green()
    } else {
        status.yellow()
    };
    println!("  {request}  {status}  {}", style(quota).dim());
}

/// A whole answer, as `curl --include` shows it.
fn whole(reply: &Reply) {
    let status = format!("HTTP/1.1 {}", reply.status);
    println!("\n  {}", style(status).yellow());
    for (name, value) in &reply.headers {
        line(&format!(
            "{name}: {}",
            String::from_utf8_lossy(value.as_bytes())
        ));
    }
    println!();
    match reply.json() {
        Ok(json) => output(&format!("{json:#}")),
        Err(_) => output(&reply.text()),
    }
}

/// Reports an expectation that holds.
fn ok(text: &str) {
    println!("\n  {} {text}", style("✓").green());
}
