//! Finds the server-sent events that may contain a wanted number, without parsing them.
//!
//! An event that lacks the keys of all pointers has none of their numbers, and most events of a stream
//! are like that. So the search looks for the keys, and whole events before the first key are not
//! parsed.

use memchr::{memmem::Finder, memrchr2};
use policy::Pointer;

/// The most searches of one stream; with more keys, every event is parsed.
const MAX_SEARCHES: usize = 4;
/// The least length, with the quote, of a common suffix of keys that one search looks for.
const MIN_END: usize = 6;

/// For each search, how many bytes of the chunk are left at its next key, 0 if there is none, so that
/// it searches no byte of a chunk twice. `None`: not searched yet.
pub(super) type NextKeys = [Option<usize>; MAX_SEARCHES];

/// A search for the keys of some pointers.
#[derive(Debug)]
pub(super) struct EventSearch {
    /// Each of the keys ends with one of these.
    ends: Vec<Finder<'static>>,
}

impl EventSearch {
    /// `None`: one of the pointers has no key to search for, or there are too many.
    pub(super) fn new(pointers: &[&Pointer]) -> Option<Self> {
        let mut ends: Vec<Vec<u8>> = Vec::new();
        for pointer in pointers {
            let quoted = [b"\"", key(pointer)?.as_bytes(), b"\""].concat();
            let common = |end: &[u8]| {
                let pairs = end.iter().rev().zip(quoted.iter().rev());
                pairs.take_while(|(one, other)| one == other).count()
            };
            match ends.iter_mut().find(|end| common(end) >= MIN_END) {
                Some(end) => drop(end.drain(..end.len() - common(end))),
                None => ends.push(quoted),
            }
        }
        (ends.len() <= MAX_SEARCHES).then(|| Self {
            ends: ends
                .iter()
                .map(|end| Finder::new(end).into_owned())
                .collect(),
        })
    }

    /// The whole events at the start of `bytes` that can be skipped, because they have none of the
    /// keys. `bytes` begins with an event and is the end of the chunk that `next` refers to.
    pub(super) fn without<'b>(
        &self,
        pointers: &[&Pointer],
        bytes: &'b [u8],
        next: &mut NextKeys,
    ) -> &'b [u8] {
        let mut end = bytes;
        for (finder, next) in self.ends.iter().zip(next) {
            let is_key = |at: &usize| {
                let to = at.saturating_add(finder.needle().len());
                bytes
                    .get(..to)
                    .is_some_and(|text| ends_with_key(pointers, text))
            };
            let left = next.filter(|left| *left <= bytes.len());
            let left = left.unwrap_or_else(|| {
                let at = finder.find_iter(bytes).find(is_key);
                at.map_or(0, |at| bytes.len() - at)
            });
            *next = Some(left);
            end = end.get(..bytes.len() - left).unwrap_or(end);
        }
        end.get(..whole_events(end)).unwrap_or_default()
    }
}

/// The lines of the last of some whole events; empty if there are no events.
pub(super) fn last_event(events: &[u8]) -> &[u8] {
    let text = events.iter().rposition(|byte| !is_break(*byte));
    let events = text
        .and_then(|text| events.get(..=text))
        .unwrap_or_default();
    events.get(whole_events(events)..).unwrap_or_default()
}

fn ends_with_key(pointers: &[&Pointer], text: &[u8]) -> bool {
    let Some(text) = text.strip_suffix(b"\"") else {
        return false;
    };
    pointers.iter().any(|pointer| {
        let key = key(pointer).unwrap_or_default();
        let before = text.strip_suffix(key.as_bytes());
        before.is_some_and(|before| before.ends_with(b"\""))
    })
}

/// The last part of a pointer that is certainly a key and not the position of an item, and that cannot
/// span two lines of an event.
fn key(pointer: &Pointer) -> Option<&str> {
    let is_key = |token: &&String| {
        token.bytes().any(|byte| !byte.is_ascii_digit()) && !token.contains(['\r', '\n'])
    };
    pointer.tokens().iter().rfind(is_key).map(String::as_str)
}

/// How many bytes at the start are whole events, up to and including the last empty line.
fn whole_events(bytes: &[u8]) -> usize {
    let mut before = bytes;
    while let Some(at) = memrchr2(b'\n', b'\r', before) {
        let line = before.get(..=at).unwrap_or_default();
        let is_empty = match line {
            [.., b'\n' | b'\r', b'\r', b'\n'] => true,
            [.., b'\r', b'\n'] => false,
            [.., first, b'\n'] => is_break(*first),
            // A line feed may follow that belongs to the carriage return.
            [.., first, _] => {
                is_break(*first) && bytes.get(at + 1).is_some_and(|next| *next != b'\n')
            }
            _ => false,
        };
        if is_empty {
            return at + 1;
        }
        before = before.get(..at).unwrap_or_default();
    }
    0
}

fn is_break(byte: u8) -> bool {
    matches!(byte, b'\n' | b'\r')
}

#[cfg(test)]
mod tests;
