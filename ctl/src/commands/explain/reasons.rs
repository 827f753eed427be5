//! Why a limit applies to a request, or does not.

use policy::{
    Compiled, DESCRIPTOR, Descriptor, DescriptorLimit, IfMissing, Limit, Match, Matcher,
    SentDescriptor,
};
use serde::Serialize;

use crate::{bucket, clock, render::pause_state};

/// One condition of a limit, and whether it holds.
#[derive(Serialize)]
pub(super) struct Reason {
    pub(super) holds: bool,
    pub(super) text: String,
}

fn reason(holds: bool, text: impl Into<String>) -> Reason {
    Reason {
        holds,
        text: text.into(),
    }
}

/// The reasons for one limit, given all limits that match.
pub(super) fn of_limit(
    compiled: &Compiled,
    index: usize,
    descriptor: &Descriptor,
    matches: &[Match<'_, '_>],
) -> Vec<Reason> {
    let Some(limit) = compiled.limits().get(index) else {
        return Vec::new();
    };
    let mut reasons = of_conditions(limit, descriptor);
    let holds = reasons.iter().all(|reason| reason.holds);
    if let Some(exemption) = compiled.exemption(descriptor) {
        let name = &exemption.name;
        reasons.push(reason(false, format!("the request is exempt: {name}")));
    } else if holds && matches.iter().all(|found| found.index != index) {
        let paused = pause_state(compiled.pause_of(index, clock::now_ms()));
        reasons.push(match paused {
            Some(paused) => reason(false, paused),
            None if limit.descriptor.is_some() && !compiled.has_replaces() => {
                reason(false, "another limit fits the descriptor better")
            }
            None => of_replacement(limit, compiled, matches),
        });
    }
    reasons
}

/// The limit's own conditions, checked against the request.
fn of_conditions(limit: &Limit, descriptor: &Descriptor) -> Vec<Reason> {
    if let Some(rule) = &limit.descriptor {
        return vec![of_descriptor(rule, descriptor)];
    }
    let matchers = limit.matchers.iter();
    let mut reasons: Vec<Reason> = matchers
        .map(|matcher| of_matcher(matcher, descriptor))
        .collect();
    if reasons.is_empty() {
        reasons.push(reason(true, "matches every request"));
    }
    if reasons.iter().all(|reason| reason.holds) {
        reasons.extend(of_missing(limit, descriptor));
    }
    reasons
}

fn of_matcher(matcher: &Matcher, descriptor: &Descriptor) -> Reason {
    let key = &matcher.key;
    let value = descriptor.get(matcher.entry.as_str());
    let patterns: Vec<&str> = matcher
        .patterns
        .iter()
        .map(policy::Pattern::as_str)
        .collect();
    let patterns = patterns.join(", ");
    let holds = matcher.holds(value);
    let verb = if holds { "matches" } else { "does not match" };
    match value {
        Some(value) => reason(
            holds,
            format!("{key}={} {verb} {patterns}", bucket::visible(value)),
        ),
        None => reason(holds, format!("no {key}, which {verb} {patterns}")),
    }
}

/// Whether a limit of the rate limit service would apply if it were the only one.
fn of_descriptor(rule: &DescriptorLimit, descriptor: &Descriptor) -> Reason {
    let entries = rule.pattern.to_items().join(", ");
    let Some(text) = descriptor.get(DESCRIPTOR) else {
        return reason(
            false,
            format!("no descriptor, and the limit is for {entries}"),
        );
    };
    let sent = SentDescriptor::read(text);
    let holds = sent.is_some_and(|sent| {
        let patterns = rule.pattern.entries();
        sent.entries().len() == patterns.len() && { sent.entries().zip(patterns) }.all(
            |((key, value), pattern)| {
                key == pattern.key().as_bytes() && pattern.matches_value(value)
            },
        )
    });
    let verb = if holds { "matches" } else { "does not match" };
    reason(holds, format!("the descriptor {verb} {entries}"))
}

fn of_missing(limit: &Limit, descriptor: &Descriptor) -> Vec<Reason> {
    let missing = limit
        .per
        .iter()
        .filter(|key| descriptor.get(key.as_str()).is_none());
    let reasons = missing.map(|key| match limit.if_missing {
        IfMissing::Share => reason(
            true,
            format!("no {key}: shares a bucket with others without"),
        ),
        IfMissing::Skip => reason(false, format!("no {key}, and `if_missing: skip`")),
        IfMissing::Deny => reason(
            true,
            format!("no {key}, and `if_missing: deny`: denied, 403"),
        ),
    });
    reasons.collect()
}

fn of_replacement(limit: &Limit, compiled: &Compiled, matches: &[Match<'_, '_>]) -> Reason {
    let replaces = |found: &&Match<'_, '_>| found.limit.replaces.contains(&limit.name);
    let by = matches.iter().find(replaces).map(|found| &found.limit.name);
    let anyone = compiled
        .limits()
        .iter()
        .find(|other| other.replaces.contains(&limit.name));
    match by.or(anyone.map(|other| &other.name)) {
        Some(name) => reason(false, format!("replaced by {name}")),
        None => reason(false, "replaced by another limit"),
    }
}
