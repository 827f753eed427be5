//! Finding programs and files.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;

/// A program on `PATH`.
pub fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|dir| dir.join(program))
        .find(|candidate| candidate.is_file())
}

/// The first number in the output of a program's `--version`.
pub fn major_version(program: &Path) -> Option<u32> {
    let version = command::output(Command::new(program).arg("--version")).ok()?;
    let mut numbers = version.split(|c: char| !c.is_ascii_digit());
    numbers.find(|number| !number.is_empty())?.parse().ok()
}

/// The files of a folder that have this extension.
pub fn files(dir: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let entries =
        std::fs::read_dir(dir).with_context(|| format!("cannot read {}", dir.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|found| found == extension) {
            paths.push(path);
        }
    }
    Ok(paths)
}

/// Makes a file executable: unpacking a wheel loses the mode.
pub fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", path.display()))
}
