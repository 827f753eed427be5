//! The numbers of a limit (`algorithm`, `rate` and what goes with them), and `overrides`: other numbers for
//! single buckets.

use algorithms::{Adaptive, AdaptiveError, Kind, ParameterError, Parameters, Rate};
use documents::{
    Duration, Field, Name, Node, Path, Problems, Report, Take, Value, node_to_value, quoted,
};
use policy::{
    Algorithm, ChoiceOf, DEFAULT_MAX_DELAY_MS, DEFAULT_SHARE, IfMissing, Limit, OverLimit,
    Override, OverrideQuota, Positions, Scope, normal_value, parse_rate, parse_share, values_hash,
};

/// The fields that are read here, beside overrides.
pub(super) const NUMBERS: [&str; 11] = [
    "algorithm",
    "rate",
    "limit",
    "slot_ttl",
    "burst",
    "sub_windows",
    "strict",
    "align",
    "time_zone",
    "week_start",
    "max_delay",
];

/// What could be read of a limit's numbers.
pub(super) struct Numbers {
    /// The algorithm, if it is one.
    pub(super) kind: Option<Kind>,
    /// All numbers, if they are valid.
    pub(super) quota: Option<Algorithm>,
}

impl Numbers {
    /// Reads the numbers of a limit, if it limits anything.
    pub(super) fn read(
        take: &mut Take<'_, '_>,
        limit: &Field<'_>,
        over_limit: OverLimit,
        unlimited: bool,
    ) -> Self {
        if unlimited {
            // They are refused, and not unknown.
            for name in NUMBERS {
                take.field(name);
            }
            return Self::none();
        }
        read_numbers(take, limit, over_limit)
    }

    /// The numbers of a limit that limits nothing; they are never used.
    fn none() -> Self {
        let parameters = Parameters::new(Kind::FixedWindow, 0, 1000);
        Self {
            kind: Some(Kind::FixedWindow),
            quota: Algorithm::new(&parameters).ok(),
        }
    }
}

fn read_numbers(take: &mut Take<'_, '_>, limit: &Field<'_>, over_limit: OverLimit) -> Numbers {
    let before = take.report.problems.len();
    let written = take
        .field("algorithm")
        .map(|field| field.choice(take.report).map(|ChoiceOf(kind)| kind));
    let mut adaptive = None;
    let rate = match written {
        Some(Some(Kind::Concurrency)) => {
            adaptive = read_adaptive(take);
            read_slots(take, limit)
        }
        // The fields of an unknown algorithm are unknown, too.
        Some(None) => {
            skip_slot_fields(take);
            let field = take.field("rate");
            field.and_then(|field| read_rate(&field, take.report))
        }
        _ => {
            refuse_slot_fields(take);
            match take.field("rate") {
                Some(field) => read_rate(&field, take.report),
                None => missing_rate(limit, take.report),
            }
        }
    };
    let kind = match written {
        Some(kind) => kind,
        None if rate.is_some_and(|rate| rate.calendar.is_some()) => Some(Kind::FixedWindow),
        None => Some(Kind::TokenBucket),
    };
    let burst = take.integer("burst", 0);
    let sub_windows = take.integer("sub_windows", 1);
    let align = take
        .field("align")
        .and_then(|field| field.choice(take.report))
        .map(|ChoiceOf(align)| align);
    let strict = take.boolean("strict");
    let time_zone = read_time_zone(take);
    let week_start = take
        .field("week_start")
        .and_then(|field| field.choice(take.report))
        .map(|ChoiceOf(day)| day);
    let max_delay_ms = read_max_delay(take, over_limit);
    let parameters = kind.zip(rate).map(|(kind, rate)| Parameters {
        kind,
        rate,
        burst,
        // A queue on another algorithm gets a message of its own.
        max_delay_ms: max_delay_ms.filter(|_| kind.is_bucket()),
        align,
        sub_windows,
        strict,
        time_zone,
        week_start,
        adaptive,
    });
    let whole = take.report.problems.len() == before;
    let quota = parameters
        .filter(|_| whole)
        .and_then(|parameters| validate(parameters, limit, take.report));
    Numbers { kind, quota }
}

fn missing_rate(limit: &Field<'_>, report: &mut Report) -> Option<Rate> {
    // A merge key, which is reported, was to bring it.
    if limit.node.get("rate").is_none() && limit.node.get("<<").is_none() {
        limit
            .report(report, "a limit needs a `rate`")
            .push_hint("units per period, like `rate: 10/s`");
    }
    None
}

/// Validates the numbers by the algorithm itself.
fn validate(
    mut parameters: Parameters,
    owner: &Field<'_>,
    report: &mut Report,
) -> Option<Algorithm> {
    let mut whole = true;
    loop {
        let error = match Algorithm::new(&parameters) {
            Ok(quota) => return Some(quota).filter(|_| whole),
            Err(error) => error,
        };
        whole = false;
        let name = field_of(&error);
        let node = owner.node.get(name).unwrap_or(owner.node);
        let path = Path::Field(&owner.path, name);
        let part = adaptive_part_of(&error);
        let place = part.and_then(|part| node.get(part)?.place).or(node.place);
        let problem = match part {
            Some(part) => report.add(&Path::Field(&path, part), place, error.to_string()),
            None => report.add(&path, place, error.to_string()),
        };
        if let ParameterError::CalendarKind { unit } = error {
            problem.push_hint(format!(
                "remove `algorithm`, or give the rate a length of time, such as {}",
                Duration(unit.nominal_ms())
            ));
        }
        // Validation reports one error at a time: remove its cause and validate again.
        match name {
            "burst" if parameters.burst.take().is_some() => {}
            "max_delay" if parameters.max_delay_ms.take().is_some() => {}
            "align" if parameters.align.take().is_some() => {}
            // The algorithm needs some: one divides every window.
            "sub_windows"
                if parameters.kind == Kind::SlidingWindowBuckets
                    && parameters.sub_windows.is_some_and(|number| number != 1) =>
            {
                parameters.sub_windows = Some(1);
            }
            "sub_windows" if parameters.sub_windows.take().is_some() => {}
            "strict" if parameters.strict.take().is_some() => {}
            "time_zone" if parameters.time_zone.take().is_some() => {}
            "week_start" if parameters.week_start.take().is_some() => {}
            "adaptive" => parameters.adaptive = without(error, parameters.adaptive?),
            _ => return None,
        }
    }
}

fn read_rate(field: &Field<'_>, report: &mut Report) -> Option<Rate> {
    field.parsed("a rate, units per period like 10/s", parse_rate, report)
}

/// The zone's name as its database spells it.
fn read_time_zone(take: &mut Take<'_, '_>) -> Option<&'static str> {
    let field = take.field("time_zone")?;
    let text = field.text("the name of a time zone, like Europe/Berlin", take.report)?;
    let zone = calendar::zone(text);
    if zone.is_none() {
        let message = format!("{} is not a time zone", quoted(text));
        let hinted = take.report.gives_hints();
        let problem = field.report(take.report, message);
        if !hinted {
            return zone;
        }
        if let Some((name, way)) = calendar::offset(text) {
            problem.push_hint(format!(
                "did you mean `{name}`, which is {way} UTC? the sign in these names is the opposite of the \
                 usual one; a place, like Europe/Berlin, has summer time"
            ));
            return zone;
        }
        match calendar::similar(text).as_slice() {
            [] => problem
                .push_hint("a name of the IANA time zone database, like Europe/Berlin or UTC"),
            meant => problem.push_hint(format!("did you mean `{}`?", meant.join("` or `"))),
        }
    }
    zone
}

fn read_max_delay(take: &mut Take<'_, '_>, over_limit: OverLimit) -> Option<u64> {
    let queue = over_limit == OverLimit::Queue;
    let Some(field) = take.field("max_delay") else {
        return queue.then_some(DEFAULT_MAX_DELAY_MS);
    };
    if !queue {
        field
            .report(take.report, "`max_delay` is for queues")
            .push_hint("add `over_limit: queue`, or remove `max_delay`");
    }
    field.duration(take.report).filter(|_| queue)
}

/// How long a slot lives without being renewed, if the limit does not set it.
pub(crate) const DEFAULT_SLOT_TTL_MS: u64 = 10_000;

/// The fields that only a limit on requests in flight has.
const SLOT_FIELDS: [&str; 3] = ["limit", "slot_ttl", "adaptive"];

pub(super) const ADAPTIVE_FIELDS: [&str; 4] = ["min", "max", "latency", "share"];

const ADAPTIVE_EXAMPLE: &str = "like `adaptive: {min: 5, max: 200, latency: 300ms, share: 95%}`";

/// How a limit follows its service; `None` if it does not, or with problems. The algorithm validates the numbers.
fn read_adaptive(take: &mut Take<'_, '_>) -> Option<Adaptive> {
    let field = take.field("adaptive")?;
    let report = &mut *take.report;
    if !matches!(field.node.value, Value::Map(_)) {
        field
            .expected("a map of fields", report)
            .push_hint(ADAPTIVE_EXAMPLE);
        return None;
    }
    let (mut min, mut max, mut latency_ms) = (None, None, None);
    let mut share = Some(DEFAULT_SHARE);
    field.read_map(&ADAPTIVE_FIELDS, report, &mut |take| {
        min = take.integer("min", 1);
        max = take.integer("max", 1);
        latency_ms = { take.field("latency") }.and_then(|field| field.duration(take.report));
        if let Some(field) = take.field("share") {
            share = read_share(&field, take.report);
        }
    })?;
    let required = ADAPTIVE_FIELDS.iter().take(3);
    if { required }.any(|name| field.node.get(name).is_none()) {
        field
            .report(report, "an adaptive limit needs `min`, `max` and `latency`")
            .push_hint(ADAPTIVE_EXAMPLE);
    }
    Some(Adaptive {
        min: min?,
        max: max?,
        latency_ms: latency_ms?,
        share: share?,
    })
}

fn read_share(field: &Field<'_>, report: &mut Report) -> Option<u64> {
    const WHAT: &str = "a percentage from 50% to 99.9%";
    let text = field.text(WHAT, report)?;
    let share = parse_share(text);
    if share.is_none() {
        let problem = field.expected(WHAT, report);
        if parse_share(&format!("{text}%")).is_some() {
            problem.push_hint(format!("did you mean `{text}%`?"));
        }
    }
    share
}

/// The rule with the nearest valid number in place of the invalid one; `None` if no number is valid.
fn without(error: ParameterError, mut rule: Adaptive) -> Option<Adaptive> {
    let ParameterError::Adaptive(error) = error else {
        return None;
    };
    match error {
        AdaptiveError::Min { largest: 0 } => return None,
        AdaptiveError::Min { .. } => rule.min = 1,
        AdaptiveError::Max { least, .. } => rule.max = least,
        AdaptiveError::Latency { least_ms, .. } => rule.latency_ms = least_ms,
        AdaptiveError::Share => rule.share = DEFAULT_SHARE,
    }
    Some(rule)
}

/// The part of `adaptive` that an error of the algorithm concerns.
fn adaptive_part_of(error: &ParameterError) -> Option<&'static str> {
    let ParameterError::Adaptive(error) = error else {
        return None;
    };
    Some(match error {
        AdaptiveError::Min { .. } => "min",
        AdaptiveError::Max { .. } => "max",
        AdaptiveError::Latency { .. } => "latency",
        AdaptiveError::Share => "share",
    })
}

/// `limit` and `slot_ttl`, in the place of a rate; `None`, and problems, if one is wrong.
fn read_slots(take: &mut Take<'_, '_>, limit: &Field<'_>) -> Option<Rate> {
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
        None => DEFAULT_SLOT_TTL_MS,
    };
    let units = units?;
    Some(Rate {
        units,
        period_ms,
        calendar: None,
    })
}

/// Skips these fields.
fn skip_slot_fields(take: &mut Take<'_, '_>) {
    for name in SLOT_FIELDS {
        take.field(name);
    }
}

/// Refuses these fields on a limit of another algorithm.
fn refuse_slot_fields(take: &mut Take<'_, '_>) {
    for name in SLOT_FIELDS {
        if let Some(field) = take.field(name) {
            field
                .report(take.report, format!("`{name}` is for requests in flight"))
                .push_hint("add `algorithm: concurrency`, or remove it");
        }
    }
}

/// The rate of an override: `limit` for a limit on requests in flight, `rate` for any other.
fn read_override_rate(
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

/// Every field of an override.
pub(super) const OVERRIDE_FIELDS: [&str; 7] = [
    "values",
    "rate",
    "limit",
    "burst",
    "time_zone",
    "unlimited",
    "until",
];

/// The longest value of a descriptor entry in an override, in bytes.
const MAX_VALUE: usize = 1024;

/// The limit that the overrides belong to.
#[derive(Clone, Copy)]
pub(super) struct Buckets<'l> {
    per: &'l [Name],
    if_missing: IfMissing,
    scope: Scope,
    /// `None` if the limit's own numbers are wrong.
    quota: Option<Algorithm>,
}

impl<'l> Buckets<'l> {
    pub(super) fn new(
        per: &'l [Name],
        if_missing: IfMissing,
        scope: Scope,
        quota: Option<Algorithm>,
    ) -> Self {
        Self {
            per,
            if_missing,
            scope,
            quota,
        }
    }

    fn from_limit(limit: &'l Limit) -> Self {
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
        let item = field.item(index, node);
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
fn read_override(item: Field<'_>, buckets: &Buckets<'_>, report: &mut Report) -> Option<Override> {
    let before = report.problems.len();
    let take = &mut Take::new(&item, report)?;
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
    take.finish(&OVERRIDE_FIELDS);
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
        let item = field.below(entry);
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
    let parameters = buckets.quota.as_ref().map(Algorithm::parameters);
    let rate = read_override_rate(take, rate, parameters);
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

/// Reads an override of a limit, as a document or a store holds it.
///
/// # Errors
/// Everything that is wrong with it.
pub fn override_from_node(limit: &Limit, node: &Node) -> Result<Override, Problems> {
    let mut report = Report {
        limit: Some(limit.name.to_string()),
        ..Report::default()
    };
    let item = Field::root(node);
    let found = read_override(item, &Buckets::from_limit(limit), &mut report);
    report.finish(found)
}

/// The field of a limit that an error of the algorithm concerns.
fn field_of(error: &ParameterError) -> &'static str {
    match error {
        ParameterError::BurstTooLarge { .. } => "burst",
        ParameterError::DelayTooLong { .. } => "max_delay",
        ParameterError::SlotsTooMany { .. } => "limit",
        ParameterError::SlotTtl { .. } => "slot_ttl",
        ParameterError::Adaptive(_) => "adaptive",
        ParameterError::SubWindowsMissing | ParameterError::SubWindows { .. } => "sub_windows",
        ParameterError::Unused { parameter, .. } | ParameterError::NoCalendar(parameter) => {
            parameter
        }
        ParameterError::CalendarKind { .. } => "algorithm",
        ParameterError::CalendarAlign { .. } => "align",
        _ => "rate",
    }
}
