//! `from`: where a cost is.

use documents::{Field, Path, Report, Take, Value, parse_digits};

use super::within_max;
use crate::pricing::{MAX_COST, Pointer, RequestPlace, RequestValue, ResponseValue, Source, Term};

/// Every field of a source: first the places, of which it has exactly one.
pub(in crate::read) const SOURCE_FIELDS: [&str; 11] = [
    "response_json",
    "response_header",
    "response_trailer",
    "metadata",
    "status",
    "sum",
    "request_header",
    "request_json",
    "weight",
    "min",
    "max",
];
/// The fields that say where the number is.
const PLACES: &[&str] = SOURCE_FIELDS.split_at(8).0;
/// The most sources of a cost, and numbers of a sum.
const MAX_SOURCES: usize = 8;
/// The most keys of a path through metadata.
const MAX_KEYS: usize = 8;
/// The largest weight of a number.
const MAX_WEIGHT: u64 = 1_000_000;
/// The longest name of a header, in bytes.
const MAX_NAME: usize = 128;

/// Sources of one kind.
pub(super) enum Found {
    Request(Vec<RequestValue>),
    Response(Vec<Source>),
}

enum One {
    Request(RequestValue),
    Response(Source),
}

/// One source, or a list of them; `None`, and problems, if any is wrong.
pub(super) fn read_sources(field: &Field<'_>, report: &mut Report) -> Option<Found> {
    let before = report.problems.len();
    let (mut request, mut response) = (Vec::new(), Vec::new());
    for item in items(field, report)? {
        match read_source(&item, report) {
            Some(One::Request(value)) => request.push(value),
            Some(One::Response(source)) => response.push(source),
            None => {}
        }
    }
    if !request.is_empty() && !response.is_empty() {
        field
            .report(
                report,
                "sources of the request beside sources of the response",
            )
            .push_hint("what the request says of its cost goes to `reserve: {from: …}`");
    }
    let status = |source: &Source| matches!(source, Source::Status { .. });
    if response.len() > 1 && response.iter().any(status) {
        field
            .report(report, "`status` beside other sources")
            .push_hint("every response has a status, so use two limits");
    }
    report.has_only(before)?;
    Some(if response.is_empty() {
        Found::Request(request)
    } else {
        Found::Response(response)
    })
}

/// Reads sources, all of which have to be in the request.
pub(super) fn read_request_values(
    field: &Field<'_>,
    report: &mut Report,
) -> Option<Vec<RequestValue>> {
    match read_sources(field, report)? {
        Found::Request(values) => Some(values),
        Found::Response(_) => {
            field
                .report(report, "a reserve from the response")
                .push_hint("use `request_json`, `request_header` or a number");
            None
        }
    }
}

fn items<'f>(field: &'f Field<'_>, report: &mut Report) -> Option<Vec<Field<'f>>> {
    let Value::List(items) = &field.node.value else {
        return Some(vec![*field]);
    };
    if items.is_empty() || items.len() > MAX_SOURCES {
        field.report(report, format!("1 to {MAX_SOURCES} are possible"));
        return None;
    }
    let items = items.iter().enumerate();
    let items = items.map(|(index, node)| Field {
        node,
        path: Path::Item(&field.path, index),
    });
    Some(items.collect())
}

fn read_source(field: &Field<'_>, report: &mut Report) -> Option<One> {
    let given = PLACES.iter().filter(|name| field.node.get(name).is_some());
    let given: Vec<&str> = given.copied().collect();
    let [name] = given.as_slice() else {
        field
            .expected("a source", report)
            .push_hint(format!("it has one of {}", PLACES.join(", ")));
        return None;
    };
    let mut found = None;
    field.read_map(&SOURCE_FIELDS, report, &mut |take| {
        found = match *name {
            "request_header" | "request_json" => read_request_value(name, take).map(One::Request),
            "sum" => read_sum(take).map(|terms| One::Response(Source::Sum(terms))),
            "status" => read_status(take).map(One::Response),
            name => read_term(name, take).map(|term| One::Response(Source::Sum(vec![term]))),
        };
        refuse_rest(name, take);
    });
    found
}

/// Refuses `weight`, `min` and `max` where they mean nothing.
fn refuse_rest(name: &str, take: &mut Take<'_, '_>) {
    for other in ["weight", "min", "max"] {
        if let Some(field) = take.field(other) {
            field.report(take.report, format!("`{other}` beside `{name}`"));
        }
    }
}

fn read_request_value(name: &'static str, take: &mut Take<'_, '_>) -> Option<RequestValue> {
    let field = take.field(name)?;
    let place = match name {
        "request_json" => read_pointer(&field, take.report).map(RequestPlace::Json),
        _ => read_name(&field, take.report).map(RequestPlace::Header),
    };
    let mut amount = |name| {
        let field = take.field(name)?;
        within_max(&field, 0, take.report)
    };
    let (min, max) = (
        amount("min").unwrap_or(0),
        amount("max").unwrap_or(MAX_COST),
    );
    if min > max {
        let message = format!("`min` is {min} and `max` is {max}");
        take.report.add(take.path, None, message);
    }
    Some(RequestValue {
        place: place?,
        min,
        max: max.max(min),
    })
}

fn read_sum(take: &mut Take<'_, '_>) -> Option<Vec<Term>> {
    let field = take.field("sum")?;
    let mut terms = Vec::new();
    for item in items(&field, take.report)? {
        match read_source(&item, take.report) {
            Some(One::Response(Source::Sum(term))) if term.len() == 1 => terms.extend(term),
            Some(_) => {
                item.report(take.report, "not a number of the response");
            }
            None => {}
        }
    }
    Some(terms)
}

fn read_term(name: &'static str, take: &mut Take<'_, '_>) -> Option<Term> {
    let field = take.field(name)?;
    let report = &mut *take.report;
    let place = match name {
        "response_json" => read_pointer(&field, report).map(ResponseValue::Json),
        "response_header" => read_name(&field, report).map(ResponseValue::Header),
        "response_trailer" => read_name(&field, report).map(ResponseValue::Trailer),
        _ => read_keys(&field, report).map(ResponseValue::Metadata),
    };
    let mut weight = 1;
    if let Some(field) = take.field("weight") {
        weight = field.integer(1, take.report).unwrap_or(1);
        if weight > MAX_WEIGHT {
            field.report(take.report, format!("more than {MAX_WEIGHT}"));
        }
    }
    Some(Term {
        place: place?,
        weight,
    })
}

fn read_pointer(field: &Field<'_>, report: &mut Report) -> Option<Pointer> {
    let what = "a JSON pointer like /usage/total_tokens";
    let pointer = Pointer::parse(field.text(what, report)?);
    if pointer.is_none() {
        field.expected(what, report);
    }
    pointer
}

/// The name of a header or trailer, in lower case.
fn read_name(field: &Field<'_>, report: &mut Report) -> Option<String> {
    let what = "the name of a header";
    let name = field.text(what, report)?;
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(token) {
        field.expected(what, report);
        return None;
    }
    Some(name.to_ascii_lowercase())
}

fn read_keys(field: &Field<'_>, report: &mut Report) -> Option<Vec<String>> {
    let what = "a list of the namespace and the keys, like [envoy.lb, tokens]";
    let key = |text: &&str| !text.is_empty() && text.len() <= MAX_NAME && !text.contains('\0');
    let items = field.node.items();
    let keys = items.iter().map(|node| node.as_text().filter(key));
    let keys: Option<Vec<&str>> = keys.collect();
    let Some(keys) = keys.filter(|keys| (2..=MAX_KEYS).contains(&keys.len())) else {
        field.expected(what, report);
        return None;
    };
    Some(keys.into_iter().map(str::to_owned).collect())
}

fn read_status(take: &mut Take<'_, '_>) -> Option<Source> {
    let field = take.field("status")?;
    let mut of = Vec::new();
    for item in items(&field, take.report)? {
        let text = item.node.as_text().unwrap_or_default();
        let class = text.strip_suffix("xx").and_then(parse_digits);
        let range = match (class, parse_digits(text)) {
            (Some(class @ 1..=5), _) => Some((class * 100, class * 100 + 99)),
            (None, Some(status @ 100..=599)) => Some((status, status)),
            _ => None,
        };
        let narrow = |status: u64| u16::try_from(status).unwrap_or(0);
        match range {
            Some((from, to)) => of.push((narrow(from), narrow(to))),
            None => {
                item.expected("a status like 401, or a class like 4xx", take.report);
            }
        }
    }
    Some(Source::Status { of, units: 1 })
}
