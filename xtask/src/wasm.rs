//! `cargo xtask wasm`: the filter as Envoy loads it.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::command;
use crate::tools::Tools;
use crate::ui::Ui;
use crate::workspace::Workspace;

/// The filter's target.
pub const TARGET: &str = "wasm32-unknown-unknown";
/// The size to aim at: V8 compiles the filter in every Envoy that loads it, and a
/// kilobyte costs it about a millisecond.
const SIZE_BUDGET_BYTES: u64 = 250_000;
/// The size that it must not pass on the way there.
const SIZE_MAX_BYTES: u64 = 410_000;

/// Builds the filter and returns its path, `target/filter.wasm`.
pub fn build(workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    ui.heading("Filter");
    let built = module(workspace, ui, "filter")?;
    let path = workspace.target.join("filter.wasm");
    std::fs::copy(&built, &path).with_context(|| format!("cannot copy {}", built.display()))?;
    let bytes = std::fs::metadata(&path)?.len();
    let over = if bytes > SIZE_BUDGET_BYTES {
        ", over its budget of 250 KB"
    } else {
        ""
    };
    ui.line(&format!(
        "{}: {} KB{over}",
        workspace.short(&path).display(),
        bytes.div_ceil(1000)
    ));
    ensure!(
        bytes <= SIZE_MAX_BYTES,
        "the filter has {bytes} bytes; {SIZE_MAX_BYTES} are the most"
    );
    Ok(path)
}

/// Builds one of the packages that Envoy loads, and returns its module.
pub fn module(workspace: &Workspace, ui: &Ui, package: &str) -> Result<PathBuf> {
    Tools::new(workspace, ui).target(TARGET)?;
    let build = [
        "build",
        "--package",
        package,
        "--lib",
        "--profile",
        "wasm",
        "--target",
        TARGET,
    ];
    command::run(command::cargo(workspace).args(build))?;
    let file = format!("{}.wasm", package.replace('-', "_"));
    Ok(workspace.target.join(TARGET).join("wasm").join(file))
}
