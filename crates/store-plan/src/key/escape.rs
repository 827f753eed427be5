//! Descriptor values inside keys: readable, reversible, and unable to pose as anything else.
//!
//! | value | in the key |
//! |---|---|
//! | absent | `%-` |
//! | empty | `%0` |
//! | up to 128 bytes | itself, with `: { } %`, control and non-ASCII bytes as `%XX` |
//! | longer | `%~` and its SHA-256 in hexadecimal |
//!
//! A `%` of a value is always written `%25`, so no value can look like a marker, close a hash tag
//! or add a field. Two values share a key only if their SHA-256 collides.

use std::fmt::{self, Write as _};

use policy::Name;
use ring::digest;

/// The longest value that is kept readable, in bytes.
const READABLE_MAX: usize = 128;
const ABSENT: &str = "%-";
const EMPTY: &str = "%0";
const DIGEST: &str = "%~";

/// A value as found in a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyValue {
    /// The requests that have no such entry.
    Absent,
    /// The value.
    Plain(Vec<u8>),
    /// A value too long for a key: its SHA-256, in lower-case hexadecimal.
    Digest(String),
}

impl KeyValue {
    /// What a request's value becomes in a key.
    pub fn new(value: Option<&[u8]>) -> Self {
        match value {
            None => Self::Absent,
            Some(value) if value.len() > READABLE_MAX => Self::Digest(sha256(value)),
            Some(value) => Self::Plain(value.to_vec()),
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        if text == ABSENT {
            return Some(Self::Absent);
        }
        if text == EMPTY {
            return Some(Self::Plain(Vec::new()));
        }
        if let Some(hex) = text.strip_prefix(DIGEST) {
            let lower_hex = |b: u8| b.is_ascii_digit() || matches!(b, b'a'..=b'f');
            return (hex.len() == 64 && hex.bytes().all(lower_hex))
                .then(|| Self::Digest(hex.to_owned()));
        }
        let plain = unescape(text)?;
        // Only what `push_value` writes is a value: one spelling for each.
        let mut again = String::with_capacity(text.len());
        push_value(&mut again, Some(&plain));
        (again == text).then_some(Self::Plain(plain))
    }
}

/// Appends a value to a key.
pub(super) fn push_value(key: &mut String, value: Option<&[u8]>) {
    match value {
        None => key.push_str(ABSENT),
        Some([]) => key.push_str(EMPTY),
        Some(value) if value.len() > READABLE_MAX => {
            key.push_str(DIGEST);
            key.push_str(&sha256(value));
        }
        Some(value) => value.iter().for_each(|byte| push_byte(key, *byte)),
    }
}

/// A domain as written in keys: a name as it is; in other texts, everything that has a meaning in
/// keys or globs as `%XX`.
pub(crate) struct InKey<'d>(pub(crate) &'d Name);

impl fmt::Display for InKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b'/');
        if self.0.as_str().bytes().all(plain) {
            return f.write_str(self.0.as_str());
        }
        for byte in self.0.as_str().bytes() {
            if plain(byte) {
                f.write_char(char::from(byte))?;
            } else {
                write!(f, "%{byte:02X}")?;
            }
        }
        Ok(())
    }
}

/// The domain that [`InKey`] wrote.
pub(crate) fn domain_in_key(text: &str) -> Option<Name> {
    let domain = String::from_utf8(unescape(text)?).ok()?;
    let domain = Name::domain(&domain).ok()?;
    (InKey(&domain).to_string() == text).then_some(domain)
}

fn push_byte(key: &mut String, byte: u8) {
    const HEX: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F',
    ];
    let nibble = |n: u8| HEX.get(usize::from(n)).copied().unwrap_or_default();
    if matches!(byte, b' '..=b'~') && !matches!(byte, b':' | b'{' | b'}' | b'%') {
        key.push(char::from(byte));
    } else {
        key.push('%');
        key.push(nibble(byte >> 4));
        key.push(nibble(byte & 0xf));
    }
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            value.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            value.push(byte);
        }
    }
    Some(value)
}

fn sha256(value: &[u8]) -> String {
    let mut hex = String::with_capacity(64);
    for byte in digest::digest(&digest::SHA256, value).as_ref() {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
