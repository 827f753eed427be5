//! The licences of the libraries in the programs; most of them must be shipped along.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::tools::Tools;
use crate::ui::Ui;
use crate::workspace::Workspace;

use super::packages::{Graph, Package};

/// The beginnings of licence files' names.
const NAMES: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];
const RULE: &str =
    "================================================================================";

/// One text that has each licence once, with the libraries that use it.
pub fn collect(workspace: &Workspace, ui: &Ui, graph: &Graph) -> Result<String> {
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut without = Vec::new();
    for package in graph.linked.iter().filter(|package| !package.own) {
        let title = format!("{} {}", package.name, package.version);
        let found = of_package(package)?;
        if found.is_empty() {
            without.push(format!("{title}: {}\n", package.license));
        }
        for text in found {
            texts.entry(text).or_default().insert(title.clone());
        }
    }
    let musl = Tools::new(workspace, ui)
        .zig()?
        .join("ziglang/lib/libc/musl/COPYRIGHT");
    let text = std::fs::read_to_string(&musl)
        .with_context(|| format!("cannot read the licence of musl: {}", musl.display()))?;
    texts.entry(text).or_default().insert("musl".to_owned());
    let mut all =
        "The licences of the libraries that the programs and the filter contain.\n".to_owned();
    if !without.is_empty() {
        let _ = write!(
            all,
            "\nPackages without a text of their own:\n\n{}",
            without.concat()
        );
    }
    for (text, titles) in texts {
        let titles: Vec<String> = titles.into_iter().collect();
        let _ = write!(
            all,
            "\n{RULE}\n{}\n{RULE}\n\n{}\n",
            titles.join("\n"),
            text.trim_end()
        );
    }
    Ok(all)
}

/// The licences of Rust's standard library, which every program contains: a page of its toolchain.
pub fn of_rust(workspace: &Workspace) -> Result<Vec<u8>> {
    let mut rustc = Command::new("rustc");
    rustc
        .current_dir(&workspace.root)
        .args(["--print", "sysroot"]);
    let sysroot = command::output(&mut rustc)?;
    let page = Path::new(sysroot.trim()).join("share/doc/rust/COPYRIGHT-library.html");
    std::fs::read(&page).with_context(|| format!("cannot read {}", page.display()))
}

fn of_package(package: &Package) -> Result<BTreeSet<String>> {
    let mut texts = BTreeSet::new();
    for folder in package.folders().iter().take(1) {
        walk(folder, &mut texts)?;
    }
    Ok(texts)
}

/// Packages include C code of others, with its licence, in subfolders.
fn walk(folder: &Path, texts: &mut BTreeSet<String>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), texts)?;
            continue;
        }
        let name = entry.file_name().to_string_lossy().to_lowercase();
        let code = [".rs", ".c", ".h", ".py", ".sh"]
            .iter()
            .any(|end| name.ends_with(end));
        if kind.is_file() && !code && NAMES.iter().any(|start| name.starts_with(start)) {
            texts.insert(String::from_utf8_lossy(&std::fs::read(entry.path())?).into_owned());
        }
    }
    Ok(())
}
