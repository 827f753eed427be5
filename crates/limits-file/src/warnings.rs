//! Warnings about limits that are valid but probably not meant: they match nothing, deny
//! everything, have ended, or cost much.
//!
//! A warning is a [`Problem`]: where it is, what it causes, and what was probably meant.

mod bodies;
mod supply;

use std::{
    collections::BTreeMap,
    fmt::{Display, Write as _},
};

use algorithms::{DEBT_MAX_CAPACITIES, Kind, Numbers};
use documents::{
    Duration, Name, Node, Place, Problem, Problems, Value, format_timestamp, name_hint, similar,
};

pub use bodies::unread_number;
use policy::{
    Algorithm, Alterations, IfAbsent, Limit, Matcher, Pattern, Policy, Pricing, REQUEST_BODY,
    REQUEST_BODY_PASSES,
};
pub use supply::Supply;
use supply::{never, no_bucket, unsupplied};

/// The first names, and the number of the others: `a, b and 7 more`.
pub fn truncated_list<S: Display>(names: impl IntoIterator<Item = S>, max: usize) -> String {
    let mut names = names.into_iter();
    let mut text = String::new();
    for name in names.by_ref().take(max) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let _ = write!(text, "{name}");
    }
    match names.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// What is known beside the limits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Surroundings<'a> {
    /// The time, in milliseconds since the epoch; `None`: no warnings about what has ended.
    pub now_ms: Option<u64>,
    /// What the proxies supply.
    pub supply: Option<Supply<'a>>,
    /// Finds out what a limit costs in the store that its author may not know; `None`: no such warnings.
    pub dear: Option<fn(&Limit) -> Option<Dear>>,
}

/// Why a limit is expensive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dear {
    /// The field that makes it expensive.
    pub field: &'static str,
    /// What it costs.
    pub message: String,
    /// What costs less.
    pub hint: &'static str,
}

/// What is probably not meant, in the order of the limits.
pub fn warnings(policy: &Policy, around: &Surroundings<'_>) -> Vec<Problem> {
    let mut found = Found::default();
    found.list.extend(other_domain(&policy.domain, around));
    found.list.extend(no_name(policy));
    found.list.extend(many_expressions(policy));
    found.list.extend(unread_number(&policy.limits.iter()));
    let mut descriptors = BTreeMap::new();
    for (index, limit) in policy.limits.iter().enumerate() {
        found.limit = Some(&limit.name);
        found.place = format!("limits[{index}]");
        of_limit(limit, around, &mut found);
        if let Some(rule) = &limit.descriptor {
            let first = descriptors
                .entry(rule.pattern.to_items())
                .or_insert(&limit.name);
            if *first != &limit.name {
                let message = format!("`{first}` has the same, so this limit never applies");
                found.warn("descriptor", message, None);
            }
        }
    }
    for (index, exemption) in policy.exempt.iter().enumerate() {
        found.limit = None;
        found.place = format!("exempt[{index}]");
        for matcher in &exemption.matchers {
            of_matcher(matcher, &Words::EXEMPTION, around, &mut found);
        }
    }
    found.list
}

/// As [`warnings`], each with its place in the document that the limits were read from.
pub(crate) fn warnings_in(
    policy: &Policy,
    node: &Node,
    around: &Surroundings<'_>,
) -> Option<Problems> {
    let mut found = warnings(policy, around);
    for problem in &mut found {
        problem.place = place_of(node, &problem.path);
    }
    Problems::warnings(found)
}

/// No filter can request these limits, and none is for the rate limit service.
fn no_name(policy: &Policy) -> Option<Problem> {
    let error = policy.domain.as_str().parse::<Name>().err()?;
    if policy.limits.iter().any(|limit| limit.descriptor.is_some()) {
        return None;
    }
    let message = "only Envoy's rate limit service can use a domain of this name";
    let mut problem = Problem::new("domain", None, message);
    problem.push_hint(name_hint(policy.domain.as_str(), &error));
    Some(problem)
}

/// More searches of one value than this may take a proxy longer than a check.
const EXPRESSIONS_MANY: usize = 20;

/// One client's long value is searched by each of them, while its worker serves nobody else.
fn many_expressions(policy: &Policy) -> Option<Problem> {
    let of_limits = policy.limits.iter().flat_map(|limit| &limit.matchers);
    let of_exemptions = policy
        .exempt
        .iter()
        .flat_map(|exemption| &exemption.matchers);
    let mut counts = BTreeMap::new();
    for matcher in of_limits.chain(of_exemptions) {
        let (many, sought) = counts.entry(&matcher.key).or_insert((0, 0));
        for pattern in &matcher.patterns {
            *many += usize::from(pattern.longest_searched().is_some());
            *sought += usize::from(pattern.longest_searched().is_some() && pattern.is_looked_up());
        }
    }
    let (key, (many, sought)) = { counts.into_iter() }.max_by_key(|(_, (many, _))| *many)?;
    (many > EXPRESSIONS_MANY).then(|| {
        let message = format!(
            "{many} regular expressions search the same `{key}`: at a millisecond each, a long one takes \
             a proxy's worker up to {many} ms"
        );
        let mut problem = Problem::new("limits", None, message);
        problem.push_hint(format!(
            "exact values, `prefix/**` and `*.suffix` are looked up, however many they are; so are expressions by \
             three letters in a row that all that they match contains, which {} of these lack",
            many - sought
        ));
        problem
    })
}

/// No proxy requests these limits.
fn other_domain(domain: &Name, around: &Surroundings<'_>) -> Option<Problem> {
    let supply = around.supply?;
    if supply.domains.is_empty() || supply.domains.contains(domain) {
        return None;
    }
    let asked: Vec<&str> = supply.domains.iter().map(Name::as_str).collect();
    let message = format!("{} does not ask for domain `{domain}`", supply.source?);
    let mut problem = Problem::new("domain", None, message);
    problem.push_hint(match similar(domain.as_str(), &asked) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => format!("it asks for {}", asked.join(", ")),
    });
    Some(problem)
}

/// The warnings so far, and the current limit or exemption.
#[derive(Default)]
struct Found<'p> {
    limit: Option<&'p Name>,
    /// Where it is, such as `limits[2]`.
    place: String,
    list: Vec<Problem>,
}

impl Found<'_> {
    /// A warning about a field of it, such as `match.path[0]`.
    fn warn(&mut self, field: &str, message: impl Into<String>, hint: Option<String>) {
        let mut problem = Problem::new(format!("{}.{field}", self.place), None, message);
        problem.limit = self.limit.map(ToString::to_string);
        problem.hint = hint;
        self.list.push(problem);
    }
}

fn of_limit(limit: &Limit, around: &Surroundings<'_>, found: &mut Found<'_>) {
    for matcher in &limit.matchers {
        of_matcher(matcher, &Words::LIMIT, around, found);
    }
    let service = limit.descriptor.is_some();
    for (n, key) in limit.per.iter().enumerate().filter(|_| !service) {
        if let Some((what, hint)) = unsupplied(key, around) {
            let message = format!("{what}, so every request counts as one without it");
            found.warn(&format!("per[{n}]"), message, hint);
        }
    }
    of_cost(limit, found);
    of_prices(limit, found);
    of_burst(limit, found);
    of_penalty(limit, found);
    of_reserve(limit, around, found);
    of_max(limit, found);
    of_debt(limit, found);
    of_zone(limit, found);
    if let Some(dear) = around.dear.and_then(|dear| dear(limit)) {
        found.warn(dear.field, dear.message, Some(dear.hint.to_owned()));
    }
    if !service {
        of_overrides(limit, around, found);
    }
    if let Some(now_ms) = around.now_ms {
        of_ends(limit, now_ms, found);
    }
}

/// Warns about overrides of what is no bucket.
fn of_overrides(limit: &Limit, around: &Surroundings<'_>, found: &mut Found<'_>) {
    let unknown = Alterations::default();
    let alterations = around.supply.map_or(&unknown, |supply| supply.alterations);
    for (n, one) in limit.overrides.iter().enumerate() {
        for (key, value) in limit.per.iter().zip(&one.values) {
            let Some(value) = value else {
                continue;
            };
            if let Some(never) = no_bucket(key.as_str(), value, alterations) {
                let text = String::from_utf8_lossy(value);
                let message = format!("`{text}` changes nothing: {}", never.why);
                let field = format!("overrides[{n}].values.{key}");
                found.warn(&field, message, never.meant);
            }
        }
    }
}

/// The consequences of a condition that never holds, in words.
struct Words {
    no_entry: &'static str,
    no_entry_negated: &'static str,
    never: &'static str,
    unsearched: &'static str,
}

/// A regular expression that searches only shorter values, in bytes, gets a warning: paths may be longer.
const SHORT: usize = 512;

impl Words {
    const LIMIT: Self = Self {
        no_entry: "so the limit matches no request",
        no_entry_negated: "so this excludes no request",
        never: "matches no request",
        unsearched: "a longer one counts as what makes the limit apply",
    };
    const EXEMPTION: Self = Self {
        no_entry: "so the exemption is of no request",
        no_entry_negated: "so the exemption is of no request",
        never: "exempts no request",
        unsearched: "a longer one is not exempt",
    };
}

fn of_matcher(matcher: &Matcher, words: &Words, around: &Surroundings<'_>, found: &mut Found<'_>) {
    let key = &matcher.key;
    if let Some((what, hint)) = unsupplied(key, around) {
        let positive = matcher.patterns.iter().any(|p| !p.is_negated());
        let effect = if positive {
            words.no_entry
        } else {
            words.no_entry_negated
        };
        found.warn(&format!("match.{key}"), format!("{what}, {effect}"), hint);
        return;
    }
    excluded(matcher, words, found);
    for (n, pattern) in matcher.patterns.iter().enumerate() {
        if let Some(bytes) = pattern.longest_searched().filter(|bytes| *bytes < SHORT) {
            let message = format!(
                "`{pattern}` takes long, so it searches values of up to {bytes} bytes; {}",
                words.unsearched
            );
            let hint = "repeat less inside of what is repeated, or use a glob";
            let field = format!("match.{key}[{n}]");
            found.warn(&field, message, Some(hint.to_owned()));
        }
        let Some(never) = never(key.as_str(), pattern) else {
            continue;
        };
        let effect = if pattern.is_negated() {
            "excludes no request"
        } else {
            words.never
        };
        let message = format!("`{pattern}` {effect}: {}", never.why);
        found.warn(&format!("match.{key}[{n}]"), message, never.meant);
    }
}

/// Warns if each value that the patterns name is excluded by another pattern beside it.
fn excluded(matcher: &Matcher, words: &Words, found: &mut Found<'_>) {
    let negated = || {
        matcher
            .patterns
            .iter()
            .filter(|pattern| pattern.is_negated())
    };
    let excluding = |pattern: &Pattern| {
        negated().find(|other| {
            let same = other.as_str().strip_prefix('!') == Some(pattern.as_str());
            same || pattern.exact().is_some_and(|value| other.finds(value))
        })
    };
    let mut positive = matcher
        .patterns
        .iter()
        .filter(|pattern| !pattern.is_negated());
    let Some(first) = positive.next().and_then(excluding) else {
        return;
    };
    if positive.all(|pattern| excluding(pattern).is_some()) {
        let message = format!("`{first}` excludes what is beside it: this {}", words.never);
        found.warn(&format!("match.{}", matcher.key), message, None);
    }
}

/// Warns about what is in the file and no longer in force.
fn of_ends(limit: &Limit, now_ms: u64, found: &mut Found<'_>) {
    let ended = |until_ms: Option<u64>| until_ms.filter(|until_ms| *until_ms <= now_ms);
    if let Some(until_ms) = ended(
        limit
            .paused
            .and_then(|pause| pause.until_ms)
            .filter(|ms| *ms > 0),
    ) {
        let until = format_timestamp(until_ms);
        let message = format!("the pause ended at {until}: the limit is in force");
        found.warn("paused", message, Some("remove it".to_owned()));
    }
    for (n, one) in limit.overrides.iter().enumerate() {
        if let Some(until_ms) = ended(one.until_ms) {
            let until = format_timestamp(until_ms);
            let message = format!("the override ended at {until}: it changes nothing");
            found.warn(&format!("overrides[{n}].until"), message, None);
        }
    }
}

/// Where a field stands, or the nearest that contains it.
fn place_of(root: &Node, path: &str) -> Option<Place> {
    let mut at = root;
    let mut place = root.place;
    // `limits[2].match.path[0]`; a name may hold dots, so keys are tried whole.
    let mut rest = path;
    while !rest.is_empty() {
        rest = rest.trim_start_matches('.');
        let (next, after) = match rest.strip_prefix('[') {
            Some(item) => {
                let (index, after) = item.split_once(']')?;
                let index: usize = index.parse().ok()?;
                (at.items().get(index), after)
            }
            None => match field_of(at, rest) {
                Some((node, after)) => (Some(node), after),
                None => (None, ""),
            },
        };
        let Some(next) = next else {
            // `per: user` is a list of one.
            return place;
        };
        at = next;
        place = at.place.or(place);
        rest = after;
    }
    place
}

/// The longest key of a map that the path starts with, and what follows it.
fn field_of<'n, 'p>(node: &'n Node, path: &'p str) -> Option<(&'n Node, &'p str)> {
    let Value::Map(entries) = &node.value else {
        return None;
    };
    let fits = entries.iter().filter_map(|entry| {
        let after = path.strip_prefix(entry.key.as_str())?;
        let ends = after.is_empty() || after.starts_with(['.', '[']);
        ends.then_some((&entry.value, after))
    });
    fits.min_by_key(|(_, after)| after.len())
}

/// Warns if the reserve comes from bodies that no proxy reads.
fn of_reserve(limit: &Limit, around: &Surroundings<'_>, found: &mut Found<'_>) {
    let price = limit.response_price();
    let in_body = price.is_some_and(|price| price.reserve.pointers().next().is_some());
    let Some(supply) = around.supply.filter(|_| in_body) else {
        return;
    };
    let supplies = |entry| supply.entries.iter().any(|name| name.as_str() == entry);
    let (what, hint) = if supplies(REQUEST_BODY_PASSES) {
        let file = supply.source.unwrap_or("Envoy's configuration");
        let what = format!(
            "a plugin with `{REQUEST_BODY}` in {file} lacks `allow_on_headers_stop_iteration: true`: such \
             requests wait a second in vain"
        );
        (
            what,
            "set it beside the plugin's `configuration`; Istio's WasmPlugin cannot",
        )
    } else if supplies(REQUEST_BODY) {
        return;
    } else {
        let what = match supply.source {
            Some(file) => format!("{file} has no `{REQUEST_BODY}`"),
            None => "no live proxy reads bodies of requests".to_owned(),
        };
        let hint = "set it in the filter's configuration, and `allow_on_headers_stop_iteration` in \
                    Envoy's; Istio's WasmPlugin cannot";
        (what, hint)
    };
    let message = format!("{what}, so `request_json` never says what is reserved");
    found.warn("cost.reserve.from", message, Some(hint.to_owned()));
}

/// Warns if nothing bounds what a response costs whose cost cannot be read, or if the bound is below
/// what is reserved for each.
fn of_max(limit: &Limit, found: &mut Found<'_>) {
    let Some(price) = limit.response_price() else {
        return;
    };
    let (max, reserve) = (price.max, price.reserve.default);
    if max < reserve {
        let message = format!(
            "no response costs more than {max}, and {reserve} are reserved for each: some is always given back"
        );
        let hint = "raise `max`, or lower `reserve`".to_owned();
        return found.warn("cost.max", message, Some(hint));
    }
    let unbounded = !price.has_max() && !price.has_status();
    let why = match price.if_absent {
        IfAbsent::Estimate if unbounded => {
            "whose body cannot be read (it is compressed, for instance)"
        }
        IfAbsent::Max if unbounded => "that does not say its cost",
        _ => return,
    };
    let message = format!("without `max`, a response {why} costs what a whole bucket holds");
    let hint = "set `max` to the most that a response can cost".to_owned();
    found.warn("cost", message, Some(hint));
}

/// A request that costs more than a bucket ever holds never passes. A quota of nothing is meant
/// to deny everything.
fn of_cost(limit: &Limit, found: &mut Found<'_>) {
    let units = limit.cost;
    let hint = match limit.quota.parameters().burst {
        Some(_) => "give it a `burst` of at least its `cost`",
        None => "raise `burst` or the `rate`, or lower the `cost`",
    };
    let price = Price {
        field: "cost",
        units,
        hint,
        of_override: format!("the limit's `cost` is {units}"),
    };
    price.check(limit, found, |most| {
        format!(
            "a request costs {units} and a bucket holds {most}: every request is over the limit"
        )
    });
}

/// As [`of_cost`], for each price that a request can have at a limit.
fn of_prices(limit: &Limit, found: &mut Found<'_>) {
    let Some(Pricing::Request(price)) = limit.pricing.as_deref() else {
        return;
    };
    let from = price.from.iter().map(|value| value.min).enumerate();
    let from = from.map(|(n, units)| (format!("cost.from[{n}].min"), units));
    let table = price.table.iter().map(|row| row.units).enumerate();
    let table = table.map(|(n, units)| (format!("cost.table[{n}].units"), units));
    let default = [("cost.default".to_owned(), price.default)];
    for (field, units) in from.chain(table).chain(default) {
        let price = Price {
            field: &field,
            units,
            hint: "raise `burst` or the `rate`, or lower what it costs",
            of_override: format!("`{field}` is {units}"),
        };
        price.check(limit, found, |most| {
            format!(
                "such a request costs {units} and a bucket holds {most}: each is over the limit"
            )
        });
    }
}

/// A bucket refills up to its burst in each millisecond: what a higher rate would add is lost, and so is what
/// refills while less than a request's cost is missing.
fn of_burst(limit: &Limit, found: &mut Found<'_>) {
    let own = [("burst".to_owned(), limit.quota)];
    let more = overrides(limit).map(|(n, quota)| (format!("overrides[{n}]"), quota));
    for (field, quota) in own.into_iter().chain(more) {
        let Some(reached) = reached_percent(&quota, limit.cost.max(1)) else {
            continue;
        };
        let Numbers {
            limit: burst, x, y, ..
        } = quota.numbers();
        let message = format!(
            "time counts in milliseconds, so requests that come evenly get about {reached} % of the rate from a \
             bucket that holds {burst}"
        );
        let enough = limit.cost.max(1).saturating_add(y.div_ceil(x));
        let hint = format!("a `burst` of {enough} reaches the rate");
        found.warn(&field, message, Some(hint));
    }
}

/// How much of its rate a used-up bucket admits, if that is less than 90 %.
fn reached_percent(quota: &Algorithm, cost: u64) -> Option<u64> {
    /// A request that refills for longer loses less than a fiftieth to rounding.
    const LONG_MS: u64 = 50;
    const STEPS: u64 = 1000;
    let parameters = quota.parameters();
    // A queue behind a burst admits by what it holds, not by the burst.
    let bucket = parameters.kind.is_bucket()
        && (parameters.kind == Kind::LeakyBucket || parameters.max_delay_ms.is_none());
    // In parts of a unit.
    let Numbers { limit, x, y, .. } = quota.numbers();
    let (full, one) = (limit.checked_mul(x)?, cost.checked_mul(x)?);
    let enough = one.checked_add(y).is_none_or(|enough| full >= enough);
    if !bucket || one > full || enough || one / y >= LONG_MS {
        return None;
    }
    let (mut debt, mut admitted) = (full, 0_u128);
    for _ in 0..STEPS {
        debt = debt.saturating_sub(y);
        let fit = (full - debt) / one * one;
        debt += fit;
        admitted += u128::from(fit);
    }
    let percent = admitted * 100 / (u128::from(y) * u128::from(STEPS));
    u64::try_from(percent).ok().filter(|percent| *percent < 90)
}

/// What a request costs, and what to report if no bucket can hold that.
struct Price<'p> {
    field: &'p str,
    units: u64,
    hint: &'p str,
    /// The hint if only a bucket with an override cannot.
    of_override: String,
}

impl Price<'_> {
    fn check(&self, limit: &Limit, found: &mut Found<'_>, message: impl Fn(u64) -> String) {
        let too_dear = |quota: &Algorithm| quota.limit() > 0 && self.units > quota.limit();
        if too_dear(&limit.quota) {
            let message = message(limit.quota.limit());
            return found.warn(self.field, message, Some(self.hint.to_owned()));
        }
        for (n, quota) in overrides(limit).filter(|(_, quota)| too_dear(quota)) {
            let (field, hint) = (format!("overrides[{n}]"), self.of_override.clone());
            found.warn(&field, message(quota.limit()), Some(hint));
        }
    }
}

/// The quotas of overrides, by their places.
fn overrides(limit: &Limit) -> impl Iterator<Item = (usize, Algorithm)> {
    let overrides = limit.overrides.iter().enumerate();
    overrides.filter_map(|(n, one)| Some((n, one.quota.of(&limit.quota)?)))
}

/// A bucket owes [`DEBT_MAX_CAPACITIES`] at most: what a response costs beyond that is charged to nobody.
fn of_debt(limit: &Limit, found: &mut Found<'_>) {
    let Some(price) = limit.response_price().filter(|price| price.has_max()) else {
        return;
    };
    let owes = |quota: &Algorithm| {
        let capacity = quota.limit();
        capacity.saturating_mul(DEBT_MAX_CAPACITIES)
    };
    let max = price.max;
    let exceeds = |quota: &Algorithm| {
        // A window counts everything, until it ends.
        let is_bounded = quota.parameters().kind.is_bucket();
        // A quota of nothing is meant to deny everything.
        is_bounded && (1..max).contains(&owes(quota))
    };
    if exceeds(&limit.quota) {
        let most = owes(&limit.quota);
        let message = format!(
            "a bucket owes {DEBT_MAX_CAPACITIES} times what it holds at most, {most}: what a response costs \
             beyond that is not counted"
        );
        let hint = format!("lower `max` to {most}, or raise `burst` or the `rate`");
        return found.warn("cost.max", message, Some(hint));
    }
    for (n, quota) in overrides(limit).filter(|(_, quota)| exceeds(quota)) {
        let most = owes(&quota);
        let message = format!(
            "such a bucket owes {most} at most, and a response may cost {max}: the rest is not counted"
        );
        let hint = format!("the limit's `max` is {max}");
        found.warn(&format!("overrides[{n}]"), message, Some(hint));
    }
}

/// `Etc/GMT+5` is behind UTC, as POSIX has it, and not ahead as everywhere else.
fn of_zone(limit: &Limit, found: &mut Found<'_>) {
    let zone_of = |quota: &Algorithm| quota.parameters().time_zone;
    let own = [("time_zone".to_owned(), zone_of(&limit.quota))];
    // An override without a zone of its own has the limit's.
    let more =
        overrides(limit).map(|(n, quota)| (format!("overrides[{n}].time_zone"), zone_of(&quota)));
    let more = more.filter(|(_, zone)| *zone != zone_of(&limit.quota));
    for (field, zone) in own.into_iter().chain(more) {
        let Some(offset) = zone.and_then(|zone| zone.strip_prefix("Etc/GMT")) else {
            continue;
        };
        let (way, opposite, other) = match offset.as_bytes().first() {
            Some(b'+') => ("behind", '-', "ahead of"),
            Some(b'-') => ("ahead of", '+', "behind"),
            _ => continue,
        };
        let Some(hours) = offset.get(1..).filter(|hours| *hours != "0") else {
            continue;
        };
        let message = format!(
            "`Etc/GMT{offset}` is {hours} h {way} UTC: the sign is the opposite of the usual"
        );
        let hint = format!(
            "`Etc/GMT{opposite}{hours}` is {hours} h {other} UTC; a region, like Europe/Berlin, says it without a sign"
        );
        found.warn(&field, message, Some(hint));
    }
}

/// A full window denies the rest of its time with or without a penalty, unless that ends later.
fn of_penalty(limit: &Limit, found: &mut Found<'_>) {
    let parameters = limit.quota.parameters();
    let (Some(penalty), Kind::FixedWindow) = (limit.penalty, parameters.kind) else {
        return;
    };
    let window_ms = parameters.rate.period_ms;
    if penalty.for_ms < window_ms {
        let (lasts, window) = (Duration(penalty.for_ms), Duration(window_ms));
        let message = format!(
            "a penalty of {lasts} is shorter than the window of {window}, and a full window denies its \
             rest anyway"
        );
        let hint = "most penalties would end before their window: use a longer `for`, or another algorithm";
        found.warn("penalty.for", message, Some(hint.to_owned()));
    }
}

#[cfg(test)]
mod tests;
