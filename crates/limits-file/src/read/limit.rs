//! One limit: its fields, and what they cannot be together.

use std::borrow::Cow;

use algorithms::{Kind, LEASE_TTL_MAX_MS, LEASE_TTL_MIN_MS, Penalty};
use documents::{
    Choice, Duration, Field, Name, Node, Path, Problem, Report, Take, Value, name_hint, quoted,
};
use patterns::Pattern;

use policy::{
    BucketEdits, ChargeMode, ChoiceOf, DESCRIPTOR, DescriptorLimit, DescriptorPattern,
    EntryPattern, Limit, Matcher, OverLimit, Pricing, Scope,
};

use super::{
    numbers::{Buckets, NUMBERS, Numbers, read_overrides},
    pricing::{check_pricing, read_cost},
    take_pause,
};

/// Every field of a limit that its author may write.
pub(crate) const LIMIT_FIELDS: [&str; 37] = [
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
    "adaptive",
    "burst",
    "cost",
    "over_limit",
    "max_delay",
    "deny_status",
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

/// The most entries of `per`.
const MAX_PER: usize = 16;
/// The longest description, in characters.
const MAX_DESCRIPTION: usize = 1000;

const MAX_PRECHECK_PERCENT: u32 = 10_000;

/// Reads a limit; `None`, and problems, if anything about it is wrong.
pub(super) fn read_limit(field: Field<'_>, report: &mut Report) -> Option<Limit> {
    let name = field.node.get("name").and_then(Node::as_text);
    report.limit = name.map(str::to_owned);
    let limit = read_fields(field, report);
    report.limit = None;
    limit
}

/// The settings of a limit that others have to fit.
pub(super) struct LimitContext {
    numbers: Numbers,
    pub(super) over_limit: OverLimit,
    pub(super) scope: Scope,
    pub(super) service: bool,
}

fn read_fields(limit: Field<'_>, report: &mut Report) -> Option<Limit> {
    let before = report.problems.len();
    let take = &mut Take::new(&limit, report)?;
    let (name, description) = (read_name(take, &limit), read_description(take));
    let (descriptor, matchers) = (read_descriptor(take, &limit), read_matchers(take));
    let service = descriptor.is_some();
    let per = read_per(take, service);
    let if_missing = take.choice("if_missing");
    let over_limit = take.choice("over_limit");
    let unlimited = descriptor.as_ref().is_some_and(|rule| rule.unlimited);
    let numbers = Numbers::read(take, &limit, over_limit, unlimited);
    let scope = take.choice("scope");
    let overrides = read_overrides(take, &Buckets::new(&per, if_missing, scope, numbers.quota));
    let partition = take.names("partition", "an entry of `per`");
    let replaces = take.names("replaces", "the name of a limit");
    let (cost, pricing) = read_cost(take);
    let (enforce_percent, penalty) = (read_enforce(take), read_penalty(take));
    let (deny_status, precheck_percent) = (read_deny_status(take), read_precheck(take, scope));
    let on_failure = take.choice("on_failure");
    let (hidden, fleet_size) = (take.boolean("hidden"), take.integer("fleet_size", 1));
    let paused = take_pause(take);
    let context = LimitContext {
        numbers,
        over_limit,
        scope,
        service,
    };
    let lease_ttl_ms = read_lease(take, &context);
    take.finish(&LIMIT_FIELDS);
    check_per(&limit, &per, &partition, report);
    check_combinations(&limit, &context, pricing.as_deref(), report);
    report.has_only(before)?;
    Some(Limit {
        name: name?,
        description,
        descriptor,
        matchers,
        per,
        if_missing,
        quota: context.numbers.quota?,
        cost,
        pricing,
        over_limit,
        deny_status,
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
        generation: 0,
        reset_generation: 0,
        bucket_edits: BucketEdits::default(),
        place: 0,
    })
}

/// Checks fields that are valid on their own, but not together.
fn check_combinations(
    limit: &Field<'_>,
    context: &LimitContext,
    pricing: Option<&Pricing>,
    report: &mut Report,
) {
    let LimitContext {
        numbers: Numbers { kind, .. },
        over_limit,
        scope,
        service,
    } = *context;
    check_kind(limit, kind, over_limit, scope, report);
    check_service(limit, service, over_limit, scope, report);
    if over_limit == OverLimit::Degrade && limit.node.get("deny_status").is_some() {
        let message = "`deny_status` on a limit that denies nothing";
        refuse(limit, "deny_status", message, report)
            .push_hint("requests over it pass, marked: remove `deny_status`");
    }
    check_slots(limit, kind, report);
    check_pricing(limit, pricing, context, report);
    check_penalty(limit, context, report);
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
        return DESCRIPTOR.parse().into_iter().collect();
    }
    per
}

fn read_enforce(take: &mut Take<'_, '_>) -> u8 {
    let percent = take.percent("enforce", 0, 100);
    percent.map_or(100, |percent| u8::try_from(percent).unwrap_or(100))
}

/// The least and the greatest `deny_status`.
const STATUSES: std::ops::RangeInclusive<u64> = 400..=599;

fn read_deny_status(take: &mut Take<'_, '_>) -> Option<u16> {
    let field = take.field("deny_status")?;
    let status = field.integer(0, take.report)?;
    if !STATUSES.contains(&status) {
        field
            .expected("an HTTP status from 400 to 599", take.report)
            .push_hint("429 tells clients to slow down, 503 that the service is overloaded");
    }
    u16::try_from(status).ok()
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

/// A problem with a field that is valid on its own, but not together with others.
pub(super) fn refuse<'r>(
    limit: &Field<'_>,
    name: &str,
    message: impl Into<Cow<'static, str>>,
    report: &'r mut Report,
) -> &'r mut Problem {
    let place = limit.node.get(name).and_then(|node| node.place);
    let path = Path::Field(&limit.path, name);
    report.add(&path, place.or(limit.node.place), message)
}

fn check_per(limit: &Field<'_>, per: &[Name], partition: &[Name], report: &mut Report) {
    if per.len() > MAX_PER {
        refuse(limit, "per", format!("more than {MAX_PER} entries"), report);
        return;
    }
    for name in partition {
        if !per.contains(name) {
            let message = format!("`{name}` is not in `per`");
            refuse(limit, "partition", message, report)
                .push_hint("`partition` names the entries of `per` that share a cluster slot");
        }
    }
}

/// The rate limit service answers at once, and only limiters serve it.
fn check_service(
    limit: &Field<'_>,
    service: bool,
    over_limit: OverLimit,
    scope: Scope,
    report: &mut Report,
) {
    if !service {
        return;
    }
    let mut refuse = |name, given: bool, hint: &'static str| {
        if given {
            let message = format!("`{name}` on a limit that has a `descriptor`");
            refuse(limit, name, message, report).push_hint(hint);
        }
    };
    let other = over_limit != OverLimit::Reject;
    refuse(
        "over_limit",
        other,
        "the service answers yes or no, at once",
    );
    refuse(
        "scope",
        scope == Scope::Proxy,
        "only limiters decide about it",
    );
}

fn check_kind(
    limit: &Field<'_>,
    kind: Option<Kind>,
    over_limit: OverLimit,
    scope: Scope,
    report: &mut Report,
) {
    let Some(kind) = kind else { return };
    if over_limit == OverLimit::Queue && !kind.is_bucket() {
        let message = format!("a {} cannot queue", ChoiceOf(kind).word());
        refuse(limit, "over_limit", message, report).push_hint(
            "use `algorithm: token_bucket` or `gcra`, whose `burst` passes at once, or `leaky_bucket`",
        );
    }
    let unbounded = matches!(
        kind,
        Kind::SlidingWindowLog | Kind::SlidingWindowBuckets | Kind::Concurrency
    );
    if scope == Scope::Proxy && unbounded {
        let message = format!("a {} cannot be kept in a proxy", ChoiceOf(kind).word());
        refuse(limit, "scope", message, report)
            .push_hint("its state has no small fixed size; `sliding_window` has");
    }
}

/// A request has one slot, which cannot be divided, nor given by a proxy without the store.
fn check_slots(limit: &Field<'_>, kind: Option<Kind>, report: &mut Report) {
    if kind != Some(Kind::Concurrency) {
        return;
    }
    for (name, hint) in [
        ("cost", "each request has one slot: remove `cost`"),
        (
            "precheck",
            "the store counts what is in flight: remove `precheck`",
        ),
    ] {
        if limit.node.get(name).is_some() {
            let message = format!("`{name}` on a limit on requests in flight");
            refuse(limit, name, message, report).push_hint(hint);
        }
    }
}

/// The most conditions of one limit.
pub const MATCHERS_MAX: usize = 32;
/// The most patterns of one condition.
pub const PATTERNS_MAX: usize = 1000;

/// `match`: when a limit applies.
pub(super) fn read_matchers(take: &mut Take<'_, '_>) -> Vec<Matcher> {
    let Some(field) = take.field("match") else {
        return Vec::new();
    };
    let report = &mut *take.report;
    let what = "a map of descriptor entries and their patterns, like {path: \"/api/**\"}";
    let entries = field.entries(what, report).unwrap_or_default();
    if entries.len() > MATCHERS_MAX {
        field.report(report, format!("more than {MATCHERS_MAX} entries"));
    }
    let mut matchers = Vec::with_capacity(entries.len());
    for entry in entries {
        let key_field = field.below(entry);
        let key = match entry.key.parse() {
            Ok(name) => Some(name),
            Err(error) => {
                let message = format!("{} is not a name", quoted(&entry.key));
                report
                    .add(&key_field.path, entry.place, message)
                    .push_hint(name_hint(&entry.key, &error));
                None
            }
        };
        let patterns = read_patterns(&key_field, report);
        if let Some(key) = key {
            matchers.push(Matcher::new(key, patterns));
        }
    }
    matchers
}

fn read_patterns(field: &Field<'_>, report: &mut Report) -> Vec<Pattern> {
    let Value::List(items) = &field.node.value else {
        return read_pattern(field, report).into_iter().collect();
    };
    if items.is_empty() {
        field
            .report(report, "an empty list of patterns")
            .push_hint("no value would match; remove the entry to match every value");
    }
    if items.len() > PATTERNS_MAX {
        field.report(report, format!("more than {PATTERNS_MAX} patterns"));
    }
    let mut patterns = Vec::with_capacity(items.len().min(PATTERNS_MAX));
    for (index, node) in items.iter().take(PATTERNS_MAX).enumerate() {
        let path = Path::Item(&field.path, index);
        patterns.extend(read_pattern(&Field { node, path }, report));
    }
    patterns
}

fn read_pattern(field: &Field<'_>, report: &mut Report) -> Option<Pattern> {
    field.parsed("a pattern", Pattern::parse, report)
}

/// Fields that a limit of the rate limit service cannot have: clients of that service send the
/// descriptor themselves, and get an answer at once.
const FOREIGN: [(&str, &str); 7] = [
    ("match", "`descriptor` says when the limit applies"),
    ("per", "each descriptor has a bucket of its own"),
    ("if_missing", "a descriptor lacks nothing"),
    ("partition", "each descriptor has a bucket of its own"),
    ("precheck", "it is for the filter"),
    ("lease", "it is for the filter"),
    (
        "adaptive",
        "the service does not learn how long requests took",
    ),
];

/// Fields that only a limit of the rate limit service has.
const OWN: [&str; 4] = ["unlimited", "share_threshold", "quota_mode", "charge"];

/// Reads the fields; `None` for other limits.
fn read_descriptor(take: &mut Take<'_, '_>, limit: &Field<'_>) -> Option<Box<DescriptorLimit>> {
    let unlimited = take.boolean("unlimited").unwrap_or(false);
    let share = take.field("share_threshold");
    let quota_mode = take.boolean("quota_mode").unwrap_or(false);
    let charge: ChargeMode = take.choice("charge");
    let Some(field) = take.field("descriptor") else {
        for name in OWN {
            if limit.node.get(name).is_some() {
                let message = format!("`{name}` is for limits of Envoy's rate limit service");
                refuse(limit, name, message, take.report)
                    .push_hint("such a limit has a `descriptor`");
            }
        }
        return None;
    };
    for (name, why) in FOREIGN {
        if limit.node.get(name).is_some() {
            let message = format!("`{name}` on a limit that has a `descriptor`");
            refuse(limit, name, message, take.report).push_hint(why);
        }
    }
    if unlimited {
        let others = ["cost", "deny_status", "penalty", "overrides"];
        for name in NUMBERS.into_iter().chain(others) {
            if limit.node.get(name).is_some() {
                let message = format!("`{name}` on a limit that is `unlimited`");
                refuse(limit, name, message, take.report);
            }
        }
    }
    let mut entries = read_entries(&field, take.report)?;
    if let Some(share) = share {
        read_share(&share, &mut entries, take.report);
    }
    match DescriptorPattern::new(entries) {
        Ok(pattern) => Some(Box::new(DescriptorLimit {
            pattern,
            unlimited,
            quota_mode,
            charge,
        })),
        Err(error) => {
            field.report(take.report, error.to_string());
            None
        }
    }
}

/// `None`, and a problem, if any entry is invalid.
fn read_entries(field: &Field<'_>, report: &mut Report) -> Option<Vec<EntryPattern>> {
    const WHAT: &str = "an entry like user=alice, user or path=/api/*";
    let entry = |item: &Field<'_>, report: &mut Report| {
        if let Value::Map(_) = item.node.value {
            let problem = item.expected(WHAT, report);
            problem.push_hint("write `key=value`, not `key: value`");
            return None;
        }
        item.parsed(WHAT, EntryPattern::parse, report)
    };
    let Value::List(items) = &field.node.value else {
        return entry(field, report).map(|entry| vec![entry]);
    };
    let mut entries = Vec::with_capacity(items.len());
    for (index, node) in items.iter().enumerate() {
        let item = field.item(index, node);
        entries.push(entry(&item, report));
    }
    entries.into_iter().collect()
}

fn read_share(field: &Field<'_>, entries: &mut [EntryPattern], report: &mut Report) {
    const WHAT: &str = "true, or the keys of entries with a `*`";
    let mut share = |key: Option<&str>| {
        let mut found = false;
        for entry in entries.iter_mut().filter(|entry| entry.is_wildcard()) {
            if key.is_none_or(|key| entry.key() == key) {
                entry.share_threshold = true;
                found = true;
            }
        }
        found
    };
    let items = match &field.node.value {
        Value::Bool(false) => return,
        Value::Bool(true) => {
            if !share(None) {
                field
                    .report(report, "no entry of the descriptor has a `*`")
                    .push_hint("the values of `path=/api/*` can share one bucket");
            }
            return;
        }
        Value::List(items) => items,
        _ => {
            field.expected(WHAT, report);
            return;
        }
    };
    for (index, node) in items.iter().enumerate() {
        let item = field.item(index, node);
        match item.text(WHAT, report) {
            Some(key) if !share(Some(key)) => {
                item.expected("the key of an entry with a `*`", report);
            }
            _ => {}
        }
    }
}

pub(super) const PENALTY_FIELDS: [&str; 5] = ["after", "within", "for", "grow", "max"];

/// The largest `after` of a penalty.
const AFTER_MAX: u64 = 1_000_000;
/// The largest `grow`.
const GROW_MAX: u64 = 10;
const SECOND_MS: u64 = 1000;
const DAY_MS: u64 = 86_400_000;
const WEEK_MS: u64 = 7 * DAY_MS;

const EXAMPLE: &str = "like `penalty: {after: 10, within: 1m, for: 15m}`";

/// The penalty; `None` without one, or with problems. Messages are constant texts, because the
/// filter contains them, too.
fn read_penalty(take: &mut Take<'_, '_>) -> Option<Penalty> {
    let field = take.field("penalty")?;
    let report = &mut *take.report;
    if !matches!(field.node.value, Value::Map(_)) {
        field.expected("a map of fields", report).push_hint(EXAMPLE);
        return None;
    }
    let (mut after, mut within_ms, mut for_ms) = (None, None, None);
    let (mut grow, mut max_ms) = (None, None);
    field.read_map(&PENALTY_FIELDS, report, &mut |take| {
        after = read_after(take);
        within_ms = read_time(take, "within", DAY_MS, "a duration from 1s to 1d");
        for_ms = read_time(take, "for", WEEK_MS, "a duration from 1s to 7d");
        grow = read_grow(take);
        max_ms = read_max(take, for_ms);
    })?;
    let missing = |name: &&str| field.node.get(name).is_none();
    if missing(&"grow") != missing(&"max") {
        field
            .report(report, "a penalty that grows needs `grow` and `max`")
            .push_hint("like `grow: 2, max: 1d`");
    }
    if PENALTY_FIELDS.iter().take(3).any(missing) {
        field
            .report(report, "a penalty needs `after`, `within` and `for`")
            .push_hint(EXAMPLE);
    }
    let once = Penalty::new(after?, within_ms?, for_ms?);
    Some(Penalty {
        grow: grow.unwrap_or(once.grow),
        max_ms: max_ms.unwrap_or(once.max_ms),
        ..once
    })
}

fn read_grow(take: &mut Take<'_, '_>) -> Option<u64> {
    let field = take.field("grow")?;
    let grow = field.integer(1, take.report)?;
    if !(2..=GROW_MAX).contains(&grow) {
        field.expected("a number from 2 to 10", take.report);
    }
    Some(grow)
}

fn read_max(take: &mut Take<'_, '_>, for_ms: Option<u64>) -> Option<u64> {
    let field = take.field("max")?;
    let ms = field.duration(take.report)?;
    if !(for_ms.unwrap_or(SECOND_MS)..=WEEK_MS).contains(&ms) {
        field.expected("a duration from `for` to 7d", take.report);
    }
    Some(ms)
}

fn read_after(take: &mut Take<'_, '_>) -> Option<u64> {
    let field = take.field("after")?;
    let denials = field.integer(1, take.report)?;
    if denials > AFTER_MAX {
        field.expected("at most 1000000 denials", take.report);
    }
    Some(denials)
}

/// A time of at least a second, in milliseconds.
fn read_time<'p>(take: &mut Take<'_, 'p>, name: &'p str, most_ms: u64, what: &str) -> Option<u64> {
    let field = take.field(name)?;
    let ms = field.duration(take.report)?;
    if !(SECOND_MS..=most_ms).contains(&ms) {
        field.expected(what, take.report);
    }
    Some(ms)
}

/// Refuses a penalty if the store does not count every denial, or if a denial does not last for a time.
fn check_penalty(limit: &Field<'_>, context: &LimitContext, report: &mut Report) {
    if limit.node.get("penalty").is_none() {
        return;
    }
    let mut refuse = |given: bool, message: &'static str, hint: &'static str| {
        if given {
            refuse(limit, "penalty", message, report).push_hint(hint);
        }
    };
    refuse(
        context.over_limit == OverLimit::Degrade,
        "`penalty` on a limit that denies nothing",
        "requests over it pass, marked: remove `penalty`, or use `over_limit: reject`",
    );
    refuse(
        context.scope == Scope::Proxy,
        "`penalty` on a limit that is checked in the proxy",
        "the store counts the denials of all proxies: remove `penalty`, or use `scope: global`",
    );
    refuse(
        limit.node.get("lease").is_some(),
        "`penalty` on a limit that is leased",
        "proxies use leased units until they expire, penalty or not: remove `penalty` or `lease`",
    );
    refuse(
        context.numbers.kind == Some(Kind::Concurrency),
        "`penalty` on a limit on requests in flight",
        "it denies until a request ends: remove `penalty`, or put it on a limit with a `rate`",
    );
}

const LEASE_FIELDS: [&str; 1] = ["ttl"];

/// The ttl, in milliseconds; `None` without a lease, or with problems.
fn read_lease(take: &mut Take<'_, '_>, context: &LimitContext) -> Option<u64> {
    let lease = take.field("lease")?;
    let report = &mut *take.report;
    let ttl_ms = read_ttl(lease, report);
    if !context.may_lease(&lease, report) {
        return None;
    }
    let ttl = Field {
        node: lease.node.get("ttl")?,
        path: Path::Field(&lease.path, "ttl"),
    };
    context.check_ttl(&ttl, ttl_ms?, report)
}

fn read_ttl(lease: Field<'_>, report: &mut Report) -> Option<u64> {
    if let Value::Text(_) = &lease.node.value {
        lease
            .expected("a map of fields", report)
            .push_hint("like `lease: {ttl: 100ms}`");
        return None;
    }
    let mut ttl_ms = None;
    lease.read_map(&LEASE_FIELDS, report, &mut |take| {
        ttl_ms = take.field("ttl").and_then(|ttl| ttl.duration(take.report));
    })?;
    if lease.node.get("ttl").is_none() {
        lease
            .report(report, "a lease needs a `ttl`")
            .push_hint("how long leased units may be used, like `lease: {ttl: 100ms}`");
    }
    ttl_ms
}

impl LimitContext {
    /// Whether such a limit can lease units at all, whatever its numbers are.
    fn may_lease(&self, field: &Field<'_>, report: &mut Report) -> bool {
        let (what, hint) = match self.numbers.kind {
            _ if self.scope == Scope::Proxy => (
                "`lease` on a limit that is checked in the proxy anyway".to_owned(),
                "remove `lease`, or use `scope: global`",
            ),
            _ if self.over_limit == OverLimit::Queue => (
                "`lease` on a queue".to_owned(),
                "a queue gives each request its turn when it comes: remove `lease`, or use \
                 `over_limit: reject`",
            ),
            Some(kind @ Kind::SlidingWindowLog) => (
                format!("`lease` on a {}", ChoiceOf(kind).word()),
                "it stores when each unit was used: remove `lease`, or use another algorithm, \
                 such as sliding_window",
            ),
            Some(Kind::Concurrency) => (
                "`lease` on a limit on requests in flight".to_owned(),
                "a slot is taken when its request comes: remove `lease`",
            ),
            _ => return true,
        };
        field.report(report, what).push_hint(hint);
        false
    }

    /// Whether the bucket's numbers allow the ttl.
    fn check_ttl(&self, ttl: &Field<'_>, ttl_ms: u64, report: &mut Report) -> Option<u64> {
        let quota = self.numbers.quota.as_ref()?;
        let (least, counted) = (Duration(LEASE_TTL_MIN_MS), self.counted());
        let Some(longest_ms) = quota.lease_max_ms() else {
            ttl.report(report, format!("{counted} is too short for leases"))
                .push_hint(format!(
                    "a ttl is at most a quarter of it and at least {least}: remove `lease`"
                ));
            return None;
        };
        let longest = Duration(longest_ms);
        if ttl_ms < LEASE_TTL_MIN_MS {
            ttl.report(report, format!("a ttl is at least {least}"))
                .push_hint(format!("for this limit {least} to {longest} would do"));
        } else if ttl_ms > longest_ms {
            let why = if longest_ms == LEASE_TTL_MAX_MS {
                "what is leased to a proxy that dies is missed until its end".to_owned()
            } else {
                format!("that is a quarter of {counted}")
            };
            let at_most = format!("a ttl of at most {longest} would do");
            ttl.report(report, at_most).push_hint(why);
        }
        (LEASE_TTL_MIN_MS..=longest_ms)
            .contains(&ttl_ms)
            .then_some(ttl_ms)
    }

    /// The time that bounds a ttl, in words.
    fn counted(&self) -> &'static str {
        match self.numbers.kind {
            Some(Kind::SlidingWindowBuckets) => "the length of a sub-window",
            Some(Kind::FixedWindow | Kind::SlidingWindow) => "the length of the window",
            _ => "the time in which an empty bucket fills",
        }
    }
}
