//! YAML: reading it, with the place of every key and value, and writing it so that it reads well: short
//! collections on one line, the rest in blocks.

use std::{collections::HashMap, fmt::Write};

use granit_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

use super::{Entry, Node, Place, Value, is_number};
use crate::{Form, Problem, Problems, Report};

/// The deepest nesting that is accepted: more than any limits file needs.
const MAX_DEPTH: usize = 32;
/// Nodes that aliases may add to a document, so that a few lines cannot unfold into gigabytes; and those
/// that anchors may keep copies of.
const MAX_ALIASED_NODES: usize = 100_000;

const QUOTE_PATTERN: &str = "YAML takes an unquoted `!` for a tag; put a pattern that starts with \
                             `!` in quotes, like \"!/internal/**\"";

impl Node {
    /// Reads a YAML or JSON file.
    ///
    /// # Errors
    /// What is wrong with it, with its place.
    pub fn from_yaml(file: &str, text: &[u8]) -> Result<Self, Problems> {
        from_text(file, text, |text| {
            let mut report = Report::new(Form::File);
            let node = load(text, &mut report);
            report.finish(node)
        })
    }
}

/// Reads a file by its text; the problems quote from it.
///
/// # Errors
/// What `read` finds, or that the bytes are not UTF-8.
pub fn from_text<T>(
    file: &str,
    bytes: &[u8],
    read: impl FnOnce(&str) -> Result<T, Problems>,
) -> Result<T, Problems> {
    match std::str::from_utf8(bytes) {
        Ok(text) => read(text).map_err(|problems| problems.in_file(file, text)),
        Err(error) => {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = valid.split(|byte| *byte == b'\n').count();
            let before = valid.rsplit(|byte| *byte == b'\n').next();
            let column = String::from_utf8_lossy(before.unwrap_or_default())
                .chars()
                .count()
                + 1;
            let place = Place {
                line: u32::try_from(line).unwrap_or(u32::MAX),
                column: u32::try_from(column).unwrap_or(u32::MAX),
                width: 1,
            };
            let problem = Problem::new("", Some(place), "not UTF-8");
            let text = String::from_utf8_lossy(bytes);
            Err(Problems::one(problem).in_file(file, text))
        }
    }
}

/// The one document in a text, YAML or JSON.
///
/// JSON is YAML except for surrogate pairs (`\\ud83d\\ude00`): in a document with those, values
/// have no place.
pub fn load(text: &str, report: &mut Report) -> Option<Node> {
    load_as(text, report, false)?.into_iter().next()
}

/// All documents in a text: a YAML file may have several, with a `---` between them.
pub fn load_all(text: &str, report: &mut Report) -> Vec<Node> {
    load_as(text, report, true).unwrap_or_default()
}

fn load_as(text: &str, report: &mut Report, several: bool) -> Option<Vec<Node>> {
    let mut problems = Vec::new();
    let nodes = load_yaml(text, &mut problems, several);
    if nodes.is_none()
        && let Ok(json) = Node::from_json(text.as_bytes())
    {
        return Some(vec![json]);
    }
    report.problems.append(&mut problems);
    nodes
}

/// The documents in a YAML text, one unless it may be `several`.
///
/// What the tree cannot express (tags, maps as keys, a document too many) is
/// reported in `problems` and left out, so that the rest can still be checked.
fn load_yaml(text: &str, problems: &mut Vec<Problem>, several: bool) -> Option<Vec<Node>> {
    let options = granit_parser::options! {
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut builder = Builder {
        problems,
        open: Vec::new(),
        anchors: HashMap::new(),
        aliased: 0,
        anchored: 0,
        documents: Vec::new(),
        several,
        gave_up: false,
    };
    for event in Parser::new_from_str_with_options(text, options) {
        match event {
            Ok((event, span)) => builder.event(event, span),
            Err(error) => {
                let problem = syntax(text, &error);
                builder.problems.push(problem);
                builder.gave_up = true;
            }
        }
        if builder.gave_up {
            return None;
        }
    }
    if builder.documents.is_empty() {
        builder.documents.push(Value::Null.into());
    }
    Some(builder.documents)
}

const START: Place = Place {
    line: 1,
    column: 1,
    width: 1,
};

fn syntax(text: &str, error: &ScanError) -> Problem {
    let place = place_of(error.marker(), 1);
    let line = text.lines().nth(error.marker().line().saturating_sub(1));
    let mut problem = Problem::new("", Some(place), format!("not YAML: {}", error.info()));
    if line.is_some_and(|line| line.contains(": !") || line.contains("- !") || line.contains("[!"))
    {
        problem = problem.hint(QUOTE_PATTERN);
    } else if line.is_some_and(|line| line.contains('\t')) {
        problem = problem.hint("YAML indents with spaces, not with tabs");
    } else if error.info().contains("block") {
        problem = problem.hint("check the indentation of this line and the one before");
    }
    problem
}

fn place_of(marker: &Marker, width: usize) -> Place {
    let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    Place {
        line: small(marker.line()),
        column: small(marker.col()).saturating_add(1),
        width: small(width).max(1),
    }
}

fn span_place(span: &Span) -> Place {
    // If it spans several lines, only the first character is marked.
    let width = if span.start.line() == span.end.line() {
        span.end.index().saturating_sub(span.start.index())
    } else {
        1
    };
    place_of(&span.start, width)
}

/// A list or map that is still being read, and the anchor it carries (0: none).
enum Open {
    List {
        place: Place,
        anchor: usize,
        items: Vec<Node>,
    },
    Map {
        place: Place,
        anchor: usize,
        entries: Vec<Entry>,
        key: Option<(String, Place)>,
    },
}

struct Builder<'p> {
    problems: &'p mut Vec<Problem>,
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    aliased: usize,
    anchored: usize,
    documents: Vec<Node>,
    /// Whether there may be several.
    several: bool,
    /// Whether to ignore everything that follows.
    gave_up: bool,
}

impl Builder<'_> {
    fn event(&mut self, event: Event<'_>, span: Span) {
        let place = span_place(&span);
        match event {
            Event::DocumentStart(..) if !self.several && !self.documents.is_empty() => {
                self.report(place, "a second document in one file")
                    .push_hint("remove the `---`, or use one file per domain");
                self.gave_up = true;
            }
            Event::Alias(id) => {
                let node = self.alias(id, place);
                self.close(node, 0);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let tagged = self.refuse_tag(tag.as_deref(), &span, place);
                let plain = style == ScalarStyle::Plain && !tagged;
                let value = read_scalar(text.into_owned(), plain);
                let node = Node {
                    value,
                    place: Some(place),
                };
                self.close(node, anchor);
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), &span, place);
                self.open.push(Open::List {
                    place,
                    anchor,
                    items: Vec::new(),
                });
            }
            Event::MappingStart(_, anchor, tag) => {
                self.refuse_tag(tag.as_deref(), &span, place);
                self.open.push(Open::Map {
                    place,
                    anchor,
                    entries: Vec::new(),
                    key: None,
                });
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            _ => {}
        }
    }

    /// A collection is complete.
    fn end(&mut self) {
        let (value, place, anchor) = match self.open.pop() {
            Some(Open::List {
                place,
                anchor,
                items,
            }) => (Value::List(items), place, anchor),
            Some(Open::Map {
                place,
                anchor,
                entries,
                ..
            }) => (Value::Map(entries), place, anchor),
            None => return,
        };
        let node = Node {
            value,
            place: Some(place),
        };
        self.close(node, anchor);
    }

    /// Adds a complete node to what contains it.
    fn close(&mut self, node: Node, anchor: usize) {
        if anchor != 0 {
            // An anchor keeps a copy of all below it, where there may be anchors as well.
            self.anchored = self.anchored.saturating_add(count(&node));
            if self.anchored > MAX_ALIASED_NODES {
                self.give_up(node.place.unwrap_or(START), "anchors name too much");
                return;
            }
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            None => self.documents.push(node),
            Some(Open::List { items, .. }) => items.push(node),
            Some(Open::Map { entries, key, .. }) => {
                if let Some((key, place)) = key.take() {
                    entries.push(Entry {
                        key,
                        place: Some(place),
                        value: node,
                    });
                } else {
                    let place = node.place.unwrap_or(START);
                    *key = Some((node.as_text().unwrap_or_default().to_owned(), place));
                    if node.as_text().is_none() {
                        let message = format!("a key must be text, not {}", node.kind());
                        self.report(place, message);
                    }
                }
            }
        }
    }

    fn alias(&mut self, id: usize, place: Place) -> Node {
        let Some(node) = self.anchors.get(&id) else {
            self.report(place, "this alias refers to something that contains it");
            return Value::Null.into();
        };
        self.aliased = self.aliased.saturating_add(count(node));
        if self.aliased > MAX_ALIASED_NODES {
            return self.give_up(place, "aliases unfold into too much");
        }
        node.clone()
    }

    fn give_up(&mut self, place: Place, message: &str) -> Node {
        self.report(place, message);
        self.gave_up = true;
        Value::Null.into()
    }

    fn refuse_tag(&mut self, tag: Option<&Tag>, span: &Span, place: Place) -> bool {
        let Some(tag) = tag else { return false };
        let width = tag.original().chars().count();
        let place = span
            .tag_start()
            .map_or(place, |start| place_of(&start, width));
        self.report(place, format!("a YAML tag `{}`", tag.original()))
            .push_hint(QUOTE_PATTERN);
        true
    }

    fn report(&mut self, place: Place, message: impl Into<String>) -> &mut Problem {
        self.problems
            .push_mut(Problem::new("", Some(place), message))
    }
}

fn read_scalar(text: String, plain: bool) -> Value {
    if !plain {
        return Value::Text(text);
    }
    match text.as_str() {
        "" | "~" | "null" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ if is_number(&text) => Value::Number(text),
        _ => Value::Text(text),
    }
}

/// The nodes in a tree; long texts count as several.
fn count(node: &Node) -> usize {
    let text = |text: &str| text.len() / 64;
    let entry = |entry: &Entry| count(&entry.value) + text(&entry.key);
    let below = match &node.value {
        Value::List(items) => items.iter().map(count).sum(),
        Value::Map(entries) => entries.iter().map(entry).sum(),
        _ => node.as_text().map_or(0, text),
    };
    below + 1
}

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::node::tests::any_node;

    #[test]
    fn a_file_reads_like_one_that_was_written_by_hand() {
        let text = r#"domain: shop
limits:
  - name: per-user
    match: {path: "/api/**", method: [GET, POST]}
    per: [user]
    rate: 10/s
    burst: 20
    overrides:
      - {values: {user: alice}, rate: 100/s, until: "2026-12-01T00:00:00Z"}
      - {values: {user: "42"}, unlimited: true}
  - name: exports
    match: {path: "!/x"}
    enforce: 5%
    replaces: []
"#;
        let node = Node::from_yaml("", text.as_bytes()).unwrap();
        assert_eq!(node.to_yaml(), text);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(node in any_node()) {
            let text = node.to_yaml();
            let back = Node::from_yaml("", text.as_bytes()).map_err(|e| e.to_string());
            prop_assert_eq!(back, Ok(node), "{}", text);
        }

        #[test]
        fn json_reads_the_same(node in any_node()) {
            let json = serde_json::to_string(&node).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Node>(&json).unwrap(), &node);
        }
    }
}
