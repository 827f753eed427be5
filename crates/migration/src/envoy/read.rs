//! Reading a file. What envoyproxy/ratelimit rejects is an error here as well; what it accepts and
//! ignores is reported.

use documents::{Choice, Entry, Field, Node, Path, Value, similar};

use super::{Descriptor, Quota, RateLimit, RateLimitConfig, Unit};
use crate::report::Reading;

const ROOT: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
const RATE_LIMIT: [&str; 5] = ["name", "replaces", "unit", "requests_per_unit", "unlimited"];

/// The configuration in a file, or several in a `ConfigMap`; problems are reported.
pub(super) fn configs(reading: &mut Reading) -> Vec<RateLimitConfig> {
    let nodes = std::mem::take(&mut reading.nodes);
    if let Some(second) = nodes.get(1).filter(|_| !reading.of_config_map) {
        reading
            .errors
            .add(&Path::Root, second.place, "a second document in one file")
            .push_hint("envoyproxy/ratelimit ignores it; use one file per document");
    }
    nodes
        .iter()
        .filter_map(|node| config(node, reading))
        .collect()
}

/// One of them; `None` if anything in it is wrong.
fn config(node: &Node, reading: &mut Reading) -> Option<RateLimitConfig> {
    let root = Field {
        node,
        path: Path::Root,
    };
    if node.get("kind").is_some() {
        root.report(
            &mut reading.errors,
            "a Kubernetes resource, and no ConfigMap",
        )
        .push_hint("give the configuration itself, or the ConfigMap that it is in");
        return None;
    }
    let mut config = RateLimitConfig::default();
    for entry in root.entries("a `domain` and `descriptors`", &mut reading.errors)? {
        let field = below(&root, entry);
        match entry.key.as_str() {
            "domain" => {
                config.domain = text(&field, "the name of a domain", reading);
                config.place = entry.value.place;
            }
            "descriptors" => config.descriptors = descriptors(&field, reading),
            _ => unexpected(&root, entry, &ROOT, reading),
        }
    }
    if config.domain.is_empty() {
        root.report(&mut reading.errors, "`domain` is missing or empty");
    }
    Some(config).filter(|_| reading.errors.problems.is_empty())
}

fn descriptors(list: &Field<'_>, reading: &mut Reading) -> Vec<Descriptor> {
    let Value::List(items) = &list.node.value else {
        list.expected("a list of descriptors", &mut reading.errors);
        return Vec::new();
    };
    let items = items.iter().enumerate().map(|(index, node)| Field {
        node,
        path: Path::Item(&list.path, index),
    });
    items
        .filter_map(|item| descriptor(&item, reading))
        .collect()
}

fn descriptor(item: &Field<'_>, reading: &mut Reading) -> Option<Descriptor> {
    let entries = item.entries("a descriptor with a `key`", &mut reading.errors)?;
    let mut found = Descriptor {
        place: entries.first().and_then(|entry| entry.place),
        ..Descriptor::default()
    };
    for entry in entries {
        let field = below(item, entry);
        match entry.key.as_str() {
            "key" => found.key = text(&field, "a key", reading),
            "value" => found.value = text(&field, "a value", reading),
            "rate_limit" => found.rate_limit = rate_limit(&field, reading),
            "descriptors" => found.descriptors = descriptors(&field, reading),
            "shadow_mode" => found.shadow_mode = flag(&field, reading),
            "quota_mode" => found.quota_mode = flag(&field, reading),
            "share_threshold" => found.share_threshold = flag(&field, reading),
            "detailed_metric" | "value_to_metric" => {
                if flag(&field, reading) {
                    metric(&field, reading);
                }
            }
            "metadata" => {
                field
                    .report(&mut reading.lost, "this metadata is not sent to Envoy")
                    .push_hint("the answer's metadata names the limits of each descriptor instead");
            }
            _ => unexpected(item, entry, &DESCRIPTOR, reading),
        }
    }
    check(item, &found, reading);
    Some(found)
}

fn metric(field: &Field<'_>, reading: &mut Reading) {
    field
        .report(
            &mut reading.changed,
            "metrics never hold values, only names of limits",
        )
        .push_hint("`rlctl top` and `rlctl denials` show which values use a limit most");
}

/// Checks a descriptor as envoyproxy/ratelimit does.
fn check(item: &Field<'_>, found: &Descriptor, reading: &mut Reading) {
    let place = found.place.or(item.node.place);
    let errors = &mut reading.errors;
    if found.key.is_empty() {
        errors.add(&item.path, place, "a descriptor needs a `key`");
    }
    let composite = found.composite_key();
    if found.share_threshold && !composite.contains('*') {
        let path = Path::Field(&item.path, "share_threshold");
        errors
            .add(&path, place, "only values with a `*` can share a threshold")
            .push_hint("a key without a value: leave the entry out of the descriptor instead");
    }
}

fn rate_limit(limit: &Field<'_>, reading: &mut Reading) -> Option<RateLimit> {
    let entries = limit.entries("a `unit` and `requests_per_unit`", &mut reading.errors)?;
    let (mut name, mut replaces) = (String::new(), Vec::new());
    let (mut unit, mut requests, mut unlimited) = (None, 0, false);
    for entry in entries {
        let field = below(limit, entry);
        match entry.key.as_str() {
            "name" => name = text(&field, "the name of a limit", reading),
            "replaces" => replaces = read_replaces(&field, reading),
            "unit" => unit = read_unit(&field, reading),
            "requests_per_unit" => requests = read_requests(&field, reading).unwrap_or(0),
            "unlimited" => unlimited = flag(&field, reading),
            _ => unexpected(limit, entry, &RATE_LIMIT, reading),
        }
    }
    if !name.is_empty() && replaces.contains(&name) {
        limit.report(&mut reading.errors, format!("`{name}` replaces itself"));
    }
    let has_unit = limit.node.get("unit").is_some();
    let quota = match (unlimited, unit) {
        (true, None) if !has_unit => Quota::Unlimited,
        (true, _) => {
            limit.report(&mut reading.errors, "both `unlimited` and a `unit`");
            return None;
        }
        (false, Some(unit)) => Quota::Rate { requests, unit },
        (false, None) => {
            if !has_unit {
                limit
                    .report(&mut reading.errors, "a rate limit needs a `unit`")
                    .push_hint("or `unlimited: true`");
            }
            return None;
        }
    };
    Some(RateLimit {
        name,
        replaces,
        quota,
    })
}

fn read_replaces(list: &Field<'_>, reading: &mut Reading) -> Vec<String> {
    let Value::List(items) = &list.node.value else {
        list.expected("a list of names, like [{name: other}]", &mut reading.errors);
        return Vec::new();
    };
    let mut names = Vec::new();
    for (index, node) in items.iter().enumerate() {
        let item = Field {
            node,
            path: Path::Item(&list.path, index),
        };
        match node.get("name").and_then(Node::as_text) {
            Some(name) if !name.is_empty() => names.push(name.to_owned()),
            _ => {
                item.report(
                    &mut reading.errors,
                    "expected the name of a limit, like {name: other}",
                );
            }
        }
    }
    names
}

fn read_unit(field: &Field<'_>, reading: &mut Reading) -> Option<Unit> {
    let text = field.text("a unit of time", &mut reading.errors)?;
    let lower = text.to_ascii_lowercase();
    let found = Unit::CHOICES.iter().find(|(word, _)| *word == lower);
    if found.is_none() {
        let words: Vec<&str> = Unit::CHOICES.iter().map(|(word, _)| *word).collect();
        let what = format!("one of {}", words.join(", "));
        let problem = field.expected(&what, &mut reading.errors);
        if let Some(meant) = similar(&lower, &words) {
            problem.push_hint(format!("did you mean `{meant}`?"));
        }
    }
    found.map(|(_, unit)| *unit)
}

fn read_requests(field: &Field<'_>, reading: &mut Reading) -> Option<u32> {
    let digits = field.node.as_text().map(|text| text.replace('_', ""));
    let number = digits.and_then(|digits| digits.parse().ok());
    if number.is_none() {
        let what = format!("a whole number of at most {}", u32::MAX);
        field.expected(&what, &mut reading.errors);
    }
    number
}

/// Reports a field that envoyproxy/ratelimit has elsewhere and ignores here.
fn unexpected(parent: &Field<'_>, entry: &Entry, expected: &[&str], reading: &mut Reading) {
    let path = Path::Field(&parent.path, &entry.key);
    let known = [&ROOT[..], &DESCRIPTOR, &RATE_LIMIT].concat();
    if known.contains(&entry.key.as_str()) {
        let message = format!("`{}` has no effect here", entry.key);
        reading
            .changed
            .add(&path, entry.place, message)
            .push_hint("nor has it in envoyproxy/ratelimit, which ignores it");
        return;
    }
    let problem = reading.errors.add(&path, entry.place, "unknown field");
    match similar(&entry.key, expected) {
        Some(meant) => problem.push_hint(format!("did you mean `{meant}`?")),
        None => problem.push_hint(format!("known fields: {}", expected.join(", "))),
    }
}

fn text(field: &Field<'_>, what: &str, reading: &mut Reading) -> String {
    let text = field.text(what, &mut reading.errors);
    text.unwrap_or_default().to_owned()
}

/// envoyproxy/ratelimit reads YAML 1.1, which has more words for booleans.
fn flag(field: &Field<'_>, reading: &mut Reading) -> bool {
    let word = field
        .node
        .as_text()
        .unwrap_or_default()
        .to_ascii_lowercase();
    match word.as_str() {
        "true" | "yes" | "on" | "y" => true,
        "false" | "no" | "off" | "n" => false,
        _ => {
            field.expected("true or false", &mut reading.errors);
            false
        }
    }
}

fn below<'n>(parent: &'n Field<'n>, entry: &'n Entry) -> Field<'n> {
    Field {
        node: &entry.value,
        path: Path::Field(&parent.path, &entry.key),
    }
}
