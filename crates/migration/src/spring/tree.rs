//! Spring's relaxed names: `replenishRate`, `replenish-rate` and `replenish_rate` are the same, and
//! `a.b: 1` is `a: {b: 1}`.

use documents::{Entry, Node, Path, Place, Value};

/// A value and its path, however its names are written.
#[derive(Clone, Debug)]
pub(super) struct At<'n> {
    pub(super) node: &'n Node,
    path: String,
    place: Option<Place>,
}

/// A name without what relaxed binding ignores.
pub(super) fn canonical(name: &str) -> String {
    let significant = name.chars().filter(|c| !matches!(c, '-' | '_'));
    significant.map(|c| c.to_ascii_lowercase()).collect()
}

/// The most names in one key: the tree is read recursively.
const MAX_NAMES: usize = 32;

/// The tree with `a.b: 1` as `a: {b: 1}`: parts of one subtree may be below several such keys.
pub(super) fn nested(node: Node) -> Node {
    let value = match node.value {
        Value::List(items) => Value::List(items.into_iter().map(nested).collect()),
        Value::Map(entries) => {
            let mut whole = Node::from(Value::Map(Vec::new()));
            for entry in entries {
                let place = entry.place;
                let inner = nested(entry.value);
                let names: Vec<&str> = entry.key.splitn(MAX_NAMES, '.').collect();
                let below = names.into_iter().rev().fold(inner, |inner, name| Node {
                    place,
                    value: Value::Map(vec![Entry {
                        key: name.to_owned(),
                        place,
                        value: inner,
                    }]),
                });
                merge(&mut whole, below);
            }
            whole.value
        }
        scalar => scalar,
    };
    Node { value, ..node }
}

/// Adds a tree to another; of two values for a name the later one stays.
pub(super) fn merge(whole: &mut Node, later: Node) {
    match (&mut whole.value, later.value) {
        (Value::Map(entries), Value::Map(more)) => {
            for entry in more {
                let name = canonical(&entry.key);
                match entries
                    .iter_mut()
                    .find(|known| canonical(&known.key) == name)
                {
                    Some(known) => merge(&mut known.value, entry.value),
                    None => entries.push(entry),
                }
            }
        }
        (value, other) => {
            *value = other;
            whole.place = later.place;
        }
    }
}

impl<'n> At<'n> {
    pub(super) fn root(node: &'n Node) -> Self {
        Self {
            node,
            path: String::new(),
            place: node.place,
        }
    }

    /// The value below these names, each of which has no dot.
    pub(super) fn at(&self, names: &[&str]) -> Option<Self> {
        let mut here = self.clone();
        let mut wanted = names.iter().map(|name| canonical(name)).collect::<Vec<_>>();
        while !wanted.is_empty() {
            // One key may hold several names.
            let (found, taken) = { here.entries() }.find_map(|entry| {
                let parts: Vec<String> = entry.key.split('.').map(canonical).collect();
                wanted.starts_with(&parts).then_some((entry, parts.len()))
            })?;
            here = here.below(found);
            wanted.drain(..taken);
        }
        Some(here)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &'n Entry> + use<'n> {
        let entries: &[Entry] = match &self.node.value {
            Value::Map(entries) => entries,
            _ => &[],
        };
        entries.iter()
    }

    /// All values below, each with its whole canonical name.
    pub(super) fn leaves(&self) -> Vec<(String, Self)> {
        let mut leaves = Vec::new();
        for entry in self.entries() {
            let here = self.below(entry);
            let name = canonical(&entry.key);
            if let Value::Map(_) = entry.value.value {
                let below = here.leaves().into_iter();
                leaves.extend(below.map(|(rest, at)| (format!("{name}.{rest}"), at)));
            } else {
                leaves.push((name, here));
            }
        }
        leaves
    }

    pub(super) fn items(&self) -> Vec<Self> {
        let items = self.node.items().iter().enumerate();
        let items = items.map(|(nth, node)| Self {
            node,
            path: format!("{}[{nth}]", self.path),
            place: node.place,
        });
        items.collect()
    }

    fn below(&self, entry: &'n Entry) -> Self {
        let path = match self.path.as_str() {
            "" => entry.key.clone(),
            path => format!("{path}.{}", entry.key),
        };
        Self {
            node: &entry.value,
            path,
            place: entry.value.place.or(entry.place),
        }
    }

    pub(super) fn text(&self) -> Option<&'n str> {
        self.node.as_text()
    }

    pub(super) fn place(&self) -> Option<Place> {
        self.place
    }

    /// The path to it, for a message.
    pub(super) fn path(&self) -> Path<'_> {
        Path::Field(&Path::Root, &self.path)
    }
}
