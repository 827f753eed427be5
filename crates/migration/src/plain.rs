//! Documents as common YAML readers see them: merge keys merged, fields without a value absent.

use std::collections::HashSet;

use documents::{Entry, Node, Value};

/// The document without `<<` and without fields that have no value.
pub(crate) fn plain(node: Node) -> Node {
    let value = match node.value {
        Value::List(items) => Value::List(items.into_iter().map(plain).collect()),
        Value::Map(entries) => Value::Map(merged(entries)),
        scalar => scalar,
    };
    Node { value, ..node }
}

fn merged(entries: Vec<Entry>) -> Vec<Entry> {
    let (merges, own): (Vec<_>, Vec<_>) = entries.into_iter().partition(is_merge);
    let mut fields: Vec<Entry> = own
        .into_iter()
        .filter(|entry| entry.value.value != Value::Null)
        .map(|entry| Entry {
            value: plain(entry.value),
            ..entry
        })
        .collect();
    if merges.is_empty() {
        return fields;
    }
    // A map's own fields win; of several merged maps the first wins.
    let mut known: HashSet<String> = fields.iter().map(|field| field.key.clone()).collect();
    for merge in merges {
        let maps = match merge.value.value {
            Value::List(maps) => maps,
            _ => vec![merge.value],
        };
        for map in maps {
            let Value::Map(entries) = plain(map).value else {
                continue;
            };
            for entry in entries {
                if known.insert(entry.key.clone()) {
                    fields.push(entry);
                }
            }
        }
    }
    fields
}

fn is_merge(entry: &Entry) -> bool {
    let map = |node: &Node| matches!(node.value, Value::Map(_));
    entry.key == "<<" && (map(&entry.value) || entry.value.items().iter().all(map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merge_keys_and_empty_fields() {
        let text = "\
base: &base {unit: second, requests_per_unit: 5}
a: {<<: *base, requests_per_unit: 7}
b:
c: [{<<: [*base, {unit: day, name: x}]}]
";
        let node = plain(Node::from_yaml("", text.as_bytes()).unwrap());
        assert!(node.get("b").is_none());
        let a = node.get("a").unwrap();
        assert_eq!(a.get("requests_per_unit").unwrap().as_text(), Some("7"));
        assert_eq!(a.get("unit").unwrap().as_text(), Some("second"));
        let c = node.get("c").unwrap().items().first().unwrap();
        assert_eq!(c.get("unit").unwrap().as_text(), Some("second"));
        assert_eq!(c.get("name").unwrap().as_text(), Some("x"));
    }
}
