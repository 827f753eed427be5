//! Documents from JSON (RFC 8259).
//!
//! Written by hand, because the filter reads it: `serde_json` in its place adds 20.6 KB to
//! `filter.wasm` (331.8 to 352.4 KB), more than its 350 KB. The tests compare with `serde_json`.

use super::{Entry, Node, Value};

/// How deep lists and maps may nest, as for most readers of JSON.
const MAX_DEPTH: usize = 128;

/// Why bytes are not JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} at line {line} column {column}")]
pub struct JsonError {
    /// What was expected there.
    pub expected: &'static str,
    /// The line, from 1.
    pub line: usize,
    /// The column in bytes, from 1.
    pub column: usize,
}

impl Node {
    /// Reads a JSON document. Numbers stay as they are written; repeated keys are kept.
    ///
    /// # Errors
    /// The first place where it is not JSON.
    pub fn from_json(bytes: &[u8]) -> Result<Self, JsonError> {
        let mut reader = Reader { bytes, at: 0 };
        let value = reader.value(MAX_DEPTH).and_then(|value| {
            reader.skip_space();
            match reader.peek() {
                None => Ok(value),
                Some(_) => Err("the end"),
            }
        });
        match value {
            Ok(value) => Ok(value.into()),
            Err(expected) => Err(reader.error(expected)),
        }
    }
}

/// What was expected at the reader's position.
type Expected = &'static str;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn error(&self, expected: Expected) -> JsonError {
        let before = self.bytes.get(..self.at).unwrap_or_default();
        let lines = before.split(|byte| *byte == b'\n');
        JsonError {
            expected,
            column: 1 + lines.clone().next_back().map_or(0, <[u8]>::len),
            line: lines.count(),
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.peek() {
            self.at += 1;
        }
    }

    /// Takes a byte if it is the next after white space.
    fn take(&mut self, byte: u8) -> bool {
        self.skip_space();
        self.take_here(byte)
    }

    fn take_here(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, Expected> {
        self.skip_space();
        match self.peek() {
            Some(b'{' | b'[') if depth == 0 => Err("less nesting"),
            Some(b'{') => self.map(depth - 1),
            Some(b'[') => self.list(depth - 1),
            Some(b'"') => self.text().map(Value::Text),
            Some(b'-' | b'0'..=b'9') => self.number(),
            _ => self.word(),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Expected> {
        self.at += 1;
        let mut entries = Vec::new();
        if self.take(b'}') {
            return Ok(Value::Map(entries));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err("a key in quotes");
            }
            let key = self.text()?;
            if !self.take(b':') {
                return Err("`:`");
            }
            let value = self.value(depth)?.into();
            entries.push(Entry {
                key,
                place: None,
                value,
            });
            if self.take(b'}') {
                return Ok(Value::Map(entries));
            }
            if !self.take_here(b',') {
                return Err("`,` or `}`");
            }
        }
    }

    fn list(&mut self, depth: usize) -> Result<Value, Expected> {
        self.at += 1;
        let mut items = Vec::new();
        if self.take(b']') {
            return Ok(Value::List(items));
        }
        loop {
            items.push(self.value(depth)?.into());
            if self.take(b']') {
                return Ok(Value::List(items));
            }
            if !self.take_here(b',') {
                return Err("`,` or `]`");
            }
        }
    }

    fn word(&mut self) -> Result<Value, Expected> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let words = [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
        ];
        for (word, value) in words {
            if rest.starts_with(word.as_bytes()) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err("a value")
    }

    fn number(&mut self) -> Result<Value, Expected> {
        let start = self.at;
        self.take_here(b'-');
        if !self.take_here(b'0') {
            self.digits()?;
        }
        if self.take_here(b'.') {
            self.digits()?;
        }
        if self.take_here(b'e') || self.take_here(b'E') {
            let _ = self.take_here(b'+') || self.take_here(b'-');
            self.digits()?;
        }
        self.since(start).map(|text| Value::Number(text.to_owned()))
    }

    fn digits(&mut self) -> Result<(), Expected> {
        let start = self.at;
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
        if self.at == start {
            Err("a digit")
        } else {
            Ok(())
        }
    }

    /// What was read since `start`, which has to be UTF-8.
    fn since(&self, start: usize) -> Result<&'a str, Expected> {
        let bytes = self.bytes.get(start..self.at).unwrap_or_default();
        std::str::from_utf8(bytes).map_err(|_| "UTF-8")
    }

    fn text(&mut self) -> Result<String, Expected> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let start = self.at;
            while let Some(b' '..) = self.peek() {
                if let Some(b'"' | b'\\') = self.peek() {
                    break;
                }
                self.at += 1;
            }
            text.push_str(self.since(start)?);
            if self.take_here(b'"') {
                return Ok(text);
            }
            if !self.take_here(b'\\') {
                return Err("the rest of a text");
            }
            text.push(self.escaped()?);
        }
    }

    fn escaped(&mut self) -> Result<char, Expected> {
        let escaped = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => return Err("an escape"),
        };
        self.at += 1;
        Ok(escaped)
    }

    fn unicode(&mut self) -> Result<char, Expected> {
        const HALF: Expected = "the other half of a surrogate pair";
        let first = self.hex()?;
        let code = match first {
            0xd800..0xdc00 => {
                if !self.take_here(b'\\') {
                    return Err(HALF);
                }
                let second = self.hex()?;
                if !(0xdc00..0xe000).contains(&second) {
                    return Err(HALF);
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            code => code,
        };
        char::from_u32(code).ok_or(HALF)
    }

    /// `uXXXX`, after its backslash.
    fn hex(&mut self) -> Result<u32, Expected> {
        const DIGITS: Expected = "u and four hexadecimal digits";
        if !self.take_here(b'u') {
            return Err(DIGITS);
        }
        let mut code = 0;
        for _ in 0..4 {
            let byte = self.peek().ok_or(DIGITS)?;
            let digit = char::from(byte).to_digit(16).ok_or(DIGITS)?;
            code = code << 4 | digit;
            self.at += 1;
        }
        Ok(code)
    }
}

#[cfg(test)]
mod tests;
