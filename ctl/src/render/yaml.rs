//! Documents as YAML that people would have written, and that reads back as the same document.

use std::fmt::Write as _;

use policy::{Node, Value};

/// Columns that a list or map may take on one line.
const INLINE_WIDTH: usize = 80;

/// A document in block style, with short lists and maps on one line.
pub fn document(node: &Node) -> String {
    let mut text = String::new();
    block(node, 0, &mut text);
    text
}

/// A value on one line.
pub fn inline(node: &Node) -> String {
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(digits) => digits.clone(),
        Value::Text(text) => scalar(text),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(inline).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(entries) => {
            let entries = entries.iter();
            let entries: Vec<String> = entries
                .map(|entry| format!("{}: {}", scalar(&entry.key), inline(&entry.value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

fn block(node: &Node, indent: usize, text: &mut String) {
    match &node.value {
        Value::Map(entries) if !entries.is_empty() => {
            for (n, entry) in entries.iter().enumerate() {
                if n > 0 {
                    pad(indent, text);
                }
                let _ = write!(text, "{}:", scalar(&entry.key));
                nested(&entry.value, indent, text);
            }
        }
        Value::List(items) if !items.is_empty() => {
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    pad(indent, text);
                }
                text.push_str("- ");
                block(item, indent + 2, text);
            }
        }
        _ => {
            text.push_str(&inline(node));
            text.push('\n');
        }
    }
}

/// The value of a key: on the key's line if it is simple and short, else below it.
fn nested(node: &Node, indent: usize, text: &mut String) {
    let simple = match &node.value {
        Value::List(items) => items.iter().all(is_scalar),
        Value::Map(entries) => entries.iter().all(|entry| {
            is_scalar(&entry.value)
                || entry.value.items().iter().all(is_scalar) && is_list(&entry.value)
        }),
        _ => true,
    };
    let line = inline(node);
    if is_scalar(node) || is_empty(node) || (simple && line.len() <= INLINE_WIDTH) {
        let _ = writeln!(text, " {line}");
        return;
    }
    text.push('\n');
    pad(indent + 2, text);
    block(node, indent + 2, text);
}

fn pad(indent: usize, text: &mut String) {
    text.extend(std::iter::repeat_n(' ', indent));
}

fn is_scalar(node: &Node) -> bool {
    !matches!(node.value, Value::List(_) | Value::Map(_))
}

fn is_list(node: &Node) -> bool {
    matches!(node.value, Value::List(_))
}

fn is_empty(node: &Node) -> bool {
    match &node.value {
        Value::List(items) => items.is_empty(),
        Value::Map(entries) => entries.is_empty(),
        _ => false,
    }
}

/// Text, quoted where YAML would take it for something else.
fn scalar(text: &str) -> String {
    if is_plain(text) || policy::parse_timestamp(text).is_some() {
        text.to_owned()
    } else {
        // JSON strings are YAML strings; what JSON leaves as it is and YAML does not print is escaped.
        let json = serde_json::to_string(text).unwrap_or_default();
        json.chars().map(escape).collect()
    }
}

fn escape(c: char) -> String {
    match c {
        '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}' => {
            format!("\\u{:04x}", u32::from(c))
        }
        c => c.to_string(),
    }
}

/// Letters, digits and what never has a meaning of its own in the middle of a word; plus single
/// spaces. Stricter than YAML, so that no reader takes it for anything but this text.
fn is_plain(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/' || c == '_');
    let in_word = |c: char| c.is_alphanumeric() || "/_.+-%$()=;^~@".contains(c);
    let words = text
        .split(' ')
        .all(|word| !word.is_empty() && word.chars().all(in_word));
    starts_well && words && !means_something_else(text)
}

fn means_something_else(text: &str) -> bool {
    let word = text.to_ascii_lowercase();
    let reserved = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    let numeric = word.starts_with(|c: char| c.is_ascii_digit())
        && word
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || b"_.+-xoe".contains(&b));
    reserved.contains(&word.as_str()) || numeric
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits_file(limit: &str) -> policy::Policy {
        let file = format!("domain: shop\nlimits:\n  - {limit}\n");
        policy::Policy::from_yaml("test", file.as_bytes()).unwrap()
    }

    #[test]
    fn a_policy_is_written_as_people_write_it() {
        let policy = limits_file(
            "{name: per-user, match: {path: /api/**, method: [GET, POST]}, per: [user], \
             rate: 10/s, overrides: [{values: {user: '10'}, unlimited: true}]}",
        );
        assert_eq!(
            document(&policy.to_node()),
            "domain: shop\n\
             limits:\n  \
               - name: per-user\n    \
                 match: {path: \"/api/**\", method: [GET, POST]}\n    \
                 per: [user]\n    \
                 algorithm: token_bucket\n    \
                 rate: 10/s\n    \
                 overrides:\n      \
                   - values: {user: \"10\"}\n        \
                     unlimited: true\n"
        );
    }

    const HARD: &[&str] = &[
        "",
        " ",
        "a b",
        " a",
        "a ",
        "true",
        "No",
        "~",
        "null",
        "1",
        "1.5",
        "-3",
        "0x1f",
        "1e3",
        "2026-12-01",
        "12:30",
        "!tag",
        "&a",
        "*a",
        "a: b",
        "a #b",
        "#a",
        "- a",
        "?",
        "|",
        ">",
        "[a]",
        "{a}",
        "a,b",
        "\"",
        "'",
        "\\",
        "a\nb",
        "\t",
        "\u{7f}",
        "\u{85}",
        "\u{2028}",
        "\u{feff}",
        "\u{1f600}",
        "é",
        "@a",
        "`a",
        "%a",
        "a=b;c",
        "<<",
        "a\r",
        "…",
        "1_000",
        "---",
        "...",
        "y",
        "a:",
        ":a",
    ];

    #[test]
    fn whatever_the_values_are_they_read_back() {
        for text in HARD {
            let entry = Node::map([
                ("values", Node::map([("user", Node::text(*text))])),
                ("unlimited", true.into()),
            ]);
            let limit = Node::map([
                ("name", Node::text("a")),
                ("per", Node::list([Node::text("user")])),
                ("rate", Node::text("1/s")),
                ("overrides", Node::list([entry])),
            ]);
            let file = [
                ("domain", Node::text("shop")),
                ("limits", Node::list([limit])),
            ];
            let policy = policy::Policy::from_node(&Node::map(file)).unwrap();
            let written = document(&policy.to_node());
            let read = policy::Policy::from_yaml("test", written.as_bytes())
                .unwrap_or_else(|problems| panic!("{text:?}\n{written}\n{problems}"));
            assert_eq!(read, policy, "{written}");
        }
    }
}
