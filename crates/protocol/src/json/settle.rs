//! `POST /v1/settle`: the true cost of what a program reserved.

use documents::{Field, Fields, Path, Report, Take, from_base64, to_base64};
use policy::{Descriptor, Name};

use super::request::{Request, missing, read_body, read_costs};
use crate::{
    Answer, ApiError, Check, CostSettlement, LimitAnswer, LimitRequest,
    compact::{Batch, BatchCheck},
};

const FIELDS: [&str; 3] = ["token", "cost", "costs"];

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
    read_body(body, read_request)
}

fn read_request(root: Field<'_>, report: &mut Report) -> Option<Request> {
    let mut fields = Fields::new(root, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &Path::Root,
        report,
    };
    let token = match take.field("token") {
        Some(field) => read_token(&field, take.report),
        None => missing(&root, "token", take.report),
    };
    let costs = match take.field("costs") {
        Some(field) => read_costs(&field, take.report),
        None => Vec::new(),
    };
    let cost = match take.integer("cost", 0) {
        None if costs.is_empty() => missing(&root, "cost", take.report),
        cost => cost,
    };
    fields.finish(&Path::Root, &FIELDS, report);
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
mod tests {
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
        token(
            &"shop".parse().unwrap(),
            &descriptor.into_iter().collect(),
            &answer,
        )
        .unwrap()
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
        let all = |cost| vec![("tokens".to_owned(), cost), ("days".to_owned(), cost)];
        assert_eq!(settled(r#""cost":700"#), all(700));
        assert_eq!(
            settled(r#""costs":{"days":9}"#),
            [("days".to_owned(), 9_u64)]
        );
        assert_eq!(
            settled(r#""cost":7,"costs":{"days":9}"#),
            [("tokens".to_owned(), 7_u64), ("days".to_owned(), 9)]
        );
        assert_eq!(
            token(
                &"shop".parse().unwrap(),
                &Descriptor::new(),
                &Answer::default()
            ),
            None
        );
    }

    #[test]
    fn an_invalid_settlement_is_refused_with_its_field() {
        let token = text();
        for (body, field) in [
            (r#"{"cost":1}"#.to_owned(), "token"),
            (r#"{"token":"x","cost":1}"#.to_owned(), "token"),
            (
                format!(r#"{{"token":"{}","cost":1}}"#, &token[..token.len() - 4]),
                "token",
            ),
            (format!(r#"{{"token":"{token}"}}"#), "cost"),
            (
                format!(r#"{{"token":"{token}","costs":{{"plain":1}}}}"#),
                "costs",
            ),
        ] {
            let error = parse_settle(body.as_bytes()).unwrap_err();
            let named = error.field.clone().unwrap_or_default();
            assert!(named.contains(field), "{body} {error:?}");
        }
    }
}
