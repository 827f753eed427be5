//! The manual and shell completions, which `rlctl` generates itself.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::command;

/// Files by their path in an archive.
pub type Docs = BTreeMap<String, Vec<u8>>;

/// Where each shell looks for completions: the name that it expects.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "completions/bash/rlctl"),
    ("zsh", "completions/zsh/_rlctl"),
    ("fish", "completions/fish/rlctl.fish"),
];

/// Runs `rlctl`, which is built for this machine.
pub fn generate(rlctl: &Path) -> Result<Docs> {
    let mut docs = Docs::new();
    for (shell, path) in SHELLS {
        let script = command::output(Command::new(rlctl).args(["completions", shell]))?;
        docs.insert(path.to_owned(), script.into_bytes());
    }
    let pages = tempfile::tempdir()?;
    command::output(Command::new(rlctl).args(["man", "--dir"]).arg(pages.path()))?;
    for page in std::fs::read_dir(pages.path())? {
        let page = page?;
        let name = page.file_name().to_string_lossy().into_owned();
        docs.insert(format!("man/man1/{name}"), std::fs::read(page.path())?);
    }
    Ok(docs)
}
