//! Installs fetched programs: completely or not at all.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::Tools;
use crate::command;
use crate::help::Help;

impl Tools<'_> {
    /// Creates `home` atomically: `fetch` fills a temporary folder, which is then renamed, so that
    /// an interrupted run leaves nothing incomplete.
    pub(super) fn once(
        &self,
        home: &Path,
        name: &str,
        fetch: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        if home.is_dir() {
            return Ok(());
        }
        let mut fresh = home.as_os_str().to_owned();
        fresh.push(format!(".partial-{}", std::process::id()));
        let fresh = PathBuf::from(fresh);
        let made = self.ui.step(name, || {
            std::fs::create_dir_all(&fresh)
                .with_context(|| format!("cannot create {}", fresh.display()))?;
            fetch(&fresh)?;
            match std::fs::rename(&fresh, home) {
                // Another task was faster; its copy is identical.
                Err(_) if home.is_dir() => Ok(()),
                renamed => renamed.with_context(|| format!("cannot create {}", home.display())),
            }
        });
        if fresh.exists() {
            std::fs::remove_dir_all(&fresh)
                .with_context(|| format!("cannot remove {}", fresh.display()))?;
        }
        made
    }

    /// Runs a fetched program once, and returns its short path.
    pub(super) fn checked(&self, binary: &Path, argument: &str, home: &Path) -> Result<PathBuf> {
        let shown = self.workspace.short(binary).display();
        command::output(Command::new(binary).arg(argument)).with_context(|| {
            let home = self.workspace.short(home).display();
            Help::new(format!(
                "{shown} does not run on this machine ({})",
                std::env::consts::ARCH
            ))
            .remedy("put one that does on PATH; it is used instead")
            .remedy(format!("or remove {home} to fetch it again"))
        })?;
        self.link(binary)
    }

    /// The symbolic link `target/tools/bin/NAME` to `binary`.
    pub(super) fn link(&self, binary: &Path) -> Result<PathBuf> {
        let bin = self.dir.join("bin");
        let link = bin.join(binary.file_name().context("a program without a name")?);
        if std::fs::read_link(&link).is_ok_and(|target| target == binary) {
            return Ok(link);
        }
        std::fs::create_dir_all(&bin)?;
        // Created under another name and renamed, because another task may be using the old link.
        let fresh = link.with_extension(format!("fresh-{}", std::process::id()));
        std::os::unix::fs::symlink(binary, &fresh)?;
        std::fs::rename(&fresh, &link)
            .with_context(|| format!("cannot create {}", link.display()))?;
        Ok(link)
    }
}
