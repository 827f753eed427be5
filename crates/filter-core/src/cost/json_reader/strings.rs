//! Reads strings and keys, and skips containers in which nothing is looked for.

use memchr::memchr2;

use super::{JsonReader, State, Targets};

impl JsonReader {
    /// Skips a string; returns what follows.
    pub(super) fn text<'b>(&mut self, bytes: &'b [u8], end: State, escape: State) -> &'b [u8] {
        let at = memchr2(b'"', b'\\', bytes);
        let Some((&byte, rest)) = at.and_then(|at| bytes.get(at..)?.split_first()) else {
            return &[];
        };
        self.state = if byte == b'"' { end } else { escape };
        rest
    }

    /// Skips a container in which nothing is looked for; returns what follows.
    pub(super) fn skip<'b>(&mut self, mut bytes: &'b [u8]) -> &'b [u8] {
        let structural = |byte: &u8| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']');
        while let Some(at) = bytes.iter().position(structural) {
            let Some((&byte, rest)) = bytes.get(at..).and_then(<[u8]>::split_first) else {
                break;
            };
            bytes = rest;
            match byte {
                b'"' => {
                    self.state = State::SkipText;
                    bytes = self.text(bytes, State::Skip, State::SkipEscape);
                    if self.state != State::Skip {
                        return bytes;
                    }
                }
                b'{' | b'[' => self.depth = self.depth.saturating_add(1),
                _ => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth < self.shallow {
                        self.state = State::Between;
                        self.closed();
                        return bytes;
                    }
                }
            }
        }
        &[]
    }

    /// Reads a part of a key; returns what follows.
    pub(super) fn key<'b>(&mut self, targets: Targets<'_>, bytes: &'b [u8]) -> &'b [u8] {
        let end = memchr2(b'"', b'\\', bytes).unwrap_or(bytes.len());
        let (part, rest) = bytes.split_at_checked(end).unwrap_or((bytes, &[]));
        let level = self.level().unwrap_or(0);
        let (from, to) = (self.key_len, self.key_len.saturating_add(part.len()));
        self.key_len = to;
        let quote = rest.first() == Some(&b'"');
        self.keep_hits(|at| {
            targets.text(at, level).is_some_and(|text| {
                text.as_bytes().get(from..to) == Some(part) && (!quote || text.len() == to)
            })
        });
        if let Some((_, rest)) = rest.split_first() {
            self.state = if quote {
                State::Between
            } else {
                State::KeyEscape
            };
            self.wants_key &= !quote;
            return rest;
        }
        rest
    }
}
