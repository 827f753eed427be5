//! Warnings about limits that are valid but probably not meant: they match nothing, deny
//! everything, have ended, or cost much.
//!
//! A warning is a [`Problem`]: where it is, what it causes, and what was probably meant.

mod cost;
mod numbers;
mod pattern;
mod penalty;
mod place;
mod supply;

use std::collections::BTreeMap;

use documents::{Name, Node, Problem, Problems, format_timestamp, name_hint, similar};

use place::place_of;
use supply::unsupplied;
pub use supply::{
    Alterations, BUILT_IN, DEFAULT_PREFIXES, REQUEST_BODY, REQUEST_BODY_PASSES, Supply,
};

use crate::{Limit, Matcher, Policy};

/// What is known beside the limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// The time, in milliseconds since the epoch; `None`: no warnings about what has ended.
    pub now_ms: Option<u64>,
    /// What the proxies supply.
    pub supply: Option<Supply<'a>>,
    /// Finds out what a limit costs in the store that its author may not know; `None`: no such warnings.
    pub dear: Option<fn(&Limit) -> Option<Dear>>,
}

/// Why a limit is expensive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dear {
    /// The field that makes it expensive.
    pub field: &'static str,
    /// What it costs.
    pub message: String,
    /// What costs less.
    pub hint: &'static str,
}

impl Policy {
    /// What is probably not meant, in the order of the limits.
    pub fn warnings(&self, around: &Surroundings<'_>) -> Vec<Problem> {
        let mut found = Found::default();
        found.list.extend(other_domain(&self.domain, around));
        found.list.extend(no_name(self));
        let mut descriptors = BTreeMap::new();
        for (index, limit) in self.limits.iter().enumerate() {
            found.limit = Some(&limit.name);
            found.place = format!("limits[{index}]");
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
        for (index, exemption) in self.exempt.iter().enumerate() {
            found.limit = None;
            found.place = format!("exempt[{index}]");
            for matcher in &exemption.matchers {
                of_matcher(matcher, &Words::EXEMPTION, around, &mut found);
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

/// The warnings so far, and the current limit or exemption.
#[derive(Default)]
struct Found<'p> {
    limit: Option<&'p Name>,
    /// Where it is, such as `limits[2]`.
    place: String,
    list: Vec<Problem>,
}

impl Found<'_> {
    /// A warning about a field of it, such as `match.path[0]`.
    fn warn(&mut self, field: &str, message: impl Into<String>, hint: Option<String>) {
        let mut problem = Problem::new(format!("{}.{field}", self.place), None, message);
        problem.limit = self.limit.map(ToString::to_string);
        problem.hint = hint;
        self.list.push(problem);
    }
}

fn of_limit(limit: &Limit, around: &Surroundings<'_>, found: &mut Found<'_>) {
    for matcher in &limit.matchers {
        of_matcher(matcher, &Words::LIMIT, around, found);
    }
    let service = limit.descriptor.is_some();
    for (n, key) in limit.per.iter().enumerate().filter(|_| !service) {
        if let Some((what, hint)) = unsupplied(key, around) {
            let message = format!("{what}, so every request counts as one without it");
            found.warn(&format!("per[{n}]"), message, hint);
        }
    }
    cost::of_cost(limit, found);
    cost::of_prices(limit, found);
    cost::of_burst(limit, found);
    penalty::of_penalty(limit, found);
    cost::of_reserve(limit, around, found);
    cost::of_max(limit, found);
    numbers::of_debt(limit, found);
    numbers::of_zone(limit, found);
    if let Some(dear) = around.dear.and_then(|dear| dear(limit)) {
        found.warn(dear.field, dear.message, Some(dear.hint.to_owned()));
    }
    if !service {
        of_overrides(limit, around, found);
    }
    if let Some(now_ms) = around.now_ms {
        of_ends(limit, now_ms, found);
    }
}

/// Warns about overrides of what is no bucket.
fn of_overrides(limit: &Limit, around: &Surroundings<'_>, found: &mut Found<'_>) {
    let unknown = Alterations::default();
    let alterations = around.supply.map_or(&unknown, |supply| supply.alterations);
    for (n, one) in limit.overrides.iter().enumerate() {
        for (key, value) in limit.per.iter().zip(&one.values) {
            let Some(value) = value else {
                continue;
            };
            if let Some(never) = pattern::no_bucket(key.as_str(), value, alterations) {
                let text = String::from_utf8_lossy(value);
                let message = format!("`{text}` changes nothing: {}", never.why);
                let field = format!("overrides[{n}].values.{key}");
                found.warn(&field, message, never.meant);
            }
        }
    }
}

/// The consequences of a condition that never holds, in words.
struct Words {
    no_entry: &'static str,
    no_entry_negated: &'static str,
    never: &'static str,
    unsearched: &'static str,
}

/// A regular expression that searches only shorter values, in bytes, gets a warning: paths may be longer.
const SHORT: usize = 512;

impl Words {
    const LIMIT: Self = Self {
        no_entry: "so the limit matches no request",
        no_entry_negated: "so this excludes no request",
        never: "matches no request",
        unsearched: "a longer one counts as what makes the limit apply",
    };
    const EXEMPTION: Self = Self {
        no_entry: "so the exemption is of no request",
        no_entry_negated: "so the exemption is of no request",
        never: "exempts no request",
        unsearched: "a longer one is not exempt",
    };
}

fn of_matcher(matcher: &Matcher, words: &Words, around: &Surroundings<'_>, found: &mut Found<'_>) {
    let key = &matcher.key;
    if let Some((what, hint)) = unsupplied(key, around) {
        let positive = matcher.patterns.iter().any(|p| !p.is_negated());
        let effect = if positive {
            words.no_entry
        } else {
            words.no_entry_negated
        };
        found.warn(&format!("match.{key}"), format!("{what}, {effect}"), hint);
        return;
    }
    excluded(matcher, words, found);
    for (n, pattern) in matcher.patterns.iter().enumerate() {
        if let Some(bytes) = pattern.longest_searched().filter(|bytes| *bytes < SHORT) {
            let message = format!(
                "`{pattern}` takes long, so it searches values of up to {bytes} bytes; {}",
                words.unsearched
            );
            let hint = "repeat less inside of what is repeated, or use a glob";
            let field = format!("match.{key}[{n}]");
            found.warn(&field, message, Some(hint.to_owned()));
        }
        let Some(never) = pattern::never(key.as_str(), pattern) else {
            continue;
        };
        let effect = if pattern.is_negated() {
            "excludes no request"
        } else {
            words.never
        };
        let message = format!("`{pattern}` {effect}: {}", never.why);
        found.warn(&format!("match.{key}[{n}]"), message, never.meant);
    }
}

/// Warns if each value that the patterns name is excluded by another pattern beside it.
fn excluded(matcher: &Matcher, words: &Words, found: &mut Found<'_>) {
    let negated = || {
        matcher
            .patterns
            .iter()
            .filter(|pattern| pattern.is_negated())
    };
    let excluding = |pattern: &crate::Pattern| {
        negated().find(|other| {
            let same = other.as_str().strip_prefix('!') == Some(pattern.as_str());
            same || pattern.exact().is_some_and(|value| other.finds(value))
        })
    };
    let mut positive = matcher
        .patterns
        .iter()
        .filter(|pattern| !pattern.is_negated());
    let Some(first) = positive.next().and_then(excluding) else {
        return;
    };
    if positive.all(|pattern| excluding(pattern).is_some()) {
        let message = format!("`{first}` excludes what is beside it: this {}", words.never);
        found.warn(&format!("match.{}", matcher.key), message, None);
    }
}

/// Warns about what is in the file and no longer in force.
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

#[cfg(test)]
mod tests;
