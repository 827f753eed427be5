//! `cargo xtask prove`: the whole system in simulated worlds (`tests/world`), and a page with what came of it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::command::{self, Workspace};
use crate::ui::Ui;

/// Arguments of `cargo xtask prove`.
#[derive(clap::Args)]
pub struct Args {
    /// Simulated hours, over all seeds
    #[arg(long, default_value_t = 20)]
    hours: u64,
    /// Simulated minutes of a seed
    #[arg(long, default_value_t = 5)]
    minutes: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    from: u64,
    /// Only this seed
    #[arg(long, conflicts_with_all = ["hours", "from", "mutations"])]
    seed: Option<u64>,
    /// Of that seed, only these events
    #[arg(long, requires = "seed")]
    keep: Option<String>,
    /// Of that seed, print every event, decision and log line
    #[arg(long, requires = "seed")]
    verbose: bool,
    /// Leave out each rule of `tests/world/src/mutations.rs` in turn, or those of these numbers (from 0): it must be
    /// found within `--hours`
    #[arg(long, num_args = 0.., value_delimiter = ',')]
    mutations: Option<Vec<usize>>,
    /// Where the page is written; target/proof.md, or target/mutations.md, if absent
    #[arg(long)]
    page: Option<PathBuf>,
}

/// `cargo xtask prove`.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let [hours, minutes, from] = [args.hours, args.minutes, args.from].map(|of| of.to_string());
    let mut world = world(workspace)?;
    if let Some(seed) = args.seed {
        world.args(["run", "--seed", &seed.to_string(), "--minutes", &minutes]);
        world.args(args.keep.iter().flat_map(|keep| ["--keep", keep]));
        world.args(args.verbose.then_some("--verbose"));
        return command::run(&mut world);
    }
    let name = if args.mutations.is_some() {
        "mutations.md"
    } else {
        "proof.md"
    };
    let page = { args.page.clone() }.unwrap_or_else(|| workspace.target.join(name));
    world.args(["prove", "--hours", &hours, "--minutes", &minutes]);
    world.args(["--from", &from, "--page"]).arg(&page);
    if let Some(numbers) = &args.mutations {
        world.arg("--mutations");
        world.args(numbers.iter().map(ToString::to_string));
    }
    command::run(&mut world)?;
    ui.line(&format!("written to {}", workspace.short(&page).display()));
    Ok(())
}

/// The program of `tests/world`, optimized.
fn world(workspace: &Workspace) -> Result<Command> {
    command::run(simulations(workspace).args(["--test=replay", "--no-run"]))?;
    Ok(workspace.program(workspace.target.join("debug/world"), &[]))
}

/// What simulations compute in, optimized. Libraries, macros and build scripts are those of all tests, which are
/// built already: in a profile of its own, cargo would build them again. To optimize also what worlds only link, or
/// read a few limits with, would take the compiler a sixth more. In 16 units, it would compile what is inlined in
/// many of them. Of ours nothing asserts only in debug builds, and the standard library would check its pointers.
const OPTIMIZED: [&str; 8] = [
    "--config=profile.dev.opt-level=2",
    "--config=profile.dev.codegen-units=4",
    "--config=profile.dev.debug-assertions=false",
    "--config=profile.dev.package.\"*\".opt-level=0",
    "--config=profile.dev.package.insight.opt-level=0",
    "--config=profile.dev.package.kubernetes.opt-level=0",
    "--config=profile.dev.package.limits-file.opt-level=0",
    "--config=profile.dev.package.migration.opt-level=0",
];

/// Tests of the simulators, and what they run, optimized.
pub fn simulations(workspace: &Workspace) -> Command {
    let mut cargo = workspace.native(&["test"]);
    cargo.args(OPTIMIZED);
    cargo
}

/// As many hours as each `cargo xtask test` simulates: eight times what it takes to find the rule that is found last of
/// all that can be left out.
pub fn for_tests(workspace: &Workspace) -> Result<()> {
    command::run(world(workspace)?.args(["prove", "--hours", "10"]))
}
