//! Parts of the Rust toolchain, and programs that are installed from crates.io.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Tools;
use super::lookup::on_path;
use crate::command;
use crate::help::Help;

const CARGO_DENY_VERSION: &str = "0.20.2";

impl Tools<'_> {
    /// cargo-deny, which checks licences, sources and banned crates.
    pub fn cargo_deny(&self) -> Result<PathBuf> {
        if let Some(path) = on_path("cargo-deny") {
            return Ok(path);
        }
        let home = self.dir.join(format!("cargo-deny-{CARGO_DENY_VERSION}"));
        self.once(
            &home,
            &format!("cargo-deny {CARGO_DENY_VERSION} (compiled: minutes)"),
            |fresh| install("cargo-deny", CARGO_DENY_VERSION, fresh),
        )?;
        self.checked(&home.join("bin/cargo-deny"), "--version", &home)
    }

    /// Installs the standard library for another target; returns its folder.
    pub fn target(&self, target: &str) -> Result<PathBuf> {
        let root = &self.workspace.root;
        let libdir = || -> Result<PathBuf> {
            let print = ["--print", "target-libdir", "--target", target];
            let path = command::output(Command::new("rustc").current_dir(root).args(print))?;
            Ok(PathBuf::from(path.trim()))
        };
        let path = libdir()?;
        if path.is_dir() {
            return Ok(path);
        }
        if !command::exists("rustup") {
            return Err(Help::new(format!("this Rust has no standard library for {target}"))
                .remedy("install Rust with rustup (https://rustup.rs), which adds the target automatically")
                .remedy("or install your distribution's package for it, of the same version as rustc")
                .into());
        }
        self.ui.step(&format!("Rust target {target} (20 MB)"), || {
            command::output(Command::new("rustup").current_dir(root).args(["target", "add", target]))
                .context(Help::new(format!("cannot add the Rust target {target}")).remedy(
                    "check that this machine reaches static.rust-lang.org, or set RUSTUP_DIST_SERVER",
                ))
        })?;
        libdir()
    }

    /// Installs a part of the Rust toolchain that a minimal installation lacks.
    pub fn component(&self, name: &str, subcommand: &str) -> Result<()> {
        let root = &self.workspace.root;
        let works = Command::new("cargo")
            .current_dir(root)
            .args([subcommand, "--version"])
            .output();
        if works.is_ok_and(|output| output.status.success()) {
            return Ok(());
        }
        self.ui.step(&format!("Rust component {name}"), || {
            let add = ["component", "add", name];
            command::output(Command::new("rustup").current_dir(root).args(add)).context(
                Help::new(format!("`cargo {subcommand}` is missing")).remedy(format!(
                    "install it with your Rust: rustup component add {name}"
                )),
            )
        })?;
        Ok(())
    }

    /// Whether nextest is installed.
    #[expect(clippy::unused_self, reason = "a question about tools")]
    pub fn has_nextest(&self) -> bool {
        on_path("cargo-nextest").is_some()
    }
}

/// Compiles and installs a crate's programs under `dir/bin`.
fn install(name: &str, version: &str, dir: &Path) -> Result<()> {
    let mut install = Command::new("cargo");
    install
        .args(["install", "--quiet", name, "--version", version, "--root"])
        .arg(dir)
        // They run for seconds but compile for minutes, so they are hardly optimised.
        .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTFLAGS");
    command::output(&mut install).with_context(|| {
        Help::new(format!("cannot install {name} {version}"))
            .remedy("check that cargo reaches its registry (`cargo search anyhow`)")
            .remedy(format!(
                "to see its whole output: cargo install {name} --version {version}"
            ))
    })?;
    Ok(())
}
