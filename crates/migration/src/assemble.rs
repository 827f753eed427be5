//! Assembles limits into limits files, and validates them.

use std::collections::{HashMap, HashSet};

use documents::{Name, Node, Place, Problem};
use patterns::Pattern;

use crate::{
    Conversion, Domain,
    report::{Reading, finish_all},
};

/// A limit and its source.
pub(crate) struct Draft {
    /// The limit as a limits file has it.
    pub(crate) node: Node,
    /// The index of its file.
    pub(crate) file: usize,
    /// Where in the file.
    pub(crate) place: Option<Place>,
}

/// The limits of one domain.
pub(crate) struct DomainDraft {
    pub(crate) name: String,
    pub(crate) limits: Vec<Draft>,
}

/// The limits files of all domains. Problems of a limit are reported at its source.
pub(crate) fn assemble(
    drafts: Vec<DomainDraft>,
    mut readings: Vec<Reading>,
) -> Result<Conversion, Vec<documents::Problems>> {
    let mut domains = Vec::with_capacity(drafts.len());
    for draft in drafts {
        domains.extend(domain(draft, &mut readings));
    }
    let reports = finish_all(readings)?;
    Ok(Conversion { domains, reports })
}

fn domain(draft: DomainDraft, readings: &mut [Reading]) -> Option<Domain> {
    let origins: Vec<_> = { draft.limits.iter() }
        .map(|limit| (limit.file, limit.place))
        .collect();
    let limits = draft.limits.into_iter().map(|limit| limit.node);
    let document = Node::map([
        ("domain", Node::text(draft.name)),
        ("limits", Node::list(limits)),
    ]);
    match limits_file::policy_from_node(&document) {
        Ok(policy) => Some(Domain { document, policy }),
        Err(problems) => {
            for problem in problems.iter() {
                let at = limit_number(&problem.path).and_then(|at| origins.get(at).copied());
                let (file, place) = at.or(origins.first().copied()).unwrap_or((0, None));
                if let Some(reading) = readings.get_mut(file) {
                    reading.errors.problems.push(Problem {
                        path: String::new(),
                        place,
                        ..problem.clone()
                    });
                }
            }
            None
        }
    }
}

/// The N of `limits[N].rate`.
fn limit_number(path: &str) -> Option<usize> {
    let (number, _) = path.strip_prefix("limits[")?.split_once(']')?;
    number.parse().ok()
}

/// Fields of a limit in the order of the manual.
#[derive(Default)]
pub(crate) struct Fields(Vec<(&'static str, Node)>);

impl Fields {
    pub(crate) fn set(&mut self, name: &'static str, node: Node) {
        self.0.push((name, node));
    }

    pub(crate) fn text(&mut self, name: &'static str, text: impl Into<String>) {
        self.set(name, Node::text(text));
    }

    pub(crate) fn names(&mut self, name: &'static str, names: &[Name]) {
        if !names.is_empty() {
            self.set(
                name,
                Node::list(names.iter().map(|n| Node::text(n.as_str()))),
            );
        }
    }

    /// One line, cut to the length that a limits file allows.
    pub(crate) fn description(&mut self, text: &str) {
        const MAX: usize = 1000;
        let line: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .take(MAX)
            .collect();
        if !line.trim().is_empty() {
            self.text("description", line);
        }
    }

    pub(crate) fn finish(self) -> Node {
        Node::map(self.0)
    }
}

// --- Makes names and patterns from arbitrary texts.

/// The hexadecimal digits that distinguish texts whose names would otherwise be equal.
const MARK: usize = 8;

/// A name for a text: the text itself if it is a valid name, else its valid part and a hash of the
/// whole, so that the name of one text does not depend on other texts.
pub(crate) fn name_of(text: &str) -> String {
    if text.parse::<Name>().is_ok() {
        return text.to_owned();
    }
    let mut shown = String::with_capacity(Name::MAX_LEN);
    for c in text.chars() {
        let c = c.to_ascii_lowercase();
        let fits = c.is_ascii_alphanumeric() || matches!(c, '.' | '_');
        let c = if fits { c } else { '-' };
        let leading = shown.is_empty() && !c.is_ascii_alphanumeric();
        let repeated = c == '-' && shown.ends_with('-');
        if !(leading || repeated) {
            shown.push(c);
        }
    }
    shown.truncate(Name::MAX_LEN - MARK - 1);
    let shown = shown.trim_end_matches(['-', '.', '_']);
    let mark = policy::digest(text.as_bytes()) & 0xffff_ffff;
    if shown.is_empty() {
        format!("limit-{mark:08x}")
    } else {
        format!("{shown}-{mark:08x}")
    }
}

/// Hands out each name once.
#[derive(Default)]
pub(crate) struct Unique {
    given: HashSet<String>,
    /// How often each text was named.
    texts: HashMap<String, u32>,
}

impl Unique {
    /// The name of a text; a repeated text gets a number as well.
    pub(crate) fn name(&mut self, text: &str) -> String {
        let times = self.texts.entry(text.to_owned()).or_insert(0);
        loop {
            *times = times.saturating_add(1);
            let name = match *times {
                1 => name_of(text),
                nth => name_of(&format!("{text}.{nth}")),
            };
            if self.given.insert(name.clone()) {
                return name;
            }
        }
    }
}

/// The pattern that matches exactly this text.
pub(crate) fn literal(text: &str) -> String {
    let plain = Pattern::parse(text);
    if plain.is_ok_and(|pattern| pattern.exact() == Some(text.as_bytes()) && !pattern.any_case()) {
        text.to_owned()
    } else {
        format!("exact:{text}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_show_what_they_can() {
        assert_eq!(name_of("message_type_marketing"), "message_type_marketing");
        insta::assert_snapshot!(name_of("httproute/default/Backend"), @"httproute-default-backend-69c5f1c2");
        assert!(name_of("ü").starts_with("limit-"));
        assert_ne!(name_of("Foo"), name_of("FOO"));
        let mut unique = Unique::default();
        assert_eq!(unique.name("a"), "a");
        assert_eq!(unique.name("a"), "a.2");
    }

    proptest! {
        #[test]
        fn any_text_has_a_name(text in ".{0,100}") {
            let name = name_of(&text);
            prop_assert!(name.parse::<Name>().is_ok(), "{}", name);
        }
    }
}
