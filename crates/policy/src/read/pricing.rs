//! `cost`: one number, or fields that say where the cost is.

mod checks;
mod sources;

use documents::{Field, Fields, Path, Report, Take, Value};

pub(super) use checks::{Around, check_pricing};
#[cfg(all(test, not(target_arch = "wasm32")))]
pub(super) use sources::SOURCE_FIELDS;
use sources::{Found, read_request_values, read_sources};

use crate::{
    Pricing,
    pricing::{
        IfAbsent, MAX_COST, RequestPrice, RequestValue, Reserve, ResponsePrice, Row, Source,
    },
    read::matchers::read_matchers,
};

/// Every field of a cost.
pub(in crate::read) const COST_FIELDS: [&str; 8] = [
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
pub(in crate::read) const RESERVE_FIELDS: [&str; 3] = ["from", "default", "cap"];
/// Every field of a row of a table.
pub(in crate::read) const ROW_FIELDS: [&str; 2] = ["match", "units"];
/// The most rows of a table.
const MAX_ROWS: usize = 64;

/// The units of one request, and what replaces them where the cost has fields.
pub(super) fn read_cost(take: &mut Take<'_, '_>) -> (u64, Option<Box<Pricing>>) {
    let Some(cost) = take.field("cost") else {
        return (1, None);
    };
    if !matches!(cost.node.value, Value::Map(_)) {
        let units = cost.integer(1, take.report);
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
            let given = Given {
                units,
                on_error,
                if_absent,
                max,
            };
            response(cost, from, reserve, given, report)
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

pub(super) fn within_max(field: &Field<'_>, least: u64, report: &mut Report) -> Option<u64> {
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
struct Given {
    units: Option<u64>,
    on_error: Option<u64>,
    if_absent: Option<IfAbsent>,
    max: Option<u64>,
}

fn response(
    cost: &Field<'_>,
    mut from: Vec<Source>,
    reserve: Option<Field<'_>>,
    given: Given,
    report: &mut Report,
) -> Option<Pricing> {
    let mut of_status = None;
    if let [Source::Status { units, .. }] = from.as_mut_slice() {
        *units = given.units.unwrap_or(1);
        of_status = Some(*units);
        refuse_given(cost, &["on_error", "max"], "beside `status`", report);
    } else {
        refuse_given(cost, &["units"], "without `status`", report);
    }
    let fallback = of_status.or(given.max);
    let reserve = match reserve {
        Some(field) => read_reserve(&field, fallback, report),
        None if cost.node.get("reserve").is_some() => None,
        None => Some(Reserve {
            from: Vec::new(),
            default: fallback.or_else(|| no_reserve(cost, report))?,
            cap_percent: 100,
        }),
    };
    let if_absent = match (given.if_absent, of_status) {
        (None, Some(_)) => IfAbsent::Reserved,
        (given, _) => given.unwrap_or_default(),
    };
    Some(Pricing::Response(ResponsePrice {
        from,
        reserve: reserve?,
        on_error: of_status.is_none().then(|| given.on_error.unwrap_or(0)),
        if_absent,
        max: given.max.unwrap_or(MAX_COST),
    }))
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
        let row = Field {
            node,
            path: Path::Item(&field.path, index),
        };
        read_row(&row, report)
    });
    rows.collect()
}

fn read_row(row: &Field<'_>, report: &mut Report) -> Option<Row> {
    let mut fields = Fields::of(*row, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &row.path,
        report,
    };
    let matchers = read_matchers(take);
    let units = amount(take, "units", 0);
    fields.finish(&row.path, &ROW_FIELDS, report);
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
