//! Limits files, from a path or from stdin.

use std::io::Read;

use clap::Args;
use policy::{Policy, Problems};

use crate::error::Error;

/// The largest limits file that is read, in bytes. 100,000 overrides take about a tenth of it.
const MAX_BYTES: u64 = 256 << 20;

/// The limits file that a command reads.
#[derive(Clone, Debug, Args)]
pub struct FileArg {
    /// The limits file; `-` is stdin.
    #[arg(short, long, value_name = "FILE", required_unless_present = "path")]
    file: Option<String>,

    /// What -f is for, without it: nobody means anything else by a bare path.
    #[arg(hide = true, conflicts_with = "file")]
    path: Option<String>,
}

impl FileArg {
    /// The path as typed.
    pub fn path(&self) -> &str {
        let given = self.file.as_deref().or(self.path.as_deref());
        // One of them is required.
        given.unwrap_or("-")
    }
}

/// A limits file as bytes, and what messages call it.
#[derive(Debug)]
pub struct Source {
    /// The path as typed, or `stdin`.
    pub name: String,
    bytes: Vec<u8>,
}

impl Source {
    /// Reads a file; `-` is stdin. On a thread of its own, so that Ctrl-C ends the wait for a
    /// terminal or a pipe.
    pub async fn read(path: &str) -> Result<Self, Error> {
        let owned = path.to_owned();
        let read = tokio::task::spawn_blocking(move || read(&owned)).await;
        let bytes = read
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|error| unreadable(path, &error))?;
        let name = if path == "-" { "stdin" } else { path }.to_owned();
        if u64::try_from(bytes.len()).is_ok_and(|read| read > MAX_BYTES) {
            return Err(Error::usage(format!(
                "{name} is larger than {MAX_BYTES} bytes"
            )));
        }
        Ok(Self { name, bytes })
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The limits in it, or everything that is wrong with it.
    pub fn policy(&self) -> Result<Policy, Problems> {
        Policy::from_yaml(&self.name, &self.bytes)
    }
}

fn read(path: &str) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if path == "-" {
        std::io::stdin()
            .lock()
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)?;
    } else {
        std::fs::File::open(path)?
            .take(MAX_BYTES + 1)
            .read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

fn unreadable(path: &str, error: &std::io::Error) -> Error {
    use std::io::ErrorKind;
    let unreadable = Error::usage(format!("cannot read {path}: {error}"));
    match error.kind() {
        ErrorKind::NotFound => {
            unreadable.hint("the path is relative to the current folder; `-` reads stdin")
        }
        ErrorKind::IsADirectory => {
            unreadable.hint("name the files in it, as in -f a.yaml -f b.yaml")
        }
        _ => unreadable,
    }
}
