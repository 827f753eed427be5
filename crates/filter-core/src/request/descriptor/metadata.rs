//! Dynamic metadata: values that other filters set for a request, such as the claims of its token.
//!
//! The host returns a value as bytes without its type, which may be text, a number or a list, and a
//! client may choose text that looks like a number. Where the bytes are ambiguous, the filter reads the
//! whole metadata, a protobuf message that contains the types.

mod json;
mod message;

use message::Value;

use super::{NoProperty, Request};

/// The property with all metadata, and the prefix of values that filters set.
const WHOLE: &[u8] = b"metadata";
const FILTERS: &[u8] = b"metadata\0filter_metadata\0";

/// The value at a path, as text; `None` if it is absent or null.
pub(super) fn value(path: &[u8], request: &impl Request) -> Option<Vec<u8>> {
    let bytes = match request.property(path) {
        Ok(bytes) if is_text(&bytes) => return Some(bytes),
        Ok(bytes) => bytes,
        Err(NoProperty::Unreadable) => Vec::new(),
        Err(NoProperty::Absent) => return None,
    };
    let whole = request.property(WHOLE).unwrap_or_default();
    distinguish(bytes, &whole, path)
}

/// A value whose type is unclear counts as its bytes.
#[cold]
#[inline(never)]
fn distinguish(bytes: Vec<u8>, whole: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let path = path.strip_prefix(FILTERS);
    match path.and_then(|path| Value::of_metadata(whole, path)) {
        Some(value) => json::text(&value),
        None => Some(bytes),
    }
}

/// Whether bytes are certainly text: a number has eight bytes, a boolean is a byte below the blank, and
/// a list or a map begins with its length, which contains a zero byte.
fn is_text(bytes: &[u8]) -> bool {
    bytes.len() != 8 && !bytes.iter().any(|byte| *byte < b' ')
}

#[cfg(test)]
mod tests;
