//! Changes as text.

use policy::{Node, Value};

use super::{FieldChange, OverrideChange};

impl FieldChange {
    /// The value before, as text; a missing field shows its default.
    pub fn before_text(&self) -> String {
        self.text(self.before.as_ref())
    }

    /// The value after.
    pub fn after_text(&self) -> String {
        self.text(self.after.as_ref())
    }

    fn text(&self, value: Option<&Node>) -> String {
        match value {
            Some(node) if self.field == "paused" => paused(node),
            Some(node) => node.to_yaml_line(),
            None => default_of(&self.field).to_owned(),
        }
    }
}

impl OverrideChange {
    /// The bucket: `user=alice`.
    pub fn bucket_text(&self) -> String {
        format_map(&self.values, "=", " ")
    }

    /// The numbers before, `none` without an override.
    pub fn before_text(&self) -> String {
        numbers(self.before.as_ref())
    }

    /// The numbers after.
    pub fn after_text(&self) -> String {
        numbers(self.after.as_ref())
    }
}

fn numbers(node: Option<&Node>) -> String {
    node.map_or_else(|| "none".to_owned(), |node| format_map(node, " ", ", "))
}

/// `yes`, `no`, `until 2026-12-01T00:00:00Z`.
fn paused(node: &Node) -> String {
    match node.value {
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        _ => format_map(node, " ", ", "),
    }
}

/// A map as words: `rate 100/s, until 2026-12-01T00:00:00Z`.
pub fn format_map(node: &Node, between: &str, separator: &str) -> String {
    let Value::Map(entries) = &node.value else {
        return node.to_yaml_line();
    };
    let words = entries
        .iter()
        .map(|entry| match (&entry.value.value, entry.value.as_text()) {
            (Value::Bool(true), _) => entry.key.clone(),
            (Value::Null, _) => format!("{}: none", entry.key),
            (_, Some(text)) => format!(
                "{}{between}{}",
                entry.key,
                crate::bucket::visible(text.as_bytes())
            ),
            _ => format!("{}{between}{}", entry.key, entry.value.to_yaml_line()),
        });
    words.collect::<Vec<_>>().join(separator)
}

/// The meaning of a missing field.
fn default_of(field: &str) -> &'static str {
    match field {
        "match" => "every request",
        "per" => "one bucket for all",
        "if_missing" => "share",
        "burst" => "same as the rate",
        "cost" => "1",
        "over_limit" => "reject",
        "max_delay" => "5s",
        "enforce" => "100%",
        "on_failure" => "local",
        "scope" => "global",
        "hidden" => "false",
        "strict" => "true",
        "align" => "epoch",
        "fleet_size" => "as counted",
        "paused" => "no",
        _ => "none",
    }
}
