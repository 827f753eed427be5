//! `cargo xtask demo`: the whole system on this machine, and a story told with
//! it. Whatever the story claims is checked, so a demo that ends well is a test
//! that passed.

mod ports;
mod stage;
mod story;
mod teller;

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::tools::Tools;
use crate::ui::Ui;
use crate::wasm;
use crate::workspace::Workspace;
use crate::{Interrupted, command};

use ports::DemoPorts;
use stage::Stage;
use teller::Teller;

/// Arguments of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Leave everything running after the story, until Ctrl-C
    #[arg(long)]
    keep: bool,
    /// Use the ports from here on instead of those that envoy.yaml names
    #[arg(long, value_name = "PORT")]
    port_base: Option<u16>,
}

/// Gets what is missing, builds, starts everything and tells the story.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let ports = DemoPorts::choose(args.port_base)?;
    // What can go wrong for want of a port should not do so after minutes.
    ports.check_free()?;
    // So that the commands shown are as short as those typed.
    std::env::set_current_dir(&workspace.root).context("cannot enter the checkout")?;
    let programs = programs(workspace, ui)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        // Dropping the story stops whatever it has started.
        tokio::select! {
            // The story first: with --keep it is what Ctrl-C ends, and well.
            biased;
            told = tell(args, workspace, programs, ports) => told,
            _ = interrupt.recv() => Err(Interrupted.into()),
            _ = terminate.recv() => Err(Interrupted.into()),
        }
    })
}

fn programs(workspace: &Workspace, ui: &Ui) -> Result<harness::Programs> {
    let tools = Tools::new(workspace, ui);
    ui.heading("Tools");
    tools.target(wasm::TARGET)?;
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

async fn tell(
    args: &Args,
    workspace: &Workspace,
    programs: harness::Programs,
    ports: DemoPorts,
) -> Result<()> {
    let teller = Teller::detect();
    let mut stage = Stage::start(&teller, workspace, programs, ports).await?;
    story::tell(&teller, &mut stage).await?;
    if args.keep {
        story::what_to_try(&teller, &stage);
        let mut interrupt = signal(SignalKind::interrupt())?;
        interrupt.recv().await;
    }
    drop(stage);
    if !args.keep {
        story::end(&teller);
    }
    Ok(())
}
