//! The tree that YAML and JSON are read into, before its meaning is interpreted.
//!
//! Maps keep the order of the
//! source and its duplicate keys, so that the reader can report them,
//! and nodes read from YAML have their place in the file.

mod json;
mod serde_impls;
mod write_yaml;
mod yaml;

pub use json::JsonError;
pub use yaml::{from_text, load, load_all};

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
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    all_digits(whole) && all_digits(fraction)
}

#[cfg(test)]
pub(crate) mod tests;
