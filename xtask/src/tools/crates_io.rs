//! Programs that only come as Rust sources.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::help::Help;

/// Compiles and installs a crate's programs under `dir/bin`.
pub fn install(name: &str, version: &str, dir: &Path) -> Result<()> {
    let mut install = Command::new("cargo");
    install
        .args(["install", "--quiet", name, "--version", version, "--root"])
        .arg(dir)
        // They run for seconds but compile for minutes.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS");
    command::output(&mut install).with_context(|| {
        Help::new(format!("cannot install {name} {version}"))
            .remedy("check that cargo reaches crates.io (or the mirror it is set up for)")
            .remedy(format!(
                "to see its whole output: cargo install {name} --version {version}"
            ))
    })?;
    Ok(())
}
