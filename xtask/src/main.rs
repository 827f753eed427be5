//! Project tasks: `cargo xtask demo | test | wasm | module | dist | bench | soak | faults | fuzz | prove | pictures | tools`.
//!
//! A task gets the tools it needs (see [`tools`]), so that a clone with
//! nothing but rustup, Python's pip and a C compiler can run all of them.

mod bench;
mod calls;
mod command;
mod demo;
mod dist;
mod faults;
mod fleet;
mod fuzz;
mod module;
mod prove;
mod soak;
mod test;
mod tools;
mod ui;
mod wasm;

use std::io::ErrorKind;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::command::Workspace;
use crate::ui::Ui;

/// Project tasks.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Build the filter that Envoy loads: target/filter.wasm
    Wasm,
    /// Build the filter as a dynamic module of Envoy, into target/
    Module,
    /// Everything that must hold, with real Redis, Valkey and Envoy
    #[command(visible_alias = "ci")]
    Test(test::Args),
    /// Build what a release consists of: programs, the filter, images, checksums
    Dist(dist::Args),
    /// Run the whole system on this machine and show what it does
    Demo(demo::Args),
    /// Requests per second through one Envoy worker, compared within one run
    Bench(bench::Args),
    /// A limiter under every attack at once, beside honest checks that must be answered in time
    Soak(soak::Args),
    /// What fails against what is promised: a table of faults of Envoys, limiters and stores
    Faults(faults::Args),
    /// Every reader of strangers' bytes under a fuzzer
    Fuzz(fuzz::Args),
    /// Proxies, limiters and Redis in simulated worlds, with faults: docs/proof.md
    Prove(prove::Args),
    /// Make the pictures of the limiter's page in docs/pictures
    Pictures,
    /// Fetch the programs that the other tasks run, and say where they are
    Tools(tools::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli, &Ui) {
        Ok(()) => ExitCode::SUCCESS,
        // Ctrl-C: not a failure to report, but not success either.
        Err(error) if is_interrupted(&error) => ExitCode::from(130),
        Err(error) => {
            Ui.error(&error);
            ExitCode::FAILURE
        }
    }
}

fn is_interrupted(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == ErrorKind::Interrupted)
}

fn run(cli: Cli, ui: &Ui) -> Result<()> {
    let workspace = Workspace::find()?;
    match cli.task {
        Task::Wasm => wasm::build(&workspace, ui).map(|_| ()),
        Task::Module => module::build(&workspace, ui).map(|_| ()),
        Task::Test(args) => test::run(&args, &workspace, ui),
        Task::Dist(args) => dist::run(&args, &workspace, ui),
        Task::Demo(args) => demo::run(&args, &workspace, ui),
        Task::Bench(args) => bench::run(&args, &workspace, ui),
        Task::Soak(args) => soak::run(&args, &workspace, ui),
        Task::Faults(args) => faults::run(&args, &workspace, ui),
        Task::Fuzz(args) => fuzz::run(&args, &workspace, ui),
        Task::Prove(args) => prove::run(&args, &workspace, ui),
        Task::Pictures => test::pictures(&workspace, ui),
        Task::Tools(args) => tools::run(&args, &workspace, ui),
    }
}
