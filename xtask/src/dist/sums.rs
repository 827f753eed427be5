//! Checksums.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The SHA-256 of bytes, in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// A file for `sha256sum --check`.
pub fn of(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let lines = files.iter();
    let lines = lines.map(|(name, bytes)| format!("{}  {name}\n", hex(bytes)));
    lines.collect::<String>().into_bytes()
}
