//! The paths of sources, build output and fetched tools.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The paths of this checkout.
pub struct Workspace {
    /// The folder that holds the root `Cargo.toml`.
    pub root: PathBuf,
    /// Cargo's build output.
    pub target: PathBuf,
}

impl Workspace {
    /// Finds the checkout that this program was built from.
    pub fn find() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("xtask/ has no parent folder")?
            .to_path_buf();
        // Cargo resolves a relative CARGO_TARGET_DIR against the caller's folder.
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(dir) => std::path::absolute(dir).context("CARGO_TARGET_DIR")?,
            None => root.join("target"),
        };
        Ok(Self { root, target })
    }

    /// The folder of fetched tools; `cargo clean` removes it.
    pub fn tools(&self) -> PathBuf {
        self.target.join("tools")
    }

    /// A path as typed in the checkout.
    pub fn short<'a>(&self, path: &'a Path) -> &'a Path {
        path.strip_prefix(&self.root).unwrap_or(path)
    }
}
