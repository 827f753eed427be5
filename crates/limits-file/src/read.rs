//! Reads a document into a policy. The walk goes on after a problem, so that it finds all of them
//! at once.

mod limit;
mod numbers;
mod pricing;

use documents::{Field, Node, Path, Place, Problems, Report, Take, Value, similar};
use policy::{
    Exemption, Limit, Name, Names, OVERRIDES_MAX, Pause, Policy, Positions, Revision, digest,
    parse_timestamp,
};

use crate::{
    warnings::{Surroundings, warnings_in},
    yaml,
};
pub use limit::{MATCHERS_MAX, PATTERNS_MAX};
use limit::{read_limit, read_matchers};
pub(crate) use numbers::DEFAULT_SLOT_TTL_MS;
pub use numbers::override_from_node;

/// Bound: limits of a domain. Beyond it, refused when it is written.
pub const LIMITS_MAX: usize = 10_000;
/// Bound: bytes of one limit as it is stored, without its overrides. Beyond it, refused when it is
/// written.
pub const LIMIT_BYTES_MAX: usize = 1 << 20;
/// Bound: bytes of a domain's limits as they are stored, without their overrides. Beyond it, refused when
/// they are written.
///
/// 10,000 limits of 4 KiB each.
pub const DOCUMENT_MAX: usize = 40 << 20;
/// Bound: bytes of a limits file. Beyond it, it is not read.
///
/// 100,000 overrides take about a tenth of it.
pub const FILE_MAX: u64 = 256 << 20;
/// Every field of a policy.
const FIELDS: [&str; 4] = ["domain", "limits", "paused", "exempt"];

/// Reads a limits file, YAML or JSON. `file` is what messages call it.
///
/// # Errors
/// Everything that is wrong with it, with its place.
pub fn read(file: &str, text: &[u8]) -> Result<Policy, Problems> {
    yaml::from_text(file, text, |text| {
        let mut report = Report::default();
        let node = yaml::load(text, &mut report);
        let policy = node.and_then(|node| read_policy(&node, &mut report));
        report.finish(policy)
    })
}

/// As [`read`], with warnings about what is valid and probably not meant. `around` receives the
/// policy, because what its proxies supply depends on its domain.
///
/// # Errors
/// Everything that is wrong with it, with its place.
pub fn read_with_warnings<'a>(
    file: &str,
    text: &[u8],
    around: impl FnOnce(&Policy) -> Surroundings<'a>,
) -> Result<(Policy, Option<Problems>), Problems> {
    yaml::from_text(file, text, |text| {
        let mut report = Report::default();
        let node = yaml::load(text, &mut report);
        let policy = { node.as_ref() }.and_then(|node| read_policy(node, &mut report));
        let policy = report.finish(policy)?;
        let around = around(&policy);
        let warnings = node.and_then(|node| warnings_in(&policy, &node, &around));
        let warnings = warnings.map(|warnings| warnings.in_file(file, text));
        Ok((policy, warnings))
    })
}

/// Reads a document.
///
/// # Errors
/// Everything that is wrong with it.
pub fn policy_from_node(node: &Node) -> Result<Policy, Problems> {
    let mut report = Report::default();
    let policy = read_policy(node, &mut report);
    report.finish(policy)
}

/// Reads one limit on its own. What it `replaces` is not looked up.
///
/// # Errors
/// Everything that is wrong with it.
pub fn limit_from_node(node: &Node) -> Result<Limit, Problems> {
    let mut report = Report::default();
    let root = Field::root(node);
    let limit = read_limit(root, &mut report);
    report.finish(limit)
}

/// Reads a policy; `None`, and problems, if anything about it is wrong.
fn read_policy(node: &Node, report: &mut Report) -> Option<Policy> {
    let before = report.problems.len();
    let root = Field::root(node);
    if let Value::Null = node.value {
        let place = node.place.or(Some(Place::START));
        report
            .add(&Path::Root, place, "an empty document")
            .push_hint("a limits file has a `domain` and `limits`");
        return None;
    }
    let take = &mut Take::new(&root, report)?;
    let domain = read_domain(take, &root);
    let paused = take_pause(take);
    let exempt = take_exemptions(take);
    let limits = take.field("limits");
    if limits.is_none() && node.get("limits").is_none() {
        root.report(take.report, "`limits` is missing")
            .push_hint("an empty domain has `limits: []`");
    }
    take.finish(&FIELDS);
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

/// Reads the limits of one domain. Those returned are valid on their own; the report shows whether
/// any are missing or conflict.
fn read_limits(field: Field<'_>, exempt: &[Exemption], report: &mut Report) -> Vec<Limit> {
    let Value::List(items) = &field.node.value else {
        field.expected("a list of limits", report);
        return Vec::new();
    };
    if items.len() > LIMITS_MAX {
        field.report(report, format!("more than {LIMITS_MAX} limits"));
    }
    let mut limits = Vec::with_capacity(items.len().min(LIMITS_MAX));
    let mut nodes = Vec::with_capacity(items.len().min(LIMITS_MAX));
    let mut names = Names::default();
    for (index, node) in items.iter().take(LIMITS_MAX).enumerate() {
        let item = field.item(index, node);
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
    let placed = placed.map(|((index, node), limit)| IndexedLimit {
        index,
        node: Some(node),
        limit,
    });
    let placed: Vec<IndexedLimit<'_>> = placed.collect();
    check_references((&placed, exempt), &names, &field.path, report);
    limits
}

/// A limit and its place in the document.
#[derive(Clone, Copy)]
pub(crate) struct IndexedLimit<'n> {
    pub(crate) index: usize,
    /// What it was read from, if that is available.
    pub(crate) node: Option<&'n Node>,
    pub(crate) limit: &'n Limit,
}

/// Bound: descriptor entries that a domain's limits use. Beyond it, refused when it is written.
///
/// A proxy extracts them all from every request.
pub const ENTRIES_MAX: usize = 128;

/// The most cycles that are reported, each with all its members.
const MAX_CYCLES: usize = 10;

/// Reports repeated names, and `replaces` that lead nowhere or in a cycle.
///
/// `names` are those of all limits of the document, also of the ones with problems.
pub(crate) fn check_references(
    (placed, exempt): (&[IndexedLimit<'_>], &[Exemption]),
    names: &Names<'_>,
    limits: &Path<'_>,
    report: &mut Report,
) {
    for placed in placed {
        report.limit = Some(placed.limit.name.to_string());
        let limit = Path::Item(limits, placed.index);
        let path = Path::Field(&limit, "replaces");
        let place = placed.place("replaces");
        for replaced in &placed.limit.replaces {
            if names.position(replaced.as_str()).is_none() {
                let message = format!("there is no limit `{replaced}`");
                let hinted = report.gives_hints();
                let problem = report.add(&path, place, message);
                if hinted && let Some(meant) = similar(replaced.as_str(), names.list()) {
                    problem.push_hint(format!("did you mean `{meant}`?"));
                }
            }
        }
    }
    report.limit = None;
    for cycle in cycles(placed) {
        report_cycle(&cycle, placed, limits, report);
    }
    check_keys(placed, exempt, limits, report);
}

impl IndexedLimit<'_> {
    fn place(&self, field: &str) -> Option<Place> {
        let node = self.node?;
        node.get(field).and_then(|node| node.place).or(node.place)
    }
}

fn report_cycle(
    cycle: &[usize],
    placed: &[IndexedLimit<'_>],
    limits: &Path<'_>,
    report: &mut Report,
) {
    let first = cycle.first().and_then(|at| placed.get(*at));
    let Some(first) = first else { return };
    let mut names = String::new();
    for member in cycle.iter().filter_map(|at| placed.get(*at)) {
        names.push_str(member.limit.name.as_str());
        names.push_str(" → ");
    }
    names.push_str(first.limit.name.as_str());
    let limit = Path::Item(limits, first.index);
    let path = Path::Field(&limit, "replaces");
    report.limit = Some(first.limit.name.to_string());
    report
        .add(&path, first.place("replaces"), format!("a cycle: {names}"))
        .push_hint("each of them would suppress the others");
    report.limit = None;
}

/// A limit as the search for cycles sees it.
#[derive(Clone, Copy, PartialEq)]
enum Visit {
    Not,
    /// It is on the current path.
    Under,
    Done,
}

/// The cycles of `replaces`, found by one depth-first walk over all limits.
fn cycles(placed: &[IndexedLimit<'_>]) -> Vec<Vec<usize>> {
    let mut index = Positions::default();
    for (at, placed) in placed.iter().enumerate() {
        index.add(digest(placed.limit.name.as_str().as_bytes()), at);
    }
    let next_of = |at: usize, nth: usize| {
        let replaced = placed.get(at)?.limit.replaces.get(nth)?;
        let mut named = index.of(digest(replaced.as_str().as_bytes()));
        Some(named.find(|at| placed.get(*at).is_some_and(|p| p.limit.name == *replaced)))
    };
    let mut visits = vec![Visit::Not; placed.len()];
    let mut mark = |at: usize, visit: Option<Visit>| -> Visit {
        let Some(slot) = visits.get_mut(at) else {
            return Visit::Done;
        };
        *slot = visit.unwrap_or(*slot);
        *slot
    };
    let mut cycles = Vec::new();
    for start in 0..placed.len() {
        if mark(start, None) != Visit::Not {
            continue;
        }
        mark(start, Some(Visit::Under));
        // The path from `start`, and the next of each limit's `replaces` to follow.
        let mut way = vec![(start, 0)];
        while let Some((at, nth)) = way.last_mut() {
            let Some(next) = next_of(*at, *nth) else {
                mark(*at, Some(Visit::Done));
                way.pop();
                continue;
            };
            *nth += 1;
            let Some(next) = next else { continue };
            match mark(next, None) {
                Visit::Done => {}
                Visit::Not => {
                    mark(next, Some(Visit::Under));
                    way.push((next, 0));
                }
                Visit::Under => {
                    let from = way.iter().skip_while(|(at, _)| *at != next);
                    cycles.push(from.map(|(at, _)| *at).collect());
                    if cycles.len() == MAX_CYCLES {
                        return cycles;
                    }
                }
            }
        }
    }
    cycles
}

fn check_keys(
    placed: &[IndexedLimit<'_>],
    exempt: &[Exemption],
    limits: &Path<'_>,
    report: &mut Report,
) {
    let mut keys: Vec<&Name> = Vec::new();
    for matcher in exempt.iter().flat_map(|exemption| &exemption.matchers) {
        if !keys.contains(&&matcher.entry) {
            keys.push(&matcher.entry);
        }
    }
    for placed in placed {
        for key in placed.limit.keys() {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if keys.len() > ENTRIES_MAX {
            let path = Path::Item(limits, placed.index);
            let message = format!(
                "the domain's limits and exemptions name more than {ENTRIES_MAX} different entries"
            );
            report
                .add(&path, placed.place("match"), message)
                .push_hint("a proxy extracts every one of them from every request");
            return;
        }
    }
}

// ---- exemptions and pauses ----

/// Bound: exemptions of a domain. Beyond it, refused when it is written.
///
/// Each has a counter in every proxy and limiter.
pub(crate) const MAX_EXEMPTIONS: usize = 1000;
/// Every field of an exemption.
const EXEMPTION_FIELDS: [&str; 2] = ["name", "match"];

/// Reads one exemption that stands in no list.
///
/// # Errors
/// Everything that is wrong with it.
pub fn exemption_from_node(node: &Node) -> Result<Exemption, Problems> {
    let mut report = Report::default();
    let field = Field::root(node);
    let exemption = read_exemption(field, &mut report);
    report.finish(exemption)
}

/// Takes `exempt`, a list that may be absent.
fn take_exemptions(take: &mut Take<'_, '_>) -> Vec<Exemption> {
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
    let mut take = Take::new(&field, report)?;
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
    take.finish(&EXEMPTION_FIELDS);
    (report.problems.len() == before).then_some(())?;
    Some(Exemption {
        name: name?,
        matchers,
    })
}

/// Every field of a pause with an end.
const PAUSE_FIELDS: [&str; 1] = ["until"];

/// Reads the value of `paused` of a document that is already validated.
pub fn pause_from_node(node: &Node) -> Option<Pause> {
    match &node.value {
        Value::Bool(true) => Some(Pause { until_ms: None }),
        Value::Bool(false) => Some(Pause::OVER),
        _ => Some(Pause {
            until_ms: Some(parse_timestamp(node.get("until")?.as_text()?)?),
        }),
    }
}

/// Takes `paused`: `true`, `false`, or a map with `until`.
fn take_pause(take: &mut Take<'_, '_>) -> Option<Pause> {
    let field = take.field("paused")?;
    match field.node.value {
        Value::Bool(true) => Some(Pause { until_ms: None }),
        Value::Bool(false) => Some(Pause::OVER),
        Value::Map(_) => read_until(&field, take.report),
        _ => {
            field
                .expected("true, false or a map with `until`", take.report)
                .push_hint("a pause that ends by itself: {until: 2026-12-01T00:00Z}");
            None
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
mod schema_tests;
