//! The encoding for people and programs.

use algorithms::{Slot, SlotAct};
use documents::{
    Entry, Field, Node, Path, Report, Take, Value, from_base64, node_to_value, to_base64,
};
use policy::{Compiled, Descriptor, Name, value_to_node};
use serde::{Serialize, Serializer, ser::SerializeMap};

use crate::{
    Answer, ApiError, Check, CostSettlement, ErrorCode, LimitAnswer, LimitCost, LimitRequest,
    LimitVerdict, MAX_CHECKS, MAX_ENTRIES, MAX_FREE, MAX_LIMITS, MAX_VALUE, Mode, SlotOp, Took,
    compact::{Batch, BatchCheck},
};

// --- Parses the body of `POST /v1/check`.

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
/// Of a check in a batch.
const CHECK_FIELDS: &[&str] = {
    let [_domain, of_one @ .., _wait_ms] = &SINGLE_FIELDS;
    of_one
};
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
fn read_body<T>(
    body: &[u8],
    read: impl FnOnce(Field<'_>, &mut Report) -> Option<T>,
) -> Result<T, ApiError> {
    let node = Node::from_json(body)
        .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, format!("not JSON: {error}")))?;
    let mut report = Report::default();
    let root = Field::root(&node);
    let read = read(root, &mut report);
    report.finish(read).map_err(ApiError::from)
}

fn read_request(root: Field<'_>, report: &mut Report) -> Option<Request> {
    let batch = root.node.get("checks").is_some();
    let take = &mut Take::new(&root, report)?;
    let domain = match take.field("domain") {
        Some(field) => field.domain(take.report),
        None => missing(&root, "domain", take.report),
    };
    if batch {
        let list = ("checks", "a list of checks");
        let checks = read_batch(take, list, CHECK_FIELDS, read_check);
        take.finish(&BATCH_FIELDS);
        return Some(Request {
            domain: domain?,
            checks,
            batch,
            wait_ms: 0,
        });
    }
    let check = read_check(&root, take);
    let wait_ms = take.integer("wait_ms", 0).unwrap_or(0);
    take.finish(&SINGLE_FIELDS);
    Some(Request {
        domain: domain?,
        checks: vec![check?],
        batch,
        wait_ms,
    })
}

/// Reports a missing field; one with an empty value has been reported already.
fn missing<T>(owner: &Field<'_>, name: &str, report: &mut Report) -> Option<T> {
    if owner.node.get(name).is_none() {
        let path = Path::Field(&owner.path, name);
        report.add(&path, None, "missing");
    }
    None
}

/// The checks in the list of a batch, each an object with `fields`.
fn read_batch(
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
        let item = field.item(index, node);
        let take = &mut Take::new(&item, report)?;
        let check = read(&item, take);
        take.finish(fields_of_one);
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
    let only = take.field("limits");
    let only = only.map_or_else(Vec::new, |field| read_limits(&field, take.report));
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
    let costs = take.field("costs");
    let costs = costs.map_or_else(Vec::new, |field| read_costs(&field, take.report));
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
fn read_free(field: &Field<'_>, limits: &mut Vec<LimitRequest>, report: &mut Report) {
    let what = "a map of limits to slots, like {\"exports\": \"…\"}";
    let entries = field.entries(what, report).unwrap_or_default();
    if entries.len() > MAX_FREE {
        field.report(report, format!("more than {MAX_FREE} slots"));
        return;
    }
    for entry in entries {
        let item = field.below(entry);
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
fn read_costs(field: &Field<'_>, report: &mut Report) -> Vec<(Name, u64)> {
    let what = "a map of limits to units, like {\"tokens\": 800}";
    let entries = field.entries(what, report).unwrap_or_default();
    if entries.len() > MAX_LIMITS {
        field.report(report, format!("more than {MAX_LIMITS} limits"));
        return Vec::new();
    }
    let cost = |entry: &&Entry| {
        let item = field.below(entry);
        let Ok(limit) = entry.key.parse::<Name>() else {
            item.report(report, "not the name of a limit");
            return None;
        };
        Some((limit, item.integer(0, report)?))
    };
    entries.iter().filter_map(cost).collect()
}

fn read_descriptor(field: &Field<'_>, report: &mut Report) -> Option<Descriptor> {
    let entries = field.entries("a map of entries, like {\"user\": \"alice\"}", report)?;
    if entries.len() > MAX_ENTRIES {
        field.report(report, format!("more than {MAX_ENTRIES} entries"));
        return None;
    }
    let mut descriptor = Descriptor::new();
    for entry in entries {
        let item = field.below(entry);
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

// --- Encodes the answers to `POST /v1/check`.

/// Why a check that was willing to wait was answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It can never pass: it costs more than a limit's capacity.
    ExceedsCapacity,
    /// It cannot pass within the time it would have waited.
    WaitTooShort,
}

/// The answer to one check, as JSON.
pub struct Reply<'a> {
    answer: &'a Answer,
    policy: &'a Compiled,
    reason: Option<Reason>,
    token: Option<String>,
}

/// The answer of one limit, and how long a queue delays the request.
struct LimitReply<'a>(&'a LimitAnswer, Option<u64>);

struct Bucket<'a>(&'a [(Name, Option<Vec<u8>>)]);

impl Serialize for Bucket<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key.as_str(), &value_to_node(value.as_deref()))?;
        }
        map.end()
    }
}

impl<'a> Reply<'a> {
    /// An answer as JSON; `policy` is the one that decided.
    pub fn new(answer: &'a Answer, policy: &'a Compiled) -> Self {
        Self {
            answer,
            policy,
            reason: None,
            token: None,
        }
    }

    /// Adds the token of the reservations, from [`token`].
    #[must_use]
    pub fn reserved_as(mut self, token: Option<String>) -> Self {
        self.token = token;
        self
    }

    /// Adds the reason why the check did not wait.
    #[must_use]
    pub fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }
}

impl Serialize for Reply<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (answer, summary) = (self.answer, self.answer.summary());
        let limits = answer.limits.iter();
        let limits = limits.map(|limit| LimitReply(limit, delay_ms(limit, self.policy)));
        let limits: Vec<LimitReply<'_>> = limits.collect();
        let queues = limits.iter().any(|LimitReply(_, delay)| delay.is_some());
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("allowed", &answer.allowed)?;
        map.serialize_entry("matched", &limits.len())?;
        map.serialize_entry("revision", &answer.revision.number)?;
        map.serialize_entry("now_ms", &answer.now_ms)?;
        map.serialize_entry("remaining", &summary.remaining)?;
        map.serialize_entry("retry_after_ms", &or_never(summary.retry_after_ms))?;
        map.serialize_entry("reset_after_ms", &summary.reset_after_ms)?;
        optional(&mut map, "delay_ms", queues.then_some(summary.delay_ms))?;
        map.serialize_entry("limits", &limits)?;
        map.serialize_entry("denied_by", &names(&summary.denied_by))?;
        map.serialize_entry("would_deny", &names(&summary.would_deny))?;
        map.serialize_entry("degraded_by", &names(&summary.degraded_by))?;
        optional(&mut map, "reason", self.reason)?;
        optional(&mut map, "token", self.token.as_ref())?;
        map.end()
    }
}

impl Serialize for LimitReply<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(limit, delay_ms) = *self;
        let mode = match limit.mode {
            Mode::Enforce => None,
            Mode::Shadow => Some("shadow"),
            Mode::Degrade => Some("degrade"),
        };
        let (verdict, decision) = (&limit.verdict, &limit.verdict.decision);
        let slot = verdict.slot.filter(|_| verdict.charged > 0);
        let slot = slot.map(|slot| format_slot(slot, verdict.charged));
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("name", limit.name.as_str())?;
        map.serialize_entry("bucket", &Bucket(&limit.bucket))?;
        map.serialize_entry("allowed", &decision.allowed)?;
        optional(&mut map, "mode", mode)?;
        map.serialize_entry("limit", &limit.limit)?;
        map.serialize_entry("remaining", &limit.limit.map(|_| decision.remaining))?;
        map.serialize_entry("charged", &verdict.charged)?;
        map.serialize_entry("retry_after_ms", &or_never(decision.retry_after.millis()))?;
        map.serialize_entry("reset_after_ms", &decision.reset_after_ms)?;
        optional(&mut map, "delay_ms", delay_ms)?;
        optional(&mut map, "slot", slot)?;
        optional(
            &mut map,
            "penalty",
            (verdict.penalty.left_ms > 0).then_some(true),
        )?;
        map.end()
    }
}

/// An entry that is there only with a value.
fn optional<M: SerializeMap>(
    map: &mut M,
    name: &str,
    value: Option<impl Serialize>,
) -> Result<(), M::Error> {
    value.map_or(Ok(()), |value| map.serialize_entry(name, &value))
}

/// How long a queue delays the request; `None`: the limit is none.
fn delay_ms(limit: &LimitAnswer, policy: &Compiled) -> Option<u64> {
    let known = policy.named(&limit.name)?;
    let queues = known.quota.parameters().max_delay_ms.is_some() && limit.limit.is_some();
    queues.then_some(limit.verdict.decision.delay_ms)
}

fn names<'a>(names: &[&'a Name]) -> Vec<&'a str> {
    names.iter().map(|name| name.as_str()).collect()
}

/// −1 is "never" in JSON.
fn or_never(ms: Option<u64>) -> i64 {
    ms.map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX))
}

/// The body that answers a single check.
pub fn check_reply(reply: &Reply<'_>) -> String {
    serde_json::to_string(reply).unwrap_or_default()
}

/// The body that answers a batch: an answer or an error for each check, in order.
pub fn batch_reply<'a>(
    revision: u64,
    results: impl IntoIterator<Item = Result<Reply<'a>, ApiError>>,
) -> String {
    #[derive(Serialize)]
    struct Batch<'a> {
        revision: u64,
        results: Vec<One<Reply<'a>>>,
    }
    let batch = Batch {
        revision,
        results: results.into_iter().map(One::new).collect(),
    };
    serde_json::to_string(&batch).unwrap_or_default()
}

/// The result of one of several.
#[derive(Serialize)]
#[serde(untagged)]
enum One<T> {
    Done(Box<T>),
    Failed { error: ApiError },
}

impl<T> One<T> {
    fn new(result: Result<T, ApiError>) -> Self {
        match result {
            Ok(done) => Self::Done(Box::new(done)),
            Err(error) => Self::Failed { error },
        }
    }
}

// --- `POST /v1/release` and `POST /v1/renew`: slots that a program frees or renews.

const SINGLE_SLOTS_FIELDS: [&str; 6] = ["domain", "descriptor", "slots", "enter", "took", "slow"];
const SLOTS_FIELDS: &[&str] = {
    let [_domain, of_one @ ..] = &SINGLE_SLOTS_FIELDS;
    of_one
};
const BATCH_SLOTS_FIELDS: [&str; 2] = ["domain", "requests"];

/// Reads a request that frees slots or, with `renew`, renews them: checks that charge nothing.
///
/// # Errors
/// The first thing wrong with it, with its field.
pub fn parse_slots(body: &[u8], renew: bool) -> Result<Request, ApiError> {
    read_body(body, |root, report| read_slots(root, renew, report))
}

fn read_slots(root: Field<'_>, renew: bool, report: &mut Report) -> Option<Request> {
    let batch = root.node.get("requests").is_some();
    let take = &mut Take::new(&root, report)?;
    let domain = match take.field("domain") {
        Some(field) => field.domain(take.report),
        None => missing(&root, "domain", take.report),
    };
    let checks = if batch {
        let list = ("requests", "a list of requests and their slots");
        let checks = read_batch(take, list, SLOTS_FIELDS, |owner, take| {
            read_slots_of_one(owner, take, renew)
        });
        take.finish(&BATCH_SLOTS_FIELDS);
        checks
    } else {
        let check = read_slots_of_one(&root, take, renew);
        take.finish(&SINGLE_SLOTS_FIELDS);
        vec![check?]
    };
    Some(Request {
        domain: domain?,
        checks,
        batch,
        wait_ms: 0,
    })
}

/// The slots of one request, by its descriptor and the limits that gave them.
fn read_slots_of_one(owner: &Field<'_>, take: &mut Take<'_, '_>, renew: bool) -> Option<Check> {
    let descriptor = match take.field("descriptor") {
        Some(field) => read_descriptor(&field, take.report),
        None => missing(owner, "descriptor", take.report),
    };
    let mut limits = Vec::new();
    match take.field("slots") {
        Some(field) => read_free(&field, &mut limits, take.report),
        None => missing(owner, "slots", take.report)?,
    }
    let enter = match take.field("enter") {
        Some(field) if !renew => {
            field.report(take.report, "a slot that is freed is not entered again");
            None
        }
        Some(field) => field.boolean(take.report),
        None => None,
    };
    let took = read_took(take, renew);
    if renew {
        let act = match enter {
            Some(true) => SlotAct::Enter,
            _ => SlotAct::Renew,
        };
        for slot in limits.iter_mut().flat_map(|limit| &mut limit.slots) {
            slot.act = act;
        }
    }
    Some(Check {
        descriptor: descriptor?,
        only: limits.iter().map(|entry| entry.limit.clone()).collect(),
        limits,
        took,
        ..Check::default()
    })
}

/// How the service answered: `took`, in milliseconds, or `slow`.
fn read_took(take: &mut Take<'_, '_>, renew: bool) -> Option<Took> {
    let (took, slow) = (take.field("took"), take.field("slow"));
    for field in took.iter().chain(&slow).filter(|_| renew) {
        field.report(
            take.report,
            "a request that still runs has not been answered",
        );
    }
    match (took, slow) {
        (Some(_), Some(slow)) => {
            slow.report(
                take.report,
                "`took` and `slow` say the same: send one of them",
            );
            None
        }
        (Some(took), None) => took.integer(0, take.report).map(Took::Ms),
        (None, Some(slow)) => slow.boolean(take.report).map(Took::Slow),
        (None, None) => None,
    }
}

/// The slot of a request that was charged this many units, as text for programs.
fn format_slot(slot: Slot, units: u64) -> String {
    let Slot {
        start_ms,
        parts,
        since_ms,
        turn,
    } = slot;
    format!("{start_ms}.{parts}.{since_ms}.{turn}.{units}")
}

/// Reads what [`format_slot`] wrote.
fn parse_slot(text: &str) -> Option<(Slot, u64)> {
    let mut numbers = text.split('.').map(|number| number.parse().ok());
    let slot = Slot {
        start_ms: numbers.next()??,
        parts: numbers.next()??,
        since_ms: numbers.next()??,
        turn: numbers.next()??,
    };
    let units = numbers.next()??;
    numbers.next().is_none().then_some((slot, units))
}

/// The limits whose slots were to be renewed but are missing.
#[derive(Serialize)]
struct Renewed<'a> {
    missing: Vec<&'a str>,
}

/// The body that answers [`parse_slots`]; of a `batch` a list, in order.
///
/// # Errors
/// That of a request that was alone and failed.
pub fn renewed_reply<'a>(
    batch: bool,
    results: impl IntoIterator<Item = Result<&'a Answer, ApiError>>,
) -> Result<String, ApiError> {
    let of = |answer: &'a Answer| {
        let is_gone = |of: &LimitVerdict| of.charged == 0 && of.slot.is_some();
        let gone = { answer.limits.iter() }.filter(|limit| is_gone(&limit.verdict));
        Renewed {
            missing: gone.map(|limit| limit.name.as_str()).collect(),
        }
    };
    let mut results = results.into_iter();
    let text = if batch {
        let all: Vec<_> = results.map(|result| One::new(result.map(of))).collect();
        serde_json::to_string(&serde_json::json!({ "results": all }))
    } else {
        match results.next() {
            Some(Ok(answer)) => serde_json::to_string(&of(answer)),
            Some(Err(error)) => return Err(error),
            None => return Err(ApiError::new(ErrorCode::Internal, "no decision")),
        }
    };
    Ok(text.unwrap_or_default())
}

// --- `POST /v1/settle`: the true cost of what a program reserved.

const SETTLE_FIELDS: [&str; 3] = ["token", "cost", "costs"];

/// The token of a check's reservations, which only [`parse_settle`] interprets. `None`: there are none.
pub fn token(domain: &Name, descriptor: &Descriptor, answer: &Answer) -> Option<String> {
    let reserved = |limit: &LimitAnswer| {
        let reservation = limit.reservation?;
        Some(LimitRequest {
            settle: vec![CostSettlement {
                reservation,
                units: 0,
            }],
            ..LimitRequest::new(limit.name.clone())
        })
    };
    let limits: Vec<LimitRequest> = answer.limits.iter().filter_map(reserved).collect();
    if limits.is_empty() {
        return None;
    }
    let (keys, values) = descriptor
        .iter()
        .map(|(key, value)| (key.clone(), Some(value.to_vec())))
        .unzip();
    let batch = Batch {
        domain: domain.clone(),
        proxy: String::new(),
        revision: None,
        keys,
        checks: vec![BatchCheck {
            values,
            limits,
            ..BatchCheck::default()
        }],
    };
    Some(to_base64(&batch.encode()))
}

/// Reads a request that settles reservations: a check that charges nothing else.
///
/// # Errors
/// The first thing wrong with it, with its field.
pub fn parse_settle(body: &[u8]) -> Result<Request, ApiError> {
    read_body(body, read_settle)
}

fn read_settle(root: Field<'_>, report: &mut Report) -> Option<Request> {
    let take = &mut Take::new(&root, report)?;
    let token = match take.field("token") {
        Some(field) => read_token(&field, take.report),
        None => missing(&root, "token", take.report),
    };
    let costs = take.field("costs");
    let costs = costs.map_or_else(Vec::new, |field| read_costs(&field, take.report));
    let cost = match take.integer("cost", 0) {
        None if costs.is_empty() => missing(&root, "cost", take.report),
        cost => cost,
    };
    take.finish(&SETTLE_FIELDS);
    let (domain, mut check) = token?;
    // A limit without a cost of its own uses the common one; without either it is not settled.
    check.limits.retain_mut(|entry| {
        let own = costs.iter().find(|(limit, _)| *limit == entry.limit);
        let units = own.map(|(_, units)| *units).or(cost);
        for settled in &mut entry.settle {
            settled.units = units.unwrap_or(0);
        }
        units.is_some()
    });
    check.only = { check.limits.iter() }
        .map(|entry| entry.limit.clone())
        .collect();
    if check.only.is_empty() {
        let path = Path::Field(&root.path, "costs");
        report.add(&path, None, "the token names none of these limits");
        return None;
    }
    Some(Request {
        domain,
        checks: vec![check],
        batch: false,
        wait_ms: 0,
    })
}

/// The domain, and a check that settles the token's reservations.
fn read_token(field: &Field<'_>, report: &mut Report) -> Option<(Name, Check)> {
    let bytes = field.node.as_text().and_then(from_base64);
    let batch = bytes.and_then(|bytes| Batch::decode(&bytes).ok());
    let read = batch.and_then(|mut batch| {
        let check = batch.checks.pop()?.into_check(&batch.keys);
        let settling = check
            .limits
            .into_iter()
            .filter(|entry| !entry.settle.is_empty());
        let only = Check {
            descriptor: check.descriptor,
            limits: settling
                .map(|entry| LimitRequest {
                    settle: entry.settle,
                    ..LimitRequest::new(entry.limit)
                })
                .collect(),
            ..Check::default()
        };
        (batch.checks.is_empty() && !only.limits.is_empty()).then_some((batch.domain, only))
    });
    if read.is_none() {
        field.expected("the `token` of an answer", report);
    }
    read
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod reply_tests {
    use super::*;
    use crate::{ErrorCode, RetryAfter, Slot, answer::tests::limit};

    fn policy() -> Compiled {
        let text = br"
domain: shop
limits:
  - {name: per-user, per: [user], rate: 10/s, burst: 20}
  - {name: exports, algorithm: leaky_bucket, rate: 2/s, burst: 10, over_limit: queue}
";
        Compiled::new(limits_file::read("limits.yaml", text).unwrap())
    }

    fn body(limits: Vec<LimitAnswer>) -> String {
        let answer = Answer {
            limits,
            ..Answer::default()
        };
        check_reply(&Reply::new(&answer, &policy()))
    }

    #[test]
    fn a_reply_equals_the_documented_example() {
        let mut per_user = limit("per-user");
        per_user.bucket = vec![("user".parse().unwrap(), Some(b"alice".to_vec()))];
        per_user.verdict.decision.remaining = 19;
        per_user.verdict.charged = 1;
        per_user.verdict.decision.reset_after_ms = 100;
        let mut answer = Answer {
            now_ms: 1_763_000_000_000,
            allowed: true,
            limits: vec![per_user],
            ..Answer::default()
        };
        answer.revision.number = 17;
        let policy = policy();
        assert_eq!(
            check_reply(&Reply::new(&answer, &policy)),
            concat!(
                r#"{"allowed":true,"matched":1,"revision":17,"now_ms":1763000000000,"#,
                r#""remaining":19,"retry_after_ms":0,"reset_after_ms":100,"#,
                r#""limits":[{"name":"per-user","bucket":{"user":"alice"},"allowed":true,"#,
                r#""limit":20,"remaining":19,"charged":1,"#,
                r#""retry_after_ms":0,"reset_after_ms":100}],"#,
                r#""denied_by":[],"would_deny":[],"degraded_by":[]}"#
            )
        );
    }

    #[test]
    fn a_queue_reports_its_delay_even_if_zero() {
        let body = body(vec![limit("exports")]);
        assert_eq!(body.matches(r#""delay_ms":0"#).count(), 2, "{body}");
    }

    #[test]
    fn a_queue_names_the_slot_of_what_it_admits() {
        let mut exports = limit("exports");
        exports.verdict.charged = 2;
        exports.verdict.slot = Some(Slot {
            start_ms: 17,
            parts: 1,
            since_ms: 5,
            turn: 0,
        });
        let body = body(vec![exports]);
        assert!(body.contains(r#""slot":"17.1.5.0.2""#), "{body}");
    }

    #[test]
    fn a_penalty_is_named_only_while_it_lasts() {
        let mut penalized = limit("per-user");
        penalized.verdict.decision.allowed = false;
        penalized.verdict.decision.retry_after = RetryAfter::Millis(900_000);
        penalized.verdict.penalty.left_ms = 900_000;
        let mut counting = limit("exports");
        counting.verdict.penalty.denials = 7;
        let body = body(vec![penalized, counting]);
        let with_penalty = r#""retry_after_ms":900000,"reset_after_ms":0,"penalty":true}"#;
        assert!(body.contains(with_penalty), "{body}");
        assert_eq!(body.matches("penalty").count(), 1, "{body}");
    }

    #[test]
    fn a_batch_answers_in_order_with_errors_of_its_own() {
        let mut denied = limit("per-user");
        denied.verdict.decision.allowed = false;
        denied.verdict.decision.retry_after = RetryAfter::Never;
        denied.mode = Mode::Shadow;
        denied.bucket = vec![
            ("user".parse().unwrap(), None),
            ("raw".parse().unwrap(), Some(vec![0xff])),
        ];
        let answer = Answer {
            allowed: true,
            limits: vec![denied],
            ..Answer::default()
        };
        let policy = policy();
        let reply = Reply::new(&answer, &policy).because(Reason::ExceedsCapacity);
        let error = ApiError::new(ErrorCode::StoreUnavailable, "one shard is down");
        insta::assert_snapshot!(batch_reply(17, [Ok(reply), Err(error)]), @r#"{"revision":17,"results":[{"allowed":true,"matched":1,"revision":0,"now_ms":0,"remaining":null,"retry_after_ms":0,"reset_after_ms":0,"limits":[{"name":"per-user","bucket":{"user":null,"raw":{"base64":"/w=="}},"allowed":false,"mode":"shadow","limit":20,"remaining":20,"charged":0,"retry_after_ms":-1,"reset_after_ms":0}],"denied_by":[],"would_deny":["per-user"],"degraded_by":[],"reason":"exceeds_capacity"},{"error":{"code":"store_unavailable","message":"one shard is down"}}]}"#);
    }
}

#[cfg(test)]
mod slots_tests {
    use super::*;

    const SLOT: &str = "8000.77.10000.3.1";

    fn body(more: &str) -> String {
        format!(
            r#"{{"domain":"shop","descriptor":{{"user":"alice"}},"slots":{{"in-flight":"{SLOT}"}}{more}}}"#
        )
    }

    #[test]
    fn a_slot_round_trips_through_text() {
        let slot = Slot {
            start_ms: 1_763_000_040_000,
            parts: 3,
            since_ms: 1_763_000_000_000,
            turn: 2,
        };
        let text = format_slot(slot, 5);
        assert_eq!(text, "1763000040000.3.1763000000000.2.5");
        assert_eq!(parse_slot(&text), Some((slot, 5)));
        for wrong in ["", "1.2.3.4", "1.2.3.4.5.6", "1.2.3.4.x", "1.2.3.4.-5"] {
            assert_eq!(parse_slot(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_slot_is_freed_renewed_or_entered() {
        for (more, renew, act) in [
            ("", false, SlotAct::Free(1)),
            ("", true, SlotAct::Renew),
            (r#","enter":true"#, true, SlotAct::Enter),
        ] {
            let request = parse_slots(body(more).as_bytes(), renew).unwrap();
            let check = request.checks.first().unwrap();
            assert_eq!(check.limits[0].slots[0].act, act);
            assert_eq!((check.cost, check.only.len()), (0, 1));
        }
    }

    #[test]
    fn a_release_says_how_the_service_answered_or_nothing() {
        for (more, took) in [
            ("", None),
            (r#","took":120"#, Some(Took::Ms(120))),
            (r#","took":0"#, Some(Took::Ms(0))),
            (r#","slow":true"#, Some(Took::Slow(true))),
            (r#","slow":false"#, Some(Took::Slow(false))),
        ] {
            let request = parse_slots(body(more).as_bytes(), false).unwrap();
            assert_eq!(request.checks[0].took, took, "{more}");
        }
        for more in [
            r#","took":-1"#,
            r#","took":1.5"#,
            r#","took":"120ms""#,
            r#","slow":1"#,
            r#","took":1,"slow":true"#,
            r#","took":99999999999999999999"#,
        ] {
            assert!(parse_slots(body(more).as_bytes(), false).is_err(), "{more}");
        }
        assert!(parse_slots(body(r#","took":120"#).as_bytes(), true).is_err());
    }

    #[test]
    fn an_invalid_slot_request_is_refused_with_its_field() {
        for (text, field) in [
            (body(r#","enter":true"#), "enter"),
            (body("").replace(SLOT, "8000.77"), "slots.in-flight"),
            (body("").replace("slots", "slot"), "slots"),
            (body("").replace("descriptor", "x"), "descriptor"),
        ] {
            let error = parse_slots(text.as_bytes(), false).unwrap_err();
            let named = error.field.clone().unwrap_or_default() + &error.message;
            assert!(named.contains(field), "{error:?}");
        }
    }
}

#[cfg(test)]
mod settle_tests {
    use super::*;
    use crate::{Reservation, answer::tests::limit};

    fn text() -> String {
        let mut answer = Answer::default();
        for (secret, name) in ["tokens", "days", "plain"].into_iter().enumerate() {
            let mut limit = limit(name);
            limit.reservation = (name != "plain").then_some(Reservation {
                secret: secret as u64,
                number: 2,
                units: 1000,
                seal: 77,
            });
            answer.limits.push(limit);
        }
        let descriptor = [("user".parse().unwrap(), b"\xff".to_vec())];
        let (shop, descriptor) = ("shop".parse().unwrap(), descriptor.into_iter().collect());
        token(&shop, &descriptor, &answer).unwrap()
    }

    fn settled(more: &str) -> Vec<(String, u64)> {
        let body = format!(r#"{{"token":"{}",{more}}}"#, text());
        let request = parse_settle(body.as_bytes()).unwrap();
        assert_eq!(request.domain.as_str(), "shop");
        let check = request.checks.first().unwrap();
        assert_eq!(check.descriptor.get("user"), Some(&b"\xff"[..]));
        assert_eq!((check.cost, check.only.len()), (0, check.limits.len()));
        let settle = check.limits.iter();
        settle
            .map(|entry| (entry.limit.to_string(), entry.settle.first().unwrap().units))
            .collect()
    }

    #[test]
    fn a_token_names_what_was_reserved() {
        let tokens = |cost| ("tokens".to_owned(), cost);
        let days = |cost| ("days".to_owned(), cost);
        assert_eq!(settled(r#""cost":700"#), [tokens(700), days(700)]);
        assert_eq!(settled(r#""costs":{"days":9}"#), [days(9)]);
        let both = settled(r#""cost":7,"costs":{"days":9}"#);
        assert_eq!(both, [tokens(7), days(9)]);
        let shop = "shop".parse().unwrap();
        let none = token(&shop, &Descriptor::new(), &Answer::default());
        assert_eq!(none, None);
    }

    #[test]
    fn an_invalid_settlement_is_refused_with_its_field() {
        let token = text();
        let cut = &token[..token.len() - 4];
        for (body, field) in [
            (r#"{"cost":1}"#, "token"),
            (r#"{"token":"x","cost":1}"#, "token"),
            (r#"{"token":"CUT","cost":1}"#, "token"),
            (r#"{"token":"TOKEN"}"#, "cost"),
            (r#"{"token":"TOKEN","costs":{"plain":1}}"#, "costs"),
        ] {
            let body = body.replace("CUT", cut).replace("TOKEN", &token);
            let error = parse_settle(body.as_bytes()).unwrap_err();
            let named = error.field.clone().unwrap_or_default();
            assert!(named.contains(field), "{body} {error:?}");
        }
    }
}
