//! `cost`: one number, or fields that say where the cost is.

use documents::{Field, Path, Report, Take, Value, parse_digits};

use policy::{
    IfAbsent, MAX_COST, MAX_POINTERS, OverLimit, Pointer, Pricing, RequestPlace, RequestPrice,
    RequestValue, Reserve, ResponsePrice, ResponseValue, Row, Scope, Source, Term,
};

use super::limit::{LimitContext, read_matchers, refuse};

/// Every field of a cost.
pub(super) const COST_FIELDS: [&str; 8] = [
    "from",
    "table",
    "units",
    "default",
    "reserve",
    "on_error",
    "if_absent",
    "max",
];
/// Every field of a reserve.
pub(super) const RESERVE_FIELDS: [&str; 3] = ["from", "default", "cap"];
/// Every field of a row of a table.
pub(super) const ROW_FIELDS: [&str; 2] = ["match", "units"];
/// The most rows of a table.
const MAX_ROWS: usize = 64;

/// The units of one request, and what replaces them where the cost has fields.
pub(super) fn read_cost(take: &mut Take<'_, '_>) -> (u64, Option<Box<Pricing>>) {
    let Some(cost) = take.field("cost") else {
        return (1, None);
    };
    if !matches!(cost.node.value, Value::Map(_)) {
        let units = within_max(&cost, 1, take.report);
        return (units.unwrap_or(1), None);
    }
    let mut pricing = None;
    cost.read_map(&COST_FIELDS, take.report, &mut |take| {
        pricing = read_fields(&cost, take);
    });
    (1, pricing.map(Box::new))
}

fn read_fields(cost: &Field<'_>, take: &mut Take<'_, '_>) -> Option<Pricing> {
    let from = take.field("from");
    let from = from.and_then(|field| read_sources(&field, take.report));
    let table = take.field("table");
    let table = table.map(|field| read_table(&field, take.report));
    let units = amount(take, "units", 1);
    let default = amount(take, "default", 0);
    let reserve = take.field("reserve");
    let on_error = amount(take, "on_error", 0);
    let if_absent = take.field("if_absent");
    let if_absent = if_absent.and_then(|field| read_if_absent(&field, take.report));
    let max = amount(take, "max", 1);
    let report = &mut *take.report;
    match (from, table) {
        (Some(Found::Response(from)), None) => {
            refuse_given(cost, &["default"], "of a cost from the response", report);
            let fields = ResponseFields {
                units,
                on_error,
                if_absent,
                max,
            };
            response(cost, from, reserve, fields, report)
        }
        (Some(Found::Response(_)), Some(_)) => {
            let message = "`table` beside a cost from the response";
            cost.report(report, message)
                .push_hint("use two limits, or one of both");
            None
        }
        (from @ (None | Some(Found::Request(_))), table) => {
            if from.is_none() && cost.node.get("from").is_some() {
                return None;
            }
            let unused = ["units", "reserve", "on_error", "if_absent", "max"];
            refuse_given(cost, &unused, "of a cost from the request", report);
            let from = match from {
                Some(Found::Request(from)) => from,
                _ => Vec::new(),
            };
            if from.iter().any(RequestValue::is_in_body) {
                cost.report(report, "`request_json` outside of `reserve`")
                    .push_hint("only what is reserved may be in the request's body");
            }
            request(cost, from, table.unwrap_or_default(), default, report)
        }
    }
}

/// Units, at most [`MAX_COST`].
fn amount<'p>(take: &mut Take<'_, 'p>, name: &'p str, least: u64) -> Option<u64> {
    let field = take.field(name)?;
    within_max(&field, least, take.report)
}

fn within_max(field: &Field<'_>, least: u64, report: &mut Report) -> Option<u64> {
    let units = field.integer(least, report)?;
    if units > MAX_COST {
        field.report(report, format!("more than {MAX_COST} units"));
        return None;
    }
    Some(units)
}

/// Refuses fields that such a cost does not have.
fn refuse_given(cost: &Field<'_>, names: &[&str], of: &str, report: &mut Report) {
    for name in names {
        if let Some(node) = cost.node.get(name) {
            let path = Path::Field(&cost.path, name);
            report.add(&path, node.place, format!("`{name}` {of}"));
        }
    }
}

fn request(
    cost: &Field<'_>,
    from: Vec<RequestValue>,
    table: Vec<Row>,
    default: Option<u64>,
    report: &mut Report,
) -> Option<Pricing> {
    if cost.node.get("from").is_none() && cost.node.get("table").is_none() {
        cost.report(report, "a cost with fields has `from` or `table`")
            .push_hint(
                "like {from: {request_header: x-cost, max: 100}, default: 1}; or write a number",
            );
        return None;
    }
    if cost.node.get("default").is_none() {
        cost.report(report, "a cost from the request needs a `default`")
            .push_hint("the units of requests that nothing else is said of, like `default: 1`");
    }
    Some(Pricing::Request(RequestPrice {
        from,
        table,
        default: default?,
    }))
}

/// The fields of a cost from the response other than its sources.
#[derive(Clone, Copy)]
struct ResponseFields {
    units: Option<u64>,
    on_error: Option<u64>,
    if_absent: Option<IfAbsent>,
    max: Option<u64>,
}

fn response(
    cost: &Field<'_>,
    mut from: Vec<Source>,
    reserve: Option<Field<'_>>,
    fields: ResponseFields,
    report: &mut Report,
) -> Option<Pricing> {
    let mut of_status = None;
    if let [Source::Status { units, .. }] = from.as_mut_slice() {
        *units = fields.units.unwrap_or(1);
        of_status = Some(*units);
        refuse_given(cost, &["on_error", "max"], "beside `status`", report);
    } else {
        refuse_given(cost, &["units"], "without `status`", report);
    }
    if response_pointers(&from) > MAX_POINTERS {
        let message = format!("more than {MAX_POINTERS} `response_json`");
        cost.report(report, message).push_hint(
            "a filter does not look for the others: use several limits, or fewer sources",
        );
    }
    let fallback = of_status.or(fields.max);
    let reserve = match reserve {
        Some(field) => read_reserve(&field, fallback, report),
        None if cost.node.get("reserve").is_some() => None,
        None => Some(Reserve {
            from: Vec::new(),
            default: fallback.or_else(|| no_reserve(cost, report))?,
            cap_percent: 100,
        }),
    };
    let if_absent = match (fields.if_absent, of_status) {
        (None, Some(_)) => IfAbsent::Reserved,
        (given, _) => given.unwrap_or_default(),
    };
    Some(Pricing::Response(ResponsePrice {
        from,
        reserve: reserve?,
        on_error: of_status.is_none().then(|| fields.on_error.unwrap_or(0)),
        if_absent,
        max: fields.max.unwrap_or(MAX_COST),
    }))
}

/// How many numbers of a body the sources are.
fn response_pointers(from: &[Source]) -> usize {
    let in_body = |term: &&Term| matches!(term.place, ResponseValue::Json(_));
    let of = |source: &Source| match source {
        Source::Sum(terms) => terms.iter().filter(in_body).count(),
        Source::Status { .. } => 0,
    };
    from.iter().map(of).sum()
}

fn no_reserve<T>(field: &Field<'_>, report: &mut Report) -> Option<T> {
    field
        .report(report, "a cost from the response needs a `reserve`")
        .push_hint("the units that a request takes until its response ends, like `reserve: 1000`");
    None
}

fn read_reserve(field: &Field<'_>, max: Option<u64>, report: &mut Report) -> Option<Reserve> {
    if !matches!(field.node.value, Value::Map(_)) {
        let default = within_max(field, 1, report)?;
        return Some(Reserve {
            from: Vec::new(),
            default,
            cap_percent: 100,
        });
    }
    let mut reserve = None;
    field.read_map(&RESERVE_FIELDS, report, &mut |take| {
        let from = take.field("from");
        let from = from.and_then(|from| read_request_values(&from, take.report));
        let default = amount(take, "default", 1);
        let cap_percent = take.percent("cap", 1, 100).unwrap_or(100);
        let default = match default.or(max) {
            None if field.node.get("default").is_none() => no_reserve(field, take.report),
            default => default,
        };
        reserve = default.map(|default| Reserve {
            from: from.unwrap_or_default(),
            default,
            cap_percent,
        });
    });
    reserve
}

fn read_if_absent(field: &Field<'_>, report: &mut Report) -> Option<IfAbsent> {
    match field.node.as_text() {
        Some("estimate") => Some(IfAbsent::Estimate),
        Some("reserved") => Some(IfAbsent::Reserved),
        Some("max") => Some(IfAbsent::Max),
        Some(text) if text.starts_with(|c: char| c.is_ascii_digit()) => {
            within_max(field, 0, report).map(IfAbsent::Units)
        }
        _ => {
            let what = "estimate, reserved, max or a whole number of units";
            field.expected(what, report);
            None
        }
    }
}

fn read_table(field: &Field<'_>, report: &mut Report) -> Vec<Row> {
    let items = match &field.node.value {
        Value::List(items) if !items.is_empty() => items.as_slice(),
        _ => {
            field
                .expected("a list of rows", report)
                .push_hint("like [{match: {path: /search}, units: 5}]");
            return Vec::new();
        }
    };
    if items.len() > MAX_ROWS {
        field.report(report, format!("more than {MAX_ROWS} rows"));
        return Vec::new();
    }
    let rows = items.iter().enumerate().filter_map(|(index, node)| {
        let row = field.item(index, node);
        read_row(&row, report)
    });
    rows.collect()
}

fn read_row(row: &Field<'_>, report: &mut Report) -> Option<Row> {
    let take = &mut Take::new(row, report)?;
    let matchers = read_matchers(take);
    let units = amount(take, "units", 0);
    take.finish(&ROW_FIELDS);
    for name in ROW_FIELDS {
        if row.node.get(name).is_none() {
            row.report(report, format!("a row needs `{name}`"));
        }
    }
    Some(Row {
        matchers,
        units: units?,
    })
}

/// Every field of a source: first the places, of which it has exactly one.
pub(super) const SOURCE_FIELDS: [&str; 11] = [
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
enum Found {
    Request(Vec<RequestValue>),
    Response(Vec<Source>),
}

enum One {
    Request(RequestValue),
    Response(Source),
}

/// One source, or a list of them; `None`, and problems, if any is wrong.
fn read_sources(field: &Field<'_>, report: &mut Report) -> Option<Found> {
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
fn read_request_values(field: &Field<'_>, report: &mut Report) -> Option<Vec<RequestValue>> {
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
    let items = items.map(|(index, node)| field.item(index, node));
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

/// Refuses what a cost with fields cannot be combined with.
pub(super) fn check_pricing(
    limit: &Field<'_>,
    pricing: Option<&Pricing>,
    context: &LimitContext,
    report: &mut Report,
) {
    let Some(pricing) = pricing else { return };
    let mut refuse = |name: &str, message: &'static str, hint: &'static str| {
        refuse(limit, name, message, report).push_hint(hint);
    };
    if context.service {
        refuse(
            "cost",
            "a cost with fields on a limit that has a `descriptor`",
            "calls of the rate limit service say what they cost: `hits_addend`",
        );
    }
    if limit.node.get("lease").is_some() {
        refuse(
            "lease",
            "`lease` on a limit whose cost is not one number",
            "units in advance are for requests that all cost the same: remove `lease`",
        );
    }
    if matches!(pricing, Pricing::Request(_)) {
        return;
    }
    if context.over_limit == OverLimit::Queue {
        refuse(
            "over_limit",
            "a queue with a cost from the response",
            "a turn in a queue is as long as its request costs: use `over_limit: reject`",
        );
    }
    if context.scope == Scope::Proxy {
        refuse(
            "scope",
            "a cost from the response on a limit that is kept in a proxy",
            "only the store settles: use `scope: global`",
        );
    }
    if limit.node.get("precheck").is_some() {
        refuse(
            "precheck",
            "`precheck` with a cost from the response",
            "the bucket in front would never get back what is not used: remove `precheck`",
        );
    }
}
