//! Limits files, from a path or from stdin.

use std::io::Read;

use policy::{Policy, Problems};

use crate::error::Error;

/// The largest limits file that is read, in bytes. 100,000 overrides take about a tenth of it.
const MAX_BYTES: u64 = 256 << 20;

/// A limits file as bytes, and what messages call it.
#[derive(Debug)]
pub struct Source {
    /// The path as typed, or `stdin`.
    pub name: String,
    bytes: Vec<u8>,
}

impl Source {
    /// Reads a file; `-` is stdin.
    pub fn read(path: &str) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        let (name, result) = if path == "-" {
            let stdin = std::io::stdin().lock();
            ("stdin", stdin.take(MAX_BYTES + 1).read_to_end(&mut bytes))
        } else {
            let file = std::fs::File::open(path);
            let read = |file: std::fs::File| file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
            (path, file.and_then(read))
        };
        match result {
            Err(error) => Err(unreadable(path, &error)),
            Ok(read) if u64::try_from(read).is_ok_and(|read| read > MAX_BYTES) => Err(
                Error::usage(format!("{name} is larger than {MAX_BYTES} bytes")),
            ),
            Ok(_) => Ok(Self {
                name: name.to_owned(),
                bytes,
            }),
        }
    }

    /// The limits in it, or everything that is wrong with it.
    pub fn policy(&self) -> Result<Policy, Problems> {
        Policy::from_yaml(&self.name, &self.bytes)
    }
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
