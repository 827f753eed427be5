//! Programs from the system's own package archive, unpacked and not installed: that needs no root
//! and does not change the machine.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::help::Help;

/// Unpacks `packages` and the libraries they need into `dir`, and writes a launcher there for each
/// of `programs`.
pub fn unpack(packages: &[&str], programs: &[&str], dir: &Path) -> Result<()> {
    let apt = Apt::for_packages(packages, dir)?;
    let mut wanted: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
    wanted.extend(apt.libraries(packages)?);
    apt.unpack(&wanted, dir)?;
    let libraries = libraries(&dir.join("root"))?;
    for program in programs {
        launcher(program, &format!("usr/bin/{program}"), &libraries, dir)?;
    }
    Ok(())
}

/// Unpacks a browser with all its libraries and a font into `dir`, and writes a launcher there.
pub fn unpack_browser(program: &str, dir: &Path) -> Result<()> {
    let packages = [program, "chromium-common", "fonts-dejavu-core", "xkb-data"];
    let apt = Apt::for_packages(&packages, dir)?;
    let mut wanted: Vec<String> = packages.iter().map(|&name| name.to_owned()).collect();
    wanted.extend(apt.all_libraries(program)?);
    apt.unpack(&wanted, dir)?;
    std::fs::write(dir.join("fonts.conf"), FONTS)?;
    let libraries = libraries(&dir.join("root"))?;
    let binary = format!("usr/lib/chromium/{program}");
    launcher(program, &binary, &libraries, dir)
}

/// Only the unpacked font, so that pictures look the same on every machine.
const FONTS: &str = "<?xml version=\"1.0\"?>
<!DOCTYPE fontconfig SYSTEM \"fonts.dtd\">
<fontconfig>
  <dir prefix=\"relative\">root/usr/share/fonts</dir>
  <cachedir prefix=\"xdg\">fontconfig</cachedir>
</fontconfig>
";

/// Libraries that only graphics drivers load.
const FOR_GRAPHICS: [&str; 4] = ["libllvm", "libgl1-mesa-dri", "libz3", "libdrm-"];

/// apt, with or without the package lists that the system already has.
struct Apt {
    options: Vec<String>,
    archives: PathBuf,
    state: PathBuf,
}

impl Apt {
    /// See [`Self::with_lists`]; an error if apt is missing.
    fn for_packages(packages: &[&str], dir: &Path) -> Result<Self> {
        if command::exists("apt-get") {
            return Self::with_lists(packages, dir);
        }
        Err(Help::new("this system has no apt-get to download it with")
            .remedy(format!(
                "install {} so that it is on PATH",
                packages.join(" and ")
            ))
            .into())
    }

    /// Unpacks packages into `dir/root`, and deletes the downloads.
    fn unpack(&self, packages: &[String], dir: &Path) -> Result<()> {
        self.download(packages)?;
        for archive in super::lookup::files(&self.archives, "deb")? {
            command::output(
                Command::new("dpkg-deb")
                    .arg("--extract")
                    .arg(archive)
                    .arg(dir.join("root")),
            )?;
        }
        self.clean()
    }

    /// The libraries that a package needs, recursively, except the C library's own.
    fn all_libraries(&self, package: &str) -> Result<Vec<String>> {
        let mut depends = self.command("apt-cache");
        depends.args(["depends", "--recurse", "--no-recommends", "--no-suggests"]);
        depends.args([
            "--no-conflicts",
            "--no-breaks",
            "--no-replaces",
            "--no-enhances",
        ]);
        let listed = command::output(depends.arg(package))?;
        let wanted = |name: &&str| {
            let of_others = name.starts_with("libc6") || name.contains(':');
            name.starts_with("lib")
                && !of_others
                && !FOR_GRAPHICS.iter().any(|start| name.starts_with(start))
        };
        let mut names: Vec<String> = listed.lines().filter(wanted).map(str::to_owned).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// Uses the system's package lists if they name the packages, or else fetches lists into a
    /// folder of our own, which needs no root.
    fn with_lists(packages: &[&str], dir: &Path) -> Result<Self> {
        let (archives, state) = (dir.join("archives"), dir.join("apt"));
        std::fs::create_dir_all(&archives)?;
        // The system's installed packages may have versions that no list names, and which cannot be
        // downloaded.
        let nothing_installed = "Dir::State::status=/dev/null".to_owned();
        let system = Self {
            options: vec![nothing_installed.clone()],
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
            nothing_installed,
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

    /// The libraries that the packages name themselves. The libraries that those need in turn
    /// (above all the C library) exist on every system of the release.
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
                let folder = format!("{parent}/{}", name.to_string_lossy());
                // PulseAudio's library loads another one from a subfolder.
                if entry.path().join("pulseaudio").is_dir() {
                    found.push(format!("{folder}/pulseaudio"));
                }
                found.push(folder);
            }
        }
    }
    Ok(found)
}

/// A script that runs an unpacked program with the libraries unpacked beside it. It finds both
/// relative to its own path, because its folder is renamed afterwards.
fn launcher(program: &str, binary: &str, libraries: &[String], dir: &Path) -> Result<()> {
    let mut search = String::new();
    for library in libraries {
        write!(search, "$here/root/{library}:")?;
    }
    let script = format!(
        "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\n\
         [ -f \"$here/fonts.conf\" ] && export FONTCONFIG_FILE=\"$here/fonts.conf\"\n\
         LD_LIBRARY_PATH=\"{search}$LD_LIBRARY_PATH\" exec \"$here/root/{binary}\" \"$@\"\n"
    );
    let path = dir.join(program);
    std::fs::write(&path, script)?;
    super::lookup::make_executable(&path)
}
