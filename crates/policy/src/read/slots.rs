//! The numbers of a limit on requests in flight: how many, and how long a slot lives.

use algorithms::{Kind, Parameters, Rate};
use documents::{Field, Take};

/// How long a slot lives without being renewed, if the limit does not set it.
pub(crate) const DEFAULT_TTL_MS: u64 = 10_000;

/// The fields that only such a limit has.
const FIELDS: [&str; 2] = ["limit", "slot_ttl"];

/// `limit` and `slot_ttl`, in the place of a rate; `None`, and problems, if one is wrong.
pub(super) fn read(take: &mut Take<'_, '_>, limit: &Field<'_>) -> Option<Rate> {
    if let Some(field) = take.field("rate") {
        field
            .report(take.report, "`rate` on a limit on requests in flight")
            .push_hint("`limit` is how many there may be at once, like `limit: 10`");
    }
    if limit.node.get("limit").is_none() {
        limit
            .report(take.report, "a limit on requests in flight needs a `limit`")
            .push_hint("how many there may be at once, like `limit: 10`");
    }
    let units = take.integer("limit", 0);
    let period_ms = match take.field("slot_ttl") {
        Some(field) => field.duration(take.report)?,
        None => DEFAULT_TTL_MS,
    };
    let units = units?;
    Some(Rate {
        units,
        period_ms,
        calendar: None,
    })
}

/// Skips these fields.
pub(super) fn skip_all(take: &mut Take<'_, '_>) {
    for name in FIELDS {
        take.field(name);
    }
}

/// Refuses these fields on a limit of another algorithm.
pub(super) fn refuse_all(take: &mut Take<'_, '_>) {
    for name in FIELDS {
        if let Some(field) = take.field(name) {
            field
                .report(take.report, format!("`{name}` is for requests in flight"))
                .push_hint("add `algorithm: concurrency`, or remove it");
        }
    }
}

/// The rate of an override: `limit` for a limit on requests in flight, `rate` for any other.
pub(super) fn read_override(
    take: &mut Take<'_, '_>,
    rate: Option<Rate>,
    parameters: Option<&Parameters>,
) -> Option<Rate> {
    let slots = parameters.filter(|of| of.kind == Kind::Concurrency);
    let limit = take.field("limit");
    match (limit, slots) {
        (Some(field), Some(of)) => Some(Rate {
            units: field.integer(0, take.report)?,
            period_ms: of.rate.period_ms,
            calendar: None,
        }),
        (Some(field), None) => {
            field
                .report(take.report, "`limit` is for requests in flight")
                .push_hint("the limit is one on a rate: use `rate`");
            None
        }
        (None, Some(_)) if rate.is_some() => {
            let message = "`rate` of a limit on requests in flight";
            let problem = take.report.add(take.path, None, message);
            problem.push_hint("use `limit`: how many there may be at once");
            None
        }
        (None, _) => rate,
    }
}
