//! The dynamic module as Envoy loads it: for this machine, and for releases.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::command::{self, Workspace};
use crate::tools::{Tools, replace};
use crate::ui::Ui;
use crate::wasm::kilobytes;

/// Envoy unloads a module with the last configuration that names it. What the workers share, and the thread
/// that may still be ending, must stay.
const NEVER_UNLOADED: &str = "-Clink-arg=-Wl,-z,nodelete";

/// The oldest glibc that modules of a release run with: that of Debian 10 and RHEL 8. Envoy's own needs 2.31.
const OLDEST_GLIBC: &str = "2.28";

/// Rust's name of the system for which a release has a module.
pub fn target(arch: &str) -> String {
    format!("{arch}-unknown-linux-gnu")
}

/// `cargo xtask module`: builds the module for this machine's processor and glibc; returns its path,
/// `target/librl_filter.so`.
pub fn build(workspace: &Workspace, ui: &Ui) -> Result<PathBuf> {
    ui.heading("Module");
    ensure!(
        cfg!(target_os = "linux"),
        "Envoy's functions are undefined symbols of the module, which only Linux links"
    );
    command::run(&mut workspace.loaded_by_envoy("module", "dist", &[NEVER_UNLOADED])?)?;
    let path = workspace.target.join("librl_filter.so");
    let built = workspace.target.join("dist/librl_filter.so");
    // Not overwritten: an Envoy may run it.
    replace(&path, |fresh| Ok(std::fs::copy(built, fresh).map(drop)?))?;
    let size = kilobytes(path.metadata()?.len());
    ui.line(&format!("{}: {size}", workspace.short(&path).display()));
    Ok(path)
}

/// Builds the module for a processor and any glibc since [`OLDEST_GLIBC`], on any Linux machine; returns its
/// path. Zig links it with the symbols of that glibc, and with an unwinder of its own: images of Envoy
/// without a distribution have no libgcc.
pub fn build_portable(
    workspace: &Workspace,
    ui: &Ui,
    arch: &str,
    profile: &str,
) -> Result<PathBuf> {
    ui.heading(&format!("Module for {arch}"));
    let tools = Tools::new(workspace, ui);
    let target = target(arch);
    tools.target(&target)?;
    let [linker, _] = tools.c_compiler(&format!("{arch}-linux-gnu.{OLDEST_GLIBC}"))?;
    // A flag, because cargo's own setting is also for build scripts and macros, all of which it would build again; and a
    // name without its folder, because flags become a part of symbols.
    let name = linker.file_name().unwrap_or_default().to_string_lossy();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&path).chain([linker.with_file_name("")]);
    let flags = [NEVER_UNLOADED, &format!("-Clinker={name}")];
    let mut cargo = workspace.loaded_by_envoy("module", profile, &flags)?;
    cargo
        .args(["--locked", "--target", &target])
        .env("PATH", std::env::join_paths(path)?);
    command::run(&mut cargo)?;
    Ok(workspace.built(&target, profile).join("librl_filter.so"))
}
