//! The packages that a program is made of, as cargo resolves them for its target; their bill of
//! materials and their licences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::command::{self, Workspace};
use crate::tools::{Tool, Tools, WASM_TARGET};
use crate::ui::Ui;

use super::{Release, read, target};
use crate::module;

/// The shipped packages, and the names that users see.
const SHIPPED: [(&str, &str); 4] = [
    ("limiter", "limiter"),
    ("ctl", "rlctl"),
    ("filter", "filter.wasm"),
    ("module", "librl_filter.so"),
];

/// A package of one version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    /// Its licence, as an SPDX expression.
    license: String,
    /// Its repository's address, or nothing.
    repository: String,
    /// Whether it belongs to this workspace.
    own: bool,
}

/// The dependencies between packages.
#[derive(Default)]
pub struct Graph {
    /// The dependencies of each package.
    uses: BTreeMap<Package, BTreeSet<Package>>,
    /// Packages whose code is in the programs; the others are only used to build them.
    linked: BTreeSet<Package>,
}

impl Graph {
    /// The graph of everything that is shipped.
    pub fn of_release(workspace: &Workspace, arch: &[String]) -> Result<Self> {
        let mut graph = Self::default();
        for arch in arch {
            for package in ["limiter", "ctl"] {
                graph.add(workspace, package, &target(arch))?;
            }
            graph.add(workspace, "module", &module::target(arch))?;
        }
        graph.add(workspace, "filter", WASM_TARGET)?;
        Ok(graph)
    }

    fn add(&mut self, workspace: &Workspace, package: &str, target: &str) -> Result<()> {
        let linked = tree(workspace, package, target, "normal,no-proc-macro")?;
        let linked = linked.into_iter().map(|(_, package)| package);
        self.linked.extend(linked);
        // The packages above a line.
        let mut path: Vec<Package> = Vec::new();
        for (depth, package) in tree(workspace, package, target, "normal,build")? {
            path.truncate(depth);
            if let Some(user) = path.last() {
                let used = self.uses.entry(user.clone()).or_default();
                used.insert(package.clone());
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
    let mut cargo = workspace.cargo(&["tree", "--locked", "--quiet", "--prefix=depth"]);
    cargo
        .args(["--package", package, "--target", target])
        .args(["--edges", edges, "--format", "|{p}|{l}|{r}"]);
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
    let package = Package {
        name: package.next()?.to_owned(),
        version: package.next()?.strip_prefix('v')?.to_owned(),
        own: package.any(|word| word.starts_with("(/")),
        // Old packages separate alternatives by a slash.
        license: fields.next()?.replace(" / ", " OR ").replace('/', " OR "),
        repository: fields.next()?.to_owned(),
    };
    Some((depth, package))
}

/// The software bill of materials: `CycloneDX`, which scanners of vulnerabilities read.
pub fn bill_of_materials(
    workspace: &Workspace,
    release: &Release,
    graph: &Graph,
) -> Result<Vec<u8>> {
    let lock = std::fs::read_to_string(workspace.root.join("Cargo.lock"))?;
    let sums = checksums(&lock);
    let components = graph.uses.keys();
    let components: Vec<Value> = components
        .map(|package| component(package, graph.linked.contains(package), &sums))
        .collect();
    let root = format!("rl@{}", release.version);
    let shipped = SHIPPED.map(|(package, _)| format!("{package}@{}", release.version));
    let mut dependencies = vec![json!({"ref": root, "dependsOn": shipped})];
    for (user, used) in &graph.uses {
        let used: Vec<String> = used.iter().map(reference).collect();
        dependencies.push(json!({"ref": reference(user), "dependsOn": used}));
    }
    let rustc = workspace.rustc(&["--version"])?;
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": release.time,
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "rl",
                "version": release.version,
                "licenses": [{"expression": env!("CARGO_PKG_LICENSE")}],
            },
            "properties": [{"name": "compiler", "value": rustc}],
        },
        "components": components,
        "dependencies": dependencies,
    });
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

fn component(package: &Package, linked: bool, sums: &BTreeMap<[&str; 2], &str>) -> Value {
    let shipped = SHIPPED
        .iter()
        .find(|(name, _)| package.own && *name == package.name);
    let sum = sums.get(&[&*package.name, &*package.version]);
    let repository = Some(&package.repository).filter(|url| !url.is_empty());
    let mut component = json!({
        "type": if shipped.is_some() { "application" } else { "library" },
        "bom-ref": reference(package),
        "name": shipped.map_or(package.name.as_str(), |(_, name)| name),
        "version": package.version,
        // Excluded: it is only used in the build.
        "scope": if linked { "required" } else { "excluded" },
        "licenses": [{"expression": package.license}],
        "purl": (!package.own).then(|| reference(package)),
        "externalReferences": repository.map(|url| json!([{"type": "vcs", "url": url}])),
        "hashes": sum.map(|sum| json!([{"alg": "SHA-256", "content": sum}])),
    });
    if let Some(fields) = component.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    component
}

/// The identifier of a package in the document. A crate of this workspace has no package URL: the
/// registry may have another crate of that name.
fn reference(package: &Package) -> String {
    let registry = if package.own { "" } else { "pkg:cargo/" };
    format!("{registry}{}@{}", package.name, package.version)
}

/// The checksums of packages in `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> BTreeMap<[&str; 2], &str> {
    let packages = lock.split("[[package]]");
    let sums = packages.filter_map(|package| {
        let field = |name: &str| {
            let value = package.lines().find_map(|line| line.strip_prefix(name))?;
            Some(value.trim_matches([' ', '=', '"']))
        };
        Some(([field("name ")?, field("version ")?], field("checksum ")?))
    });
    sums.collect()
}

/// The beginnings of licence files' names.
const NAMES: &str = "license licence copying copyright notice unlicense";
/// The ends of the names of code, which may begin so too.
const CODE: [&str; 5] = [".rs", ".c", ".h", ".py", ".sh"];

/// One text that has the licence of each library once, with the libraries that use it: most of them must
/// be shipped along. And the licences of Rust's standard library, which every program contains: a page of
/// its toolchain.
pub fn licenses(workspace: &Workspace, ui: &Ui, graph: &Graph) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without = String::new();
    for package in graph.linked.iter().filter(|package| !package.own) {
        let title = format!("{} {}", package.name, package.version);
        let mut found = BTreeSet::new();
        if let Some(folder) = unpacked(package) {
            license_files(&folder, &mut found)?;
        }
        if found.is_empty() {
            let _ = writeln!(without, "{title}: {}", package.license);
        }
        for text in found {
            texts.entry(text).or_default().insert(title.clone());
        }
    }
    let zig = Tools::new(workspace, ui).get(Tool::Zig)?;
    // What the linker adds: the programs' C library, the module's unwinder.
    for (name, path) in [
        ("musl", "libc/musl/COPYRIGHT"),
        ("LLVM libunwind", "libunwind/LICENSE.TXT"),
    ] {
        let text = String::from_utf8(read(&zig.join("ziglang/lib").join(path))?)?;
        texts.entry(text).or_default().insert(name.to_owned());
    }
    let mut all =
        "The licences of the libraries that the programs and the filter contain.\n".to_owned();
    if !without.is_empty() {
        let _ = write!(all, "\nPackages without a text of their own:\n\n{without}");
    }
    let rule = "=".repeat(80);
    for (text, titles) in texts {
        let titles: Vec<String> = titles.into_iter().collect();
        let (titles, text) = (titles.join("\n"), text.trim_end());
        let _ = write!(all, "\n{rule}\n{titles}\n{rule}\n\n{text}\n");
    }
    let sysroot = workspace.rustc(&["--print", "sysroot"])?;
    let rust = read(&Path::new(&sysroot).join("share/doc/rust/COPYRIGHT-library.html"))?;
    Ok((all.into_bytes(), rust))
}

/// The folder to which cargo has unpacked a package.
fn unpacked(package: &Package) -> Option<PathBuf> {
    let name = format!("{}-{}", package.name, package.version);
    let mut folders = { command::registries().into_iter() }.map(|registry| registry.join(&name));
    folders.find(|folder| folder.is_dir())
}

/// Reads a package's licences. Packages include C code of others, with its licence, in subfolders.
fn license_files(folder: &Path, texts: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let code = CODE.iter().any(|end| name.ends_with(end));
        if kind.is_dir() {
            license_files(&entry.path(), texts)?;
        } else if kind.is_file() && !code && NAMES.split(' ').any(|start| name.starts_with(start)) {
            texts.insert(String::from_utf8_lossy(&std::fs::read(entry.path())?).into_owned());
        }
    }
    Ok(())
}
