//! A descriptor as one text: `key=value,key=value`.
//!
//! In a key `\`, `,` and `=` are escaped by a `\`, in a value `\` and `,`. So two descriptors have
//! the same text only if they are the same.

use std::borrow::Cow;

/// The most entries that are read: more than any limit has.
const MAX_ENTRIES: usize = 64;

/// Appends an entry to the text of a descriptor.
pub fn push_entry(text: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    if !text.is_empty() {
        text.push(b',');
    }
    push_escaped(text, key, b",=\\");
    text.push(b'=');
    push_escaped(text, value, b",\\");
}

pub(super) fn push_escaped(text: &mut Vec<u8>, part: &[u8], escaped: &[u8]) {
    text.reserve(part.len());
    for byte in part {
        if escaped.contains(byte) {
            text.push(b'\\');
        }
        text.push(*byte);
    }
}

/// The entries of a descriptor's text, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentDescriptor<'t> {
    entries: Vec<(Part<'t>, Part<'t>)>,
}

/// A key or a value.
type Part<'t> = Cow<'t, [u8]>;

impl<'t> SentDescriptor<'t> {
    /// Reads a descriptor's text; `None` if it is invalid, or has more entries than any limit.
    pub fn read(text: &'t [u8]) -> Option<Self> {
        let mut entries = Vec::new();
        let mut rest = text;
        loop {
            let (key, more) = take_part(rest, b"=,")?;
            let more = more.strip_prefix(b"=")?;
            let (value, more) = take_part(more, b",")?;
            if entries.len() == MAX_ENTRIES || key.is_empty() {
                return None;
            }
            entries.push((key, value));
            match more.strip_prefix(b",") {
                Some(more) => rest = more,
                None => return Some(Self { entries }),
            }
        }
    }

    /// The entries: key and value.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> {
        self.entries.iter().map(|(key, value)| (&**key, &**value))
    }
}

/// The text up to one of `ends`, without its escapes, and what follows. `None`: it ends with an escape.
fn take_part<'t>(text: &'t [u8], ends: &[u8]) -> Option<(Cow<'t, [u8]>, &'t [u8])> {
    let plain = text.iter().position(|b| *b == b'\\' || ends.contains(b));
    let plain = plain.unwrap_or(text.len());
    let (head, mut rest) = text.split_at_checked(plain)?;
    if rest.first() != Some(&b'\\') {
        return Some((Cow::Borrowed(head), rest));
    }
    let mut part = head.to_vec();
    while let Some((byte, more)) = rest.split_first() {
        match byte {
            b'\\' => {
                let (escaped, more) = more.split_first()?;
                part.push(*escaped);
                rest = more;
            }
            end if ends.contains(end) => break,
            other => {
                part.push(*other);
                rest = more;
            }
        }
    }
    Some((Cow::Owned(part), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_descriptor_round_trips_through_text(
            entries in prop::collection::vec(("[a=,*\\\\é]{1,6}", "[a=,*\\\\é]{0,6}"), 1..5)
        ) {
            let mut text = Vec::new();
            for (key, value) in &entries {
                push_entry(&mut text, key.as_bytes(), value.as_bytes());
            }
            let read = SentDescriptor::read(&text).unwrap();
            let expected = entries.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()));
            prop_assert!(read.entries().eq(expected), "{text:?}");
        }
    }

    #[test]
    fn an_invalid_descriptor_text_is_refused() {
        for text in ["", "a", "=b", "a=b,", "a=b,c", "a=\\", "a\\", ",a=b"] {
            assert_eq!(SentDescriptor::read(text.as_bytes()), None, "{text}");
        }
        let long = vec!["a=b"; MAX_ENTRIES].join(",");
        assert!(SentDescriptor::read(long.as_bytes()).is_some());
        let longer = format!("{long},a=b");
        assert_eq!(SentDescriptor::read(longer.as_bytes()), None);
    }
}
