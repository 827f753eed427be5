//! A validated policy and its limits, with their numbers and rates.

use std::{collections::HashMap, fmt};

use algorithms::{
    Algorithm, Align, CalendarUnit, Edges, Kind, Parameters, Penalty, Rate, WeekStart,
};
use documents::{Choice, Duration, Name, UnitError, parse_digits, parse_duration, unit_ms};
use patterns::Pattern;

use crate::{
    DescriptorLimit, Exemption, Pause, Pricing,
    descriptor::{REMOTE_ADDRESS, WHOLE_ADDRESS},
    descriptor_limit::is_descriptor,
};

/// The version of a domain's limits. Compare it for equality only: after a restore from a backup
/// the number can be smaller than one seen before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Revision {
    /// Counts the writes to the domain, from 1.
    pub number: u64,
    /// A digest of the record's contents.
    pub digest: u64,
}

/// The value of an entry for which a request gives several different values: a service uses one of
/// them, and the filter cannot know which. So they count as whatever makes a limit apply, and all
/// such requests share one bucket. A client that sends this text gains nothing by it.
pub const MULTIPLE_VALUES: &[u8] = b"(several)";

/// The limits of one domain at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The domain.
    pub domain: Name,
    /// The edit this is.
    pub revision: Revision,
    /// The kill switch: none of the limits is in force while it holds.
    pub paused: Option<Pause>,
    /// The requests that no limit applies to.
    pub exempt: Vec<Exemption>,
    /// The limits, in the order of the file.
    pub limits: Vec<Limit>,
}

/// One named rule: when it applies, what splits it into buckets, how much it allows, and what
/// happens beyond that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Unique within the domain.
    pub name: Name,
    /// For people to read.
    pub description: Option<String>,
    /// For a limit of the rate limit service: which descriptors it applies to. It then has no
    /// matchers, and [`DESCRIPTOR`](crate::DESCRIPTOR) is its `per`.
    pub descriptor: Option<Box<DescriptorLimit>>,
    /// Every matcher must hold; none: every request.
    pub matchers: Vec<Matcher>,
    /// One bucket per distinct tuple of these entries' values; none: one bucket for all.
    pub per: Vec<Name>,
    /// What happens to a request that lacks a `per` entry.
    pub if_missing: IfMissing,
    /// The numbers of a bucket without an override.
    pub quota: Algorithm,
    /// Units a request costs, multiplied by the check's own cost; at least 1.
    pub cost: u64,
    /// What a request costs instead, if the cost is not one number.
    pub pricing: Option<Box<Pricing>>,
    /// What happens to a request over the limit.
    pub over_limit: OverLimit,
    /// The HTTP status of a denial, 400 to 599; `None`: that of the filter's configuration.
    pub deny_status: Option<u16>,
    /// When a bucket that is denied too often is denied altogether, and for how long.
    pub penalty: Option<Penalty>,
    /// Share of the buckets enforced, in percent (0 to 100); the rest is only reported.
    pub enforce_percent: u8,
    /// What the proxy does while no limiter answers.
    pub on_failure: OnFailure,
    /// Where the bucket lives.
    pub scope: Scope,
    /// Share of the limit, in percent (at least 100), that a proxy lets through to the global check.
    pub precheck_percent: Option<u32>,
    /// How long leased units live, in milliseconds; `None`: one check per request. A bucket whose
    /// override's numbers do not allow it is not leased.
    pub lease_ttl_ms: Option<u64>,
    /// Not advertised in response headers.
    pub hidden: bool,
    /// Other numbers for single buckets.
    pub overrides: Vec<Override>,
    /// Limits that this one suppresses when it matches.
    pub replaces: Vec<Name>,
    /// The subset of `per` that decides a bucket's slot in a cluster.
    pub partition: Vec<Name>,
    /// The kill switch: while it holds, the limit counts as absent.
    pub paused: Option<Pause>,
    /// Number of proxies to assume while no limiter answers; `None`: the last reported one.
    pub fleet_size: Option<u64>,
    /// The domain revision that last changed this limit or all of its buckets. Bucket state holds the newest
    /// generation seen ([`Limit::generation_of`]), and caches of older ones are dropped.
    pub generation: u64,
    /// The generation that the latest reset made; 0: none. Slots of requests in flight that are
    /// older are not entered again.
    pub reset_generation: u64,
    /// Later edits of single buckets.
    pub bucket_edits: BucketEdits,
    /// Where the store has it among the domain's limits; 0: nowhere yet.
    pub place: u64,
}

/// Edits of single buckets of a limit: overrides, resets and credits. They give the bucket a later generation than
/// the limit has, so that caches drop its state alone. A bucket is known by a slot, the least byte of its
/// [`bucket_hash`](crate::bucket_hash): so a limit has at most 256, of however many buckets, and an edit concerns
/// one in 256 of the others too. Where many limits share a snapshot, each has fewer ([`BucketEdits::most`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketEdits(Vec<BucketEdit>);

/// The latest edits of the buckets of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketEdit {
    /// The slot.
    pub slot: u8,
    /// The revision of the latest edit.
    pub generation: u64,
    /// That of the latest reset; 0: none.
    pub reset_generation: u64,
}

impl BucketEdits {
    /// How many later than the limit itself each of so many limits of a domain may have, which all take bytes of
    /// one snapshot. An edit of one more bucket becomes one of all buckets of its limit, where it is made: of
    /// edits made since, each bucket is known again. Its Lua twin is in `policy_write.lua`.
    pub fn most(limits: usize) -> usize {
        Self::OF_EACH + 512_usize.checked_div(limits).unwrap_or(0)
    }

    /// Bound: edits of single buckets of a limit that proxies get, besides 512 divided by the limits of its
    /// domain. Beyond it, the next one is an edit of the whole limit.
    pub(crate) const OF_EACH: usize = 4;

    /// How many are later than this generation of the limit.
    pub fn after(&self, generation: u64) -> usize {
        { self.0.iter() }
            .filter(|edit| edit.generation > generation)
            .count()
    }

    /// The slot of a bucket.
    pub fn slot_of<V: AsRef<[u8]>>(limit: &Name, values: &[Option<V>]) -> u8 {
        let [least, ..] = crate::bucket_hash(limit, values).to_le_bytes();
        least
    }

    /// Adds an edit, which replaces those of its slot.
    pub fn add(&mut self, edit: BucketEdit) {
        match self.find(edit.slot) {
            Ok(at) => {
                if let Some(known) = self.0.get_mut(at) {
                    *known = edit;
                }
            }
            Err(at) => self.0.insert(at, edit),
        }
    }

    /// The latest edits of a slot.
    pub fn get(&self, slot: u8) -> Option<&BucketEdit> {
        self.0.get(self.find(slot).ok()?)
    }

    /// Where a slot's edit is, or belongs.
    fn find(&self, slot: u8) -> Result<usize, usize> {
        self.0.binary_search_by_key(&slot, |edit| edit.slot)
    }

    /// All, by their slots.
    pub fn iter(&self) -> impl Iterator<Item = &BucketEdit> {
        self.0.iter()
    }
}

impl Limit {
    fn edit_of<V: AsRef<[u8]>>(&self, values: &[Option<V>]) -> Option<&BucketEdit> {
        // Nearly always there are none, and no hash is needed.
        let edits = Some(&self.bucket_edits).filter(|edits| !edits.0.is_empty())?;
        edits.get(BucketEdits::slot_of(&self.name, values))
    }

    /// The generation of one bucket: that of the limit, or of a later edit of the bucket alone.
    pub fn generation_of<V: AsRef<[u8]>>(&self, values: &[Option<V>]) -> u64 {
        let own = self.edit_of(values).map_or(0, |edit| edit.generation);
        own.max(self.generation)
    }

    /// The generation that the latest reset of a bucket made, alone or with all others.
    pub fn reset_generation_of<V: AsRef<[u8]>>(&self, values: &[Option<V>]) -> u64 {
        let own = self.edit_of(values).map_or(0, |edit| edit.reset_generation);
        own.max(self.reset_generation)
    }
}

/// Other numbers for one bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// The bucket: a value for every `per` entry, in the order of `per`; `None` is the
    /// bucket of the requests that lack the entry.
    pub values: Vec<Option<Vec<u8>>>,
    /// The numbers.
    pub quota: OverrideQuota,
    /// When it ends, in milliseconds since the epoch; `None`: never.
    pub until_ms: Option<u64>,
}

/// What an override changes. As written, without what follows from it and the limit: a domain may have 100,000.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideQuota {
    /// The bucket is not limited.
    Unlimited,
    /// Another rate, burst or time zone.
    Quota {
        /// The limit's algorithm.
        kind: Kind,
        /// The rate as written; `None`: the limit's.
        rate: Option<Rate>,
        /// The burst as written; `None`: the limit's.
        burst: Option<u64>,
        /// The time zone; `None`: the limit's.
        time_zone: Option<&'static str>,
        /// The edges of its calendar windows, where a snapshot has them.
        edges: Option<Box<Edges>>,
    },
}

impl OverrideQuota {
    /// The numbers that it names, and those of its limit for the rest; `None`: the bucket is not limited.
    pub fn parameters(&self, limit: &Parameters) -> Option<Parameters> {
        let Self::Quota {
            rate,
            burst,
            time_zone,
            ..
        } = *self
        else {
            return None;
        };
        let calendar = rate.unwrap_or(limit.rate).calendar;
        Some(Parameters {
            rate: rate.unwrap_or(limit.rate),
            burst: burst.or(limit.burst),
            // The limit's, if this rate is of the calendar.
            time_zone: time_zone.or(limit.time_zone.filter(|_| calendar.is_some())),
            week_start: { limit.week_start }.filter(|_| calendar == Some(CalendarUnit::Week)),
            // Whoever writes a number for one bucket wants that number.
            adaptive: limit.adaptive.filter(|_| rate.is_none()),
            ..*limit
        })
    }

    /// The quota of the bucket, by that of its limit; `None`: it is not limited.
    pub fn of(&self, limit: &Algorithm) -> Option<Algorithm> {
        // It was validated when it was read.
        let quota = Algorithm::new(&self.parameters(limit.parameters())?).unwrap_or(*limit);
        Some(match self {
            Self::Quota {
                edges: Some(edges), ..
            } => quota.with_edges(**edges),
            _ => quota,
        })
    }
}

/// A condition on one entry of the descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matcher {
    /// The entry, as written.
    pub key: Name,
    /// The entry whose value the patterns test: of [`REMOTE_ADDRESS`] the whole address, whatever
    /// prefix its buckets are split by. Otherwise one address could not be named.
    pub entry: Name,
    /// Holds iff no negated pattern matches and, if there are positive ones, one of them does.
    /// An absent entry satisfies only negated patterns, [several values](MULTIPLE_VALUES) all.
    pub patterns: Vec<Pattern>,
}

/// A request that lacks a `per` entry ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IfMissing {
    /// ... shares one bucket with the others that lack it.
    #[default]
    Share,
    /// ... is not limited by this limit.
    Skip,
    /// ... is refused with 403.
    Deny,
}

/// A request over the limit ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverLimit {
    /// ... is answered 429.
    #[default]
    Reject,
    /// ... is held until its turn.
    Queue,
    /// ... goes on, marked.
    Degrade,
}

/// While no limiter answers, a request ...
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// ... is decided in the proxy, at its share of the rate.
    #[default]
    Local,
    /// ... passes.
    Allow,
    /// ... is refused.
    Deny,
}

/// Where a limit's buckets live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// In the store, one for the fleet.
    #[default]
    Global,
    /// In each proxy's shared data.
    Proxy,
}

/// Bound: overrides of a domain. Beyond it, refused when it is written.
///
/// Limiters hold them all.
pub const OVERRIDES_MAX: usize = 100_000;
/// The most overrides of a limit with `scope: proxy`: each proxy holds them all.
const MAX_PROXY_OVERRIDES: usize = 1000;
impl Scope {
    /// How many overrides a limit of this scope may have.
    pub fn overrides_max(self) -> usize {
        match self {
            Self::Global => OVERRIDES_MAX,
            Self::Proxy => MAX_PROXY_OVERRIDES,
        }
    }
}

impl Matcher {
    /// A condition on the entry of that name.
    pub fn new(key: Name, mut patterns: Vec<Pattern>) -> Self {
        let whole = (key.as_str() == REMOTE_ADDRESS).then_some(WHOLE_ADDRESS);
        let whole = whole.and_then(|whole| whole.parse().ok());
        if whole.is_some() {
            patterns.iter_mut().for_each(Pattern::read_as_address);
        }
        Self {
            entry: whole.unwrap_or_else(|| key.clone()),
            key,
            patterns,
        }
    }

    /// Whether the condition holds for the entry's value, `None` if the request has none.
    pub fn holds(&self, value: Option<&[u8]>) -> bool {
        if value == Some(MULTIPLE_VALUES) {
            return true;
        }
        let mut positive = false;
        let mut found = false;
        for pattern in &self.patterns {
            if pattern.is_negated() {
                if value.is_some_and(|value| pattern.finds(value)) {
                    return false;
                }
            } else {
                positive = true;
                found = found || value.is_some_and(|value| pattern.finds(value));
            }
        }
        found || !positive
    }

    /// Whether [`Matcher::holds`] is certain of a value: it is not of several values, nor of one that is too long
    /// to search, which count as what makes a limit apply. That an entry is absent is certain.
    pub fn is_certain(&self, value: Option<&[u8]>) -> bool {
        value.is_none_or(|value| {
            let searched = |pattern: &Pattern| pattern.is_searched(value);
            value != MULTIPLE_VALUES && self.patterns.iter().all(searched)
        })
    }

    /// Whether the condition of an exemption holds. In doubt a request is not exempt, the opposite
    /// of [`Matcher::holds`], and an absent entry satisfies nothing here. Otherwise a client could leave a header out
    /// or send it twice, and no limit would apply to it.
    pub fn holds_surely(&self, value: Option<&[u8]>) -> bool {
        value.is_some() && self.is_certain(value) && self.holds(value)
    }
}

impl Override {
    /// Whether two overrides of one bucket are written alike, whatever numbers their limits combine
    /// them with.
    pub fn reads_like(&self, other: &Self) -> bool {
        let numbers = |found: &Self| match found.quota {
            OverrideQuota::Unlimited => None,
            OverrideQuota::Quota {
                rate,
                burst,
                time_zone,
                ..
            } => Some((rate, burst, time_zone)),
        };
        numbers(self) == numbers(other) && self.until_ms == other.until_ms
    }
}

impl Limit {
    /// Whether an entry decides that this limit applies to a request, or to which bucket.
    pub fn reads(&self, key: &Name) -> bool {
        self.per.contains(key) || self.matchers.iter().any(|of| of.entry == *key)
    }

    /// Whether requests hold something of it that a later check names: a slot, or reserved units.
    pub fn holds_requests(&self) -> bool {
        self.gives_slots() || self.settles() || self.over_limit == OverLimit::Queue
    }

    /// The entries of a request that this limit uses, some perhaps more than once; none for a limit
    /// of the rate limit service.
    pub fn keys(&self) -> impl Iterator<Item = &Name> {
        let matched = self.matchers.iter().map(|matcher| &matcher.entry);
        let per = self.per.iter();
        let service = self.descriptor.is_some();
        let priced = self.priced_by().map(|matcher| &matcher.entry);
        let per = per.filter(move |key| !service || !is_descriptor(key));
        matched.chain(per).chain(priced)
    }

    /// Whether it limits requests in flight, each of which holds a slot.
    pub fn gives_slots(&self) -> bool {
        self.quota.parameters().kind == Kind::Concurrency
    }

    /// Whether it denies only together with others (`quota_mode`).
    pub fn has_quota_mode(&self) -> bool {
        let rule = self.descriptor.as_ref();
        rule.is_some_and(|rule| rule.quota_mode && !rule.unlimited)
    }

    /// Whether the limit limits nothing.
    pub fn is_unlimited(&self) -> bool {
        self.descriptor.as_ref().is_some_and(|rule| rule.unlimited)
    }
}

impl Policy {
    /// A domain without limits.
    pub fn empty(domain: Name) -> Self {
        Self {
            domain,
            revision: Revision::default(),
            paused: None,
            exempt: Vec::new(),
            limits: Vec::new(),
        }
    }

    /// The limit of that name.
    pub fn limit(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| limit.name.as_str() == name)
    }

    /// The limits by their names: for a loop, in which [`Policy::limit`] would look through all of
    /// them each time.
    pub fn by_name(&self) -> HashMap<&str, &Limit> {
        let named = self.limits.iter().map(|limit| (limit.name.as_str(), limit));
        named.collect()
    }
}

impl Choice for IfMissing {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("share", Self::Share),
        ("skip", Self::Skip),
        ("deny", Self::Deny),
    ];
}

impl Choice for OverLimit {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("reject", Self::Reject),
        ("queue", Self::Queue),
        ("degrade", Self::Degrade),
    ];
}

impl Choice for OnFailure {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("local", Self::Local),
        ("allow", Self::Allow),
        ("deny", Self::Deny),
    ];
    const MEANT: &'static [(&'static str, &'static str)] = &[
        ("open", "allow"),
        ("fail_open", "allow"),
        ("closed", "deny"),
        ("close", "deny"),
        ("fail_closed", "deny"),
    ];
}

impl Choice for Scope {
    const CHOICES: &'static [(&'static str, Self)] =
        &[("global", Self::Global), ("proxy", Self::Proxy)];
}

/// A rate `N/P`, where P is a unit or a number of them, or a day, week, month or year of the calendar.
pub fn parse_rate(text: &str) -> Result<Rate, UnitError> {
    let (units, period) = text.split_once('/').ok_or(UnitError::Rate)?;
    let units = parse_digits(units).ok_or(UnitError::Rate)?;
    let calendar = CalendarUnit::ALL.into_iter();
    if let Some(unit) = { calendar }.find(|unit| unit.name() == period) {
        return Ok(Rate::in_each(units, unit));
    }
    let period_ms = match unit_ms(period) {
        Some(ms) => ms,
        None => parse_duration(period).map_err(|error| match error {
            UnitError::Period => UnitError::Period,
            _ => other_word(units, period).map_or(UnitError::Rate, UnitError::RateUnit),
        })?,
    };
    if period_ms == 0 {
        return Err(UnitError::Period);
    }
    Ok(Rate::new(units, period_ms))
}

/// The rate that was meant by one with another program's word for a unit.
fn other_word(units: u64, period: &str) -> Option<String> {
    let unit = match period {
        "sec" | "second" | "seconds" => "s",
        "min" | "minute" | "minutes" => "m",
        "hr" | "hour" | "hours" => "h",
        _ => return None,
    };
    Some(format!("{units}/{unit}"))
}

/// A rate as people write it: `10/s`, `5/1500ms`, `10000/day`.
#[derive(Clone, Copy, Debug)]
pub struct RateText(pub Rate);

impl fmt::Display for RateText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(unit) = self.0.calendar {
            return write!(f, "{}/{}", self.0.units, unit.name());
        }
        let period = Duration(self.0.period_ms).to_string();
        let unit = period
            .strip_prefix('1')
            .filter(|unit| unit_ms(unit).is_some());
        write!(f, "{}/{}", self.0.units, unit.unwrap_or(&period))
    }
}

/// How much a limit allows, as people write it: a rate, `10 in flight`, or `5 to 200 in flight`.
#[derive(Clone, Copy, Debug)]
pub struct AmountText<'q>(pub &'q Parameters);

impl fmt::Display for AmountText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(parameters) = self;
        match (parameters.kind, parameters.adaptive) {
            (Kind::Concurrency, Some(rule)) => write!(f, "{} to {} in flight", rule.min, rule.max),
            (Kind::Concurrency, None) => write!(f, "{} in flight", parameters.rate.units),
            _ => RateText(parameters.rate).fmt(f),
        }
    }
}

/// A share per mille as people write it: `95%`, `99.9%`.
#[derive(Clone, Copy, Debug)]
pub struct ShareText(pub u64);

impl fmt::Display for ShareText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 10 {
            0 => write!(f, "{}%", self.0 / 10),
            tenth => write!(f, "{}.{tenth}%", self.0 / 10),
        }
    }
}

/// Reads what [`ShareText`] writes, up to `100%`.
pub fn parse_share(text: &str) -> Option<u64> {
    let text = text.strip_suffix('%')?;
    let (whole, tenth) = text.split_once('.').unwrap_or((text, "0"));
    let tenth = parse_digits(tenth).filter(|_| tenth.len() == 1)?;
    let share = parse_digits(whole)?.checked_mul(10)?.checked_add(tenth)?;
    Some(share).filter(|share| *share <= 1000)
}

/// The share of an adaptive limit that sets none, per mille.
pub const DEFAULT_SHARE: u64 = 950;

/// The longest delay of a queue whose limit sets none, in milliseconds.
pub const DEFAULT_MAX_DELAY_MS: u64 = 5000;

/// A value of the algorithms, as a document writes it.
#[derive(Clone, Copy, PartialEq)]
pub struct ChoiceOf<T>(pub T);

impl Choice for ChoiceOf<Kind> {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("token_bucket", Self(Kind::TokenBucket)),
        ("gcra", Self(Kind::Gcra)),
        ("leaky_bucket", Self(Kind::LeakyBucket)),
        ("fixed_window", Self(Kind::FixedWindow)),
        ("sliding_window_log", Self(Kind::SlidingWindowLog)),
        ("sliding_window_buckets", Self(Kind::SlidingWindowBuckets)),
        ("sliding_window", Self(Kind::SlidingWindow)),
        ("concurrency", Self(Kind::Concurrency)),
    ];
}

impl Choice for ChoiceOf<Align> {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("epoch", Self(Align::Epoch)),
        ("first_request", Self(Align::FirstRequest)),
    ];
}

impl Choice for ChoiceOf<WeekStart> {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("monday", Self(WeekStart::Monday)),
        ("sunday", Self(WeekStart::Sunday)),
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for (text, units, period_ms, written) in [
            ("10/s", 10, 1000, "10/s"),
            ("100/1m", 100, 60_000, "100/m"),
            ("5/1500ms", 5, 1500, "5/1500ms"),
            ("3/60000ms", 3, 60_000, "3/m"),
            ("0/d", 0, 86_400_000, "0/d"),
            ("7/10m", 7, 600_000, "7/10m"),
        ] {
            let rate = parse_rate(text).unwrap();
            assert_eq!((rate.units, rate.period_ms), (units, period_ms), "{text}");
            assert_eq!(RateText(rate).to_string(), written);
        }
    }

    #[test]
    fn shares_are_read_and_written() {
        for (text, share) in [("95%", 950), ("99.9%", 999), ("0.5%", 5), ("100%", 1000)] {
            assert_eq!(parse_share(text), Some(share));
            assert_eq!(ShareText(share).to_string(), text);
        }
        assert_eq!(parse_share("90.0%"), Some(900));
        for text in [
            "", "%", "95", "95.%", ".5%", "99.95%", "101%", "-1%", "1e1%", "9 5%",
        ] {
            assert_eq!(parse_share(text), None, "{text}");
        }
    }

    #[test]
    fn a_calendar_day_is_not_24_hours() {
        for (text, unit) in [
            ("10000/day", CalendarUnit::Day),
            ("7/week", CalendarUnit::Week),
            ("0/month", CalendarUnit::Month),
            ("1/year", CalendarUnit::Year),
        ] {
            let rate = parse_rate(text).unwrap();
            assert_eq!(rate.calendar, Some(unit));
            assert_eq!(RateText(rate).to_string(), text);
        }
        assert_eq!(parse_rate("10/d").unwrap().calendar, None);
    }

    #[test]
    fn an_invalid_rate_is_refused() {
        for text in [
            "", "10", "/s", "10/", "10 per s", "10/ s", "-1/s", "+1/s", "1.5/s", "10/5", "10/w",
            "10/days", "10/1day", "10/2week", "10/Day", "10/s/s", "1e3/s", "１/s",
        ] {
            assert_eq!(parse_rate(text), Err(UnitError::Rate), "{text}");
        }
        assert_eq!(parse_rate("1/0s"), Err(UnitError::Period));
        for (text, meant) in [("10/min", "10/m"), ("10/hour", "10/h"), ("5/second", "5/s")] {
            let error = parse_rate(text).unwrap_err();
            assert_eq!(error, UnitError::RateUnit(meant.to_owned()));
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("did you mean `{meant}`?"))
            );
        }
        assert_eq!(parse_rate("1/99999999999999999d"), Err(UnitError::Period));
    }
}
