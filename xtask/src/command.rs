//! Running other programs.

use std::io::ErrorKind;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use harness::shown;

use crate::workspace::Workspace;

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
