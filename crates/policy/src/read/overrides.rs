//! Overrides: other numbers for single buckets.

use documents::{
    Field, Fields, Form, Name, Node, Path, Report, Take, Value, node_to_value, quoted,
};

use crate::{
    IfMissing, Limit, Override, OverrideQuota, Quota, Scope,
    descriptor::normal_value,
    hash::{Positions, values_hash},
    read::{
        numbers::{read_rate, read_time_zone, validate},
        slots,
    },
};

/// Every field of an override.
pub(crate) const OVERRIDE_FIELDS: [&str; 7] = [
    "values",
    "rate",
    "limit",
    "burst",
    "time_zone",
    "unlimited",
    "until",
];

/// The most overrides of a domain: limiters hold them all.
pub const OVERRIDES_MAX: usize = 100_000;
/// The most overrides of a limit with `scope: proxy`: each proxy holds them all.
const MAX_PROXY_OVERRIDES: usize = 1000;
/// The longest value of a descriptor entry in an override, in bytes.
const MAX_VALUE: usize = 1024;

/// The limit that the overrides belong to.
#[derive(Clone, Copy)]
pub(crate) struct Buckets<'l> {
    per: &'l [Name],
    if_missing: IfMissing,
    scope: Scope,
    /// `None` if the limit's own numbers are wrong.
    quota: Option<Quota>,
}

impl<'l> Buckets<'l> {
    pub(crate) fn new(
        per: &'l [Name],
        if_missing: IfMissing,
        scope: Scope,
        quota: Option<Quota>,
    ) -> Self {
        Self {
            per,
            if_missing,
            scope,
            quota,
        }
    }

    pub(crate) fn of(limit: &'l Limit) -> Self {
        Self::new(&limit.per, limit.if_missing, limit.scope, Some(limit.quota))
    }
}

pub(super) fn read_overrides(take: &mut Take<'_, '_>, buckets: &Buckets<'_>) -> Vec<Override> {
    let Some(field) = take.field("overrides") else {
        return Vec::new();
    };
    let report = &mut *take.report;
    let Value::List(items) = &field.node.value else {
        field.expected("a list of overrides", report);
        return Vec::new();
    };
    let most = buckets.scope.overrides_max();
    if items.len() > most {
        field.report(report, format!("more than {most} overrides"));
    }
    if buckets.per.is_empty() && !items.is_empty() {
        field
            .report(report, "overrides need a `per`")
            .push_hint("without it there is one bucket, which `rate` and `burst` describe");
        return Vec::new();
    }
    let mut overrides: Vec<Override> = Vec::with_capacity(items.len().min(most));
    let mut seen = Positions::default();
    for (index, node) in items.iter().take(most).enumerate() {
        let item = Field {
            node,
            path: Path::Item(&field.path, index),
        };
        let Some(found) = read_override(item, buckets, report) else {
            continue;
        };
        let hash = values_hash(&found.values);
        let same = |other: &Override| other.values == found.values;
        if seen.of(hash).any(|at| overrides.get(at).is_some_and(same)) {
            item.report(report, "a second override of the same bucket");
        } else {
            seen.add(hash, overrides.len());
            overrides.push(found);
        }
    }
    overrides
}

/// Reads one override; `None`, and problems, if anything about it is wrong.
pub(crate) fn read_override(
    item: Field<'_>,
    buckets: &Buckets<'_>,
    report: &mut Report,
) -> Option<Override> {
    let before = report.problems.len();
    let path = &item.path;
    let mut fields = Fields::of(item, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path,
        report,
    };
    let values = take
        .field("values")
        .and_then(|field| read_values(&field, buckets, take.report));
    if item.node.get("values").is_none() {
        item.report(take.report, "an override needs `values`")
            .push_hint("one for each entry of `per`, like `values: {user: alice}`");
    }
    let quota = read_quota(take, &item, buckets);
    let until_ms = take
        .field("until")
        .and_then(|field| field.time(take.report));
    fields.finish(path, &OVERRIDE_FIELDS, report);
    if report.problems.len() > before {
        return None;
    }
    Some(Override {
        values: values?,
        quota: quota?,
        until_ms,
    })
}

fn read_values(
    field: &Field<'_>,
    buckets: &Buckets<'_>,
    report: &mut Report,
) -> Option<Vec<Option<Vec<u8>>>> {
    let entries = field.entries("a map of `per` entries and their values", report)?;
    for entry in &entries {
        if !buckets.per.iter().any(|name| name.as_str() == entry.key) {
            let path = Path::Field(&field.path, &entry.key);
            let message = format!("{} is not in `per`", quoted(&entry.key));
            report.add(&path, entry.place, message);
        }
    }
    let mut values = Vec::with_capacity(buckets.per.len());
    for name in buckets.per {
        let Some(entry) = entries.iter().find(|entry| entry.key == name.as_str()) else {
            field
                .report(report, format!("no value for `{name}`"))
                .push_hint("an override names every entry of `per`, exactly");
            continue;
        };
        let item = Field {
            node: &entry.value,
            path: Path::Field(&field.path, &entry.key),
        };
        if let Ok(value) = read_value(&item, buckets.if_missing, report) {
            values.push(value.map(|value| normal_value(name.as_str(), value)));
        }
    }
    (values.len() == buckets.per.len()).then_some(values)
}

/// A value was invalid, and its problem has been reported.
struct Reported;

fn read_value(
    field: &Field<'_>,
    if_missing: IfMissing,
    report: &mut Report,
) -> Result<Option<Vec<u8>>, Reported> {
    if field.node.value == Value::Null {
        if if_missing == IfMissing::Share {
            return Ok(None);
        }
        field
            .report(report, "no value")
            .push_hint("requests without this entry have a bucket only with `if_missing: share`");
        return Err(Reported);
    }
    match node_to_value(field.node) {
        Some(value) if value.len() <= MAX_VALUE => return Ok(Some(value)),
        Some(_) => {
            field.report(report, format!("longer than {MAX_VALUE} bytes"));
        }
        None => {
            field
                .expected("a value", report)
                .push_hint("text, or {base64: …} where it is not UTF-8");
        }
    }
    Err(Reported)
}

fn read_quota(
    take: &mut Take<'_, '_>,
    item: &Field<'_>,
    buckets: &Buckets<'_>,
) -> Option<OverrideQuota> {
    let before = take.report.problems.len();
    let unlimited = take.boolean("unlimited");
    let rate = take
        .field("rate")
        .and_then(|field| read_rate(&field, take.report));
    let parameters = buckets.quota.as_ref().map(Quota::parameters);
    let rate = slots::read_override(take, rate, parameters);
    let burst = take.integer("burst", 0);
    let time_zone = read_time_zone(take);
    if take.report.problems.len() > before {
        return None;
    }
    match (unlimited, rate, burst, time_zone) {
        (Some(true), None, None, None) => Some(OverrideQuota::Unlimited),
        (Some(true), ..) => {
            item.report(
                take.report,
                "`unlimited` together with `rate`, `burst` or `time_zone`",
            )
            .push_hint("an unlimited bucket has no numbers");
            None
        }
        (_, None, None, None) => {
            item.report(take.report, "an override that changes nothing")
                .push_hint("give it `rate`, `burst`, `limit`, `time_zone` or `unlimited: true`");
            None
        }
        (_, rate, burst, time_zone) => {
            let limit = *buckets.quota?.parameters();
            let found = OverrideQuota::Quota {
                kind: limit.kind,
                rate,
                burst,
                time_zone,
                edges: None,
            };
            validate(found.parameters(&limit)?, item, take.report)?;
            Some(found)
        }
    }
}

impl Scope {
    /// How many overrides a limit of this scope may have.
    pub fn overrides_max(self) -> usize {
        match self {
            Self::Global => OVERRIDES_MAX,
            Self::Proxy => MAX_PROXY_OVERRIDES,
        }
    }
}

impl Limit {
    /// Reads an override of this limit, as a document or a store holds it.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read_override(&self, node: &Node) -> Result<Override, crate::Problems> {
        let mut report = Report::new(Form::Record);
        report.limit = Some(self.name.to_string());
        let item = Field {
            node,
            path: Path::Root,
        };
        let found = read_override(item, &Buckets::of(self), &mut report);
        report.finish(found)
    }
}
