//! Programs from the system's own package archive, unpacked beside the system
//! instead of installed: neither root nor a changed machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::help::Help;

/// Unpacks `packages` and the libraries they need into `dir`, and leaves there
/// a launcher for each of `programs`.
pub fn unpack(packages: &[&str], programs: &[&str], dir: &Path) -> Result<()> {
    if !command::exists("apt-get") {
        return Err(Help::new("this system has no apt-get to download it with")
            .remedy(format!(
                "install {} so that it is on PATH",
                packages.join(" and ")
            ))
            .into());
    }
    let apt = Apt::with_lists(packages, dir)?;
    let mut wanted: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
    wanted.extend(apt.libraries(packages)?);
    apt.download(&wanted)?;
    for archive in super::lookup::files(&apt.archives, "deb")? {
        command::output(
            Command::new("dpkg-deb")
                .arg("--extract")
                .arg(archive)
                .arg(dir.join("root")),
        )?;
    }
    apt.clean()?;
    let libraries = libraries(&dir.join("root"))?;
    for program in programs {
        launcher(program, &libraries, dir)?;
    }
    Ok(())
}

/// apt, with or without the package lists that the system already has.
struct Apt {
    options: Vec<String>,
    archives: PathBuf,
    state: PathBuf,
}

impl Apt {
    /// Uses the system's lists if they name the packages, else fetches lists of
    /// our own, which needs no root.
    fn with_lists(packages: &[&str], dir: &Path) -> Result<Self> {
        let (archives, state) = (dir.join("archives"), dir.join("apt"));
        std::fs::create_dir_all(&archives)?;
        let system = Self {
            options: Vec::new(),
            archives: archives.clone(),
            state: state.clone(),
        };
        if system
            .command("apt-cache")
            .arg("show")
            .args(packages)
            .output()?
            .status
            .success()
        {
            return Ok(system);
        }
        std::fs::create_dir_all(state.join("lists/partial"))?;
        let options = vec![
            format!("Dir::State::lists={}", state.join("lists").display()),
            format!("Dir::Cache={}", state.display()),
            "Debug::NoLocking=1".to_owned(),
        ];
        let own = Self {
            options,
            archives,
            state,
        };
        command::output(own.command("apt-get").args(["--quiet", "update"])).with_context(|| {
            Help::new("apt-get cannot read the package archive")
                .remedy("check that this machine reaches its package mirror: apt-get update")
                .remedy(format!(
                    "or install {} so that it is on PATH",
                    packages.join(" and ")
                ))
        })?;
        Ok(own)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.archives).env("LC_ALL", "C");
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command
    }

    /// The libraries that the packages name themselves; what those need in turn
    /// (the C library above all) every system of the release has.
    fn libraries(&self, packages: &[&str]) -> Result<Vec<String>> {
        let depends = command::output(self.command("apt-cache").arg("depends").args(packages))?;
        let mut names: Vec<String> = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .filter(|name| name.starts_with("lib") && !name.starts_with("libc6"))
            .map(str::to_owned)
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn download(&self, packages: &[String]) -> Result<()> {
        command::output(
            self.command("apt-get")
                .args(["--quiet", "download"])
                .args(packages),
        )
        .with_context(|| {
            Help::new("apt-get cannot download the packages")
                .remedy("the package lists may be old: run apt-get update")
                .remedy("check that this machine reaches its package mirror")
        })?;
        Ok(())
    }

    fn clean(&self) -> Result<()> {
        for dir in [&self.archives, &self.state] {
            if dir.exists() {
                std::fs::remove_dir_all(dir)?;
            }
        }
        Ok(())
    }
}

/// The folders below `root` that hold shared libraries, relative to it.
fn libraries(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for parent in ["lib", "usr/lib"] {
        let Ok(entries) = std::fs::read_dir(root.join(parent)) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            if entry.path().is_dir() && name.to_string_lossy().ends_with("-gnu") {
                found.push(format!("{parent}/{}", name.to_string_lossy()));
            }
        }
    }
    Ok(found)
}

/// A script that runs an unpacked program with the libraries unpacked beside
/// it. It finds both from its own place, as its folder is renamed afterwards.
fn launcher(program: &str, libraries: &[String], dir: &Path) -> Result<()> {
    let mut search = String::new();
    for library in libraries {
        write!(search, "$here/root/{library}:")?;
    }
    let script = format!(
        "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\n\
         LD_LIBRARY_PATH=\"{search}$LD_LIBRARY_PATH\" exec \"$here/root/usr/bin/{program}\" \"$@\"\n"
    );
    let path = dir.join(program);
    std::fs::write(&path, script)?;
    super::lookup::make_executable(&path)
}
