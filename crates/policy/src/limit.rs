//! A validated policy and its limits.

use std::collections::HashMap;

use algorithms::{CalendarUnit, Edges, Kind, Parameters, Penalty, Rate};
use documents::{Choice, Name};
use patterns::Pattern;

use crate::{
    DescriptorLimit, Exemption, Pause, Pricing, Quota,
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
pub const SEVERAL: &[u8] = b"(several)";

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
    pub quota: Quota,
    /// Units a request costs, multiplied by the check's own cost; at least 1.
    pub cost: u64,
    /// What a request costs instead, if the cost is not one number.
    pub pricing: Option<Box<Pricing>>,
    /// What happens to a request over the limit.
    pub over_limit: OverLimit,
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
    /// The domain revision that last changed this limit (edit, reset or credit). Bucket state
    /// holds the newest one seen, and caches of older ones are dropped.
    pub generation: u64,
    /// The generation that the latest reset made; 0: none. Slots of requests in flight that are
    /// older are not entered again.
    pub reset_generation: u64,
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
    pub(crate) fn parameters(&self, limit: &Parameters) -> Option<Parameters> {
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
            ..*limit
        })
    }

    /// The quota of the bucket, by that of its limit; `None`: it is not limited.
    pub fn of(&self, limit: &Quota) -> Option<Quota> {
        // It was validated when it was read.
        let quota = Quota::new(&self.parameters(limit.parameters())?).unwrap_or(*limit);
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
    /// An absent entry satisfies only negated patterns, [several values](SEVERAL) all.
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

impl Matcher {
    pub(crate) fn new(key: Name, mut patterns: Vec<Pattern>) -> Self {
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
        if value == Some(SEVERAL) {
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

    /// Whether the condition of an exemption holds. In doubt a request is not exempt, the opposite
    /// of [`Matcher::holds`], where doubt makes a limit apply: an absent entry, several values, and
    /// a value too long to search satisfy nothing here. Otherwise a client could leave a header out
    /// or send it twice, and no limit would apply to it.
    pub fn holds_surely(&self, value: Option<&[u8]>) -> bool {
        value.is_some_and(|value| {
            let searched = |pattern: &Pattern| pattern.is_searched(value);
            value != SEVERAL && self.patterns.iter().all(searched) && self.holds(Some(value))
        })
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
