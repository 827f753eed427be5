//! `cargo xtask demo`: runs the whole system on this machine and shows what it does. Every claim
//! it prints is checked, so a demo that completes is a test that passed.

mod stories;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use console::style;
use harness::{
    Client, Envoy, EnvoyConfig, Limiter, LimiterPlan, Ports, Programs, Redis, Reply, Request,
    Upstream, shown,
};
use tokio::process::Command;

use crate::bench::interruptible;
use crate::command::{self, Workspace};
use crate::tools::{Tool, Tools, WASM_TARGET};
use crate::ui::{Ui, help};
use crate::wasm;

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
    #[arg(long, value_name = "PORT")]
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
    let ports = DemoPorts::choose(args.port_base)?;
    // If a port is in use, the demo must fail now and not after minutes.
    ports.check_free()?;
    // Keeps the printed commands short.
    std::env::set_current_dir(&workspace.root).context("cannot enter the checkout")?;
    let programs = programs(workspace, ui)?;
    // Ending the future stops everything it has started.
    interruptible(demo(args, workspace, programs, ports))
}

fn programs(workspace: &Workspace, ui: &Ui) -> Result<Programs> {
    let tools = Tools::new(workspace, ui);
    ui.heading("Tools");
    tools.target(WASM_TARGET)?;
    let (envoy, redis) = (tools.get(Tool::Envoy)?, tools.any_redis()?);
    let filter = wasm::build(workspace, ui)?;
    ui.heading("Limiter and rlctl");
    let packages = ["build", "--bins", "--package=limiter", "--package=ctl"];
    command::run(&mut workspace.cargo(&packages))?;
    let built = workspace.target.join("debug");
    let short = |path: PathBuf| workspace.short(&path).to_path_buf();
    Ok(Programs {
        root: workspace.root.clone(),
        envoy: short(envoy),
        valkey: short(redis.clone()),
        redis: short(redis),
        limiter: short(built.join("limiter")),
        rlctl: short(built.join("rlctl")),
        filter: short(filter),
    })
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

// ---- The programs: Redis, limiters, a service and Envoys; and their ports

/// Everything that runs.
struct Stage {
    programs: Programs,
    ports: DemoPorts,
    dir: PathBuf,
    redis: Redis,
    upstream: Upstream,
    envoys: Vec<Envoy>,
    limiters: Vec<Limiter>,
    stopped: Vec<LimiterPlan>,
    client: Client,
}

impl Stage {
    /// Starts a store and a service, with an empty folder for their files.
    async fn start(workspace: &Workspace, programs: Programs, ports: DemoPorts) -> Result<Self> {
        let dir = workspace.short(&workspace.target).join("demo");
        if dir.exists() {
            std::fs::remove_dir_all(&dir)
                .with_context(|| format!("cannot empty {}", dir.display()))?;
        }
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot create {}", dir.display()))?;
        Ok(Self {
            redis: Redis::start(&programs.valkey, ports.redis, &dir).await?,
            upstream: Upstream::start(ports.envoy.upstream).await?,
            programs,
            ports,
            dir,
            envoys: Vec::new(),
            limiters: Vec::new(),
            stopped: Vec::new(),
            client: Client::new(),
        })
    }

    /// Starts another limiter, and shows the command. It has more patience than by default, so that the
    /// story holds on a busy machine.
    async fn limiter(&mut self, arguments: &[&str]) -> Result<()> {
        let nth = self.limiters.len();
        let port = self.ports.envoy.limiters.get(nth);
        let ports = port.zip(self.ports.limiter_admins.get(nth));
        let (port, admin) = ports.context("there are ports for two limiters")?;
        let (store, ports) = (self.redis.url(), [*port, *admin]);
        let mut plan = LimiterPlan::new(&self.programs, &store, ports, &self.dir);
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
        format!("http://127.0.0.1:{}", self.ports.envoy.envoy)
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
        content.lines().for_each(line);
        line("");
        Ok(path.display().to_string())
    }

    /// Stops all limiters.
    async fn stop_limiters(&mut self) -> Result<()> {
        for limiter in std::mem::take(&mut self.limiters) {
            self.stopped.push(limiter.stop().await?);
        }
        Ok(())
    }

    /// Starts them again.
    async fn start_limiters(&mut self) -> Result<()> {
        for plan in std::mem::take(&mut self.stopped) {
            self.limiters.push(plan.start().await?);
        }
        Ok(())
    }
}

/// Every port of the demo, all on 127.0.0.1.
#[derive(Debug, Clone, Copy)]
struct DemoPorts {
    /// The ports in Envoy's configuration.
    envoy: Ports,
    /// The limiters' admin ports.
    limiter_admins: [u16; 2],
    /// Redis or Valkey. Not 6379, which the owner of this machine may use.
    redis: u16,
}

impl DemoPorts {
    /// The documented ports, or eight in a row.
    fn choose(base: Option<u16>) -> Result<Self> {
        let all = match base {
            None => {
                let Ports {
                    envoy,
                    envoy_admin,
                    limiters: [a, b],
                    upstream,
                } = Ports::SHIPPED;
                [envoy, envoy_admin, a, 8091, b, 8093, upstream, 6390]
            }
            Some(base) if base < 65528 => {
                std::array::from_fn(|n| base + u16::try_from(n).unwrap_or(0))
            }
            Some(base) => bail!(help(
                format!("there are no 8 ports from {base} on"),
                &["choose one below 65528: cargo xtask demo --port-base 20000"],
            )),
        };
        let [
            envoy,
            envoy_admin,
            first,
            first_admin,
            second,
            second_admin,
            upstream,
            redis,
        ] = all;
        let limiters = [first, second];
        Ok(Self {
            envoy: Ports {
                envoy,
                envoy_admin,
                limiters,
                upstream,
            },
            limiter_admins: [first_admin, second_admin],
            redis,
        })
    }

    /// Fails if any port is in use, and names all of them.
    fn check_free(&self) -> Result<()> {
        let Ports {
            envoy,
            envoy_admin,
            upstream,
            limiters: [a, b],
        } = self.envoy;
        let [c, d] = self.limiter_admins;
        let mut taken = Vec::new();
        for port in [envoy, envoy_admin, upstream, self.redis, a, b, c, d] {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AddrInUse => taken.push(port.to_string()),
                Err(error) => return Err(error).with_context(|| format!("cannot use port {port}")),
            }
        }
        if taken.is_empty() {
            return Ok(());
        }
        let problem = format!("in use on 127.0.0.1: port {}", taken.join(", "));
        let others = "use others: cargo xtask demo --port-base 20000";
        let stop = "or stop what listens there; perhaps a demo left with --keep";
        bail!(help(problem, &[others, stop]));
    }
}

// ---- The output: 80 columns, colours only on a terminal

/// The columns of all output.
const WIDTH: usize = 80;
/// Stands for a space at which a line must not break.
const BOUND: &str = "\u{a0}";

/// Begins a step.
fn heading(title: &str) {
    let rule = "─".repeat(WIDTH.saturating_sub(title.chars().count() + 4));
    println!("\n{}", style(format!("── {title} {rule}")).bold());
}

/// A sentence or two, wrapped.
fn text(text: &str) {
    println!();
    line(&wrap(text, WIDTH - 2).join("\n  "));
}

/// A line that must not be broken, such as one of a table.
fn line(text: &str) {
    println!("  {text}");
}

/// A command as typed; a long one is broken with backslashes, but never between an option and its value.
fn command(command: &str) {
    let mut bound = String::new();
    let mut after_option = false;
    for word in command.split(' ') {
        let option = word.starts_with('-');
        let space = if after_option && !option { BOUND } else { " " };
        bound = format!("{bound}{space}{word}");
        after_option = option;
    }
    let lines = wrap(bound.trim_start_matches(' '), WIDTH - 8).join(" \\\n      ");
    println!(
        "\n  {}",
        style(format!("$ {}", lines.replace(BOUND, " "))).cyan()
    );
}

/// A program's output; the middle of one longer than 16 lines is left out.
fn output(text: &str) {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let left_out = if lines.len() > 16 {
        12..lines.len() - 2
    } else {
        0..0
    };
    for (index, text) in lines.iter().enumerate() {
        if !left_out.contains(&index) {
            println!("  {}", style(text).dim());
        } else if index == left_out.start {
            println!(
                "  {}",
                style(format!("... {} more lines", left_out.len())).dim()
            );
        }
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
    println!(
        "\n  {}",
        style(format!("HTTP/1.1 {}", reply.status)).yellow()
    );
    for (name, value) in &reply.headers {
        let value = String::from_utf8_lossy(value.as_bytes());
        line(&wrap(&format!("{name}: {value}"), WIDTH - 6).join("\n      "));
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

/// Breaks at spaces, so that no line is longer than `width` unless one word is.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}
