//! The fields of a limit as flags, and the problems of a limit in terms of these flags.

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser, ValueParser},
};
use limits_file::{
    Surroundings,
    edit::{merge, words_of},
};
use policy::{Limit, Name, Node, Override, Policy, Problem, Problems};

use crate::{
    bucket::{Pair, parse_whole_number},
    commands::validate::cost_warning,
    error::{Error, Exit},
    session::Session,
};

/// A flag, and the field that it sets.
struct Flag {
    heading: &'static str,
    field: &'static str,
    takes: Takes,
    value_name: &'static str,
    help: &'static str,
}

/// What a flag takes, and what the field becomes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    Text,
    /// `5` means `5%`.
    Percent,
    Number,
    Cost,
    /// Alone it means true.
    Bool,
    /// One of the words that the model has for the field.
    Word,
    /// Several, also separated by commas.
    Names,
    Patterns,
    /// Several of a map, as in this example.
    Parts(&'static str),
    LeaseTtl,
}

macro_rules! flags {
    ($($heading:literal {
        $($field:literal: $takes:ident $(($example:literal))? $value_name:literal, $help:literal;)*
    })*) => {
        &[$($(Flag {
            heading: $heading,
            field: $field,
            takes: Takes::$takes $(($example))?,
            value_name: $value_name,
            help: $help,
        }),*),*]
    };
}

/// Every flag that sets a field, in the order of `--help`.
const FLAGS: &[Flag] = flags! {
    "When it applies" {
        "match": Patterns "KEY=PATTERN",
            "Applies only where this entry matches; may be given several times, and replaces all that were there. \
             The same key again adds an alternative";
        "per": Names "KEY",
            "One bucket per value of this entry; replaces all that were there";
        "if_missing": Word "WHAT",
            "What happens to a request without a `per` entry: share, skip or deny";
        "replaces": Names "LIMIT",
            "Limits that this one suppresses when it matches";
        "description": Text "TEXT",
            "A description for people";
    }
    "How much" {
        "rate": Text "N/PERIOD",
            "Units per period, as in 10/s, 100/1m or 5/1500ms; or per day, week, month or year of --time-zone, as \
             in 10000/day";
        "limit": Number "N",
            "Requests in flight at once (concurrency)";
        "slot_ttl": Text "TIME",
            "How long a slot lives that nobody renews or frees, as in 10s (concurrency)";
        "adaptive": Parts("min=5,max=200,latency=300ms") "PART=VALUE",
            "Let the limit follow how the service answers, as in min=5,max=200,latency=300ms,share=95%; parts that \
             are not named stay as they are (concurrency)";
        "burst": Number "N",
            "Units that may be used at once [default: as many as the rate names]";
        "algorithm": Word "NAME",
            "token_bucket, gcra, leaky_bucket, fixed_window, sliding_window, sliding_window_log, \
             sliding_window_buckets or concurrency";
        "cost": Cost "N",
            "Units that one request takes; costs that requests or responses say are for limits files";
        "sub_windows": Number "N",
            "Sub-windows of a sliding_window_buckets window";
        "strict": Bool "BOOL",
            "Whether the sub-window that slides out still counts in full (sliding_window_buckets)";
        "align": Word "WHERE",
            "Where a fixed window starts: epoch or first_request";
        "time_zone": Text "ZONE",
            "The zone whose midnights a rate per day, week, month or year counts from, as in Europe/Berlin \
             [default: UTC]";
        "week_start": Word "DAY",
            "The first day of a rate per week: monday or sunday";
    }
    "Over the limit" {
        "over_limit": Word "WHAT",
            "What happens to a request over the limit: reject, queue (buckets) or degrade";
        "max_delay": Text "TIME",
            "How long a queue holds a request at most, as in 3s";
        "deny_status": Number "STATUS",
            "The HTTP status of a denial, 400 to 599, as in 503 [default: the filter's, 429]";
        "penalty": Parts("after=10,within=1m,for=15m") "PART=VALUE",
            "Deny a bucket altogether after so many denials, as in after=10,within=1m,for=15m; parts that are not \
             named stay as they are";
        "enforce": Percent "PERCENT",
            "Share of the buckets that is enforced, as in 5%; the rest is only reported";
        "hidden": Bool "BOOL",
            "Do not advertise the limit in response headers";
    }
    "Where it is decided" {
        "on_failure": Word "WHAT",
            "What decides while no limiter answers: local, allow or deny";
        "scope": Word "WHERE",
            "Where buckets live: global, or proxy for one of each in every Envoy";
        "precheck": Percent "PERCENT",
            "Let this share of the limit through each proxy at most, as in 120%";
        "lease": LeaseTtl "TIME",
            "Lease units to proxies in advance, for this long, as in 100ms: most requests need no check";
        "partition": Names "KEY",
            "Entries of `per` that decide a bucket's cluster slot";
        "fleet_size": Number "N",
            "The number of proxies to assume while no limiter reports it";
    }
};

impl Flag {
    fn arg(&self) -> Arg {
        let arg = Arg::new(self.field)
            .long(self.field.replace('_', "-"))
            .value_name(self.value_name)
            .help_heading(self.heading)
            .help(self.help);
        match self.takes {
            // No rate begins with a hyphen: what is wrong with `-5/s` is for its reader to say.
            Takes::Text => arg.allow_hyphen_values(self.field == "rate"),
            Takes::Percent | Takes::LeaseTtl => arg,
            Takes::Number => arg
                .allow_negative_numbers(true)
                .value_parser(parse_whole_number),
            Takes::Cost => arg.allow_negative_numbers(true).value_parser(parse_cost),
            Takes::Bool => arg
                .num_args(0..=1)
                .default_missing_value("true")
                .value_parser(ValueParser::bool()),
            Takes::Word => arg
                .hide_possible_values(true)
                .value_parser(one_of(words_of(self.field))),
            Takes::Names => arg.action(ArgAction::Append).value_delimiter(','),
            Takes::Patterns => arg
                .action(ArgAction::Append)
                .value_parser(|text: &str| text.parse::<Pair>()),
            Takes::Parts(example) => arg
                .action(ArgAction::Append)
                .value_delimiter(',')
                .value_parser(move |text: &str| parse_part(text, example)),
        }
    }

    /// The value of the field, if the flag is given.
    fn value(&self, given: &ArgMatches) -> Option<Node> {
        let text = || given.get_one::<String>(self.field);
        Some(match self.takes {
            Takes::Text | Takes::Word => Node::text(text()?),
            Takes::Percent => Node::text(percent(text()?)),
            Takes::LeaseTtl => Node::map([("ttl", Node::text(text()?))]),
            Takes::Number | Takes::Cost => Node::number(*given.get_one(self.field)?),
            Takes::Bool => Node::from(*given.get_one::<bool>(self.field)?),
            Takes::Names => Node::list(given.get_many::<String>(self.field)?.map(Node::text)),
            Takes::Patterns => matchers(given.get_many(self.field)?),
            Takes::Parts(_) => {
                let parts = given.get_many::<Pair>(self.field)?;
                Node::map(parts.map(|part| (part.key.as_str(), Node::text(&part.value))))
            }
        })
    }
}

/// One of these words; `-` may replace `_`.
fn one_of(words: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = String> {
    let values = words
        .into_iter()
        .map(|word| PossibleValue::new(word).alias(word.replace('_', "-")));
    PossibleValuesParser::new(values).map(|word| word.replace('-', "_"))
}

/// The fields that flags name; what is not named stays as it is.
#[derive(Clone, Debug, Default)]
pub struct LimitFields {
    set: Vec<(&'static str, Node)>,
    unset: Vec<String>,
}

impl Args for LimitFields {
    fn augment_args(mut command: Command) -> Command {
        for flag in FLAGS {
            command = command.arg(flag.arg());
            if flag.field == "enforce" {
                let shadow = Arg::new("shadow").long("shadow").action(ArgAction::SetTrue);
                command = command.arg(
                    shadow
                        .help_heading(flag.heading)
                        .conflicts_with("enforce")
                        .help("Report only: the same as --enforce 0%"),
                );
            }
        }
        // A limit without a rate is none.
        let unsettable = FLAGS.iter().map(|flag| flag.field);
        let unsettable = unsettable.filter(|field| *field != "rate");
        command.next_help_heading(None::<&str>).arg(
            Arg::new("unset")
                .long("unset")
                .value_name("FIELD")
                .action(ArgAction::Append)
                .value_delimiter(',')
                .value_parser(one_of(unsettable))
                .hide_possible_values(true)
                .help("Reset a field to its default"),
        )
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for LimitFields {
    fn from_arg_matches(given: &ArgMatches) -> Result<Self, clap::Error> {
        let set = FLAGS
            .iter()
            .filter_map(|flag| Some((flag.field, flag.value(given)?)));
        let shadow = given.get_flag("shadow");
        let shadow = shadow.then(|| ("enforce", Node::text("0%")));
        let unset = given.get_many::<String>("unset").into_iter().flatten();
        Ok(Self {
            set: set.chain(shadow).collect(),
            unset: unset.cloned().collect(),
        })
    }

    fn update_from_arg_matches(&mut self, given: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(given)?;
        Ok(())
    }
}

impl LimitFields {
    /// Whether any field is named.
    pub fn any(&self) -> bool {
        !self.set.is_empty() || !self.unset.is_empty()
    }

    /// The first named field that is not among these.
    pub fn other_than(&self, allowed: &[&str]) -> Option<&str> {
        let set = self.set.iter().map(|(field, _)| *field);
        set.chain(self.unset.iter().map(String::as_str))
            .find(|field| !allowed.contains(field))
    }

    /// Changes the fields that are named.
    pub fn apply(&self, limit: &mut Node) {
        for field in &self.unset {
            limit.unset(field);
        }
        for (field, value) in &self.set {
            let mut value = value.clone();
            if matches!(*field, "penalty" | "adaptive")
                && let Some(mut parts) = limit.get(field).cloned()
            {
                // Parts that are not named stay.
                merge(&mut parts, &value);
                value = parts;
            }
            let rate = value.as_text().filter(|_| *field == "rate");
            let rate = rate.and_then(|rate| policy::parse_rate(rate).ok());
            // A rate by the calendar implies its algorithm; a flag that names another one comes later.
            if rate.is_some_and(|rate| rate.calendar.is_some()) {
                limit.unset("algorithm");
            }
            limit.set(field, value);
        }
    }
}

fn parse_cost(text: &str) -> Result<u64, String> {
    parse_whole_number(text).map_err(|error| {
        format!("{error}; a cost that requests or responses say is set in a limits file, with `rlctl apply`")
    })
}

fn parse_part(text: &str, example: &str) -> Result<Pair, String> {
    let expected = |_| format!("expected parts such as {example}");
    text.parse().map_err(expected)
}

/// A map from each key to its pattern, or to a list of patterns if the key is given more than once.
pub(in crate::commands) fn matchers<'p>(pairs: impl IntoIterator<Item = &'p Pair>) -> Node {
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
    limits_file::warnings(&policy, &around)
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
        ("match" | "penalty" | "adaptive", Some(key)) => Some(format!("{flag} {key}")),
        ("overrides", _) => Some(field.to_owned()),
        _ => Some(flag),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod choices_tests {
    use super::*;

    #[test]
    fn every_field_is_one_that_limits_have_and_every_word_one_that_they_know() {
        for flag in FLAGS {
            let field = flag.field;
            assert!(!complaints(field, "?").contains("unknown field"), "{field}");
            let words = words_of(field);
            assert_eq!(words.is_empty(), flag.takes != Takes::Word, "{field}");
            for word in words {
                assert!(
                    !complaints(field, word).contains("expected"),
                    "{field}: {word}"
                );
            }
        }
        assert!(complaints("nonsense", "?").contains("unknown field"));
        assert!(complaints("scope", "nonsense").contains("expected"));
    }

    /// The errors of a limit with this field.
    fn complaints(field: &str, word: &str) -> String {
        let mut limit = Node::map([("name", Node::text("a")), ("rate", Node::text("1/s"))]);
        limit.set(field, Node::text(word));
        limits_file::limit_from_node(&limit)
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
