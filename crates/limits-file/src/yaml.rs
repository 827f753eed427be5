//! Reads YAML, with the place of every key and value.

use std::collections::HashMap;

use documents::{Entry, Node, Place, Problem, Problems, Report, Value, is_number};
use granit_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Span, Tag};

/// The deepest nesting that is accepted: more than any limits file needs.
const MAX_DEPTH: usize = 32;
/// Nodes that aliases may add to a document, so that a few lines cannot unfold into gigabytes; and those
/// that anchors may keep copies of.
const MAX_ALIASED_NODES: usize = 100_000;

const QUOTE_PATTERN: &str = "YAML takes an unquoted `!` for a tag; put a pattern that starts with \
                             `!` in quotes, like \"!/internal/**\"";

/// Reads a YAML or JSON file.
///
/// # Errors
/// What is wrong with it, with its place.
pub fn read(file: &str, text: &[u8]) -> Result<Node, Problems> {
    from_text(file, text, |text| {
        let mut report = Report::default();
        let node = load(text, &mut report);
        report.finish(node)
    })
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
        problem.push_hint(QUOTE_PATTERN);
    } else if line.is_some_and(|line| line.contains('\t')) {
        problem.push_hint("YAML indents with spaces, not with tabs");
    } else if error.info().contains("block") {
        problem.push_hint("check the indentation of this line and the one before");
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any document that YAML and JSON can both hold.
    fn any_node() -> impl Strategy<Value = Node> {
        let leaf = prop_oneof![
            Just(Node::from(Value::Null)),
            any::<bool>().prop_map(Node::from),
            any::<u64>().prop_map(Node::number),
            ".*".prop_map(Node::text),
            "[a-z0-9/%:#~!&*, .-]{0,12}".prop_map(Node::text),
        ];
        leaf.prop_recursive(4, 40, 6, |inner| {
            let key = prop_oneof!["[a-z]{1,6}", ".{0,6}"];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Node::list),
                prop::collection::vec((key, inner), 0..6).prop_map(Node::map),
            ]
        })
    }

    #[test]
    fn neither_anchors_nor_aliases_multiply_a_document() {
        let list = format!("[{}]", "a,".repeat(50_000));
        let nested = (0..30).fold(list, |inner, n| format!("&a{n} [{inner}]"));
        let long = format!("[&x {}, {}]", "t".repeat(10_000), "*x,".repeat(20_000));
        for (text, message) in [
            (nested, "anchors name too much"),
            (long, "aliases unfold into too much"),
        ] {
            let problems = read("test", text.as_bytes()).unwrap_err();
            let found = problems
                .iter()
                .next()
                .map(|problem| problem.message.clone());
            assert_eq!(found.as_deref(), Some(message));
        }
        assert!(read("test", b"{a: &x [1, &y two], b: *x, c: *y}").is_ok());
    }

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
        let node = read("", text.as_bytes()).unwrap();
        assert_eq!(node.to_yaml(), text);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_the_same(node in any_node()) {
            let text = node.to_yaml();
            let back = read("", text.as_bytes()).map_err(|e| e.to_string());
            prop_assert_eq!(back, Ok(node), "{}", text);
        }

        #[test]
        fn json_reads_the_same(node in any_node()) {
            let json = serde_json::to_string(&node).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Node>(&json).unwrap(), &node);
        }
    }
}
