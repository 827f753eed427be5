//! Assembles limits into limits files, and validates them.

use documents::{Name, Node, Place, Problem};
use policy::Policy;

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
    match Policy::from_node(&document) {
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
