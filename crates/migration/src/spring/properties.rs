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
        // A line that ends with a backslash continues on the next.
        while let Some(whole) = line.strip_suffix('\\') {
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
        let (key, value) = line.split_once(['=', ':']).unwrap_or((&line, ""));
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
            steps(key.trim_end()).and_then(|steps| set(&mut root, &steps, value.trim(), place));
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
        node.value = scalar(value);
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

fn scalar(value: &str) -> Value {
    match value {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ => Value::Text(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use documents::Form;

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
";
        let mut report = Report::new(Form::File);
        let [node] = &load(text, &mut report)[..] else {
            panic!("one document")
        };
        assert_eq!(
            node.to_yaml_line(),
            r#"{spring: {b: [{name: x, args: {redis-rate-limiter: {replenishRate: "10"}}}, true]}}"#
        );
        for wrong in [
            "spring.a[0]=1\nspring.a.b=2",
            "spring.=1",
            "spring..b=1",
            "spring.[=x",
            "spring.a[1]=1",
        ] {
            assert_eq!(load(wrong, &mut Report::new(Form::File)), [], "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_decided(text in "(spring\\.[a-c.\\[\\]0-9=\\\\]{0,20}\n){0,6}|.{0,60}") {
            load(&text, &mut Report::new(Form::File));
        }
    }
}
