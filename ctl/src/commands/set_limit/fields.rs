//! The fields of a limit as flags.

use clap::{
    Args,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
};
use policy::{Limit, Name, Node, Override, Policy, Problem, Problems, Surroundings};

use crate::{
    bucket::{Pair, parse_whole_number},
    commands::validate::cost_warning,
    error::{Error, Exit},
    session::Session,
};

/// Every flag that sets a field; what is not given stays as it is.
#[derive(Debug, Default, Args)]
pub struct LimitFields {
    /// Applies only where this entry matches; may be given several times, and replaces all that
    /// were there. The same key again adds an alternative.
    #[arg(
        long = "match",
        value_name = "KEY=PATTERN",
        help_heading = "When it applies"
    )]
    matches: Vec<Pair>,

    /// One bucket per value of this entry; replaces all that were there.
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        help_heading = "When it applies"
    )]
    per: Vec<String>,

    /// What happens to a request without a `per` entry: share, skip or deny.
    #[arg(long, value_name = "WHAT", value_parser = choice(IF_MISSING), hide_possible_values = true,
        help_heading = "When it applies")]
    if_missing: Option<String>,

    /// Limits that this one suppresses when it matches.
    #[arg(
        long,
        value_name = "LIMIT",
        value_delimiter = ',',
        help_heading = "When it applies"
    )]
    replaces: Vec<String>,

    /// A description for people.
    #[arg(long, value_name = "TEXT", help_heading = "When it applies")]
    description: Option<String>,

    /// Units per period, as in 10/s, 100/1m or 5/1500ms; or per day, week, month or year of
    /// --time-zone, as in 10000/day.
    #[arg(long, value_name = "N/PERIOD", help_heading = "How much")]
    rate: Option<String>,

    /// Requests in flight at once (concurrency).
    #[arg(long, value_name = "N", help_heading = "How much", value_parser = parse_whole_number, allow_negative_numbers = true)]
    limit: Option<u64>,

    /// How long a slot lives that nobody renews or frees, as in 10s (concurrency).
    #[arg(long, value_name = "TIME", help_heading = "How much")]
    slot_ttl: Option<String>,

    /// Units that may be used at once [default: as many as the rate names].
    #[arg(long, value_name = "N", help_heading = "How much", value_parser = parse_whole_number, allow_negative_numbers = true)]
    burst: Option<u64>,

    /// token_bucket, gcra, leaky_bucket, fixed_window, sliding_window, sliding_window_log,
    /// sliding_window_buckets or concurrency.
    #[arg(long, value_name = "NAME", value_parser = choice(ALGORITHM), hide_possible_values = true,
        help_heading = "How much")]
    algorithm: Option<String>,

    /// Units that one request takes; costs that requests or responses say are for limits files.
    #[arg(long, value_name = "N", help_heading = "How much", value_parser = parse_cost, allow_negative_numbers = true)]
    cost: Option<u64>,

    /// Sub-windows of a sliding_window_buckets window.
    #[arg(long, value_name = "N", help_heading = "How much", value_parser = parse_whole_number, allow_negative_numbers = true)]
    sub_windows: Option<u64>,

    /// Whether the sub-window that slides out still counts in full (sliding_window_buckets).
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
        help_heading = "How much")]
    strict: Option<bool>,

    /// Where a fixed window starts: epoch or first_request.
    #[arg(long, value_name = "WHERE", value_parser = choice(ALIGN), hide_possible_values = true,
        help_heading = "How much")]
    align: Option<String>,

    /// The zone whose midnights a rate per day, week, month or year counts from, as in
    /// Europe/Berlin [default: UTC].
    #[arg(long, value_name = "ZONE", help_heading = "How much")]
    time_zone: Option<String>,

    /// The first day of a rate per week: monday or sunday.
    #[arg(long, value_name = "DAY", value_parser = choice(WEEK_START), hide_possible_values = true,
        help_heading = "How much")]
    week_start: Option<String>,

    /// What happens to a request over the limit: reject, queue (leaky_bucket) or degrade.
    #[arg(long, value_name = "WHAT", value_parser = choice(OVER_LIMIT), hide_possible_values = true,
        help_heading = "Over the limit")]
    over_limit: Option<String>,

    /// How long a queue holds a request at most, as in 3s.
    #[arg(long, value_name = "TIME", help_heading = "Over the limit")]
    max_delay: Option<String>,

    /// Deny a bucket altogether after so many denials, as in after=10,within=1m,for=15m; parts that
    /// are not named stay as they are.
    #[arg(
        long,
        value_name = "PART=VALUE",
        value_delimiter = ',',
        value_parser = parse_penalty_part,
        help_heading = "Over the limit"
    )]
    penalty: Vec<Pair>,

    /// Share of the buckets that is enforced, as in 5%; the rest is only reported.
    #[arg(long, value_name = "PERCENT", help_heading = "Over the limit")]
    enforce: Option<String>,

    /// Report only: the same as --enforce 0%.
    #[arg(long, conflicts_with = "enforce", help_heading = "Over the limit")]
    shadow: bool,

    /// Do not advertise the limit in response headers.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true",
        help_heading = "Over the limit")]
    hidden: Option<bool>,

    /// What decides while no limiter answers: local, allow or deny.
    #[arg(long, value_name = "WHAT", value_parser = choice(ON_FAILURE), hide_possible_values = true,
        help_heading = "Where it is decided")]
    on_failure: Option<String>,

    /// Where buckets live: global, or proxy for one of each in every Envoy.
    #[arg(long, value_name = "WHERE", value_parser = choice(SCOPE), hide_possible_values = true,
        help_heading = "Where it is decided")]
    scope: Option<String>,

    /// Let this share of the limit through each proxy at most, as in 120%.
    #[arg(long, value_name = "PERCENT", help_heading = "Where it is decided")]
    precheck: Option<String>,

    /// Lease units to proxies in advance, for this long, as in 100ms: most requests need no check.
    #[arg(long, value_name = "TIME", help_heading = "Where it is decided")]
    lease: Option<String>,

    /// Entries of `per` that decide a bucket's cluster slot.
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        help_heading = "Where it is decided"
    )]
    partition: Vec<String>,

    /// The number of proxies to assume while no limiter reports it.
    #[arg(long, value_name = "N", help_heading = "Where it is decided", value_parser = parse_whole_number, allow_negative_numbers = true)]
    fleet_size: Option<u64>,

    /// Reset a field to its default.
    #[arg(long, value_name = "FIELD", value_delimiter = ',', value_parser = choice(UNSETTABLE),
        hide_possible_values = true)]
    unset: Vec<String>,
}

impl LimitFields {
    /// Whether any field is named.
    pub fn any(&self) -> bool {
        let mut probe = Node::map::<&str>([]);
        self.write(&mut probe);
        probe != Node::map::<&str>([]) || !self.unset.is_empty()
    }

    /// The first named field that is not among these, as its flag.
    pub fn other_than(&self, allowed: &[&str]) -> Option<String> {
        let mut named = Node::map::<&str>([]);
        self.write(&mut named);
        let policy::Value::Map(entries) = named.value else {
            return None;
        };
        let set = entries.into_iter().map(|entry| entry.key);
        set.chain(self.unset.iter().cloned())
            .find(|field| !allowed.contains(&field.as_str()))
    }

    /// Changes the fields that are named.
    pub fn apply(&self, limit: &mut Node) {
        for field in &self.unset {
            limit.unset(field);
        }
        // A rate by the calendar implies its algorithm.
        let rate = self.rate.as_deref().map(policy::parse_rate);
        if rate.is_some_and(|rate| rate.is_ok_and(|rate| rate.calendar.is_some())) {
            limit.unset("algorithm");
        }
        self.write(limit);
    }

    fn write(&self, limit: &mut Node) {
        let penalty = self.penalty(limit.get("penalty"));
        let mut set = |field: &str, value: Option<Node>| {
            if let Some(value) = value {
                limit.set(field, value);
            }
        };
        let text = |value: &Option<String>| value.as_deref().map(Node::text);
        let list = |names: &[String]| {
            (!names.is_empty()).then(|| Node::list(names.iter().map(Node::text)))
        };
        let percent =
            |value: &Option<String>| value.as_deref().map(|text| Node::text(percent(text)));
        set("description", text(&self.description));
        set(
            "match",
            (!self.matches.is_empty()).then(|| matchers(&self.matches)),
        );
        set("per", list(&self.per));
        set("if_missing", text(&self.if_missing));
        set("algorithm", text(&self.algorithm));
        set("rate", text(&self.rate));
        set("limit", self.limit.map(Node::number));
        set("slot_ttl", text(&self.slot_ttl));
        set("burst", self.burst.map(Node::number));
        set("cost", self.cost.map(Node::number));
        set("over_limit", text(&self.over_limit));
        set("max_delay", text(&self.max_delay));
        set("penalty", penalty);
        set("enforce", percent(&self.enforce));
        set("enforce", self.shadow.then(|| Node::text("0%")));
        set("on_failure", text(&self.on_failure));
        set("scope", text(&self.scope));
        set("precheck", percent(&self.precheck));
        let ttl = |ttl: &String| Node::map([("ttl", Node::text(ttl))]);
        set("lease", self.lease.as_ref().map(ttl));
        set("hidden", self.hidden.map(Node::from));
        set("replaces", list(&self.replaces));
        set("partition", list(&self.partition));
        set("fleet_size", self.fleet_size.map(Node::number));
        set("sub_windows", self.sub_windows.map(Node::number));
        set("strict", self.strict.map(Node::from));
        set("align", text(&self.align));
        set("time_zone", text(&self.time_zone));
        set("week_start", text(&self.week_start));
    }

    /// The penalty, its named parts replaced; `None` if no part is named.
    fn penalty(&self, old: Option<&Node>) -> Option<Node> {
        if self.penalty.is_empty() {
            return None;
        }
        let mut penalty = old.cloned().unwrap_or_else(|| Node::map::<&str>([]));
        for part in &self.penalty {
            penalty.set(&part.key, Node::text(&part.value));
        }
        Some(penalty)
    }
}

fn parse_cost(text: &str) -> Result<u64, String> {
    parse_whole_number(text).map_err(|error| {
        format!("{error}; a cost that requests or responses say is set in a limits file, with `rlctl apply`")
    })
}

fn parse_penalty_part(text: &str) -> Result<Pair, String> {
    let expected = |_| "expected parts such as after=10,within=1m,for=15m".to_owned();
    text.parse().map_err(expected)
}

/// A map from each key to its pattern, or to a list of patterns if the key is given more than once.
pub(in crate::commands) fn matchers(pairs: &[Pair]) -> Node {
    let mut map = Node::map::<&str>([]);
    for pair in pairs {
        let pattern = Node::text(&pair.value);
        let all = match map.get(&pair.key) {
            None => pattern,
            Some(first) if first.as_text().is_some() => Node::list([first.clone(), pattern]),
            Some(list) => Node::list(list.items().iter().cloned().chain([pattern])),
        };
        map.set(&pair.key, all);
    }
    map
}

/// `5` means `5%`.
fn percent(text: &str) -> String {
    if text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
        format!("{text}%")
    } else {
        text.to_owned()
    }
}

// --- The words that fields accept. They are repeated here for `--help`, for completion and for "did
// you mean"; a test compares them with those of limits.

const IF_MISSING: &[&str] = &["share", "skip", "deny"];
const OVER_LIMIT: &[&str] = &["reject", "queue", "degrade"];
const ON_FAILURE: &[&str] = &["local", "allow", "deny"];
const SCOPE: &[&str] = &["global", "proxy"];
const WEEK_START: &[&str] = &["monday", "sunday"];
const ALIGN: &[&str] = &["epoch", "first_request"];
pub const ALGORITHM: &[&str] = &[
    "token_bucket",
    "gcra",
    "leaky_bucket",
    "fixed_window",
    "sliding_window",
    "sliding_window_log",
    "sliding_window_buckets",
    "concurrency",
];
const UNSETTABLE: &[&str] = &[
    "description",
    "match",
    "per",
    "if_missing",
    "algorithm",
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
    "replaces",
    "partition",
    "fleet_size",
    "sub_windows",
    "strict",
    "align",
    "time_zone",
    "week_start",
];

/// One of these words; `-` may replace `_`.
pub fn choice(words: &'static [&'static str]) -> impl TypedValueParser<Value = String> {
    let values = words
        .iter()
        .map(|word| PossibleValue::new(*word).alias(word.replace('_', "-")));
    PossibleValuesParser::new(values).map(|word| word.replace('-', "_"))
}

// --- Problems of a limit, in terms of the flags that set its fields.

/// The error for flags that make an invalid limit.
pub fn invalid_limit(limit: &str, problems: &Problems) -> Error {
    let mut lines: Vec<String> = problems.iter().map(line).collect();
    lines.dedup();
    let message = match lines.as_slice() {
        [only] => format!("limit {limit}: {only}"),
        many => format!("limit {limit}:\n  {}", many.join("\n  ")),
    };
    let mut hints: Vec<&str> = problems
        .iter()
        .filter_map(|problem| problem.hint.as_deref())
        .collect();
    hints.dedup();
    let error = Error::new(Exit::Usage, message);
    hints.into_iter().fold(error, Error::hint)
}

/// Warnings about a limit that is valid but probably a mistake.
pub async fn warn(session: &Session<'_>, domain: &Name, limit: &Limit) {
    for problem in warnings(session, domain, limit).await {
        let line = line(&problem);
        show(
            session,
            &problem,
            format_args!("limit {}: {line}", limit.name),
        );
    }
}

/// Warnings about an override that is valid but probably a mistake.
pub async fn warn_of_override(session: &Session<'_>, domain: &Name, limit: &Limit, one: &Override) {
    let mut limit = limit.clone();
    limit.overrides = vec![one.clone()];
    for problem in warnings(session, domain, &limit).await {
        if problem.path.contains(".overrides[") {
            show(session, &problem, format_args!("{}", problem.message));
        }
    }
}

fn show(session: &Session<'_>, problem: &Problem, text: std::fmt::Arguments<'_>) {
    session.printer.warn(text);
    if let Some(hint) = &problem.hint {
        session.printer.hint(hint);
    }
}

async fn warnings(session: &Session<'_>, domain: &Name, limit: &Limit) -> Vec<Problem> {
    // Without it some warnings are missing; the edit reports errors of Redis.
    let live = session.live_entries().await.unwrap_or_default();
    let mut policy = Policy::empty(limit.name.clone());
    policy.limits = vec![limit.clone()];
    let around = Surroundings {
        now_ms: Some(crate::now_ms()),
        supply: live.supply(domain),
        dear: Some(cost_warning),
    };
    policy.warnings(&around)
}

fn line(problem: &Problem) -> String {
    let message = &problem.message;
    match place_of(&problem.path) {
        Some(place) => format!("{place}: {message}"),
        None => message.clone(),
    }
}

/// `max_delay` is `--max-delay`, `match.path[0]` is `--match path`, `penalty.for` is `--penalty for`; an
/// override has no flag and keeps its path, `overrides[2].rate`.
fn place_of(path: &str) -> Option<String> {
    let field = match path.strip_prefix("limits[") {
        Some(rest) => rest.split_once("].").map(|(_, field)| field)?,
        None => path,
    };
    let mut parts = field.split(['.', '[']);
    let first = parts
        .next()
        .filter(|first| !first.is_empty() && *first != "name")?;
    let flag = format!("--{}", first.replace('_', "-"));
    match (first, parts.next()) {
        ("match" | "penalty", Some(key)) => Some(format!("{flag} {key}")),
        ("overrides", _) => Some(field.to_owned()),
        _ => Some(flag),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod choices_tests {
    use policy::{Limit, Node};

    use super::*;

    #[test]
    fn every_word_is_one_that_limits_know() {
        let lists = [
            ("if_missing", IF_MISSING),
            ("over_limit", OVER_LIMIT),
            ("on_failure", ON_FAILURE),
            ("scope", SCOPE),
            ("align", ALIGN),
            ("week_start", WEEK_START),
            ("algorithm", ALGORITHM),
        ];
        for (field, words) in lists {
            for word in words {
                assert!(
                    !complaints(field, word).contains("expected"),
                    "{field}: {word}"
                );
            }
            assert!(
                complaints(field, "nonsense").contains("expected"),
                "{field}"
            );
        }
    }

    #[test]
    fn every_field_is_one_that_limits_have() {
        for field in UNSETTABLE {
            assert!(!complaints(field, "?").contains("unknown field"), "{field}");
        }
        assert!(complaints("nonsense", "?").contains("unknown field"));
    }

    /// The errors of a limit with this field.
    fn complaints(field: &str, word: &str) -> String {
        let mut limit = Node::map([("name", Node::text("a")), ("rate", Node::text("1/s"))]);
        limit.set(field, Node::text(word));
        Limit::from_node(&limit)
            .err()
            .map(|problems| problems.to_string())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod problems_tests {
    use super::*;

    #[test]
    fn fields_are_told_as_flags() {
        assert_eq!(
            place_of("limits[2].max_delay").as_deref(),
            Some("--max-delay")
        );
        assert_eq!(place_of("rate").as_deref(), Some("--rate"));
        assert_eq!(place_of("match.path[1]").as_deref(), Some("--match path"));
        assert_eq!(
            place_of("limits[0].overrides[2].rate").as_deref(),
            Some("overrides[2].rate")
        );
        assert_eq!(
            place_of("limits[0].penalty.for").as_deref(),
            Some("--penalty for")
        );
        assert_eq!(place_of("limits[0].name"), None);
        assert_eq!(place_of(""), None);
    }
}
