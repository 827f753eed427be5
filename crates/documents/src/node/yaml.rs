//! YAML, written so that it reads well: short collections on one line, the rest in blocks.

use std::fmt::Write;

use super::{Entry, Node, Value, is_number};

/// The longest collection that goes on one line, in characters.
const LINE: usize = 72;

impl Node {
    /// The document as YAML. Limits files and limits have one field a line; what is inside a
    /// field shares its line where it is short.
    pub fn to_yaml(&self) -> String {
        let file = self.get("limits").is_some();
        let mut text = String::new();
        let mut writer = Writer {
            text: &mut text,
            // The file, its list of limits and each limit; or the one limit.
            open_levels: if file { 3 } else { 1 },
        };
        writer.node(self, 0, 0);
        text.push('\n');
        text.trim_start().to_owned()
    }

    /// The document as YAML on one line, however long, without a line end.
    pub fn to_yaml_line(&self) -> String {
        flow(self)
    }
}

struct Writer<'t> {
    text: &'t mut String,
    open_levels: usize,
}

impl Writer<'_> {
    /// Writes a value after its `key:` or `-`; `level` is its depth in the tree.
    fn node(&mut self, node: &Node, indent: usize, level: usize) {
        match &node.value {
            Value::Map(entries) if self.is_block(node, level) => {
                for entry in entries {
                    self.new_line(indent);
                    self.entry(entry, indent, level);
                }
            }
            Value::List(items) if self.is_block(node, level) => {
                for item in items {
                    self.new_line(indent);
                    self.text.push('-');
                    self.item(item, indent + 2, level + 1);
                }
            }
            _ => {
                self.text.push(' ');
                self.text.push_str(&flow(node));
            }
        }
    }

    fn entry(&mut self, entry: &Entry, indent: usize, level: usize) {
        self.text.push_str(&scalar(&entry.key));
        self.text.push(':');
        self.node(&entry.value, indent + 2, level + 1);
    }

    /// A map in a list starts on the line of its dash.
    fn item(&mut self, item: &Node, indent: usize, level: usize) {
        match &item.value {
            Value::Map(entries) if self.is_block(item, level) => {
                for (nth, entry) in entries.iter().enumerate() {
                    if nth == 0 {
                        self.text.push(' ');
                    } else {
                        self.new_line(indent);
                    }
                    self.entry(entry, indent, level);
                }
            }
            _ => self.node(item, indent, level),
        }
    }

    fn is_block(&self, node: &Node, level: usize) -> bool {
        let (empty, nested) = match &node.value {
            Value::Map(entries) => (entries.is_empty(), false),
            Value::List(items) => {
                let maps = items.iter().any(|item| matches!(item.value, Value::Map(_)));
                (items.is_empty(), maps)
            }
            _ => return false,
        };
        !empty && (level < self.open_levels || nested || flow(node).chars().count() > LINE)
    }

    fn new_line(&mut self, indent: usize) {
        self.text.push('\n');
        self.text.extend(std::iter::repeat_n(' ', indent));
    }
}

/// A value on one line.
fn flow(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number.clone(),
        Value::Text(text) => scalar(text),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(flow).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(entries) => {
            let entries = entries
                .iter()
                .map(|entry| format!("{}: {}", scalar(&entry.key), flow(&entry.value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A text, in quotes unless every YAML reader reads it as text without them.
fn scalar(text: &str) -> String {
    if is_plain(text) {
        return text.to_owned();
    }
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            ' '..='~' | '\u{a0}'..='\u{d7ff}' => quoted.push(c),
            // Control characters and what is not printable everywhere.
            _ => write!(quoted, "\\U{:08x}", u32::from(c)).unwrap_or_default(),
        }
    }
    quoted.push('"');
    quoted
}

fn is_plain(text: &str) -> bool {
    // Words that YAML 1.1 or 1.2 readers do not read as text.
    const RESERVED: [&str; 10] = [
        "null", "true", "false", "yes", "no", "on", "off", "y", "n", "~",
    ];
    let starts_well =
        text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/'));
    let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '.' | '%' | '-');
    let reserved = RESERVED.iter().any(|word| word.eq_ignore_ascii_case(text));
    // `1e3`, `0x1f` and dates: what starts with a digit must be a rate, duration or percentage.
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let numeric = digits.len() < text.len()
        && !matches!(digits.chars().next(), Some('/' | '%' | 's' | 'm' | 'h'));
    starts_well && text.chars().all(inside) && !reserved && !numeric && !is_number(text)
}
