//! Corpora: a text file for each reader, whose lines are inputs, escaped as Rust escapes bytes.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;

use crate::Reader;

fn file(reader: Reader) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus");
    PathBuf::from(folder).join(format!("{}.txt", reader.name))
}

/// The corpus of a reader.
///
/// # Errors
/// It cannot be read, or a line is not escaped as it should be.
pub fn of(reader: Reader) -> io::Result<Vec<Vec<u8>>> {
    let path = file(reader);
    let text = fs::read_to_string(&path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    let lines = text.lines().map(|line| {
        unescape(line).ok_or_else(|| {
            let problem = format!("{}: not escaped: {line}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, problem)
        })
    });
    lines.collect()
}

/// Writes the corpus of a reader, the shortest first.
///
/// # Errors
/// It cannot be written.
pub fn write(reader: Reader, inputs: &mut Vec<Vec<u8>>) -> io::Result<()> {
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    inputs.dedup();
    let mut text = String::new();
    for input in inputs {
        let _ = writeln!(text, "{}", input.escape_ascii());
    }
    fs::write(file(reader), text)
}

fn unescape(line: &str) -> Option<Vec<u8>> {
    let mut bytes = line.bytes();
    let mut found = Vec::with_capacity(line.len());
    while let Some(byte) = bytes.next() {
        found.push(match byte {
            b'\\' => match bytes.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'x' => {
                    let digits = [bytes.next()?, bytes.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                other @ (b'\\' | b'\'' | b'"') => other,
                _ => return None,
            },
            other => other,
        });
    }
    Some(found)
}

/// A copy of an input with some random changes, the same for the same number.
pub fn mutate(input: &[u8], number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let mut changed = input.to_vec();
    for _ in 0..=random.usize(..4) {
        let at = random.usize(..=changed.len());
        let end = (at + 1 + random.usize(..8)).min(changed.len());
        match random.u8(..5) {
            0 => drop(changed.drain(at.min(end)..end)),
            1 => changed.insert(at, random.u8(..)),
            2 => changed.truncate(at),
            3 => {
                let part = changed.get(at..end).unwrap_or_default().to_vec();
                changed.splice(at..at, part);
            }
            _ => {
                if let Some(byte) = changed.get_mut(at) {
                    *byte ^= 1 << random.u8(..8);
                }
            }
        }
    }
    changed
}
