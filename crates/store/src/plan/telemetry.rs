//! What limiters report about themselves and their proxies, for operators: who is alive and at
//! which revision, what was decided, and which buckets denied.
//!
//! Each limiter writes its report of a time slot every second, in place of its earlier one, so that a
//! lost or repeated write does no harm. Reports expire, and readers add them up.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use policy::{Name, Node, Revision, Value, node_to_value, value_to_node};
use protocol::{DecidedBy, MODULE, Outcome, compact::RequestCounts};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::DeserializeOwned};

/// How long a proxy counts as active after its last request, in milliseconds.
pub const PROXY_LIFE_MS: u64 = 10_000;

/// Bound: limiters whose reports a time slot keeps. Beyond it, the reports of more are not kept.
pub const REPORTS_MAX: usize = 1024;

/// Buckets of each kind that a limiter lists in a report: those with the most requests, the most denied, and
/// those most often over a limit that denies nothing.
pub const BUCKETS_REPORTED: usize = 50;

/// A report of a limiter.
#[derive(Clone, Copy, Debug)]
pub enum Report<'a> {
    /// The limiters and proxies that are alive.
    Fleet(&'a FleetReport),
    /// What was decided in a domain.
    Activity {
        /// The domain.
        domain: &'a Name,
        /// When.
        slot: TimeSlot,
        /// What.
        report: &'a ActivityReport,
    },
}

// ---- The time slots of reports.
//
// Three resolutions, because `rlctl top` needs the last seconds, and `rlctl stats` the last hour and day.
// An hour of fine slots would be 720 reports of each limiter and domain to keep and to read; of coarse ones
// it is 13, and a day of hours 25. The last minute in coarse slots would be an average of five.

/// The time slot of fleet reports, in milliseconds: an active proxy is in the current one or the last.
pub const FLEET_SLOT_MS: u64 = 10_000;
/// How many of them a reader needs.
pub const FLEET_SLOTS: u64 = 2;
/// How long one is kept after it was last written.
pub const FLEET_KEPT_MS: u64 = 20_000;

/// How finely time is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolution {
    /// Five seconds, kept for a little over a minute.
    Fine,
    /// Five minutes, kept for a little over an hour.
    Coarse,
    /// An hour, kept for a little over a day.
    Hourly,
}

/// A time slot, for which each limiter writes one report for each domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSlot {
    /// How long it is.
    pub resolution: Resolution,
    /// Which one since the epoch.
    pub number: u64,
}

impl Resolution {
    /// All.
    pub const ALL: [Self; 3] = [Self::Fine, Self::Coarse, Self::Hourly];

    /// The length of a slot, in milliseconds.
    pub fn millis(self) -> u64 {
        match self {
            Self::Fine => 5_000,
            Self::Coarse => 300_000,
            Self::Hourly => 3_600_000,
        }
    }

    /// The slot that a time, in milliseconds since the epoch, falls into.
    pub fn slot(self, now_ms: u64) -> TimeSlot {
        TimeSlot {
            resolution: self,
            number: now_ms / self.millis(),
        }
    }

    /// How long a slot is kept after it was last written, in milliseconds.
    pub fn kept_ms(self) -> u64 {
        match self {
            Self::Fine => 75_000,
            Self::Coarse => 4_200_000,
            Self::Hourly => 90_000_000,
        }
    }

    /// The part of a key that stands for it.
    pub fn letter(self) -> char {
        match self {
            Self::Fine => 's',
            Self::Coarse => 'l',
            Self::Hourly => 'h',
        }
    }

    /// The fewest slots that reach back `span_ms` from now, the newest first.
    pub fn back(self, now_ms: u64, span_ms: u64) -> impl Iterator<Item = TimeSlot> {
        let newest = now_ms / self.millis();
        let oldest = now_ms.saturating_sub(span_ms) / self.millis();
        let kept = self.kept_ms() / self.millis();
        let oldest = oldest.max(newest.saturating_sub(kept));
        { oldest..=newest }.rev().map(move |number| TimeSlot {
            resolution: self,
            number,
        })
    }
}

// ---- Which limiters and proxies are alive, and at which revision.

/// The fleet as one limiter reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetReport {
    /// What it has in force, by domain.
    pub revisions: BTreeMap<Name, Revision>,
    /// The proxies that polled or called it, by domain, whether or not there are
    /// limits for it.
    pub proxies: BTreeMap<Name, Vec<ProxyStatus>>,
    /// Whether it is the limiter's last, because it was told to end.
    pub is_last: bool,
}

/// A proxy at its last request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyStatus {
    /// The random id of one Envoy process.
    pub id: String,
    /// Its node name in Envoy's configuration, if it sent one.
    pub node: Option<String>,
    /// Whether its filter is a dynamic module, and not wasm.
    pub is_module: bool,
    /// What it has in force; `None`: nothing yet.
    pub revision: Option<Revision>,
    /// The entries that it supplies beside the built-in ones; `None`: it did not say, or they did not fit.
    pub supplies: Option<Arc<BTreeSet<Name>>>,
    /// How long ago, in milliseconds.
    pub ago_ms: u64,
}

/// A limiter at its last report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterStatus {
    /// Its name: host and port, and a random suffix that distinguishes it from its predecessor.
    pub id: String,
    /// What it has in force, by domain.
    pub revisions: BTreeMap<Name, Revision>,
    /// How long ago, in milliseconds.
    pub ago_ms: u64,
}

/// The limiters and proxies that were alive within the last 10 s, without limiters that reported
/// their end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// By name.
    pub limiters: Vec<LimiterStatus>,
    /// By domain, and there by id.
    pub proxies: BTreeMap<Name, Vec<ProxyStatus>>,
    /// The entries that one or more proxies of a domain supply beside the built-in ones; without domains
    /// that no proxy uses, or of which one did not report its entries.
    pub entries: BTreeMap<Name, BTreeSet<Name>>,
}

/// A report of the fleet as it is stored: revisions as `[17, "00ff…"]`. Most proxies supply the same, so each has
/// the number of its set in a list.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct StoredFleet {
    revisions: BTreeMap<String, (u64, String)>,
    proxies: BTreeMap<String, Vec<StoredProxy>>,
    entries: Vec<Vec<String>>,
    #[serde(skip_serializing_if = "is_zero")]
    last: u64,
}

#[derive(Serialize, Deserialize)]
struct StoredProxy {
    id: String,
    ago_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<(u64, String)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    filter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<usize>,
}

impl FleetReport {
    /// As it is stored.
    pub fn to_json(&self) -> String {
        let sets = self.proxies.values().flatten();
        let sets: BTreeSet<_> = sets.filter_map(|proxy| proxy.supplies.as_deref()).collect();
        let numbers: BTreeMap<_, _> = sets.iter().copied().zip(0..).collect();
        let stored = |proxy: &ProxyStatus| StoredProxy {
            id: proxy.id.clone(),
            ago_ms: proxy.ago_ms,
            revision: proxy.revision.as_ref().map(stored_revision),
            node: proxy.node.clone(),
            filter: proxy.is_module.then(|| MODULE.to_owned()),
            entries: { proxy.supplies.as_deref() }.and_then(|set| numbers.get(set).copied()),
        };
        let revisions = self.revisions.iter();
        let proxies = self.proxies.iter();
        report_json(&StoredFleet {
            revisions: revisions
                .map(|(name, r)| (name.to_string(), stored_revision(r)))
                .collect(),
            proxies: proxies
                .map(|(name, seen)| (name.to_string(), seen.iter().map(stored).collect()))
                .collect(),
            entries: { sets.iter() }
                .map(|names| names.iter().map(Name::to_string).collect())
                .collect(),
            last: self.is_last.into(),
        })
    }

    fn read(json: &str) -> Option<Self> {
        let stored: StoredFleet = read_report(json)?;
        let set = |names: &Vec<String>| {
            let names = names.iter().map(|name| name.parse().ok());
            Some(Arc::new(names.collect::<Option<_>>()?))
        };
        let sets: Vec<Option<Arc<BTreeSet<Name>>>> = stored.entries.iter().map(set).collect();
        let proxy = |proxy: StoredProxy| ProxyStatus {
            id: proxy.id,
            node: proxy.node,
            is_module: proxy.filter.is_some_and(|filter| filter == MODULE),
            revision: proxy.revision.as_ref().and_then(read_revision),
            supplies: proxy.entries.and_then(|set| sets.get(set)?.clone()),
            ago_ms: proxy.ago_ms,
        };
        let revisions = stored.revisions.iter();
        let proxies = stored.proxies.into_iter();
        Some(Self {
            revisions: revisions
                .filter_map(|(name, stored)| {
                    Some((Name::domain(name).ok()?, read_revision(stored)?))
                })
                .collect(),
            proxies: proxies
                .filter_map(|(name, seen)| {
                    Some((
                        Name::domain(&name).ok()?,
                        seen.into_iter().map(proxy).collect(),
                    ))
                })
                .collect(),
            is_last: stored.last > 0,
        })
    }
}

fn stored_revision(revision: &Revision) -> (u64, String) {
    (revision.number, format!("{:016x}", revision.digest))
}

fn read_revision((number, digest): &(u64, String)) -> Option<Revision> {
    Some(Revision {
        number: *number,
        digest: u64::from_str_radix(digest, 16).ok()?,
    })
}

impl ProxyStatus {
    /// Whether the proxy counts as alive, by a report that was written so long ago.
    fn is_alive(&self, reported_ms_ago: u64) -> bool {
        self.ago_ms.saturating_add(reported_ms_ago) <= PROXY_LIFE_MS
    }
}

impl Fleet {
    /// Merges reports: of each limiter the newest, of each proxy its last request.
    pub fn from_reports(
        reports: impl IntoIterator<Item = (String, u64, String)>,
        now_ms: u64,
    ) -> Self {
        let mut newest: BTreeMap<String, (u64, String)> = BTreeMap::new();
        for (limiter, at_ms, json) in reports {
            let known = newest.get(&limiter).map(|(at_ms, _)| *at_ms);
            if known.is_none_or(|known| known < at_ms) {
                newest.insert(limiter, (at_ms, json));
            }
        }
        let (mut limiters, mut proxies) = (Vec::new(), BTreeMap::new());
        for (id, (at_ms, json)) in newest {
            let Some(fleet_report) = FleetReport::read(&json) else {
                continue;
            };
            let ago_ms = now_ms.saturating_sub(at_ms);
            for (domain, seen) in fleet_report.proxies {
                add(proxies.entry(domain).or_default(), seen, ago_ms);
            }
            if ago_ms <= PROXY_LIFE_MS && !fleet_report.is_last {
                limiters.push(LimiterStatus {
                    id,
                    revisions: fleet_report.revisions,
                    ago_ms,
                });
            }
        }
        proxies.retain(|_, seen| !seen.is_empty());
        let by_id = |(domain, seen): (Name, BTreeMap<_, _>)| (domain, seen.into_values().collect());
        let proxies: BTreeMap<_, Vec<_>> = proxies.into_iter().map(by_id).collect();
        let known = proxies.iter();
        let known = known.filter_map(|(domain, seen)| Some((domain.clone(), supplied(seen)?)));
        Self {
            limiters,
            entries: known.collect(),
            proxies,
        }
    }
}

/// What these proxies supply together; `None`: one did not say what it does.
fn supplied(proxies: &[ProxyStatus]) -> Option<BTreeSet<Name>> {
    // There are many proxies, and few different sets.
    let sets = proxies.iter().map(|proxy| proxy.supplies.as_deref());
    let sets: BTreeSet<&BTreeSet<Name>> = sets.collect::<Option<_>>()?;
    Some(sets.into_iter().flatten().cloned().collect())
}

fn add(known: &mut BTreeMap<String, ProxyStatus>, seen: Vec<ProxyStatus>, reported_ms_ago: u64) {
    for mut proxy in seen {
        let is_alive = proxy.is_alive(reported_ms_ago);
        proxy.ago_ms = proxy.ago_ms.saturating_add(reported_ms_ago);
        if !is_alive {
            continue;
        }
        match known.entry(proxy.id.clone()) {
            Entry::Vacant(new) => drop(new.insert(proxy)),
            Entry::Occupied(mut before) => {
                let before = before.get_mut();
                if proxy.ago_ms < before.ago_ms {
                    std::mem::swap(before, &mut proxy);
                }
                // A limiter that has its checks need not have its polls, which say what it supplies.
                before.supplies = before.supplies.take().or(proxy.supplies);
            }
        }
    }
}

// ---- What was decided, and who was denied.

/// What was decided in a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Activity {
    /// Requests that limits decided, each once, whatever the number of limits that matched it.
    #[serde(flatten)]
    pub requests: RequestCounts,
    /// Checks that no limit matched.
    pub unmatched: u64,
    /// Checks that got no decision.
    pub errors: u64,
    /// By limit; those without reports are not in it.
    pub limits: BTreeMap<Name, LimitActivity>,
    /// The buckets with the most requests, denials, or requests over limits that deny nothing, in no
    /// order. Others are not reported.
    pub buckets: Vec<BucketActivity>,
}

/// What one limit decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitActivity {
    /// Requests, by what became of them and who decided it.
    #[serde(
        flatten,
        serialize_with = "write_counts",
        deserialize_with = "read_counts"
    )]
    pub counts: BTreeMap<(Outcome, DecidedBy), u64>,
    /// How many of the allowed requests a queue delayed.
    #[serde(skip_serializing_if = "is_zero")]
    pub delayed: u64,
    /// Units that responses cost, as they were settled.
    #[serde(skip_serializing_if = "is_zero")]
    pub settled_units: u64,
    /// Penalties that began.
    #[serde(skip_serializing_if = "is_zero")]
    pub penalties: u64,
    /// Slots that requests in flight got.
    #[serde(skip_serializing_if = "is_zero")]
    pub slots_taken: u64,
}

/// A limit, and the values of a bucket.
type BucketKey = (Name, Values);

/// What one bucket of a limit decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketActivity {
    /// The limit.
    pub limit: Name,
    /// The values of its `per`, cut where they are very long.
    #[serde(
        default,
        serialize_with = "write_values",
        deserialize_with = "read_values"
    )]
    pub bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// Requests that limiters saw or proxies denied, and leased units that were spent. Never more than
    /// there were, except as an estimate of a busy limiter.
    #[serde(default)]
    pub requests: u64,
    /// Of those, the denied ones.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub denied: u64,
    /// Of those, the ones over a limit that denied nothing: in shadow mode, or degraded.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub over: u64,
    /// The last one over the limit. Only fine slots have it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "readable"
    )]
    pub last: Option<Denial>,
}

/// One request that was over a limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Denial {
    /// When, in milliseconds since the epoch.
    pub at_ms: u64,
    /// What became of it.
    pub outcome: Outcome,
    /// Who decided.
    pub by: DecidedBy,
    /// The request's descriptor, cut where it is very long.
    #[serde(
        default,
        serialize_with = "write_descriptor",
        deserialize_with = "read_descriptor"
    )]
    pub descriptor: Vec<(Name, Vec<u8>)>,
    /// The id of the proxy that sent the check, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
}

/// What one limiter reports of a time slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ActivityReport {
    /// The time over which the limiter had been counting, in milliseconds.
    pub covered_ms: u64,
    /// What was decided.
    #[serde(flatten)]
    pub activity: Activity,
}

/// The reports of all limiters over a span of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivitySummary {
    /// What was decided.
    pub activity: Activity,
    /// The time that the counts cover, in milliseconds: the divisor of a rate.
    pub covered_ms: u64,
    /// The store's clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// What was decided in each time slot of the span, from the earliest to the latest, which still fills.
    pub slots: Vec<SlotActivity>,
}

/// What was decided in one time slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotActivity {
    /// Requests, each once.
    pub requests: RequestCounts,
    /// By limit.
    pub limits: BTreeMap<Name, LimitActivity>,
    /// The buckets that limiters listed, each once.
    pub buckets: Vec<BucketActivity>,
    /// How many more each of `buckets` had at most, at limiters that did not list it; in their order.
    pub buckets_unlisted: Vec<u64>,
    /// A bucket that no limiter listed had at most so many requests.
    pub unlisted_max: u64,
}

impl LimitActivity {
    /// Adds to a count.
    pub fn add(&mut self, outcome: Outcome, by: DecidedBy, count: u64) {
        let known = self.counts.entry((outcome, by)).or_default();
        *known = known.saturating_add(count);
    }

    /// Requests of one outcome, whoever decided.
    pub fn total(&self, outcome: Outcome) -> u64 {
        let counts = self.counts.iter().filter(|((o, _), _)| *o == outcome);
        counts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    fn merge(&mut self, other: &Self) {
        for ((outcome, by), count) in &other.counts {
            self.add(*outcome, *by, *count);
        }
        let add = |own: &mut u64, other: u64| *own = own.saturating_add(other);
        add(&mut self.delayed, other.delayed);
        add(&mut self.settled_units, other.settled_units);
        add(&mut self.penalties, other.penalties);
        add(&mut self.slots_taken, other.slots_taken);
    }
}

impl Activity {
    /// Adds what was decided elsewhere, or at another time.
    pub fn merge(&mut self, other: Self) {
        self.requests.add(other.requests);
        for (name, limit) in &other.limits {
            self.limits.entry(name.clone()).or_default().merge(limit);
        }
        self.unmatched = self.unmatched.saturating_add(other.unmatched);
        self.errors = self.errors.saturating_add(other.errors);
        self.buckets.extend(other.buckets);
    }

    /// The most requests that a bucket can have had which one limiter's report does not list.
    fn unlisted_max(&self) -> u64 {
        let mut requests: Vec<u64> = self.buckets.iter().map(|bucket| bucket.requests).collect();
        requests.sort_unstable_by(|a, b| b.cmp(a));
        // A shorter list has all.
        requests.get(BUCKETS_REPORTED - 1).copied().unwrap_or(0)
    }

    /// Merges the entries of each bucket.
    fn join_buckets(&mut self) {
        let mut joined: BTreeMap<BucketKey, BucketActivity> = BTreeMap::new();
        for bucket in std::mem::take(&mut self.buckets) {
            let key = bucket.key();
            match joined.get_mut(&key) {
                Some(known) => known.merge(bucket),
                None => {
                    joined.insert(key, bucket);
                }
            }
        }
        self.buckets = joined.into_values().collect();
    }
}

impl BucketActivity {
    fn key(&self) -> BucketKey {
        (self.limit.clone(), self.bucket.clone())
    }

    fn merge(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.denied = self.denied.saturating_add(other.denied);
        self.over = self.over.saturating_add(other.over);
        let at_ms = |last: &Option<Denial>| last.as_ref().map(|last| last.at_ms);
        if at_ms(&other.last) > at_ms(&self.last) {
            self.last = other.last;
        }
    }
}

impl ActivityReport {
    /// As it is stored.
    pub fn to_json(&self) -> String {
        report_json(self)
    }

    /// Reads a report; one that cannot be read counts as empty.
    pub fn read(json: &str) -> Self {
        read_report(json).unwrap_or_default()
    }
}

impl ActivitySummary {
    /// Adds up the reports of time slots, from the earliest to the latest, each with the limiter that wrote
    /// it. The limiters count at the same time, so the longest span is the time covered.
    pub fn from_slots(
        slots: impl IntoIterator<Item = Vec<(String, ActivityReport)>>,
        now_ms: u64,
    ) -> Self {
        let mut summary = Self {
            now_ms,
            ..Self::default()
        };
        let mut covered: BTreeMap<String, u64> = BTreeMap::new();
        for reports in slots {
            let mut in_slot = Activity::default();
            let mut unlisted_max = 0_u64;
            let mut full_lists: Vec<(u64, BTreeSet<BucketKey>)> = Vec::new();
            for (limiter, report) in reports {
                let own = covered.entry(limiter).or_default();
                *own = own.saturating_add(report.covered_ms);
                let least = report.activity.unlisted_max();
                if least > 0 {
                    let listed = report.activity.buckets.iter().map(BucketActivity::key);
                    full_lists.push((least, listed.collect()));
                }
                unlisted_max = unlisted_max.saturating_add(least);
                in_slot.merge(report.activity);
            }
            in_slot.join_buckets();
            let buckets_unlisted = in_slot.buckets.iter().map(|bucket| {
                let key = bucket.key();
                let lacking = full_lists
                    .iter()
                    .filter(|(_, listed)| !listed.contains(&key));
                lacking.fold(0_u64, |sum, (least, _)| sum.saturating_add(*least))
            });
            let buckets_unlisted = buckets_unlisted.collect();
            summary.slots.push(SlotActivity {
                requests: in_slot.requests,
                limits: in_slot.limits.clone(),
                buckets: in_slot.buckets.clone(),
                buckets_unlisted,
                unlisted_max,
            });
            summary.activity.merge(in_slot);
        }
        summary.activity.join_buckets();
        summary.covered_ms = covered.into_values().max().unwrap_or(0);
        summary
    }
}

// ---- Reports as JSON. What a later version adds is skipped: reports are for operators, and no decision
// depends on them.

const FORMAT: u64 = 1;

#[derive(Serialize)]
struct Stored<'r, T> {
    format: u64,
    #[serde(flatten)]
    report: &'r T,
}

#[derive(Deserialize)]
struct Head {
    format: u64,
}

fn report_json<T: Serialize>(report: &T) -> String {
    let format = FORMAT;
    serde_json::to_string(&Stored { format, report }).unwrap_or_default()
}

/// Reads a report; `None`: it is of another format, or no report.
fn read_report<T: DeserializeOwned>(json: &str) -> Option<T> {
    let Head { format } = serde_json::from_str(json).ok()?;
    (format == FORMAT).then(|| serde_json::from_str(json).ok())?
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// `None` where it says something that this version has no word for.
fn readable<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    from: D,
) -> Result<Option<T>, D::Error> {
    let value = serde_json::Value::deserialize(from)?;
    Ok(serde_json::from_value(value).ok())
}

// --- The counts of a limit, as `{"allowed": {"limiter": 7}}`; values of a bucket and of a descriptor, as
// `{"user": "alice", "tenant": null}`.

type Counts = BTreeMap<(Outcome, DecidedBy), u64>;
type Values = Vec<(Name, Option<Vec<u8>>)>;

fn write_counts<S: Serializer>(counts: &Counts, to: S) -> Result<S::Ok, S::Error> {
    let mut outcomes: Vec<(&str, Vec<_>)> = Vec::new();
    for ((outcome, by), count) in counts.iter().filter(|(_, count)| **count > 0) {
        let counted = (by.word(), Node::number(*count));
        match outcomes.last_mut() {
            Some((last, of)) if *last == outcome.word() => of.push(counted),
            _ => outcomes.push((outcome.word(), vec![counted])),
        }
    }
    let outcomes = outcomes.into_iter();
    Node::map(outcomes.map(|(outcome, of)| (outcome, Node::map(of)))).serialize(to)
}

fn read_counts<'de, D: Deserializer<'de>>(from: D) -> Result<Counts, D::Error> {
    let node = Node::deserialize(from)?;
    let of = |outcome: Outcome| {
        let known = entries(node.get(outcome.word())).filter_map(move |(by, count)| {
            let count = count.as_text()?.parse().ok()?;
            Some(((outcome, DecidedBy::from_word(by)?), count))
        });
        known.collect::<Vec<_>>()
    };
    Ok(Outcome::ALL.into_iter().flat_map(of).collect())
}

fn write_values<S: Serializer>(
    values: &[(Name, Option<Vec<u8>>)],
    to: S,
) -> Result<S::Ok, S::Error> {
    let values = values.iter();
    let values = values.map(|(name, value)| (name.as_str(), value_to_node(value.as_deref())));
    Node::map(values).serialize(to)
}

fn read_values<'de, D: Deserializer<'de>>(from: D) -> Result<Values, D::Error> {
    let node = Node::deserialize(from)?;
    let named = |(key, node)| Some((Name::domain(key).ok()?, node_to_value(node)));
    Ok(entries(Some(&node)).filter_map(named).collect())
}

fn write_descriptor<S: Serializer>(values: &[(Name, Vec<u8>)], to: S) -> Result<S::Ok, S::Error> {
    let values = values.iter();
    let values = values.map(|(name, value)| (name.as_str(), value_to_node(Some(value))));
    Node::map(values).serialize(to)
}

fn read_descriptor<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(Name, Vec<u8>)>, D::Error> {
    let values = read_values(from)?.into_iter();
    Ok(values
        .filter_map(|(name, value)| Some((name, value?)))
        .collect())
}

/// The entries of a map; none of anything else.
fn entries(node: Option<&Node>) -> impl Iterator<Item = (&str, &Node)> {
    let entries = match node.map(|node| &node.value) {
        Some(Value::Map(entries)) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().map(|e| (e.key.as_str(), &e.value))
}

#[cfg(test)]
mod fleet_tests;

#[cfg(test)]
mod activity_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(resolution: Resolution, now_ms: u64, span_ms: u64) -> Vec<u64> {
        resolution.back(now_ms, span_ms).map(|s| s.number).collect()
    }

    #[test]
    fn slots_cover_what_is_asked_for_and_no_more_than_is_kept() {
        assert_eq!(numbers(Resolution::Fine, 60_000, 10_000), [12, 11, 10]);
        assert_eq!(numbers(Resolution::Fine, 64_999, 10_000), [12, 11, 10]);
        assert_eq!(numbers(Resolution::Fine, 3, 10_000), [0]);
        assert_eq!(numbers(Resolution::Fine, u64::MAX, u64::MAX).len(), 16);
        assert_eq!(numbers(Resolution::Coarse, 3_600_000, 3_600_000).len(), 13);
    }
}
