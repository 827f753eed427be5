//! The checkout, and running other programs in it.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use harness::shown;

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
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask/ has no parent folder")?
            .to_path_buf();
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

    /// A path as typed in the checkout.
    pub fn short<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}

/// Lines of a failed command's output that its error carries.
const TAIL_LINES: usize = 15;

/// cargo, in the checkout.
///
/// The variables that `cargo run` set for this package are removed: build scripts that read them
/// (ring's does) would otherwise run again whenever a task calls cargo after a developer did.
pub fn cargo(workspace: &Workspace) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&workspace.root);
    for (name, _) in std::env::vars_os() {
        let set_by_cargo = [
            "CARGO_PKG_",
            "CARGO_MANIFEST_",
            "CARGO_CRATE_",
            "CARGO_BIN_",
            "CARGO_PRIMARY_",
        ];
        if name
            .to_str()
            .is_some_and(|name| set_by_cargo.iter().any(|prefix| name.starts_with(prefix)))
        {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs a command on this terminal.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", shown(command));
    }
    Ok(())
}

/// Runs a command and returns its stdout; an error carries the end of its output.
pub fn output(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = stdout.lines().chain(stderr.lines()).collect();
    let tail = lines
        .get(lines.len().saturating_sub(TAIL_LINES)..)
        .unwrap_or_default();
    bail!(
        "`{}` failed ({})\n{}",
        shown(command),
        output.status,
        tail.join("\n")
    );
}

/// Whether a program can be started.
pub fn exists(program: &str) -> bool {
    let started = Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    !matches!(started, Err(error) if error.kind() == ErrorKind::NotFound)
}

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
        output(
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
