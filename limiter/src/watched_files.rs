//! Files that may be replaced while the service runs.

use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

/// Files and their stamps at the last read.
#[derive(Debug)]
pub(crate) struct WatchedFiles {
    files: Mutex<Vec<(PathBuf, Option<Stamp>)>>,
}

/// What distinguishes two versions of a file. The inode is in it because a mounted Kubernetes
/// volume swaps a symbolic link, possibly for a file of the same size and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    modified: SystemTime,
    len: u64,
    inode: u64,
    is_file: bool,
}

impl WatchedFiles {
    /// Records the files as they are. Create this before the first read and keep it, so that a
    /// write in between counts as a change.
    pub(crate) fn new<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Self {
        let files = paths
            .into_iter()
            .map(|path| (path.to_owned(), stamp(path).ok()))
            .collect();
        Self {
            files: Mutex::new(files),
        }
    }

    /// Whether any file has changed since the last call. Call it before reading them.
    pub(crate) fn changed(&self) -> bool {
        let mut any = false;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        for (path, seen) in &mut *files {
            let now = stamp(path).ok();
            any |= now != *seen;
            *seen = now;
        }
        any
    }

    /// Calls `read` after each change of the files, forever, and logs why it fails: `kept` says what stays as
    /// it was. After a failure it is called again: a file that could not be opened, for lack of a file
    /// descriptor or of a permission, has the same stamp when it can.
    pub(crate) async fn follow<E: fmt::Display>(
        &self,
        kept: &str,
        read: impl Fn() -> Result<(), E>,
    ) {
        let mut failure: Option<String> = None;
        loop {
            tokio::time::sleep(crate::FILE_POLL).await;
            if !self.changed() && failure.is_none() {
                continue;
            }
            let error = read().err().map(|error| error.to_string());
            if let Some(error) = &error
                && failure.as_ref() != Some(error)
            {
                tracing::error!(%error, "the {kept} stay as they were");
            }
            failure = error;
        }
    }
}

impl Stamp {
    /// The size of the file, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether it is a file, and not a folder for example.
    pub(crate) fn is_file(&self) -> bool {
        self.is_file
    }
}

/// The stamp of what is at a path, links followed.
pub(crate) fn stamp(path: &Path) -> io::Result<Stamp> {
    let metadata = fs::metadata(path)?;
    Ok(Stamp {
        modified: metadata.modified()?,
        len: metadata.len(),
        inode: inode(&metadata),
        is_file: metadata.is_file(),
    })
}

#[cfg(unix)]
fn inode(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn inode(_: &fs::Metadata) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn files_that_could_not_be_read_are_read_again_though_they_stay_the_same() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let watched = WatchedFiles::new([file.path()]);
        fs::write(file.path(), "changed").unwrap();
        let calls = Cell::new(0);
        let read = || {
            calls.set(calls.get() + 1);
            if calls.get() < 3 {
                return Err("too many open files");
            }
            Ok(())
        };
        let long = 10 * crate::FILE_POLL;
        let following = tokio::time::timeout(long, watched.follow("tokens", read));
        assert!(following.await.is_err(), "it follows forever");
        assert_eq!(calls.get(), 3, "not read again once it was read");
    }

    #[test]
    fn a_replaced_removed_or_new_file_is_reported_as_changed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens");
        fs::write(&path, "one").unwrap();
        let watched = WatchedFiles::new([path.as_path()]);
        assert!(!watched.changed());
        // Same length, same time: only the inode differs.
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let next = folder.path().join("next");
        fs::write(&next, "two").unwrap();
        fs::File::options()
            .write(true)
            .open(&next)
            .unwrap()
            .set_modified(modified)
            .unwrap();
        fs::rename(&next, &path).unwrap();
        assert!(watched.changed());
        assert!(!watched.changed());
        fs::remove_file(&path).unwrap();
        assert!(watched.changed());
        assert!(!watched.changed());
        fs::write(&path, "three").unwrap();
        assert!(watched.changed());
    }
}
