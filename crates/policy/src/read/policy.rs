//! A whole domain.

use documents::{Field, Fields, Name, Node, Path, Report, Take, Value};

use crate::{
    Exemption, Limit, Names, Pause, Policy, Revision,
    exemption::take_exemptions,
    read::{
        limit::read_limit,
        overrides::OVERRIDES_MAX,
        references::{Placed, check_references},
    },
};

/// The version of the record's format. A record of a later one is refused.
pub(crate) const FORMAT: u64 = 1;
/// The most limits of one domain.
const MAX_LIMITS: usize = 10_000;
/// Every field of a policy.
pub(crate) const FIELDS: [&str; 5] = ["domain", "limits", "format", "paused", "exempt"];

/// Reads a policy; `None`, and problems, if anything about it is wrong.
pub(crate) fn read_policy(node: &Node, report: &mut Report) -> Option<Policy> {
    let before = report.problems.len();
    let root = Field {
        node,
        path: Path::Root,
    };
    if let Value::Null = node.value {
        root.report(report, "an empty document")
            .push_hint("a limits file has a `domain` and `limits`");
        return None;
    }
    let mut fields = Fields::of(root, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &Path::Root,
        report,
    };
    let domain = read_domain(take, &root);
    check_format(take);
    let paused = Pause::take(take);
    let exempt = take_exemptions(take);
    let limits = take.field("limits");
    if limits.is_none() && node.get("limits").is_none() {
        root.report(take.report, "`limits` is missing")
            .push_hint("an empty domain has `limits: []`");
    }
    fields.finish(&Path::Root, &FIELDS, report);
    let limits = limits.map(|field| read_limits(field, &exempt, report));
    if report.problems.len() > before {
        return None;
    }
    Some(Policy {
        domain: domain?,
        revision: Revision::default(),
        paused,
        exempt,
        limits: limits?,
    })
}

fn read_domain(take: &mut Take<'_, '_>, root: &Field<'_>) -> Option<Name> {
    if let Some(field) = take.field("domain") {
        return field.domain(take.report);
    }
    if root.node.get("domain").is_none() {
        root.report(take.report, "`domain` is missing")
            .push_hint("the name that proxies ask for, like `domain: shop`");
    }
    None
}

fn check_format(take: &mut Take<'_, '_>) {
    if let Some(field) = take.field("format")
        && let Some(format) = field.integer(1, take.report)
        && format > FORMAT
    {
        let message = format!("format {format} is newer than this version, which reads {FORMAT}");
        field.report(take.report, message);
    }
}

/// Reads the limits of one domain. Those returned are valid on their own; the report shows whether
/// any are missing or conflict.
pub fn read_limits(field: Field<'_>, exempt: &[Exemption], report: &mut Report) -> Vec<Limit> {
    let Value::List(items) = &field.node.value else {
        field.expected("a list of limits", report);
        return Vec::new();
    };
    if items.len() > MAX_LIMITS {
        field.report(report, format!("more than {MAX_LIMITS} limits"));
    }
    let mut limits = Vec::with_capacity(items.len().min(MAX_LIMITS));
    let mut nodes = Vec::with_capacity(items.len().min(MAX_LIMITS));
    let mut names = Names::default();
    for (index, node) in items.iter().take(MAX_LIMITS).enumerate() {
        let item = Field {
            node,
            path: Path::Item(&field.path, index),
        };
        let name = node.get("name").and_then(Node::as_text);
        if let Some(name) = name
            && !names.add(name)
        {
            let place = node.get("name").and_then(|name| name.place);
            let path = Path::Field(&item.path, "name");
            report.add(&path, place, format!("a second limit `{name}`"));
        }
        if let Some(limit) = read_limit(item, report) {
            limits.push(limit);
            nodes.push((index, node));
        }
    }
    let overrides = limits.iter().map(|limit| limit.overrides.len());
    if overrides.sum::<usize>() > OVERRIDES_MAX {
        let message = format!("more than {OVERRIDES_MAX} overrides in a domain");
        field.report(report, message);
    }
    let placed = nodes.into_iter().zip(&limits);
    let placed = placed.map(|((index, node), limit)| Placed {
        index,
        node: Some(node),
        limit,
    });
    let placed: Vec<Placed<'_>> = placed.collect();
    check_references((&placed, exempt), &names, &field.path, report);
    limits
}
