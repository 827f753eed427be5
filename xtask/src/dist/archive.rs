//! Archives whose bytes depend only on their content.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use tar::{EntryType, Header};

/// Files by path, in the order of their names; parent folders are added.
#[derive(Default)]
pub struct Archive {
    entries: BTreeMap<String, Entry>,
}

enum Entry {
    Folder,
    File {
        mode: u32,
        bytes: Vec<u8>,
    },
    /// A symbolic link to a path.
    Link(&'static str),
}

impl Archive {
    /// Adds a file and its parent folders.
    pub fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.add(path, Entry::File { mode, bytes });
    }

    /// Adds a symbolic link and its parent folders.
    pub fn link(&mut self, path: &str, target: &'static str) {
        self.add(path, Entry::Link(target));
    }

    fn add(&mut self, path: &str, entry: Entry) {
        for (at, _) in path.match_indices('/') {
            let (folder, _) = path.split_at(at);
            self.entries.insert(format!("{folder}/"), Entry::Folder);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// The tar archive: every entry is owned by root and has the same time.
    pub fn tar(&self, epoch: u64) -> Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            let mut header = Header::new_ustar();
            header.set_mtime(epoch);
            header.set_uid(0);
            header.set_gid(0);
            let bytes = match entry {
                Entry::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(0o755);
                    [].as_slice()
                }
                Entry::Link(target) => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_link_name(target)?;
                    [].as_slice()
                }
                Entry::File { mode, bytes } => {
                    header.set_mode(*mode);
                    bytes.as_slice()
                }
            };
            header.set_size(u64::try_from(bytes.len())?);
            tar.append_data(&mut header, path, bytes)
                .with_context(|| format!("cannot archive {path}"))?;
        }
        Ok(tar.into_inner()?)
    }
}

/// Gzip without a name or a time.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut gzip = GzBuilder::new().write(Vec::new(), Compression::best());
    gzip.write_all(bytes)?;
    Ok(gzip.finish()?)
}
