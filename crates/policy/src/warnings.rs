//! What a limit says and probably does not mean: it is valid, and yet it matches nothing, denies
//! everything, has ended, or costs much.
//!
//! A warning is a [`Problem`]: where it is, what comes of it, and what was probably meant.

mod pattern;

use std::collections::BTreeMap;

use documents::{
    Name, Node, Place, Problem, Problems, Value, format_timestamp, name_hint, similar,
};

use crate::{Limit, Matcher, OverrideQuota, Policy, Quota};

/// The entries that every proxy supplies, whatever its configuration.
pub const BUILT_IN: [&str; 7] = [
    "method",
    "path",
    "host",
    "route",
    "remote_address",
    "workload",
    "namespace",
];

/// What is known beside the limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// The time, in milliseconds since the epoch; `None`: what has ended is not looked for.
    pub now_ms: Option<u64>,
    /// What the proxies supply.
    pub supply: Option<Supply<'a>>,
    /// What a limit costs that its author may not know, as the store has it; `None`: not looked for.
    pub dear: Option<fn(&Limit) -> Option<Dear>>,
}

/// Why a limit is dear.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dear {
    /// The field that makes it so.
    pub field: &'static str,
    /// What it costs.
    pub message: String,
    /// What costs less.
    pub hint: &'static str,
}

/// What the proxies supply.
#[derive(Clone, Copy, Debug)]
pub struct Supply<'a> {
    /// Every entry, the built-in ones included.
    pub entries: &'a [Name],
    /// The domains that proxies request; empty: unknown.
    pub domains: &'a [Name],
    /// To how many bits an IPv4 and an IPv6 address are cut; `None`: not known.
    pub prefixes: Option<[u8; 2]>,
    /// The file that says so, for messages: `envoy.yaml`; `None`: the live proxies report it.
    pub source: Option<&'a str>,
}

impl Policy {
    /// What is probably not meant, in the order of the limits.
    pub fn warnings(&self, around: &Surroundings<'_>) -> Vec<Problem> {
        let mut found = Found::default();
        found.list.extend(other_domain(&self.domain, around));
        found.list.extend(no_name(self));
        let mut descriptors = BTreeMap::new();
        for (index, limit) in self.limits.iter().enumerate() {
            found.limit = Some((index, limit));
            of_limit(limit, around, &mut found);
            if let Some(rule) = &limit.descriptor {
                let first = descriptors
                    .entry(rule.pattern.to_items())
                    .or_insert(&limit.name);
                if *first != &limit.name {
                    let message = format!("`{first}` has the same, so this limit never applies");
                    found.warn("descriptor", message, None);
                }
            }
        }
        found.list
    }

    /// As [`Policy::warnings`], each with its place in the document that the limits were read from.
    pub fn warnings_in(&self, node: &Node, around: &Surroundings<'_>) -> Option<Problems> {
        let mut found = self.warnings(around);
        for problem in &mut found {
            problem.place = place_of(node, &problem.path);
        }
        Problems::warnings(found)
    }
}

/// No filter can request these limits, and none is for the rate limit service.
fn no_name(policy: &Policy) -> Option<Problem> {
    let error = policy.domain.as_str().parse::<Name>().err()?;
    if policy.limits.iter().any(|limit| limit.descriptor.is_some()) {
        return None;
    }
    let message = "only Envoy's rate limit service can use a domain of this name";
    let mut problem = Problem::new("domain", None, message);
    problem.push_hint(name_hint(policy.domain.as_str(), &error));
    Some(problem)
}

/// No proxy requests these limits.
fn other_domain(domain: &Name, around: &Surroundings<'_>) -> Option<Problem> {
    let supply = around.supply?;
    if supply.domains.is_empty() || supply.domains.contains(domain) {
        return None;
    }
    let asked: Vec<&str> = supply.domains.iter().map(Name::as_str).collect();
    let message = format!("{} does not ask for domain `{domain}`", supply.source?);
    let mut problem = Problem::new("domain", None, message);
    problem.push_hint(match similar(domain.as_str(), &asked) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("it asks for {}", asked.join(", ")),
    });
    Some(problem)
}

/// The warnings so far, and the limit that is looked at.
#[derive(Default)]
struct Found<'p> {
    limit: Option<(usize, &'p Limit)>,
    list: Vec<Problem>,
}

impl Found<'_> {
    /// A warning about a field of the limit, such as `match.path[0]`.
    fn warn(&mut self, field: &str, message: impl Into<String>, hint: Option<String>) {
        let Some((index, limit)) = self.limit else {
            return;
        };
        let mut problem = Problem::new(format!("limits[{index}].{field}"), None, message);
        problem.limit = Some(limit.name.to_string());
        problem.hint = hint;
        self.list.push(problem);
    }
}

fn of_limit(limit: &Limit, around: &Surroundings<'_>, found: &mut Found<'_>) {
    for matcher in &limit.matchers {
        of_matcher(matcher, around, found);
    }
    let service = limit.descriptor.is_some();
    for (n, key) in limit.per.iter().enumerate().filter(|_| !service) {
        if let Some((what, hint)) = unsupplied(key, around) {
            let message = format!("{what}, so every request counts as one without it");
            found.warn(&format!("per[{n}]"), message, hint);
        }
    }
    of_cost(limit, found);
    if let Some(dear) = around.dear.and_then(|dear| dear(limit)) {
        found.warn(dear.field, dear.message, Some(dear.hint.to_owned()));
    }
    if let Some(now_ms) = around.now_ms {
        of_ends(limit, now_ms, found);
    }
}

fn of_matcher(matcher: &Matcher, around: &Surroundings<'_>, found: &mut Found<'_>) {
    let key = &matcher.key;
    if let Some((what, hint)) = unsupplied(key, around) {
        let positive = matcher.patterns.iter().any(|p| !p.is_negated());
        let effect = if positive {
            "so the limit matches no request"
        } else {
            "so this excludes no request"
        };
        found.warn(&format!("match.{key}"), format!("{what}, {effect}"), hint);
        return;
    }
    let prefixes = around.supply.and_then(|supply| supply.prefixes);
    for (n, pattern) in matcher.patterns.iter().enumerate() {
        let Some(never) = pattern::never(key.as_str(), pattern, prefixes) else {
            continue;
        };
        let effect = if pattern.is_negated() {
            "excludes no request"
        } else {
            "matches no request"
        };
        let message = format!("`{pattern}` {effect}: {}", never.why);
        found.warn(&format!("match.{key}[{n}]"), message, never.meant);
    }
}

/// Why no request has an entry, and which one was probably meant.
fn unsupplied(key: &Name, around: &Surroundings<'_>) -> Option<(String, Option<String>)> {
    let meant = |known: &[&str]| {
        similar(key.as_str(), known).map(|meant| format!("did you mean `{meant}`?"))
    };
    let Some(supply) = around.supply else {
        // Nobody says what there is; but a letter less or more than a built-in entry is a typo.
        let typo = |known: &&&str| key.as_str().len() > 4 && is_typo(key.as_str(), known);
        let known = BUILT_IN.iter().find(typo)?;
        let what = format!("`{key}` is not the built-in entry `{known}`");
        return Some((what, Some(format!("did you mean `{known}`?"))));
    };
    if supply.entries.contains(key) {
        return None;
    }
    let known: Vec<&str> = supply.entries.iter().map(Name::as_str).collect();
    let hint = meant(&known).or_else(|| {
        let own = known.iter().filter(|name| !BUILT_IN.contains(name));
        let own: Vec<&str> = own.copied().collect();
        Some(match own.as_slice() {
            [] => "only the built-in entries are supplied; `descriptors` of the filter's \
                   configuration adds others"
                .to_owned(),
            own => format!("beside the built-in entries there are: {}", own.join(", ")),
        })
    });
    let what = match supply.source {
        Some(file) => format!("{file} supplies no `{key}`"),
        None => format!("no live proxy supplies `{key}`"),
    };
    Some((what, hint))
}

/// One letter too many, too few, wrong or exchanged with its neighbour.
fn is_typo(typed: &str, known: &str) -> bool {
    let (a, b) = (typed.as_bytes(), known.as_bytes());
    let head = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let (a, b) = (a.get(head..), b.get(head..));
    let (Some(a), Some(b)) = (a, b) else {
        return false;
    };
    match (a, b) {
        ([_, rest @ ..], other) if rest == other => true,
        (other, [_, rest @ ..]) if rest == other => true,
        ([_, one @ ..], [_, other @ ..]) if one == other => true,
        ([first, second, one @ ..], [third, fourth, other @ ..]) => {
            first == fourth && second == third && one == other
        }
        _ => false,
    }
}

/// A request that costs more than a bucket ever holds never passes. A quota of nothing is meant
/// to deny everything.
fn of_cost(limit: &Limit, found: &mut Found<'_>) {
    let most = |quota: &Quota| quota.algorithm().limit();
    let too_dear = |quota: &Quota| most(quota) > 0 && limit.cost > most(quota);
    let message = |most: u64| {
        format!(
            "a request costs {} and a bucket holds {most}: every request is over the limit",
            limit.cost
        )
    };
    if too_dear(&limit.quota) {
        let hint = match limit.quota.parameters().burst {
            Some(_) => "give it a `burst` of at least its `cost`",
            None => "raise `burst` or the `rate`, or lower the `cost`",
        };
        let message = message(most(&limit.quota));
        return found.warn("cost", message, Some(hint.to_owned()));
    }
    for (n, one) in limit.overrides.iter().enumerate() {
        if let OverrideQuota::Quota { quota, .. } = &one.quota
            && too_dear(quota)
        {
            let hint = format!("the limit's `cost` is {}", limit.cost);
            found.warn(&format!("overrides[{n}]"), message(most(quota)), Some(hint));
        }
    }
}

/// What is in the file and not in force any more.
fn of_ends(limit: &Limit, now_ms: u64, found: &mut Found<'_>) {
    let ended = |until_ms: Option<u64>| until_ms.filter(|until_ms| *until_ms <= now_ms);
    if let Some(until_ms) = ended(
        limit
            .paused
            .and_then(|pause| pause.until_ms)
            .filter(|ms| *ms > 0),
    ) {
        let until = format_timestamp(until_ms);
        let message = format!("the pause ended at {until}: the limit is in force");
        found.warn("paused", message, Some("remove it".to_owned()));
    }
    for (n, one) in limit.overrides.iter().enumerate() {
        if let Some(until_ms) = ended(one.until_ms) {
            let until = format_timestamp(until_ms);
            let message = format!("the override ended at {until}: it changes nothing");
            found.warn(&format!("overrides[{n}].until"), message, None);
        }
    }
}

/// Where a field stands, or the nearest that contains it.
fn place_of(root: &Node, path: &str) -> Option<Place> {
    let mut at = root;
    let mut place = root.place;
    // `limits[2].match.path[0]`; a name may hold dots, so keys are tried whole.
    let mut rest = path;
    while !rest.is_empty() {
        rest = rest.trim_start_matches('.');
        let (next, after) = match rest.strip_prefix('[') {
            Some(item) => {
                let (index, after) = item.split_once(']')?;
                let index: usize = index.parse().ok()?;
                (at.items().get(index), after)
            }
            None => match field_of(at, rest) {
                Some((node, after)) => (Some(node), after),
                None => (None, ""),
            },
        };
        let Some(next) = next else {
            // `per: user` is a list of one.
            return place;
        };
        at = next;
        place = at.place.or(place);
        rest = after;
    }
    place
}

/// The longest key of a map that the path starts with, and what follows it.
fn field_of<'n, 'p>(node: &'n Node, path: &'p str) -> Option<(&'n Node, &'p str)> {
    let Value::Map(entries) = &node.value else {
        return None;
    };
    let fits = entries.iter().filter_map(|entry| {
        let after = path.strip_prefix(entry.key.as_str())?;
        let ends = after.is_empty() || after.starts_with(['.', '[']);
        ends.then_some((&entry.value, after))
    });
    fits.min_by_key(|(_, after)| after.len())
}

#[cfg(test)]
mod tests;
