//! The release to build: its version, commit and time.

use std::process::Command;

use anyhow::{Context, Result};

use crate::command;
use crate::help::Help;
use crate::workspace::Workspace;

/// The origin that artefacts name.
pub struct Release {
    /// The workspace's version.
    pub version: &'static str,
    /// The commit, with `-dirty` where files differ from it; absent outside of git.
    pub revision: Option<String>,
    /// The time that every artefact carries, in seconds since 1970.
    pub epoch: u64,
    /// The repository's address.
    pub source: Option<String>,
}

impl Release {
    /// The time is `SOURCE_DATE_EPOCH`, else the commit's.
    pub fn of(workspace: &Workspace, source: Option<String>) -> Result<Self> {
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            let said = command::output(git.current_dir(&workspace.root).args(arguments))?;
            Ok::<_, anyhow::Error>(said.trim().to_owned())
        };
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch,
            Err(_) => git(&["log", "-1", "--format=%ct"]).context(
                Help::new("the time of the release is unknown: this is not a git checkout")
                    .remedy("set SOURCE_DATE_EPOCH to the seconds since 1970 of its last change"),
            )?,
        };
        let epoch = epoch.parse().with_context(|| {
            Help::new(format!("SOURCE_DATE_EPOCH is not a number: {epoch}"))
                .remedy("set it to seconds since 1970, or unset it: then the commit's time counts")
        })?;
        let revision = git(&["rev-parse", "HEAD"]).ok().map(|commit| {
            let changes = git(&["status", "--porcelain"]).unwrap_or_default();
            let dirty = if changes.is_empty() { "" } else { "-dirty" };
            format!("{commit}{dirty}")
        });
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            revision,
            epoch,
            source,
        })
    }

    /// Its time in RFC 3339.
    pub fn time(&self) -> Result<String> {
        let time = jiff::Timestamp::from_second(i64::try_from(self.epoch)?)?;
        Ok(time.to_string())
    }
}
