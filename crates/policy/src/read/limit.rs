//! One limit.

use documents::{Field, Fields, Form, Name, Node, Report, Take};

use crate::{
    Limit, Pause, Pricing, Scope,
    read::{
        descriptor::read_descriptor,
        lease::{Beside, read_lease},
        matchers::read_matchers,
        numbers::Numbers,
        overrides::{Buckets, read_overrides},
        penalty::{check_penalty, read_penalty},
        pricing::{Around, check_pricing, read_cost},
        together::{check_kind, check_per, check_service, check_slots},
    },
};

/// Every field of a limit that its author may write.
pub(crate) const LIMIT_FIELDS: [&str; 35] = [
    "name",
    "description",
    "descriptor",
    "unlimited",
    "share_threshold",
    "quota_mode",
    "charge",
    "match",
    "per",
    "if_missing",
    "algorithm",
    "rate",
    "limit",
    "slot_ttl",
    "burst",
    "cost",
    "over_limit",
    "max_delay",
    "penalty",
    "enforce",
    "on_failure",
    "scope",
    "precheck",
    "lease",
    "hidden",
    "overrides",
    "replaces",
    "partition",
    "fleet_size",
    "sub_windows",
    "strict",
    "align",
    "time_zone",
    "week_start",
    "paused",
];

/// The longest description, in characters.
const MAX_DESCRIPTION: usize = 1000;

const MAX_PRECHECK_PERCENT: u32 = 10_000;

/// Reads a limit; `None`, and problems, if anything about it is wrong.
pub(crate) fn read_limit(field: Field<'_>, report: &mut Report) -> Option<Limit> {
    let name = field.node.get("name").and_then(Node::as_text);
    report.limit = name.map(str::to_owned);
    let limit = read_fields(field, report);
    report.limit = None;
    limit
}

fn read_fields(limit: Field<'_>, report: &mut Report) -> Option<Limit> {
    let before = report.problems.len();
    let mut fields = Fields::of(limit, report)?;
    let take = &mut Take {
        fields: &mut fields,
        path: &limit.path,
        report,
    };
    let (name, description) = (read_name(take, &limit), read_description(take));
    let descriptor = read_descriptor(take, &limit);
    let matchers = read_matchers(take);
    let service = descriptor.is_some();
    let per = read_per(take, service);
    let if_missing = take.choice("if_missing");
    let over_limit = take.choice("over_limit");
    let unlimited = descriptor.as_ref().is_some_and(|rule| rule.unlimited);
    let numbers = Numbers::read(take, &limit, over_limit, unlimited);
    let scope = take.choice("scope");
    let buckets = Buckets::new(&per, if_missing, scope, numbers.quota);
    let overrides = read_overrides(take, &buckets);
    let partition = take.names("partition", "an entry of `per`");
    let replaces = take.names("replaces", "the name of a limit");
    let (cost, pricing) = read_cost(take);
    let (enforce_percent, penalty) = (read_enforce(take), read_penalty(take));
    let precheck_percent = read_precheck(take, scope);
    let on_failure = take.choice("on_failure");
    let (hidden, fleet_size) = (take.boolean("hidden"), take.integer("fleet_size", 1));
    let paused = Pause::take(take);
    let generation = read_generation(take);
    let lease_ttl_ms = read_lease(take, &Beside::new(&numbers, over_limit, scope));
    fields.finish(&limit.path, &LIMIT_FIELDS, report);
    check_per(&limit, &per, &partition, report);
    let around = Around::new(numbers.kind, over_limit, scope, service);
    check_around(&limit, &around, pricing.as_deref(), report);
    report.has_only(before)?;
    Some(Limit {
        name: name?,
        description,
        descriptor,
        matchers,
        per,
        if_missing,
        quota: numbers.quota?,
        cost,
        pricing,
        over_limit,
        penalty,
        enforce_percent,
        on_failure,
        scope,
        precheck_percent,
        lease_ttl_ms,
        hidden: hidden.unwrap_or(false),
        overrides,
        replaces,
        partition,
        paused,
        fleet_size,
        generation,
        reset_generation: 0,
    })
}

/// Checks fields that are valid on their own, but not together.
fn check_around(
    limit: &Field<'_>,
    around: &Around,
    pricing: Option<&Pricing>,
    report: &mut Report,
) {
    let Around {
        kind,
        over_limit,
        scope,
        service,
    } = *around;
    check_kind(limit, kind, over_limit, scope, report);
    check_service(limit, service, over_limit, scope, report);
    check_slots(limit, kind, report);
    check_pricing(limit, pricing, around, report);
    check_penalty(limit, around, report);
}

fn read_name(take: &mut Take<'_, '_>, limit: &Field<'_>) -> Option<Name> {
    if let Some(field) = take.field("name") {
        return field.name("a name", take.report);
    }
    // An empty `name:` has been reported already.
    if limit.node.get("name").is_none() {
        limit.report(take.report, "a limit needs a `name`");
    }
    None
}

fn read_per(take: &mut Take<'_, '_>, service: bool) -> Vec<Name> {
    let per = take.names("per", "the name of a descriptor entry");
    if service {
        return crate::descriptor_limit::per();
    }
    per
}

fn read_enforce(take: &mut Take<'_, '_>) -> u8 {
    let percent = take.percent("enforce", 0, 100);
    percent.map_or(100, |percent| u8::try_from(percent).unwrap_or(100))
}

fn read_precheck(take: &mut Take<'_, '_>, scope: Scope) -> Option<u32> {
    let field = take.field("precheck")?;
    if scope == Scope::Proxy {
        field
            .report(
                take.report,
                "`precheck` on a limit that is checked in the proxy anyway",
            )
            .push_hint("remove `precheck`, or use `scope: global`");
    }
    field.percent(100, MAX_PRECHECK_PERCENT, take.report)
}

fn read_description(take: &mut Take<'_, '_>) -> Option<String> {
    let field = take.field("description")?;
    let text = field.text("text", take.report)?;
    if text.chars().count() > MAX_DESCRIPTION || text.chars().any(char::is_control) {
        let what = format!("one line of at most {MAX_DESCRIPTION} characters");
        field.expected(&what, take.report);
        return None;
    }
    Some(text.to_owned())
}

/// The store counts generations, so files have none.
fn read_generation(take: &mut Take<'_, '_>) -> u64 {
    if take.report.form == Form::File {
        return 0;
    }
    take.integer("generation", 0).unwrap_or(0)
}
