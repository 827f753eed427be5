//! Parses the body of `POST /v1/check`.

use documents::{Entry, Field, Fields, Form, Name, Node, Path, Report, Take, Value, node_to_value};
use policy::Descriptor;

use super::slots::parse_slot;
use crate::{
    ApiError, Check, ErrorCode, LimitCost, LimitRequest, MAX_CHECKS, MAX_ENTRIES, MAX_FREE,
    MAX_LIMITS, MAX_VALUE, SlotOp,
};

const CHECK_FIELDS: [&str; 9] = [
    "descriptor",
    "cost",
    "peek",
    "limits",
    "require_match",
    "max_delay_ms",
    "free",
    "costs",
    "reserve",
];
const SINGLE_FIELDS: [&str; 11] = [
    "domain",
    "descriptor",
    "cost",
    "peek",
    "limits",
    "require_match",
    "max_delay_ms",
    "free",
    "costs",
    "reserve",
    "wait_ms",
];
const BATCH_FIELDS: [&str; 2] = ["domain", "checks"];

/// The request of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The domain.
    pub domain: Name,
    /// The checks; exactly one unless `batch`.
    pub checks: Vec<Check>,
    /// Whether the request was a batch, and so the answer is a list.
    pub batch: bool,
    /// How long to wait for permits, in milliseconds.
    pub wait_ms: u64,
}

/// Reads a request.
///
/// # Errors
/// The first thing wrong with it, with its field.
pub fn parse(body: &[u8]) -> Result<Request, ApiError> {
    read_body(body, read_request)
}

/// Reads a body that is one JSON document.
///
/// # Errors
/// The first thing wrong with it, with its field.
pub(super) fn read_body<T>(
    body: &[u8],
    read: impl FnOnce(Field<'_>, &mut Report) -> Option<T>,
) -> Result<T, ApiError> {
    let node = Node::from_json(body)
        .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, format!("not JSON: {error}")))?;
    let mut report = Report::new(Form::File);
    let root = Field {
        node: &node,
        path: Path::Root,
    };
    let read = read(root, &mut report);
    report.finish(read).map_err(ApiError::from)
}

fn read_request(root: Field<'_>, report: &mut Report) -> Option<Request> {
    let batch = root.node.get("checks").is_some();
    let mut fields = Fields::new(root, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &Path::Root,
        report,
    };
    let domain = match take.field("domain") {
        Some(field) => field.domain(take.report),
        None => missing(&root, "domain", take.report),
    };
    if batch {
        let list = ("checks", "a list of checks");
        let checks = read_batch(take, list, &CHECK_FIELDS, read_check);
        fields.finish(&Path::Root, &BATCH_FIELDS, report);
        return Some(Request {
            domain: domain?,
            checks,
            batch,
            wait_ms: 0,
        });
    }
    let check = read_check(&root, take);
    let wait_ms = take.integer("wait_ms", 0).unwrap_or(0);
    fields.finish(&Path::Root, &SINGLE_FIELDS, report);
    Some(Request {
        domain: domain?,
        checks: vec![check?],
        batch,
        wait_ms,
    })
}

/// Reports a missing field; one with an empty value has been reported already.
pub(super) fn missing<T>(owner: &Field<'_>, name: &str, report: &mut Report) -> Option<T> {
    if owner.node.get(name).is_none() {
        let path = Path::Field(&owner.path, name);
        report.add(&path, None, "missing");
    }
    None
}

/// The checks in the list of a batch, each an object with `fields`.
pub(super) fn read_batch(
    take: &mut Take<'_, '_>,
    (name, expected): (&'static str, &str),
    fields_of_one: &[&str],
    mut read: impl FnMut(&Field<'_>, &mut Take<'_, '_>) -> Option<Check>,
) -> Vec<Check> {
    let Some(field) = take.field(name) else {
        return Vec::new();
    };
    let report = &mut *take.report;
    let Value::List(items) = &field.node.value else {
        field.expected(expected, report);
        return Vec::new();
    };
    if items.len() > MAX_CHECKS {
        field.report(report, format!("more than {MAX_CHECKS} {name}"));
        return Vec::new();
    }
    let items = items.iter().enumerate();
    let checks = items.filter_map(|(index, node)| {
        let item = Field {
            node,
            path: Path::Item(&field.path, index),
        };
        let mut fields = Fields::new(item, report)?;
        let take = &mut Take {
            fields: &mut fields,
            path: &item.path,
            report,
        };
        let check = read(&item, take);
        fields.finish(&item.path, fields_of_one, report);
        check
    });
    checks.collect()
}

fn read_check(owner: &Field<'_>, take: &mut Take<'_, '_>) -> Option<Check> {
    let descriptor = match take.field("descriptor") {
        Some(field) => read_descriptor(&field, take.report),
        None => missing(owner, "descriptor", take.report),
    };
    let cost = take.integer("cost", 0).unwrap_or(1);
    let peek = take.boolean("peek").unwrap_or(false);
    let only = match take.field("limits") {
        Some(field) => read_limits(&field, take.report),
        None => Vec::new(),
    };
    if only.is_empty()
        && let Some(Node {
            value: Value::List(_),
            ..
        }) = owner.node.get("limits")
    {
        let path = Path::Field(&owner.path, "limits");
        take.report
            .add(&path, None, "an empty list")
            .push_hint("leave it out to check every limit that matches");
    }
    let require_match = take.boolean("require_match").unwrap_or(false);
    let max_delay_ms = take.integer("max_delay_ms", 0);
    let reserve = take.boolean("reserve").unwrap_or(false);
    let costs = match take.field("costs") {
        Some(field) => read_costs(&field, take.report),
        None => Vec::new(),
    };
    let costs = costs.into_iter().map(|(limit, units)| LimitRequest {
        cost: Some(LimitCost { units, reserve }),
        ..LimitRequest::new(limit)
    });
    let mut limits = costs.collect();
    if let Some(field) = take.field("free") {
        read_free(&field, &mut limits, take.report);
    }
    Some(Check {
        descriptor: descriptor?,
        cost,
        peek,
        only,
        require_match,
        limits,
        reserve,
        max_delay_ms,
        ..Check::default()
    })
}

fn read_limits(field: &Field<'_>, report: &mut Report) -> Vec<Name> {
    if let Value::List(names) = &field.node.value
        && names.len() > MAX_LIMITS
    {
        field.report(report, format!("more than {MAX_LIMITS} names"));
        return Vec::new();
    }
    let names = field.names("the name of a limit", report);
    names.unwrap_or_default()
}

/// Adds slots to free to the entries of the limits that gave them.
pub(super) fn read_free(field: &Field<'_>, limits: &mut Vec<LimitRequest>, report: &mut Report) {
    let what = "a map of limits to slots, like {\"exports\": \"…\"}";
    let entries = field.entries(what, report).unwrap_or_default();
    if entries.len() > MAX_FREE {
        field.report(report, format!("more than {MAX_FREE} slots"));
        return;
    }
    for entry in entries {
        let item = Field {
            node: &entry.value,
            path: Path::Field(&field.path, &entry.key),
        };
        let Ok(limit) = entry.key.parse::<Name>() else {
            item.report(report, "not the name of a limit");
            continue;
        };
        match item.node.as_text().and_then(parse_slot) {
            Some((slot, units)) => LimitRequest::change(limits, &limit, |entry| {
                entry.slots.push(SlotOp::free(slot, units));
            }),
            None => {
                item.expected("the `slot` of an answer", report);
            }
        }
    }
}

/// Units to charge, by limit.
pub(super) fn read_costs(field: &Field<'_>, report: &mut Report) -> Vec<(Name, u64)> {
    let what = "a map of limits to units, like {\"tokens\": 800}";
    let entries = field.entries(what, report).unwrap_or_default();
    if entries.len() > MAX_LIMITS {
        field.report(report, format!("more than {MAX_LIMITS} limits"));
        return Vec::new();
    }
    let cost = |entry: &&Entry| {
        let item = Field {
            node: &entry.value,
            path: Path::Field(&field.path, &entry.key),
        };
        let Ok(limit) = entry.key.parse::<Name>() else {
            item.report(report, "not the name of a limit");
            return None;
        };
        Some((limit, item.integer(0, report)?))
    };
    entries.iter().filter_map(cost).collect()
}

pub(super) fn read_descriptor(field: &Field<'_>, report: &mut Report) -> Option<Descriptor> {
    let entries = field.entries("a map of entries, like {\"user\": \"alice\"}", report)?;
    if entries.len() > MAX_ENTRIES {
        field.report(report, format!("more than {MAX_ENTRIES} entries"));
        return None;
    }
    let mut descriptor = Descriptor::new();
    for entry in entries {
        let item = Field {
            node: &entry.value,
            path: Path::Field(&field.path, &entry.key),
        };
        let key: Name = match entry.key.parse() {
            Ok(key) => key,
            Err(error) => {
                item.report(report, "not a name")
                    .push_hint(format!("{error}"));
                continue;
            }
        };
        // `null` means that the request has no such entry.
        if item.node.value == Value::Null {
            continue;
        }
        match node_to_value(item.node) {
            Some(value) if value.len() <= MAX_VALUE => descriptor.insert(key, value),
            Some(_) => {
                item.report(report, format!("longer than {MAX_VALUE} bytes"));
            }
            None => {
                item.expected("text", report)
                    .push_hint("what is not UTF-8 is written as {\"base64\": …}");
            }
        }
    }
    Some(descriptor)
}

#[cfg(test)]
mod tests;
