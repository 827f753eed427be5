//! A second build from another folder, which must give the same bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command;
use crate::ui::Ui;
use crate::workspace::Workspace;

use super::Plan;

/// Builds a copy of the sources and compares the artefacts with those in `out`.
pub fn again(workspace: &Workspace, ui: &Ui, plan: &Plan, out: &Path) -> Result<()> {
    ui.heading("The same from another folder");
    let folder = tempfile::tempdir()?;
    let root = folder.path().join("a-copy-of-the-sources");
    copy(workspace, &root)?;
    let copy = Workspace {
        target: root.join("target"),
        root,
    };
    std::fs::create_dir_all(&copy.target)?;
    std::fs::create_dir_all(workspace.tools())?;
    std::os::unix::fs::symlink(workspace.tools(), copy.tools())?;
    let second = copy.target.join("artifacts");
    super::make(&copy, ui, plan, &second)?;
    let (first, second) = (sums(out)?, sums(&second)?);
    let names = first.keys().chain(second.keys());
    let mut differ: Vec<&str> = names
        .filter(|name| first.get(*name) != second.get(*name))
        .map(String::as_str)
        .collect();
    differ.sort_unstable();
    differ.dedup();
    if !differ.is_empty() {
        bail!(
            "two builds of the same sources differ in {}",
            differ.join(", ")
        );
    }
    ui.line(&format!("{} artefacts have the same bytes", first.len()));
    Ok(())
}

/// Copies all files that git tracks, as they are in the working tree.
fn copy(workspace: &Workspace, to: &Path) -> Result<()> {
    let mut list = Command::new("git");
    list.current_dir(&workspace.root).args([
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]);
    let files = command::output(&mut list).context("only a git checkout can be verified")?;
    for file in files.split('\0').filter(|file| !file.is_empty()) {
        let from = workspace.root.join(file);
        if !from.is_file() {
            continue;
        }
        let to = to.join(file);
        if let Some(folder) = to.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
    }
    Ok(())
}

/// `SHA256SUMS`, by name.
fn sums(folder: &Path) -> Result<BTreeMap<String, String>> {
    let text = std::fs::read_to_string(folder.join("SHA256SUMS"))?;
    let lines = text.lines().filter_map(|line| line.split_once("  "));
    Ok(lines
        .map(|(sum, name)| (name.to_owned(), sum.to_owned()))
        .collect())
}
