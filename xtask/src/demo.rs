//! `cargo xtask demo`: runs the whole system on this machine and shows what it does. Every claim
//! it prints is checked, so a demo that completes is a test that passed.

mod in_flight;
mod ports;
mod printer;
mod rate_limit_service;
mod stage;
mod steps;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::tools::{Tools, WASM_TARGET};
use crate::ui::Ui;
use crate::wasm;
use crate::workspace::Workspace;
use crate::{Interrupted, command};

use ports::DemoPorts;
use printer::Printer;
use stage::Stage;

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
    let envoy = tools.envoy()?;
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
    if let Some(story) = args.story {
        match story {
            Story::RateLimitService => {
                rate_limit_service::run(&printer, workspace, &programs, ports).await?;
            }
            Story::InFlight => in_flight::run(&printer, workspace, &programs, ports).await?,
        }
        printer.heading("Done");
        printer.text("Every step was checked. Everything is stopped now.");
        return Ok(());
    }
    let mut stage = Stage::start(&printer, workspace, programs, ports).await?;
    steps::run(&printer, &mut stage).await?;
    if args.keep {
        steps::what_to_try(&printer, &stage);
        let mut interrupt = signal(SignalKind::interrupt())?;
        interrupt.recv().await;
    }
    drop(stage);
    if !args.keep {
        steps::end(&printer);
    }
    Ok(())
}
