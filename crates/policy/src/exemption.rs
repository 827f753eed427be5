//! Requests that no limit applies to.

use documents::{Field, Fields, Form, Name, Node, Path, Problems, Report, Take, Value};

use crate::{Matcher, Names, read::read_matchers, write::matchers_node};

/// The most exemptions of one domain. Each has a counter in every proxy and limiter.
const MAX_EXEMPTIONS: usize = 1000;
/// Every field of an exemption.
pub(crate) const FIELDS: [&str; 2] = ["name", "match"];

/// Requests that none of a domain's limits applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exemption {
    /// Unique among the domain's exemptions.
    pub name: Name,
    /// All of them have to hold for certain ([`Matcher::holds_surely`]); there is at least one.
    pub matchers: Vec<Matcher>,
}

impl Exemption {
    /// The exemption as its author would write it.
    pub fn to_node(&self) -> Node {
        Node::map([
            ("name", Node::text(self.name.as_str())),
            ("match", matchers_node(&self.matchers)),
        ])
    }

    /// Exemptions as a domain lists them.
    pub fn list_node(exemptions: &[Self]) -> Node {
        Node::list(exemptions.iter().map(Self::to_node))
    }

    /// Reads one exemption that stands in no list.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_node(node: &Node) -> Result<Self, Problems> {
        let mut report = Report::new(Form::Record);
        let field = Field {
            node,
            path: Path::Root,
        };
        let exemption = read_exemption(field, &mut report);
        report.finish(exemption)
    }
}

/// Takes `exempt`, a list that may be absent.
pub(crate) fn take_exemptions(take: &mut Take<'_, '_>) -> Vec<Exemption> {
    let Some(field) = take.field("exempt") else {
        return Vec::new();
    };
    let report = &mut *take.report;
    let Value::List(items) = &field.node.value else {
        field.expected("a list of exemptions", report);
        return Vec::new();
    };
    if items.len() > MAX_EXEMPTIONS {
        field.report(report, format!("more than {MAX_EXEMPTIONS} exemptions"));
    }
    let mut exemptions: Vec<Exemption> = Vec::new();
    let mut names = Names::default();
    for (index, node) in items.iter().take(MAX_EXEMPTIONS).enumerate() {
        let path = Path::Item(&field.path, index);
        let name = node.get("name").and_then(Node::as_text);
        if let Some(name) = name
            && !names.add(name)
        {
            let place = node.get("name").and_then(|name| name.place);
            let message = format!("a second exemption `{name}`");
            report.add(&Path::Field(&path, "name"), place, message);
        }
        exemptions.extend(read_exemption(Field { node, path }, report));
    }
    exemptions
}

fn read_exemption(field: Field<'_>, report: &mut Report) -> Option<Exemption> {
    let before = report.problems.len();
    let path = field.path;
    let mut fields = Fields::of(field, report)?;
    let mut take = Take {
        fields: &mut fields,
        path: &path,
        report,
    };
    let name = if let Some(name) = take.field("name") {
        name.name("a name", take.report)
    } else {
        // An empty `name:` has been reported already.
        if field.node.get("name").is_none() {
            field.report(take.report, "an exemption needs a `name`");
        }
        None
    };
    let matchers = read_matchers(&mut take);
    if matchers.is_empty() && take.report.problems.len() == before {
        field
            .report(take.report, "an exemption needs a `match`")
            .push_hint("`rlctl pause` takes all limits out of force");
    }
    fields.finish(&path, &FIELDS, report);
    (report.problems.len() == before).then_some(())?;
    Some(Exemption {
        name: name?,
        matchers,
    })
}

#[cfg(test)]
mod tests;
