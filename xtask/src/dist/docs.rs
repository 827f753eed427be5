//! The manual and shell completions, which the programs generate themselves.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::command;

/// Files by their path in an archive.
pub type Docs = BTreeMap<String, Vec<u8>>;

/// The file name that each shell expects for completions.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "completions/bash/rlctl"),
    ("zsh", "completions/zsh/_rlctl"),
    ("fish", "completions/fish/rlctl.fish"),
];

/// Runs the programs in a folder, which must be built for this machine.
pub fn generate(programs: &Path) -> Result<Docs> {
    let (rlctl, limiter) = (programs.join("rlctl"), programs.join("limiter"));
    let mut docs = Docs::new();
    for (shell, path) in SHELLS {
        let script = command::output(Command::new(&rlctl).args(["completions", shell]))?;
        docs.insert(path.to_owned(), script.into_bytes());
    }
    let pages = tempfile::tempdir()?;
    command::output(Command::new(rlctl).args(["man", "--dir"]).arg(pages.path()))?;
    for page in std::fs::read_dir(pages.path())? {
        let page = page?;
        let name = page.file_name().to_string_lossy().into_owned();
        docs.insert(format!("man/man1/{name}"), std::fs::read(page.path())?);
    }
    let manual = command::output(Command::new(limiter).arg("--man"))?;
    docs.insert("man/man1/limiter.1".to_owned(), manual.into_bytes());
    Ok(docs)
}
