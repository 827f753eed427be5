//! `rlctl explain`.

mod penalties;

use std::{collections::BTreeMap, fmt::Write as _};

use anstyle::{AnsiColor, Style};
use clap::Args;
use insight::Window;
use policy::{
    Compiled, DESCRIPTOR, Descriptor, DescriptorLimit, IfMissing, Limit, Matcher, Name, Pricing,
    RequestPlace, Resolved, SentDescriptor,
};
use serde::Serialize;

use crate::{
    args::{Global, examples},
    bucket::{self, RequestArgs},
    clock,
    error::Error,
    exit::Exit,
    penalty::BucketPenalty,
    printer::Printer,
    render::{Page, View, changes::format_map, counted, pause_state},
    session::Session,
    suggest,
};

const YES: Style = AnsiColor::Green.on_default();
const NO: Style = AnsiColor::Red.on_default();
const NAME: Style = Style::new().bold();

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
        let descriptor = self.request.descriptor()?;
        let session = Session::open(global, printer)?;
        let policy = session.policy_for_request(&descriptor).await?;
        session.warn_of_pause(&policy, &[]);
        let compiled = Compiled::new(policy);
        let penalties = penalties::of_request(&session, &compiled, &descriptor).await?;
        let limits = explain(&compiled, &descriptor, penalties);
        let keys = compiled.needed_keys();
        for pair in self.request.pairs() {
            let of_service = pair.key == DESCRIPTOR && { compiled.limits().iter() }
                .any(|limit| limit.descriptor.is_some());
            if !of_service && !keys.iter().any(|key| key.as_str() == pair.key) {
                printer.note(format_args!("no limit uses `{}`", pair.key));
                let known = keys.iter().map(Name::as_str);
                if let Some(meant) = suggest::closest(&pair.key, known) {
                    printer.hint(format_args!("did you mean `{meant}`?"));
                }
            }
        }
        printer.data(&Report {
            domain: compiled.domain().to_string(),
            revision: compiled.revision().number,
            limits,
        })?;
        Ok(Exit::Done)
    }
}

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
    reasons: Vec<Reason>,
}

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

fn explain(
    compiled: &Compiled,
    descriptor: &Descriptor,
    mut penalties: BTreeMap<Name, BucketPenalty>,
) -> Vec<Row> {
    let matches = compiled.matching(descriptor, clock::now_ms());
    let exemption = compiled.exemption(descriptor).map(|found| &found.name);
    let limits = compiled.limits().iter().enumerate();
    let rows = limits.map(|(index, limit)| {
        let found = matches.iter().find(|found| found.index == index);
        let paused = || pause_state(compiled.pause_of(index, clock::now_ms()));
        let mut reasons: Vec<Reason> = limit
            .matchers
            .iter()
            .map(|matcher| of_matcher(matcher, descriptor))
            .collect();
        if let Some(rule) = &limit.descriptor {
            reasons = vec![of_descriptor(rule, descriptor)];
        } else if reasons.is_empty() {
            reasons.push(reason(true, "matches every request"));
        }
        if reasons.iter().all(|reason| reason.holds) && limit.descriptor.is_none() {
            reasons.extend(of_missing(limit, descriptor));
        }
        if let Some(exemption) = exemption {
            reasons.push(reason(false, format!("the request is exempt: {exemption}")));
        } else if found.is_none() && reasons.iter().all(|reason| reason.holds) {
            reasons.push(match paused() {
                Some(paused) => reason(false, paused),
                None if limit.descriptor.is_some() && !compiled.has_replaces() => {
                    reason(false, "another limit fits the descriptor better")
                }
                None => of_replacement(limit, compiled, &matches),
            });
        }
        Row {
            limit: limit.name.to_string(),
            applies: found.is_some(),
            enforced: found.map(|found| found.enforced),
            bucket: found.map(|found| bucket::display(&limit.per, &found.values)),
            quota: found.and_then(|found| quota(compiled, index, limit, &found.values)),
            window: found.and_then(|found| window(compiled, index, &found.values)),
            cost: found.and_then(|found| cost(compiled, index, &found.values, descriptor)),
            penalty: penalties.remove(&limit.name),
            reasons,
        }
    });
    rows.collect()
}

fn of_matcher(matcher: &Matcher, descriptor: &Descriptor) -> Reason {
    let key = &matcher.key;
    let value = descriptor.get(key.as_str());
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

/// Whether a limit of the rate limit service may apply, were there no other.
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

fn of_replacement(limit: &Limit, compiled: &Compiled, matches: &[policy::Match<'_, '_>]) -> Reason {
    let replaces = |found: &&policy::Match<'_, '_>| found.limit.replaces.contains(&limit.name);
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

/// The numbers of the bucket, where they are not the limit's own.
fn quota(
    compiled: &Compiled,
    index: usize,
    limit: &Limit,
    values: &[Option<&[u8]>],
) -> Option<String> {
    let found = compiled.override_for(index, values)?;
    match compiled.quota_for(index, values, clock::now_ms())? {
        Resolved::Unlimited => Some("unlimited, by its override".to_owned()),
        Resolved::Quota(quota) if quota != limit.quota => {
            let mut node = found.to_node(&limit.per);
            node.unset("values");
            Some(format!("by its override: {}", format_map(&node, " ", ", ")))
        }
        Resolved::Quota(_) => None,
    }
}

/// The window that the bucket counts in now.
fn window(compiled: &Compiled, index: usize, values: &[Option<&[u8]>]) -> Option<Window> {
    let now_ms = clock::now_ms();
    match compiled.quota_for(index, values, now_ms)? {
        Resolved::Quota(quota) => Window::of(&quota, now_ms),
        Resolved::Unlimited => None,
    }
}

/// What the request costs, where it or its response says that.
fn cost(
    compiled: &Compiled,
    index: usize,
    values: &[Option<&[u8]>],
    descriptor: &Descriptor,
) -> Option<String> {
    let limit = compiled.limits().get(index)?;
    let pricing = limit.pricing.as_deref()?;
    let capacity = match compiled.quota_for(index, values, clock::now_ms())? {
        Resolved::Quota(quota) => quota.algorithm().limit(),
        Resolved::Unlimited => return None,
    };
    let units = counted(limit.units_of(descriptor, capacity), "unit");
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
