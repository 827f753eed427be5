//! The software bill of materials: `CycloneDX`, which scanners of vulnerabilities read.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::Result;
use serde_json::{Value, json};

use crate::command;
use crate::workspace::Workspace;

use super::packages::{Graph, Package, SHIPPED};
use super::release::Release;

/// The document of the whole release.
pub fn of_release(workspace: &Workspace, release: &Release, graph: &Graph) -> Result<Vec<u8>> {
    let sums = checksums(&std::fs::read_to_string(workspace.root.join("Cargo.lock"))?);
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
    let mut rustc = Command::new("rustc");
    let rustc = command::output(rustc.current_dir(&workspace.root).arg("--version"))?;
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": release.time()?,
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "rl",
                "version": release.version,
                "licenses": [{"expression": env!("CARGO_PKG_LICENSE")}],
            },
            "properties": [{"name": "compiler", "value": rustc.trim()}],
        },
        "components": components,
        "dependencies": dependencies,
    });
    let mut text = serde_json::to_vec_pretty(&document)?;
    text.push(b'\n');
    Ok(text)
}

fn component(package: &Package, linked: bool, sums: &BTreeMap<(String, String), String>) -> Value {
    let shipped = SHIPPED
        .iter()
        .find(|(name, _)| package.own && *name == package.name);
    let mut component = json!({
        "type": if shipped.is_some() { "application" } else { "library" },
        "bom-ref": reference(package),
        "name": shipped.map_or(package.name.as_str(), |(_, name)| name),
        "version": package.version,
        // Excluded: it is only used in the build.
        "scope": if linked { "required" } else { "excluded" },
        "licenses": [{"expression": package.license}],
    });
    let Some(fields) = component.as_object_mut() else {
        return component;
    };
    if !package.own {
        fields.insert("purl".to_owned(), json!(reference(package)));
    }
    if !package.repository.is_empty() {
        let repository = json!([{"type": "vcs", "url": package.repository}]);
        fields.insert("externalReferences".to_owned(), repository);
    }
    if let Some(sum) = sums.get(&(package.name.clone(), package.version.clone())) {
        fields.insert(
            "hashes".to_owned(),
            json!([{"alg": "SHA-256", "content": sum}]),
        );
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
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let field = |package: &str, name: &str| {
        let value = package.lines().find_map(|line| line.strip_prefix(name))?;
        Some(value.trim_matches([' ', '=', '"']).to_owned())
    };
    let packages = lock.split("[[package]]");
    let sums = packages.filter_map(|package| {
        let name = field(package, "name ")?;
        let version = field(package, "version ")?;
        Some(((name, version), field(package, "checksum ")?))
    });
    sums.collect()
}
