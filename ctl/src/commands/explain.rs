//! `rlctl explain`.

use std::{collections::BTreeMap, fmt::Write as _};

use anstyle::{AnsiColor, Style};
use clap::Args;
use insight::Window;
use policy::{
    Algorithm, Compiled, DESCRIPTOR, Descriptor, DescriptorLimit, IfMissing, Limit, Match, Matcher,
    Name, Override, Pricing, RequestPlace, Scope, SentDescriptor,
};
use serde::Serialize;

use crate::{
    bucket::{self, RequestArgs},
    cli::{Global, examples},
    commands::inspect::{AdaptiveFields, BucketPenalty},
    error::{Error, Exit},
    printer::Printer,
    render::{Page, View, counted, format_map, pause_state},
    session::Session,
};

/// Explain which limits apply to a request, and why the others do not.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl explain path=/api/orders method=GET user=alice"
    "rlctl explain path=/api/orders -o name      # the limits that apply"
))]
pub struct Explain {
    #[command(flatten)]
    request: RequestArgs,
}

impl Explain {
    /// Goes through every limit of the domain.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let descriptor = session.descriptor(self.request.pairs()).await?;
        let policy = session.policy_for_request(&descriptor).await?;
        session.warn_of_pause(&policy, &[]);
        let compiled = Compiled::new(policy);
        let states = of_request(&session, &compiled, &descriptor).await?;
        let limits = explain(&compiled, &descriptor, states);
        let pairs = self.request.pairs();
        bucket::note_unused(pairs, std::slice::from_ref(&compiled), printer);
        printer.data(&Report {
            domain: compiled.domain().to_string(),
            revision: compiled.revision().number,
            limits,
        })?;
        Ok(Exit::Done)
    }
}

fn explain(
    compiled: &Compiled,
    descriptor: &Descriptor,
    mut states: BTreeMap<Name, BucketState>,
) -> Vec<Row> {
    let now_ms = crate::now_ms();
    let all = compiled.matching_all(descriptor, now_ms);
    let replaced = compiled.replaced_by(&all);
    let limits = compiled.limits().iter().enumerate();
    let rows = limits.map(|(index, limit)| {
        let found = all.iter().find(|found| found.index == index);
        let found = found.filter(|_| !replaced.contains(&index));
        let state = states.remove(&limit.name).unwrap_or_default();
        // The bucket, which the values of a wildcard may share.
        let values = found.map(|found| found.clone().into_values());
        let values = values.as_deref();
        let own = values.and_then(|values| compiled.override_for(index, values));
        let in_force = values.and_then(|values| compiled.quota_for(index, values, now_ms));
        Row {
            limit: limit.name.to_string(),
            applies: found.is_some(),
            enforced: found.map(|found| found.enforced),
            bucket: values.map(|values| bucket::display(&limit.per, values)),
            quota: own.and_then(|own| quota(own, in_force.as_ref(), limit)),
            window: { in_force.as_ref() }.and_then(|quota| Window::from_quota(quota, now_ms)),
            cost: { in_force.as_ref() }.and_then(|quota| cost(limit, quota, descriptor)),
            penalty: state.penalty,
            adaptive: state.adaptive,
            reasons: of_limit(compiled, index, descriptor, (&all, found.is_some())),
        }
    });
    rows.collect()
}

// --- The numbers of the bucket that a limit has for a request.

/// The numbers of the bucket, if they differ from the limit's own.
fn quota(found: &Override, in_force: Option<&Algorithm>, limit: &Limit) -> Option<String> {
    match in_force {
        None => Some("unlimited, by its override".to_owned()),
        Some(quota) if *quota != limit.quota => {
            let mut node = limits_file::override_node(found, &limit.per);
            node.unset("values");
            Some(format!("by its override: {}", format_map(&node, " ", ", ")))
        }
        Some(_) => None,
    }
}

/// The request's cost, if the request or its response says it.
fn cost(limit: &Limit, quota: &Algorithm, descriptor: &Descriptor) -> Option<String> {
    let pricing = limit.pricing.as_deref()?;
    let units = limit.units_of(descriptor, quota.limit());
    let units = counted(units, "unit");
    Some(match pricing {
        Pricing::Response(price) if price.reserve.pointers().next().is_some() => {
            format!("{units}, or what the request's body says, reserved until the response says it")
        }
        Pricing::Response(_) => format!("{units}, reserved until the response says it"),
        Pricing::Request(price) => match price.from.first().map(|value| &value.place) {
            Some(RequestPlace::Header(name)) => {
                format!("{units}, unless the header {name} says it")
            }
            Some(RequestPlace::Json(_)) | None => units,
        },
    })
}

// --- What the buckets of a request have learned: penalties, and what adaptive limits are.

#[derive(Default)]
struct BucketState {
    penalty: Option<BucketPenalty>,
    adaptive: Option<AdaptiveFields>,
}

/// By limit. Other limits are left out, and cost no call.
async fn of_request(
    session: &Session<'_>,
    compiled: &Compiled,
    descriptor: &Descriptor,
) -> Result<BTreeMap<Name, BucketState>, Error> {
    let mut states = BTreeMap::new();
    for found in compiled.matching(descriptor, crate::now_ms()) {
        let limit = found.limit;
        let learns = limit.penalty.is_some() || limit.quota.parameters().adaptive.is_some();
        if !learns || found.missing.is_some() || limit.scope == Scope::Proxy {
            continue;
        }
        let values = found.into_values();
        let bucket = session.store.inspect(compiled, &limit.name, &values, 1);
        let bucket = bucket.await.map_err(|error| session.check_failed(&error))?;
        let state = BucketState {
            penalty: BucketPenalty::new(limit, &bucket),
            adaptive: AdaptiveFields::new(limit, &bucket),
        };
        states.insert(limit.name.clone(), state);
    }
    Ok(states)
}

// --- Why a limit applies to a request, or does not.

/// One condition of a limit, and whether it holds.
#[derive(Serialize)]
struct Reason {
    holds: bool,
    text: String,
}

fn reason(holds: bool, text: impl Into<String>) -> Reason {
    Reason {
        holds,
        text: text.into(),
    }
}

/// The reasons for one limit, given all limits that match before `replaces`, and whether this one applies.
fn of_limit(
    compiled: &Compiled,
    index: usize,
    descriptor: &Descriptor,
    (all, applies): (&[Match<'_, '_>], bool),
) -> Vec<Reason> {
    let Some(limit) = compiled.limits().get(index) else {
        return Vec::new();
    };
    let mut reasons = of_conditions(limit, descriptor);
    let holds = reasons.iter().all(|reason| reason.holds);
    if let Some(exemption) = compiled.exemption(descriptor) {
        let name = &exemption.name;
        reasons.push(reason(false, format!("the request is exempt: {name}")));
    } else if holds && !applies {
        let paused = pause_state(compiled.pause_of(index, crate::now_ms()));
        let replaces =
            |by: &&Match<'_, '_>| by.suppresses && by.limit.replaces.contains(&limit.name);
        reasons.push(match (paused, all.iter().find(replaces)) {
            (Some(paused), _) => reason(false, paused),
            (None, Some(by)) => reason(false, format!("replaced by {}", by.limit.name)),
            (None, None) => reason(false, "another limit fits the descriptor better"),
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

// --- What applies to a request, as JSON and as text.

const YES: Style = AnsiColor::Green.on_default();
const NO: Style = AnsiColor::Red.on_default();
const NAME: Style = Style::new().bold();

#[derive(Serialize)]
struct Report {
    domain: String,
    revision: u64,
    limits: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    limit: String,
    applies: bool,
    enforced: Option<bool>,
    bucket: Option<String>,
    quota: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Window>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<BucketPenalty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    adaptive: Option<AdaptiveFields>,
    reasons: Vec<Reason>,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let mut text = String::new();
        let (tick, cross) = if page.unicode {
            ("✓", "✗")
        } else {
            ("+", "x")
        };
        let (yes, no) = (format!("{YES}{tick}{YES:#}"), format!("{NO}{cross}{NO:#}"));
        let mark = |holds: bool| if holds { &yes } else { &no };
        for row in &self.limits {
            let limit = &row.limit;
            let bucket = row
                .bucket
                .as_ref()
                .map(|bucket| format!("  {bucket}"))
                .unwrap_or_default();
            let shadow = if row.enforced == Some(false) {
                "  (only reported)"
            } else {
                ""
            };
            let mark_of_row = mark(row.applies);
            let _ = writeln!(text, "{mark_of_row} {NAME}{limit}{NAME:#}{bucket}{shadow}");
            for reason in &row.reasons {
                let _ = writeln!(text, "    {} {}", mark(reason.holds), reason.text);
            }
            if let Some(quota) = &row.quota {
                let _ = writeln!(text, "    quota {quota}");
            }
            if let Some(cost) = &row.cost {
                let _ = writeln!(text, "    costs {cost}");
            }
            if let Some(penalty) = &row.penalty {
                let _ = writeln!(text, "    penalty: {}", penalty.text);
            }
            if let Some(AdaptiveFields { text: [now, _], .. }) = &row.adaptive {
                let _ = writeln!(text, "    adaptive: {now}");
            }
            if let Some(window) = &row.window {
                let _ = writeln!(text, "    counts in {window}");
            }
        }
        text
    }

    /// The limits that apply.
    fn names(&self) -> Vec<String> {
        let applies = self.limits.iter().filter(|row| row.applies);
        applies.map(|row| row.limit.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_that_values_share_is_shown_with_its_override() {
        let file = br#"{domain: shop, limits: [
          {name: exports, descriptor: ["path=/export/*"], share_threshold: true, rate: 10/s,
           overrides: [{values: {descriptor: "path=/export/*"}, rate: 3/s}]}]}"#;
        let compiled = Compiled::new(limits_file::read("limits.yaml", file).unwrap());
        let sent = [("descriptor".parse().unwrap(), b"path=/export/a".to_vec())];
        let rows = explain(&compiled, &Descriptor::from_iter(sent), BTreeMap::new());
        let of = |row: &Row| (row.bucket.clone().unwrap(), row.quota.clone().unwrap());
        assert_eq!(
            of(&rows[0]),
            (
                "descriptor=path=/export/*".to_owned(),
                "by its override: rate 3/s".to_owned()
            )
        );
    }
}
