//! Dynamic metadata: values that other filters set for a request, such as the claims of its token.
//!
//! The host hands a value over as bytes that do not say whether they are text, a number or a
//! list, and a client may choose text that looks like a number. Where the bytes leave a doubt,
//! the metadata is read as a whole, which comes as a message of protobuf and names each kind.

mod json;
mod message;

use message::Value;

use super::{NoProperty, Request};

/// Where metadata is, and where filters leave theirs in it.
const WHOLE: &[u8] = b"metadata";
const FILTERS: &[u8] = b"metadata\0filter_metadata\0";

/// The value at a path, as text; `None` where there is none, or null.
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

/// Whether bytes are certainly text: a number has eight of them, a boolean is below the blank,
/// and a list or a map begins with how many it holds, which leaves a zero.
fn is_text(bytes: &[u8]) -> bool {
    bytes.len() != 8 && !bytes.iter().any(|byte| *byte < b' ')
}

#[cfg(test)]
mod tests;
