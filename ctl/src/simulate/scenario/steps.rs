//! The steps of a scenario.

use documents::{Field, Fields, Path, Report, Take};
use policy::{Descriptor, Name, Node, Policy};

use super::{Expected, Request, Settle, Step, items, limits::read_set};

const STEP_FIELDS: [&str; 7] = [
    "t_ms",
    "cost",
    "peek",
    "descriptor",
    "expect",
    "note",
    "set",
];
const EXPECT_FIELDS: [&str; 8] = [
    "allowed",
    "remaining",
    "retry_after_ms",
    "reset_after_ms",
    "denied_by",
    "delay_ms",
    "given_back",
    "excess",
];

const LEAVE_FIELDS: [&str; 3] = ["t_ms", "leave", "note"];
const SETTLE_FIELDS: [&str; 5] = ["t_ms", "settle", "cost", "expect", "note"];

pub(super) fn read_steps(
    steps: &Field<'_>,
    mut policy: Policy,
    limits: &mut [Node],
    report: &mut Report,
) -> Vec<Step> {
    let mut read = Vec::new();
    let all = items(steps, "a list of steps", report);
    let requests: Vec<bool> = all.iter().map(is_request).collect();
    for (at, step) in all.into_iter().enumerate() {
        if step.node.get("leave").is_some() {
            let before = requests.get(..at).unwrap_or_default();
            read.extend(read_leave(step, before, report));
        } else if step.node.get("settle").is_some() {
            let before = requests.get(..at).unwrap_or_default();
            read.extend(read_settle(step, before, report));
        } else if step.node.get("set").is_none() {
            read.extend(read_request(step, report).map(Step::Check));
        } else if let Some(edited) = read_set(step, &policy, limits, report) {
            policy = edited;
            read.push(Step::Edit(policy.clone()));
        }
    }
    read
}

fn is_request(step: &Field<'_>) -> bool {
    let other = ["set", "leave", "settle"];
    other.iter().all(|field| step.node.get(field).is_none())
}

/// Reads the fields of a step; those that are not `known` are reported.
fn read_fields<'p, T>(
    step: Field<'p>,
    path: &'p Path<'p>,
    known: &[&str],
    report: &mut Report,
    read: impl FnOnce(&mut Take<'_, 'p>) -> T,
) -> Option<T> {
    let mut fields = Fields::of(step, report)?;
    let read = read(&mut Take {
        fields: &mut fields,
        path,
        report,
    });
    fields.finish(path, known, report);
    Some(read)
}

/// Reads `{"t_ms": …, "leave": step}`; `before` says which of the steps before are requests.
fn read_leave(step: Field<'_>, before: &[bool], report: &mut Report) -> Option<Step> {
    let path = step.path;
    let (t_ms, left) = read_fields(step, &path, &LEAVE_FIELDS, report, |take| {
        let read = (take.integer("t_ms", 0), take.integer("leave", 0));
        take.field("note");
        read
    })?;
    if step.node.get("t_ms").is_none() {
        step.report(report, "a `leave` has `t_ms`");
    }
    let left = earlier("leave", left, &step, before, report);
    Some(Step::Leave {
        t_ms: t_ms?,
        step: left?,
    })
}

/// Reads `{"t_ms": …, "settle": step, "cost": units}`; `before` as of [`read_leave`].
fn read_settle(step: Field<'_>, before: &[bool], report: &mut Report) -> Option<Step> {
    let path = step.path;
    let (t_ms, settled, cost, expect) = read_fields(step, &path, &SETTLE_FIELDS, report, |take| {
        take.field("note");
        (
            take.integer("t_ms", 0),
            take.integer("settle", 0),
            take.integer("cost", 0),
            take.field("expect"),
        )
    })?;
    for field in ["t_ms", "cost"] {
        if step.node.get(field).is_none() {
            step.report(report, format!("a `settle` has `{field}`"));
        }
    }
    let settled = earlier("settle", settled, &step, before, report);
    let expect = expect.map(|field| read_expect(field, report));
    Some(Step::Settle(Settle {
        t_ms: t_ms?,
        step: settled?,
        cost: cost?,
        expect: expect.unwrap_or_default(),
    }))
}

/// The step that a field names, if it is an earlier request.
fn earlier(
    name: &str,
    at: Option<u64>,
    step: &Field<'_>,
    before: &[bool],
    report: &mut Report,
) -> Option<usize> {
    let at = usize::try_from(at?).ok();
    let at = at.filter(|at| before.get(*at) == Some(&true));
    if at.is_none() {
        let message = format!("`{name}` names the step of an earlier request, counted from 0");
        step.report(report, message);
    }
    at
}

fn read_request(step: Field<'_>, report: &mut Report) -> Option<Request> {
    let path = step.path;
    let mut peek = false;
    let (t_ms, cost, descriptor, expect) =
        read_fields(step, &path, &STEP_FIELDS, report, |take| {
            peek = take.boolean("peek").unwrap_or(false);
            take.field("note");
            (
                take.integer("t_ms", 0),
                take.integer("cost", 0),
                take.field("descriptor"),
                take.field("expect"),
            )
        })?;
    let descriptor = descriptor
        .map(|field| read_descriptor(field, report))
        .unwrap_or_default();
    let expect = expect
        .map(|field| read_expect(field, report))
        .unwrap_or_default();
    if step.node.get("t_ms").is_none() {
        step.report(report, "a step has `t_ms`, or is a `set`");
    }
    let cost = if step.node.get("cost").is_none() {
        Some(1)
    } else {
        cost
    };
    Some(Request {
        t_ms: t_ms?,
        cost: cost?,
        peek,
        descriptor,
        expect,
    })
}

fn read_descriptor(field: Field<'_>, report: &mut Report) -> Descriptor {
    let entries = field.entries("a map of entries, like {\"user\": \"alice\"}", report);
    let mut descriptor = Descriptor::new();
    for entry in entries.unwrap_or_default() {
        let path = Path::Field(&field.path, &entry.key);
        let value = Field {
            node: &entry.value,
            path,
        };
        match entry.key.parse::<Name>() {
            Ok(name) => {
                if let Some(text) = value.text("text", report) {
                    descriptor.insert(name, text.as_bytes());
                }
            }
            Err(error) => {
                value.report(report, error.to_string());
            }
        }
    }
    descriptor
}

fn read_expect(field: Field<'_>, report: &mut Report) -> Vec<Expected> {
    let entries = field.entries("a map of fields of the answer", report);
    let mut expected = Vec::new();
    for entry in entries.unwrap_or_default() {
        if !EXPECT_FIELDS.contains(&entry.key.as_str()) {
            let path = Path::Field(&field.path, &entry.key);
            let problem = report.add(&path, entry.place, "no such field in an answer");
            problem.push_hint(format!("known fields: {}", EXPECT_FIELDS.join(", ")));
        }
        expected.push(Expected {
            field: entry.key.clone(),
            value: entry.value.clone(),
        });
    }
    expected
}
