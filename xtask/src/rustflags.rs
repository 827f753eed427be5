//! Compiler flags that keep this machine's paths out of the output.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::command;
use crate::workspace::Workspace;

/// For `CARGO_ENCODED_RUSTFLAGS`: the flags that cargo would use anyway, flags that map sources'
/// paths to names without their folders, and `more`.
pub fn without_paths(workspace: &Workspace, more: &[&str]) -> Result<String> {
    let separate = '\u{1f}'.to_string();
    let mut flags: Vec<String> = match std::env::var("CARGO_ENCODED_RUSTFLAGS") {
        Ok(encoded) => encoded.split(&separate).map(str::to_owned).collect(),
        Err(_) => std::env::var("RUSTFLAGS")
            .unwrap_or_default()
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    };
    flags.retain(|flag| !flag.is_empty());
    let sources = cargo_home().map(|home| home.join("registry").join("src"));
    let registries = sources.and_then(|sources| std::fs::read_dir(sources).ok());
    let registries = registries.into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = registries.map(|registry| registry.path()).collect();
    // In a fixed order, because other flags would cause a full rebuild.
    paths.sort();
    paths.push(workspace.root.clone());
    let remap = |path: &PathBuf| format!("--remap-path-prefix={}/=", path.display());
    flags.extend(paths.iter().map(remap));
    flags.push(standard_library(workspace)?);
    flags.extend(more.iter().map(|&flag| flag.to_owned()));
    Ok(flags.join(&separate))
}

/// cargo's folder of downloads.
pub fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}

/// If the standard library's sources are installed, the compiler names their folder instead of the
/// one in which they were built.
fn standard_library(workspace: &Workspace) -> Result<String> {
    let rustc = |arguments: &[&str]| {
        command::output(
            Command::new("rustc")
                .current_dir(&workspace.root)
                .args(arguments),
        )
    };
    let sysroot = rustc(&["--print", "sysroot"])?;
    let version = rustc(&["--version", "--verbose"])?;
    let commit = version
        .lines()
        .find_map(|line| line.strip_prefix("commit-hash: "));
    Ok(format!(
        "--remap-path-prefix={}/lib/rustlib/src/rust=/rustc/{}",
        sysroot.trim(),
        commit.unwrap_or("unknown")
    ))
}
