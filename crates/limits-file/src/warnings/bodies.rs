//! The numbers that limits read of one body, when several of them apply to a request.

use documents::Problem;
use policy::{Limit, MAX_POINTERS, Matcher, Pattern, Pointer, ResponsePrice, ResponseValue};

use super::truncated_list;

/// Bound: pairs of limits that are compared to find those that read too much of one body. Beyond it, there is no warning.
const PAIRS_MAX: usize = 100_000;

/// Where limits read numbers of a body.
type Pointers = fn(&Limit) -> Vec<&Pointer>;

/// The first limit whose number in a body a filter does not look for, because limits before it, which may apply to the same
/// request, read as many as it reads. That number counts as absent.
pub fn unread_number<'l>(limits: &(impl Iterator<Item = &'l Limit> + Clone)) -> Option<Problem> {
    let parts: [(&str, Pointers); 2] = [
        ("cost.from", of_response),
        ("cost.reserve.from", of_request),
    ];
    let mut parts = parts.into_iter();
    parts.find_map(|(field, pointers)| unread_in(limits.clone(), field, pointers))
}

fn of_response(limit: &Limit) -> Vec<&Pointer> {
    let terms = limit
        .response_price()
        .into_iter()
        .flat_map(ResponsePrice::terms);
    let in_body = terms.filter_map(|term| match &term.place {
        ResponseValue::Json(pointer) => Some(pointer),
        _ => None,
    });
    in_body.collect()
}

fn of_request(limit: &Limit) -> Vec<&Pointer> {
    let price = limit.response_price().into_iter();
    price.flat_map(|price| price.reserve.pointers()).collect()
}

fn unread_in<'l>(
    limits: impl Iterator<Item = &'l Limit>,
    field: &str,
    pointers: Pointers,
) -> Option<Problem> {
    let reading: Vec<(usize, &Limit, Vec<&Pointer>)> = { limits.enumerate() }
        .map(|(at, limit)| (at, limit, pointers(limit)))
        .filter(|(.., pointers)| !pointers.is_empty())
        .collect();
    let all: usize = reading.iter().map(|(.., pointers)| pointers.len()).sum();
    if all <= MAX_POINTERS {
        return None;
    }
    let mut pairs = 0;
    for first in 0..reading.len() {
        // Each may apply together with each of the others before it. In the order in which a filter counts.
        let mut together: Vec<&Limit> = Vec::new();
        let mut counted: Vec<&Pointer> = Vec::new();
        for (at, limit, pointers) in reading.iter().skip(first) {
            pairs += together.len();
            if pairs > PAIRS_MAX {
                return None;
            }
            if !together.iter().all(|other| may_share(other, limit)) {
                continue;
            }
            together.push(limit);
            counted.extend(pointers);
            let (read, beyond) = counted.split_at(counted.len().min(MAX_POINTERS));
            if let Some(unread) = beyond.iter().find(|pointer| !read.contains(pointer)) {
                let names: Vec<&str> = together.iter().map(|limit| limit.name.as_str()).collect();
                return Some(problem(*at, limit, field, unread, &names));
            }
        }
    }
    None
}

fn problem(at: usize, limit: &Limit, field: &str, unread: &Pointer, names: &[&str]) -> Problem {
    /// The most limits that a message names.
    const NAMED_MAX: usize = 3;
    let others = names.split_last().map_or(&[][..], |(_, others)| others);
    let with = if others.is_empty() {
        String::new()
    } else {
        let others = others.iter().map(|name| format!("`{name}`"));
        format!(", beside {}", truncated_list(others, NAMED_MAX))
    };
    let message = format!(
        "`{unread}` counts as absent on a request to which this limit applies{with}: a filter looks for {MAX_POINTERS} numbers \
         of a body"
    );
    let mut problem = Problem::new(format!("limits[{at}].{field}"), None, message);
    problem.limit = Some(limit.name.to_string());
    problem.push_hint("read fewer numbers, or let `match` keep the limits apart");
    problem
}

/// Whether a request to which both apply is possible, as far as their values and the beginnings of these say.
fn may_share(one: &Limit, other: &Limit) -> bool {
    let differ = |own: &Matcher| {
        let others = other.matchers.iter().filter(|found| found.key == own.key);
        { others }.any(|other| !may_both(&own.patterns, &other.patterns))
    };
    !one.matchers.iter().any(differ)
}

fn may_both(some: &[Pattern], others: &[Pattern]) -> bool {
    let positive = |patterns| { <[Pattern]>::iter(patterns) }.filter(|one| !one.is_negated());
    if positive(some).next().is_none() || positive(others).next().is_none() {
        return true;
    }
    positive(some).any(|one| positive(others).any(|other| may_meet(one, other)))
}

fn may_meet(one: &Pattern, other: &Pattern) -> bool {
    let begins = |long: &[u8], short: &[u8]| {
        let rest = long.get(..short.len()) == Some(short);
        rest && (long.len() == short.len() || long.get(short.len()) == Some(&b'/'))
    };
    if one.any_case() || other.any_case() {
        return true;
    }
    match (
        [one, other].map(Pattern::exact),
        [one, other].map(Pattern::head),
    ) {
        ([Some(one), Some(other)], _) => one == other,
        ([Some(value), None], _) => other.finds(value),
        ([None, Some(value)], _) => one.finds(value),
        (_, [Some(one), Some(other)]) => begins(one, other) || begins(other, one),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// The warning about limits with such a `match`, as many as it takes to read these numbers, eight in each.
    fn of(limits: &[(&str, std::ops::Range<u32>)], request: bool) -> String {
        let mut file = "domain: shop\nlimits:\n".to_owned();
        for (at, (matched, range)) in limits.iter().enumerate() {
            let kind = if request {
                "request_json"
            } else {
                "response_json"
            };
            let from: Vec<String> = range
                .clone()
                .map(|n| format!("{{{kind}: /n{n}}}"))
                .collect();
            for (part, from) in from.chunks(8).enumerate() {
                let from = from.join(", ");
                let cost = if request {
                    format!("from: {{response_header: x}}, reserve: {{from: [{from}], default: 1}}")
                } else {
                    format!("from: [{from}], reserve: 1")
                };
                writeln!(
                    file,
                    "  - {{name: l{at}-{part}, match: {matched}, rate: 9/1m, cost: {{{cost}, max: 9}}}}"
                )
                .unwrap();
            }
        }
        let policy = crate::read("test", file.as_bytes()).unwrap();
        unread_number(&policy.limits.iter()).map_or_else(String::new, |problem| problem.to_string())
    }

    #[test]
    fn a_number_beyond_those_that_a_filter_looks_for_is_named() {
        for request in [false, true] {
            let any = "{method: POST}";
            assert_eq!(of(&[(any, 0..20), (any, 20..30)], request), "");
            // The same number is found where it was named first, but takes a place each time.
            assert_eq!(of(&[(any, 0..20), (any, 0..20)], request), "");
            assert_ne!(
                of(&[(any, 0..20), (any, 0..10), (any, 20..21)], request),
                ""
            );
            let said = of(
                &[(any, 0..20), (any, 20..30), ("{path: /x}", 30..31)],
                request,
            );
            assert!(said.contains("limit `l2-0`"), "{said}");
            assert!(said.contains("`/n30` counts as absent"), "{said}");
            let beside = "beside `l0-0`, `l0-1`, `l0-2` and 2 more: a filter looks for 30";
            assert!(said.contains(beside), "{said}");
        }
    }

    #[test]
    fn limits_that_no_request_has_together_may_read_more() {
        for [one, other, apart] in [
            ["{path: /a}", "{path: /b}", "yes"],
            ["{path: \"/a/**\"}", "{path: \"/b/**\"}", "yes"],
            ["{path: \"/a/**\"}", "{path: \"/ab/**\"}", "yes"],
            ["{path: \"/a/**\"}", "{path: \"/a/b/**\"}", ""],
            ["{path: \"/a/**\"}", "{path: /a/b}", ""],
            ["{path: \"/a/**\"}", "{path: /b}", "yes"],
            ["{path: \"/a/**\"}", "{path: \"!/a/**\"}", ""],
            ["{path: /a}", "{method: POST}", ""],
            ["{path: [/a, /b]}", "{path: [/b, /c]}", ""],
            ["{path: /a, method: GET}", "{path: /a, method: POST}", "yes"],
        ] {
            let said = of(&[(one, 0..20), (other, 20..40)], false);
            assert_eq!(said.is_empty(), !apart.is_empty(), "{one} {other}: {said}");
        }
    }
}
