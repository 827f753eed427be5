//! `application.properties`: `a.b[0].c=value`, one a line; a line `#---` begins another document.

use documents::{Entry, Node, Path, Place, Report, Value};

/// The most names in one property: the resulting tree is read recursively.
const MAX_STEPS: usize = 32;

/// The most Spring properties in one file: inserting one searches the others.
const MAX_PROPERTIES: usize = 10_000;

pub(super) fn load(text: &str, report: &mut Report) -> Vec<Node> {
    let empty = || Node::from(Value::Map(Vec::new()));
    let mut documents = Vec::new();
    let mut root = empty();
    let before = report.problems.len();
    let mut lines = text.lines().enumerate();
    let mut properties = 0;
    while let Some((number, line)) = lines.next() {
        let mut line = line.trim_start().to_owned();
        if matches!(line.trim_end(), "#---" | "!---") {
            documents.push(std::mem::replace(&mut root, empty()));
        }
        if line.is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        // A line that ends with a backslash, itself not escaped, continues on the next.
        while let Some(whole) = continued(&line) {
            let next = lines.next().map_or("", |(_, next)| next.trim_start());
            line = format!("{whole}{next}");
        }
        let place = Place {
            line: u32::try_from(number).unwrap_or(u32::MAX).saturating_add(1),
            column: 1,
            width: u32::try_from(line.chars().count())
                .unwrap_or(u32::MAX)
                .max(1),
        };
        let (key, value) = pair(&line);
        if !key.starts_with("spring.") {
            continue;
        }
        properties += 1;
        if properties > MAX_PROPERTIES {
            let message = format!("more than {MAX_PROPERTIES} properties");
            report.add(&Path::Root, Some(place), message);
            return Vec::new();
        }
        let set =
            unescaped(key).and_then(|key| set(&mut root, &steps(&key)?, &unescaped(value)?, place));
        if set.is_none() {
            report.add(
                &Path::Root,
                Some(place),
                "expected a property, like a.b[0].c=value",
            );
        }
    }
    documents.push(root);
    match report.has_only(before) {
        Some(()) => documents,
        None => Vec::new(),
    }
}

/// The line without the backslash at its end, if that escapes the line break.
fn continued(line: &str) -> Option<&str> {
    let backslashes = line.len() - line.trim_end_matches('\\').len();
    line.strip_suffix('\\').filter(|_| backslashes % 2 == 1)
}

/// A key and its value, both escaped. A colon, an equals sign or a blank ends the key.
fn pair(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (matches!(c, '=' | ':') || c.is_whitespace());
        escaped = c == '\\' && !escaped;
        ends
    });
    let (key, value) = line
        .split_at_checked(end.unwrap_or(line.len()))
        .unwrap_or((line, ""));
    let value = value.trim();
    (key, value.strip_prefix(['=', ':']).unwrap_or(value).trim())
}

/// Undoes the escapes of Java's properties; `None`: it is no character.
fn unescaped(text: &str) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, escaped)) = rest.split_once('\\') {
        plain.push_str(before);
        let c = escaped.chars().next()?;
        rest = escaped.strip_prefix(c)?;
        plain.push(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'f' => '\x0c',
            'u' => {
                let (digits, behind) = rest.split_at_checked(4)?;
                rest = behind;
                char::from_u32(u32::from_str_radix(digits, 16).ok()?)?
            }
            other => other,
        });
    }
    plain.push_str(rest);
    Some(plain)
}

enum Step {
    Field(String),
    Item(usize),
}

/// The steps of `a.b[0].c`; a name in brackets is one name, dots included.
fn steps(key: &str) -> Option<Vec<Step>> {
    let mut steps = Vec::new();
    let mut rest = key;
    while !rest.is_empty() {
        if let Some(bracket) = rest.strip_prefix('[') {
            let (inside, after) = bracket.split_once(']')?;
            steps.push(match inside.parse() {
                Ok(index) => Step::Item(index),
                Err(_) => Step::Field(inside.to_owned()),
            });
            rest = after;
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            let (name, after) = rest.split_at_checked(end)?;
            steps.push(Step::Field(
                Some(name).filter(|name| !name.is_empty())?.to_owned(),
            ));
            rest = after;
        }
        if let Some(next) = rest.strip_prefix('.') {
            rest = Some(next).filter(|next| !next.is_empty())?;
        }
    }
    Some(steps).filter(|steps| (1..=MAX_STEPS).contains(&steps.len()))
}

fn set(node: &mut Node, steps: &[Step], value: &str, place: Place) -> Option<()> {
    node.place = node.place.or(Some(place));
    let Some((step, rest)) = steps.split_first() else {
        node.value = Value::Text(value.to_owned());
        return Some(());
    };
    let below = match step {
        Step::Field(name) => {
            let Value::Map(entries) = &mut node.value else {
                return None;
            };
            let at = entries.iter().position(|entry| entry.key == *name);
            let at = at.unwrap_or(entries.len());
            if at == entries.len() {
                entries.push(Entry {
                    key: name.clone(),
                    place: Some(place),
                    value: container(rest, place),
                });
            }
            &mut entries.get_mut(at)?.value
        }
        Step::Item(index) => {
            let Value::List(items) = &mut node.value else {
                return None;
            };
            // Spring, too, demands that no index is skipped.
            if items.len() == *index {
                items.push(container(rest, place));
            }
            items.get_mut(*index)?
        }
    };
    set(below, rest, value, place)
}

fn container(steps: &[Step], place: Place) -> Node {
    let value = match steps.first() {
        None => Value::Null,
        Some(Step::Field(_)) => Value::Map(Vec::new()),
        Some(Step::Item(_)) => Value::List(Vec::new()),
    };
    Node {
        value,
        place: Some(place),
    }
}

// --- Spring's relaxed names: `replenishRate`, `replenish-rate` and `replenish_rate` are the same, and
// `a.b: 1` is `a: {b: 1}`.

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

    /// The items of a list; of what is no list, itself, as Spring has it.
    pub(super) fn items(&self) -> Vec<Self> {
        if !matches!(self.node.value, Value::List(_)) {
            return vec![self.clone()];
        }
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

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn properties_are_a_tree() {
        let text = "\
# a comment
server.port=80
spring.b[0].name = x
spring.b[0].args.redis-rate-limiter.replenishRate=1\\
    0
spring.b[1]: true
spring.c \\u0041\\\\d\\=b\\\\
spring.d=
";
        let mut report = Report::default();
        let [node] = &load(text, &mut report)[..] else {
            panic!("one document")
        };
        assert_eq!(
            node.to_yaml_line(),
            r#"{spring: {b: [{name: x, args: {redis-rate-limiter: {replenishRate: "10"}}}, "true"], c: "A\\d=b\\", d: ""}}"#
        );
        for wrong in [
            "spring.a[0]=1\nspring.a.b=2",
            "spring.=1",
            "spring..b=1",
            "spring.[=x",
            "spring.a[1]=1",
            "spring.a=\\ud800",
            "spring.a=\\u00",
        ] {
            assert_eq!(load(wrong, &mut Report::default()), [], "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_decided(text in "(spring\\.[a-c.\\[\\]0-9=\\\\]{0,20}\n){0,6}|.{0,60}") {
            load(&text, &mut Report::default());
        }
    }
}
