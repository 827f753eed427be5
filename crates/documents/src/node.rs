//! The tree that YAML and JSON are read into, before its meaning is interpreted.
//!
//! Maps keep the order of the source and its duplicate keys, so that the reader can report them, and
//! nodes read from YAML have their place in the file.

mod yaml;

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{MapAccess, SeqAccess, Visitor},
    ser::{SerializeMap, SerializeSeq},
};

/// Where something stands in a file; counted from 1, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
    /// How many characters of that line are meant; at least 1.
    pub width: u32,
}

impl Place {
    /// Of what is wrong with a whole file.
    pub const START: Self = Self {
        line: 1,
        column: 1,
        width: 1,
    };
}

/// One value of a document.
#[derive(Clone, Debug)]
pub struct Node {
    /// What it holds.
    pub value: Value,
    /// Where it stands, if it was read from a file.
    pub place: Option<Place>,
}

/// What a [`Node`] holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `null`, `~` or nothing at all.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as written.
    Number(String),
    /// Anything else that is not a list or a map.
    Text(String),
    /// A sequence.
    List(Vec<Node>),
    /// A mapping, in the order of the source and with its duplicates.
    Map(Vec<Entry>),
}

/// One key of a map with its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Where the key stands, if it was read from a file.
    pub place: Option<Place>,
    /// The value.
    pub value: Node,
}

// Two documents are equal if their contents are; places do not matter.
impl PartialEq for Node {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl Eq for Node {}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.value == other.value
    }
}

impl Eq for Entry {}

impl Node {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Value::Text(text.into()).into()
    }

    /// A whole number.
    pub fn number(number: u64) -> Self {
        Value::Number(number.to_string()).into()
    }

    /// A map of the given fields, in their order.
    pub fn map<K: Into<String>>(fields: impl IntoIterator<Item = (K, Node)>) -> Self {
        let entries = fields.into_iter().map(|(key, value)| Entry {
            key: key.into(),
            place: None,
            value,
        });
        Value::Map(entries.collect()).into()
    }

    /// A list.
    pub fn list(items: impl IntoIterator<Item = Node>) -> Self {
        Value::List(items.into_iter().collect()).into()
    }

    /// The value of a key, if this is a map that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|e| e.key == key).map(|e| &e.value),
            _ => None,
        }
    }

    /// Sets a key of a map, in its old position or at the end. Does nothing to other nodes.
    pub fn set(&mut self, key: &str, value: Node) {
        let Value::Map(entries) = &mut self.value else {
            return;
        };
        match entries.iter_mut().find(|e| e.key == key) {
            Some(entry) => entry.value = value,
            None => entries.push(Entry {
                key: key.to_owned(),
                place: None,
                value,
            }),
        }
    }

    /// Removes a key of a map; returns whether it was there.
    pub fn unset(&mut self, key: &str) -> bool {
        let Value::Map(entries) = &mut self.value else {
            return false;
        };
        let before = entries.len();
        entries.retain(|e| e.key != key);
        entries.len() < before
    }

    /// The items of a list, else none.
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::List(items) => items,
            _ => &[],
        }
    }

    /// The text of a text, number or boolean. An unquoted `42` or `true` may stand for text, too.
    pub fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) | Value::Number(text) => Some(text),
            Value::Bool(true) => Some("true"),
            Value::Bool(false) => Some("false"),
            Value::Null | Value::List(_) | Value::Map(_) => None,
        }
    }

    /// What kind of value this is, for messages.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self { value, place: None }
    }
}

impl From<bool> for Node {
    fn from(value: bool) -> Self {
        Value::Bool(value).into()
    }
}

/// Decimal numbers only: other numbers of YAML (`0x1f`, `.inf`) are text here.
pub fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    all_digits(whole) && all_digits(fraction)
}

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
    /// Reads a JSON document (RFC 8259). Numbers stay as they are written; repeated keys are kept.
    ///
    /// Written by hand, because the filter reads it: `serde_json` in its place adds 20.6 KB to
    /// `filter.wasm`. The tests compare with `serde_json`.
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

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.value {
            Value::Null => serializer.serialize_unit(),
            Value::Bool(value) => serializer.serialize_bool(*value),
            Value::Number(text) => match text.parse::<u64>() {
                Ok(number) => serializer.serialize_u64(number),
                Err(_) => match text.parse::<i64>() {
                    Ok(number) => serializer.serialize_i64(number),
                    Err(_) => serializer.serialize_str(text),
                },
            },
            Value::Text(text) => serializer.serialize_str(text),
            Value::List(items) => {
                let mut list = serializer.serialize_seq(Some(items.len()))?;
                for item in items {
                    list.serialize_element(item)?;
                }
                list.end()
            }
            Value::Map(entries) => {
                let mut map = serializer.serialize_map(Some(entries.len()))?;
                for entry in entries {
                    map.serialize_entry(&entry.key, &entry.value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_any(ValueVisitor)
            .map(|value| Node { value, place: None })
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, value)) = map.next_entry()? {
            entries.push(Entry {
                key,
                place: None,
                value,
            });
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
pub(crate) mod tests;
