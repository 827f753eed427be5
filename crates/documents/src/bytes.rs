//! Entry values, which are bytes, in documents, which are text.
//!
//! A value that is UTF-8 is that text. Any other is `{base64: …}`, so that no
//! two values look alike. An absent value is `null`.

use crate::{Node, Value};

/// Standard Base64 with padding. Written by hand, because the filter reads it, too: this adds 1.3 KB to a
/// wasm module built for size, `base64ct` 4.5 KB, `data-encoding` 6.6 KB and `base64` 11.8 KB.
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// An entry's value as a document shows it.
pub fn value_to_node(value: Option<&[u8]>) -> Node {
    match value.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null.into(),
        Some((_, Ok(text))) => Node::text(text),
        Some((bytes, Err(_))) => Node::map([("base64", Node::text(to_base64(bytes)))]),
    }
}

/// The value that a document shows: text, number or boolean, or `{base64: …}`; `None` for
/// anything else, `null` included.
pub fn node_to_value(node: &Node) -> Option<Vec<u8>> {
    match &node.value {
        Value::Map(entries) => match entries.as_slice() {
            [entry] if entry.key == "base64" => from_base64(entry.value.as_text()?),
            _ => None,
        },
        _ => node.as_text().map(|text| text.as_bytes().to_vec()),
    }
}

/// Bytes as Base64, with padding.
pub fn to_base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .chain([0, 0].iter())
            .take(3)
            .fold(0_u32, |group, byte| (group << 8) | u32::from(*byte));
        for position in 0..4_u32 {
            let sextet = usize::try_from((group >> (18 - 6 * position)) & 63).unwrap_or(0);
            let padding = usize::try_from(position).is_ok_and(|p| p > chunk.len());
            let letter = ALPHABET.get(sextet).filter(|_| !padding);
            text.push(letter.map_or('=', |byte| char::from(*byte)));
        }
    }
    text
}

/// Decodes Base64 with padding; `None` if the text is not that.
pub fn from_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let letters = text.trim_end_matches('=');
    if text.len() - letters.len() > 2 {
        return None;
    }
    for chunk in letters.as_bytes().chunks(4) {
        let mut group = 0_u32;
        for letter in chunk {
            let sextet = ALPHABET.iter().position(|byte| byte == letter)?;
            group = (group << 6) | u32::try_from(sextet).ok()?;
        }
        group <<= 6 * u32::try_from(4 - chunk.len()).ok()?;
        let [_, decoded @ ..] = group.to_be_bytes();
        let (decoded, rest) = decoded.split_at_checked(chunk.len().checked_sub(1)?)?;
        // Unused bits must be zero, so that each value has one text.
        if chunk.len() < 2 || rest.iter().any(|byte| *byte != 0) {
            return None;
        }
        bytes.extend_from_slice(decoded);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn base64_is_the_usual_one() {
        for (bytes, text) in [
            (&b"\xff"[..], "/w=="),
            (b"\xff\xfe", "//4="),
            (b"Man", "TWFu"),
            (b"", ""),
        ] {
            assert_eq!(to_base64(bytes), text);
            assert_eq!(from_base64(text).as_deref(), Some(bytes));
        }
        for text in ["/w", "/w=", "/x==", "====", "/w==/w==", "a b=", "é==="] {
            assert_eq!(from_base64(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_value_comes_back(value: Option<Vec<u8>>) {
            let node = value_to_node(value.as_deref());
            prop_assert_eq!(node_to_value(&node), value);
        }
    }
}
