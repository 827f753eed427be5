//! What takes limits out of force: exemptions, requests that no limit applies to, and pauses.

use documents::{
    Field, Fields, Form, Name, Node, Path, Problems, Report, Take, Value, format_timestamp,
    parse_timestamp,
};

use crate::{Matcher, Names, read::read_matchers, write::matchers_node};

/// Bound: exemptions of a domain. Beyond it, refused when it is written.
///
/// Each has a counter in every proxy and limiter.
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
    let mut fields = Fields::new(field, report)?;
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

/// The kill switch of a limit or of a whole domain: until it ends, the limit counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pause {
    /// When it ends on its own, in milliseconds since the epoch; `None`: never.
    pub until_ms: Option<u64>,
}

/// Every field of a pause with an end.
const PAUSE_FIELDS: [&str; 1] = ["until"];

impl Pause {
    /// The meaning of `paused: false`: not paused, or no longer.
    pub const OVER: Self = Self { until_ms: Some(0) };

    /// Whether it holds at a time in milliseconds since the epoch.
    pub fn holds(self, now_ms: u64) -> bool {
        self.until_ms.is_none_or(|until_ms| now_ms < until_ms)
    }

    /// The one that ends later, of a limit's pause and its domain's: both have started already.
    pub fn later(one: Option<Self>, other: Option<Self>) -> Option<Self> {
        match (one, other) {
            (Some(a), Some(b)) => Some(Self {
                until_ms: a.until_ms.zip(b.until_ms).map(|(a, b)| a.max(b)),
            }),
            (one, other) => one.or(other),
        }
    }

    /// The value of `paused`.
    pub fn to_node(self) -> Node {
        match self.until_ms {
            None => true.into(),
            Some(0) => false.into(),
            Some(ms) => Node::map([("until", Node::text(format_timestamp(ms)))]),
        }
    }

    /// Reads the value of `paused` of a document that is already validated.
    pub fn from_node(node: &Node) -> Option<Self> {
        match &node.value {
            Value::Bool(true) => Some(Self { until_ms: None }),
            Value::Bool(false) => Some(Self::OVER),
            _ => Some(Self {
                until_ms: Some(parse_timestamp(node.get("until")?.as_text()?)?),
            }),
        }
    }

    /// Takes `paused`: `true`, `false`, or a map with `until`.
    pub(crate) fn take(take: &mut Take<'_, '_>) -> Option<Self> {
        let field = take.field("paused")?;
        match field.node.value {
            Value::Bool(true) => Some(Self { until_ms: None }),
            Value::Bool(false) => Some(Self::OVER),
            Value::Map(_) => read_until(&field, take.report),
            _ => {
                field
                    .expected("true, false or a map with `until`", take.report)
                    .push_hint("a pause that ends by itself: {until: 2026-12-01T00:00Z}");
                None
            }
        }
    }
}

fn read_until(pause: &Field<'_>, report: &mut Report) -> Option<Pause> {
    let mut until_ms = None;
    pause.read_map(&PAUSE_FIELDS, report, &mut |take| {
        if let Some(field) = take.field("until") {
            until_ms = field.time(take.report);
        } else if pause.node.get("until").is_none() {
            pause
                .report(take.report, "a pause needs `until`")
                .push_hint("or write `paused: true` for one without an end");
        }
    })?;
    Some(Pause {
        until_ms: Some(until_ms?),
    })
}

#[cfg(test)]
mod tests;
