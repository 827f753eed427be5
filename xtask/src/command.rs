//! The checkout, and running other programs in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use harness::shown;
use serde::de::DeserializeOwned;

/// The paths of this checkout.
pub struct Workspace {
    /// The folder that holds the root `Cargo.toml`.
    pub root: PathBuf,
    /// Cargo's build output.
    pub target: PathBuf,
}

impl Workspace {
    /// Finds the checkout that this program was built from.
    pub fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
        let root = root.context("xtask/ has no parent folder")?.to_path_buf();
        // Cargo resolves a relative CARGO_TARGET_DIR against the caller's folder.
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(dir) => std::path::absolute(dir).context("CARGO_TARGET_DIR")?,
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    /// The folder of fetched tools; `cargo clean` removes it.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// Where cargo puts what it builds for a target in a profile.
    pub fn built(&self, target: &str, profile: &str) -> PathBuf {
        let folder = if profile == "dev" { "debug" } else { profile };
        self.target.join(target).join(folder)
    }

    /// A path as typed in the checkout.
    pub fn short<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }

    /// A program with arguments, in the checkout.
    pub fn program(&self, name: impl AsRef<std::ffi::OsStr>, arguments: &[&str]) -> Command {
        let mut command = Command::new(name);
        command.current_dir(&self.root).args(arguments);
        command
    }

    /// cargo, in the checkout.
    ///
    /// The variables that `cargo run` set for this package are removed: build scripts that read them
    /// (ring's does) would otherwise run again whenever a task calls cargo after a developer did.
    pub fn cargo(&self, arguments: &[&str]) -> Command {
        const SET: [&str; 5] = ["PKG_", "MANIFEST_", "CRATE_", "BIN_", "PRIMARY_"];
        let mut cargo = self.program("cargo", arguments);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            let set = name.strip_prefix("CARGO_");
            if set.is_some_and(|name| SET.iter().any(|prefix| name.starts_with(prefix))) {
                cargo.env_remove(&*name);
            }
        }
        cargo
    }

    /// cargo for everything that runs natively. Every task uses the same packages, so that their dependencies
    /// have the same features and are built once.
    pub fn native(&self, subcommand: &[&str]) -> Command {
        let only_in_envoy = ["--exclude=noop-filter", "--exclude=lean-filter"];
        let mut cargo = self.cargo(subcommand);
        cargo.arg("--workspace").args(only_in_envoy);
        cargo
    }

    /// cargo for what users get: in a profile, with more flags of rustc.
    pub fn shipped(&self, arguments: &[&str], profile: &str, flags: &[&str]) -> Result<Command> {
        let mut cargo = self.cargo(arguments);
        cargo
            .args(["--profile", profile])
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_ENCODED_RUSTFLAGS", self.flags_without_paths(flags)?);
        Ok(cargo)
    }

    /// The same for a package that Envoy loads. Cargo does not optimise across crates for a library that is also a Rust
    /// library.
    pub fn loaded_by_envoy(&self, package: &str, profile: &str, flags: &[&str]) -> Result<Command> {
        let library = [
            "rustc",
            "--package",
            package,
            "--lib",
            "--crate-type=cdylib",
        ];
        self.shipped(&library, profile, flags)
    }

    /// What rustc says.
    pub fn rustc(&self, arguments: &[&str]) -> Result<String> {
        let said = output(&mut self.program("rustc", arguments))?;
        Ok(said.trim().to_owned())
    }

    /// What git says.
    pub fn git(&self, words: &str) -> Result<String> {
        let said = output(self.program("git", &[]).args(words.split(' ')))?;
        Ok(said.trim().to_owned())
    }

    /// For `CARGO_ENCODED_RUSTFLAGS`: the flags that cargo would use anyway, flags that map sources'
    /// paths to names without their folders, and `more`.
    fn flags_without_paths(&self, more: &[&str]) -> Result<String> {
        const SEPARATOR: &str = "\u{1f}";
        let (set, between) = match std::env::var("CARGO_ENCODED_RUSTFLAGS") {
            Ok(encoded) => (encoded, SEPARATOR),
            Err(_) => (std::env::var("RUSTFLAGS").unwrap_or_default(), " "),
        };
        let set = set.split(between).filter(|flag| !flag.is_empty());
        let mut flags: Vec<String> = set.map(str::to_owned).collect();
        let mut paths = registries();
        // In a fixed order, because other flags would cause a full rebuild.
        paths.sort();
        paths.push(self.root.clone());
        let remap = |path: &PathBuf| format!("--remap-path-prefix={}/=", path.display());
        flags.extend(paths.iter().map(remap));
        // If the standard library's sources are installed, the compiler names their folder instead of
        // the one in which they were built.
        let sysroot = self.rustc(&["--print", "sysroot"])?;
        let version = self.rustc(&["--version", "--verbose"])?;
        let commit = { version.lines() }.find_map(|line| line.strip_prefix("commit-hash: "));
        flags.push(format!(
            "--remap-path-prefix={sysroot}/lib/rustlib/src/rust=/rustc/{}",
            commit.unwrap_or("unknown")
        ));
        flags.extend(more.iter().map(|&flag| flag.to_owned()));
        Ok(flags.join(SEPARATOR))
    }
}

/// The row of this name in a table in YAML.
pub fn row<T: DeserializeOwned>(table: &str, name: &str) -> Result<T> {
    let mut rows: BTreeMap<String, T> = serde_saphyr::from_str(table)?;
    { rows.remove(name) }.with_context(|| format!("a table of xtask has no row {name}"))
}

/// cargo's folder of downloads.
pub fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| Some(std::env::home_dir()?.join(".cargo")))
}

/// The folders to which cargo unpacks the packages of a registry.
pub fn registries() -> Vec<PathBuf> {
    let sources = cargo_home().map(|home| home.join("registry/src"));
    let found = sources.and_then(|sources| std::fs::read_dir(sources).ok());
    let found = found.into_iter().flatten().flatten();
    found.map(|registry| registry.path()).collect()
}

/// Runs a command on this terminal.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs a command and returns its stdout; an error carries the last lines of its output.
pub fn output(command: &mut Command) -> Result<String> {
    const TAIL_LINES: usize = 15;
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start `{}`", shown(command)))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stdout.lines().chain(stderr.lines()).collect();
    let tail = lines.get(lines.len().saturating_sub(TAIL_LINES)..);
    bail!(
        "`{}` failed ({})\n{}",
        shown(command),
        output.status,
        tail.unwrap_or_default().join("\n")
    );
}
