//! `cargo xtask module`: the dynamic module as Envoy loads it.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::command::{self, Workspace};
use crate::ui::Ui;
use crate::wasm::kilobytes;

/// Envoy unloads a module with the last configuration that names it. What the workers share, and the thread
/// that may still be ending, must stay.
const NEVER_UNLOADED: &str = "-Clink-arg=-Wl,-z,nodelete";

/// Builds the module for this machine's processor and glibc; returns its path, `target/librl_filter.so`.
pub fn build(workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    ui.heading("Module");
    ensure!(
        cfg!(target_os = "linux"),
        "Envoy's functions are undefined symbols of the module, which only Linux links"
    );
    // Cargo does not optimise across crates for a library that is also a Rust library.
    let mut cargo = workspace.cargo(&["rustc", "--package", "module", "--lib"]);
    cargo
        .args(["--crate-type=cdylib", "--profile=dist"])
        .env("CARGO_TARGET_DIR", &workspace.target);
    let flags = workspace.flags_without_paths(&[NEVER_UNLOADED])?;
    command::run(cargo.env("CARGO_ENCODED_RUSTFLAGS", flags))?;
    let path = workspace.target.join("librl_filter.so");
    let built = workspace.target.join("dist/librl_filter.so");
    // Renamed, not overwritten: an Envoy may run it.
    let fresh = path.with_extension("new");
    let bytes = std::fs::copy(built, &fresh)?;
    std::fs::rename(fresh, &path)?;
    let shown = workspace.short(&path).display();
    ui.line(&format!("{shown}: {}", kilobytes(bytes)));
    Ok(path)
}
