//! Whether limits files changed, without reading them.

use std::{fs::Metadata, os::unix::fs::MetadataExt};

use crate::{error::Error, input::FilesArg};

/// Distinguishes two states of the files: their names, and each one's inode, size and times. A
/// mounted ConfigMap swaps a symbolic link, so every change brings new files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Stamps(Vec<(String, Option<Stamp>)>);

type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Stamps {
    /// The files as they are now.
    pub(super) fn of(files: &FilesArg) -> Result<Self, Error> {
        let stamped = |path: String| {
            let stamp = std::fs::metadata(&path).ok().map(|file| stamp(&file));
            (path, stamp)
        };
        Ok(Self(files.list()?.into_iter().map(stamped).collect()))
    }
}

fn stamp(file: &Metadata) -> Stamp {
    let modified = (file.mtime(), file.mtime_nsec());
    let changed = (file.ctime(), file.ctime_nsec());
    (file.dev(), file.ino(), file.size(), modified, changed)
}
