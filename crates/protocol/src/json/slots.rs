//! `POST /v1/release` and `POST /v1/renew`: slots that a program frees or renews.

use algorithms::{Slot, SlotAct};
use documents::{Field, Fields, Path, Report, Take};
use serde::Serialize;

use super::request::{Request, missing, read_batch, read_body, read_descriptor, read_free};
use crate::{Answer, ApiError, Check, ErrorCode};

const FIELDS: [&str; 3] = ["descriptor", "slots", "enter"];
const SINGLE_FIELDS: [&str; 4] = ["domain", "descriptor", "slots", "enter"];
const BATCH_FIELDS: [&str; 2] = ["domain", "requests"];

/// Reads a request that frees slots or, with `renew`, renews them: checks that charge nothing.
///
/// # Errors
/// The first thing wrong with it, with its field.
pub fn parse_slots(body: &[u8], renew: bool) -> Result<Request, ApiError> {
    read_body(body, |root, report| read_request(root, renew, report))
}

fn read_request(root: Field<'_>, renew: bool, report: &mut Report) -> Option<Request> {
    let batch = root.node.get("requests").is_some();
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
    let checks = if batch {
        let list = ("requests", "a list of requests and their slots");
        let checks = read_batch(take, list, &FIELDS, |owner, take| {
            read_one(owner, take, renew)
        });
        fields.finish(&Path::Root, &BATCH_FIELDS, report);
        checks
    } else {
        let check = read_one(&root, take, renew);
        fields.finish(&Path::Root, &SINGLE_FIELDS, report);
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
fn read_one(owner: &Field<'_>, take: &mut Take<'_, '_>, renew: bool) -> Option<Check> {
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
        ..Check::default()
    })
}

/// The slot of a request that was charged this many units, as text for programs.
pub(super) fn format_slot(slot: Slot, units: u64) -> String {
    let Slot {
        start_ms,
        parts,
        since_ms,
        turn,
    } = slot;
    format!("{start_ms}.{parts}.{since_ms}.{turn}.{units}")
}

/// Reads what [`format_slot`] wrote.
pub(super) fn parse_slot(text: &str) -> Option<(Slot, u64)> {
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

#[derive(Serialize)]
#[serde(untagged)]
enum One<'a> {
    Done(Renewed<'a>),
    Failed { error: ApiError },
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
        let limits = answer.limits.iter();
        let gone = limits.filter(|limit| limit.charged == 0 && limit.slot.is_some());
        Renewed {
            missing: gone.map(|limit| limit.name.as_str()).collect(),
        }
    };
    let mut results = results.into_iter();
    let text = if batch {
        let all = results.map(|result| match result {
            Ok(answer) => One::Done(of(answer)),
            Err(error) => One::Failed { error },
        });
        let all: Vec<One<'_>> = all.collect();
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

#[cfg(test)]
mod tests {
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
            assert_eq!(
                check.limits.first().unwrap().slots.first().unwrap().act,
                act
            );
            assert_eq!((check.cost, check.only.len()), (0, 1));
        }
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
            let named = error.field.clone().unwrap_or_default();
            assert!(
                named.contains(field) || error.message.contains(field),
                "{error:?}"
            );
        }
    }
}
