//! The packages that a program is made of, as cargo resolves them for its target.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::command;
use crate::rustflags;
use crate::tools::WASM_TARGET;
use crate::workspace::Workspace;

use super::programs::Arch;

/// The shipped packages, and the names that users see.
pub const SHIPPED: [(&str, &str); 3] = [
    ("limiter", "limiter"),
    ("ctl", "rlctl"),
    ("filter", "filter.wasm"),
];

/// A package of one version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its licence, as an SPDX expression.
    pub license: String,
    /// Its repository's address, or nothing.
    pub repository: String,
    /// Whether it belongs to this workspace.
    pub own: bool,
}

/// The dependencies between packages.
#[derive(Default)]
pub struct Graph {
    /// The dependencies of each package.
    pub uses: BTreeMap<Package, BTreeSet<Package>>,
    /// Packages whose code is in the programs; the others are only used to build them.
    pub linked: BTreeSet<Package>,
}

impl Graph {
    /// The graph of everything that is shipped.
    pub fn of_release(workspace: &Workspace, arch: &[Arch]) -> Result<Self> {
        let mut graph = Self::default();
        for &arch in arch {
            for package in ["limiter", "ctl"] {
                graph.add(workspace, package, &arch.target())?;
            }
        }
        graph.add(workspace, "filter", WASM_TARGET)?;
        Ok(graph)
    }

    fn add(&mut self, workspace: &Workspace, package: &str, target: &str) -> Result<()> {
        let linked = tree(workspace, package, target, "normal,no-proc-macro")?;
        self.linked
            .extend(linked.into_iter().map(|(_, package)| package));
        // The packages above a line.
        let mut path: Vec<Package> = Vec::new();
        for (depth, package) in tree(workspace, package, target, "normal,build")? {
            path.truncate(depth);
            if let Some(user) = path.last() {
                self.uses
                    .entry(user.clone())
                    .or_default()
                    .insert(package.clone());
            }
            self.uses.entry(package.clone()).or_default();
            path.push(package);
        }
        Ok(())
    }
}

/// The lines of `cargo tree`, each with its depth.
fn tree(
    workspace: &Workspace,
    package: &str,
    target: &str,
    edges: &str,
) -> Result<Vec<(usize, Package)>> {
    let mut cargo = command::cargo(workspace);
    cargo
        .args([
            "tree",
            "--locked",
            "--quiet",
            "--package",
            package,
            "--target",
            target,
        ])
        .args([
            "--edges",
            edges,
            "--prefix",
            "depth",
            "--format",
            "|{p}|{l}|{r}",
        ]);
    let text = command::output(&mut cargo)?;
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| parse(line).with_context(|| format!("cargo tree prints `{line}`")))
        .collect()
}

/// `2|heck v0.5.0|MIT OR Apache-2.0|https://…`, perhaps with ` (*)` where it was printed before.
fn parse(line: &str) -> Option<(usize, Package)> {
    let mut fields = line.trim_end_matches(" (*)").split('|');
    let depth = fields.next()?.parse().ok()?;
    let mut package = fields.next()?.split(' ');
    let name = package.next()?.to_owned();
    let version = package.next()?.strip_prefix('v')?.to_owned();
    let own = package.any(|word| word.starts_with("(/"));
    // Old packages separate alternatives by a slash.
    let license = fields.next()?.replace(" / ", " OR ").replace('/', " OR ");
    let repository = fields.next()?.to_owned();
    Some((
        depth,
        Package {
            name,
            version,
            license,
            repository,
            own,
        },
    ))
}

impl Package {
    /// The folders to which cargo may have unpacked it.
    pub fn folders(&self) -> Vec<PathBuf> {
        let sources = rustflags::cargo_home().map(|home| home.join("registry/src"));
        let registries = sources.and_then(|sources| std::fs::read_dir(sources).ok());
        let registries = registries.into_iter().flatten().flatten();
        let name = format!("{}-{}", self.name, self.version);
        let folders = registries.map(|registry| registry.path().join(&name));
        folders.filter(|folder| folder.is_dir()).collect()
    }
}
