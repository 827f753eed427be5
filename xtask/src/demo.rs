//! `cargo xtask demo`: runs the whole system on this machine and shows what it does. Every claim
//! it prints is checked, so a demo that completes is a test that passed.

mod printer;
mod stage;
mod stories;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::command::Workspace;
use crate::tools::{Tool, Tools, WASM_TARGET};
use crate::ui::Ui;
use crate::wasm;
use crate::{Interrupted, command};

use printer::Printer;
use stage::{DemoPorts, Stage};

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
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // Dropping the future stops everything it has started.
        tokio::select! {
            // The demo is polled first: with --keep, Ctrl-C ends it successfully.
            biased;
            result = demo(args, workspace, programs, ports) => result,
            _ = interrupt.recv() => Err(Interrupted.into()),
            _ = terminate.recv() => Err(Interrupted.into()),
        }
    })
}

fn programs(workspace: &Workspace, ui: &Ui) -> Result<harness::Programs> {
    let tools = Tools::new(workspace, ui);
    ui.heading("Tools");
    tools.target(WASM_TARGET)?;
    let envoy = tools.get(Tool::Envoy)?;
    let redis = tools.any_redis()?;
    let filter = wasm::build(workspace, ui)?;
    ui.heading("Limiter and rlctl");
    command::run(command::cargo(workspace).args([
        "build",
        "--bins",
        "--package",
        "limiter",
        "--package",
        "ctl",
    ]))?;
    let built = workspace.target.join("debug");
    let short = |path: std::path::PathBuf| workspace.short(&path).to_path_buf();
    Ok(harness::Programs {
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
    programs: harness::Programs,
    ports: DemoPorts,
) -> Result<()> {
    let printer = Printer::detect();
    let mut stage = Stage::start(workspace, programs, ports).await?;
    match args.story {
        Some(Story::RateLimitService) => {
            stories::rate_limit_service(&printer, &mut stage).await?;
        }
        Some(Story::InFlight) => stories::in_flight(&printer, &mut stage).await?,
        None => stories::whole_system(&printer, &mut stage).await?,
    }
    if args.keep {
        stories::what_to_try(&printer, &stage);
        let mut interrupt = signal(SignalKind::interrupt())?;
        interrupt.recv().await;
        return Ok(());
    }
    drop(stage);
    printer.heading("Done");
    let keep = "; `cargo xtask demo --keep` leaves it running";
    let keep = if args.story.is_none() { keep } else { "" };
    printer.text(&format!(
        "Every step was checked. Everything is stopped now{keep}."
    ));
    Ok(())
}
