//! `cargo xtask test`: all checks, cheapest first, with real Redis, Valkey and Envoy. Stops at the
//! first step that fails.

mod context;
mod steps;

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::help::Help;
use crate::ui::{Ui, seconds};
use crate::workspace::Workspace;

use context::Context as Steps;
use steps::Step;

/// Arguments of `cargo xtask test`.
#[derive(Default, clap::Args)]
pub struct Args {
    /// Only these steps, in their usual order
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Step>,
    /// Arguments for the test runner, such as a part of a test's name
    #[arg(last = true)]
    runner: Vec<String>,
}

/// `cargo xtask pictures`.
pub fn pictures(workspace: &Workspace, ui: &Ui) -> Result<()> {
    steps::pictures(&Steps::new(workspace, ui, Vec::new()))
}

/// Runs the steps.
pub fn run(args: &Args, workspace: &Workspace, ui: &Ui) -> Result<()> {
    let wanted = |step: &&Step| args.only.is_empty() || args.only.contains(step);
    let steps: Vec<Step> = Step::value_variants()
        .iter()
        .filter(wanted)
        .copied()
        .collect();
    let context = Steps::new(workspace, ui, args.runner.clone());
    let mut total = Duration::ZERO;
    for (index, step) in steps.iter().enumerate() {
        ui.heading(&format!("[{}/{}] {}", index + 1, steps.len(), step.title()));
        let started = Instant::now();
        step.run(&context).with_context(|| {
            Help::new(format!("step `{step}` failed")).remedy(format!(
                "fix it, then run just this step again: cargo xtask test --only {step}"
            ))
        })?;
        total += started.elapsed();
        ui.line(&format!(
            "{step}: {} in {}",
            ui.paint("32", "passed"),
            seconds(started.elapsed())
        ));
    }
    ui.line(&format!(
        "{} steps passed in {}",
        steps.len(),
        seconds(total)
    ));
    Ok(())
}
