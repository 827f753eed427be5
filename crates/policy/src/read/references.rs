//! References between limits.

use documents::{Name, Node, Path, Place, Report, similar};

use crate::{Exemption, Limit, Names, digest, hash::Positions};

/// A limit and its place in the document.
#[derive(Clone, Copy)]
pub(crate) struct Placed<'n> {
    pub(crate) index: usize,
    /// What it was read from, if that is available.
    pub(crate) node: Option<&'n Node>,
    pub(crate) limit: &'n Limit,
}

/// The most descriptor entries that the limits and exemptions of one domain may name. A proxy
/// extracts them all from every request.
const MAX_KEYS: usize = 128;

/// After this many problems, none gets a "did you mean": finding one compares with every name.
const MAX_HINTS: usize = 100;

/// The most circles that are reported, each with all its members.
const MAX_CIRCLES: usize = 10;

/// Reports repeated names, and `replaces` that lead nowhere or in a circle.
///
/// `names` are those of all limits of the document, also of the ones with problems.
pub(crate) fn check_references(
    (placed, exempt): (&[Placed<'_>], &[Exemption]),
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
                let hinted = report.problems.len() < MAX_HINTS;
                let problem = report.add(&path, place, message);
                if hinted && let Some(meant) = similar(replaced.as_str(), names.list()) {
                    problem.push_hint(format!("did you mean `{meant}`?"));
                }
            }
        }
    }
    report.limit = None;
    for circle in circles(placed) {
        report_circle(&circle, placed, limits, report);
    }
    check_keys(placed, exempt, limits, report);
}

impl Placed<'_> {
    fn place(&self, field: &str) -> Option<Place> {
        let node = self.node?;
        node.get(field).and_then(|node| node.place).or(node.place)
    }
}

fn report_circle(circle: &[usize], placed: &[Placed<'_>], limits: &Path<'_>, report: &mut Report) {
    let first = circle.first().and_then(|at| placed.get(*at));
    let Some(first) = first else { return };
    let mut way = String::new();
    for member in circle.iter().filter_map(|at| placed.get(*at)) {
        way.push_str(member.limit.name.as_str());
        way.push_str(" → ");
    }
    way.push_str(first.limit.name.as_str());
    let limit = Path::Item(limits, first.index);
    let path = Path::Field(&limit, "replaces");
    report.limit = Some(first.limit.name.to_string());
    report
        .add(&path, first.place("replaces"), format!("a circle: {way}"))
        .push_hint("each of them would suppress the others");
    report.limit = None;
}

/// A limit as the search for circles sees it.
#[derive(Clone, Copy, PartialEq)]
enum Visit {
    Not,
    /// It is on the current path.
    Under,
    Done,
}

/// The circles of `replaces`, found by one depth-first walk over all limits.
fn circles(placed: &[Placed<'_>]) -> Vec<Vec<usize>> {
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
    let mut circles = Vec::new();
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
                    circles.push(from.map(|(at, _)| *at).collect());
                    if circles.len() == MAX_CIRCLES {
                        return circles;
                    }
                }
            }
        }
    }
    circles
}

fn check_keys(placed: &[Placed<'_>], exempt: &[Exemption], limits: &Path<'_>, report: &mut Report) {
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
        if keys.len() > MAX_KEYS {
            let path = Path::Item(limits, placed.index);
            let message = format!(
                "the domain's limits and exemptions name more than {MAX_KEYS} different entries"
            );
            report
                .add(&path, placed.place("match"), message)
                .push_hint("a proxy extracts every one of them from every request");
            return;
        }
    }
}
