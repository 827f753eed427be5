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

use crate::plan::record;

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

impl FleetReport {
    /// As it is stored.
    pub fn to_json(&self) -> String {
        let revisions = self.revisions.iter();
        let revisions = revisions.map(|(name, r)| (name.as_str(), revision_node(r)));
        // Most proxies supply the same, so each has the number of its set in a list.
        let sets = self.proxies.values().flatten();
        let sets: BTreeSet<_> = sets.filter_map(|proxy| proxy.supplies.as_deref()).collect();
        let numbers: BTreeMap<_, _> = sets.iter().copied().zip(0..).collect();
        let proxies = self.proxies.iter().map(|(name, seen)| {
            let seen = seen.iter().map(|proxy| {
                let set = proxy.supplies.as_deref().and_then(|set| numbers.get(set));
                proxy.to_node(set.copied())
            });
            (name.as_str(), Node::list(seen))
        });
        let entries = sets.iter().map(|names| {
            let names = names.iter().map(|name| Node::text(name.as_str()));
            Node::list(names)
        });
        let mut report = report_of([
            ("revisions", Node::map(revisions)),
            ("proxies", Node::map(proxies)),
            ("entries", Node::list(entries)),
        ]);
        if self.is_last {
            report.set("last", Node::number(1));
        }
        record::json(&report)
    }

    fn read(json: &str) -> Option<Self> {
        let report = read_report(json)?;
        let revisions = named(&report, "revisions");
        let sets = { report.get("entries").into_iter() }.flat_map(Node::items);
        let sets: Vec<Option<Arc<BTreeSet<Name>>>> = sets
            .map(|names| {
                let names = names.items().iter();
                let names = names.map(|name| name.as_text()?.parse().ok());
                Some(Arc::new(names.collect::<Option<_>>()?))
            })
            .collect();
        let proxies = named(&report, "proxies").map(|(domain, list)| {
            let seen = list.items().iter();
            let seen = seen.filter_map(|proxy| ProxyStatus::read(proxy, &sets));
            (domain, seen.collect())
        });
        Some(Self {
            revisions: revisions
                .filter_map(|(domain, node)| Some((domain, read_revision(node)?)))
                .collect(),
            proxies: proxies.collect(),
            is_last: count_in(&report, "last") > 0,
        })
    }
}

impl ProxyStatus {
    /// Whether the proxy counts as alive, by a report that was written so long ago.
    fn is_alive(&self, reported_ms_ago: u64) -> bool {
        self.ago_ms.saturating_add(reported_ms_ago) <= PROXY_LIFE_MS
    }

    fn to_node(&self, set: Option<u64>) -> Node {
        let mut node = Node::map([
            ("id", Node::text(&self.id)),
            ("ago_ms", Node::number(self.ago_ms)),
        ]);
        if let Some(revision) = &self.revision {
            node.set("revision", revision_node(revision));
        }
        if let Some(name) = &self.node {
            node.set("node", Node::text(name));
        }
        if self.is_module {
            node.set("filter", Node::text(MODULE));
        }
        if let Some(set) = set {
            node.set("entries", Node::number(set));
        }
        node
    }

    fn read(node: &Node, sets: &[Option<Arc<BTreeSet<Name>>>]) -> Option<Self> {
        let set = || usize::try_from(number(node.get("entries")?)?).ok();
        let text = |field| Some(node.get(field)?.as_text()?.to_owned());
        Some(Self {
            id: text("id")?,
            node: text("node"),
            is_module: text("filter").is_some_and(|filter| filter == MODULE),
            revision: node.get("revision").and_then(read_revision),
            supplies: set().and_then(|set| sets.get(set)?.clone()),
            ago_ms: number(node.get("ago_ms")?)?,
        })
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Requests that limits decided, each once, whatever the number of limits that matched it.
    pub requests: RequestCounts,
    /// By limit; those without reports are not in it.
    pub limits: BTreeMap<Name, LimitActivity>,
    /// Checks that no limit matched.
    pub unmatched: u64,
    /// Checks that got no decision.
    pub errors: u64,
    /// The buckets with the most requests, denials, or requests over limits that deny nothing, in no
    /// order. Others are not reported.
    pub buckets: Vec<BucketActivity>,
}

/// What one limit decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimitActivity {
    /// Requests, by what became of them and who decided it.
    pub counts: BTreeMap<(Outcome, DecidedBy), u64>,
    /// How many of the allowed requests a queue delayed.
    pub delayed: u64,
    /// Units that responses cost, as they were settled.
    pub settled_units: u64,
    /// Penalties that began.
    pub penalties: u64,
    /// Slots that requests in flight got.
    pub slots_taken: u64,
}

/// A limit, and the values of a bucket.
type BucketKey = (Name, Vec<(Name, Option<Vec<u8>>)>);

/// What one bucket of a limit decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketActivity {
    /// The limit.
    pub limit: Name,
    /// The values of its `per`, cut where they are very long.
    pub bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// Requests that limiters saw or proxies denied, and leased units that were spent. Never more than
    /// there were, except as an estimate of a busy limiter.
    pub requests: u64,
    /// Of those, the denied ones.
    pub denied: u64,
    /// Of those, the ones over a limit that denied nothing: in shadow mode, or degraded.
    pub over: u64,
    /// The last one over the limit. Only fine slots have it.
    pub last: Option<Denial>,
}

/// One request that was over a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// When, in milliseconds since the epoch.
    pub at_ms: u64,
    /// What became of it.
    pub outcome: Outcome,
    /// Who decided.
    pub by: DecidedBy,
    /// The id of the proxy that sent the check, if one did.
    pub proxy: Option<String>,
    /// The request's descriptor, cut where it is very long.
    pub descriptor: Vec<(Name, Vec<u8>)>,
}

/// What one limiter reports of a time slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActivityReport {
    /// What was decided.
    pub activity: Activity,
    /// The time over which the limiter had been counting, in milliseconds.
    pub covered_ms: u64,
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
        for ((_, own), (_, other)) in self.counters_mut().into_iter().zip(other.counters()) {
            *own = own.saturating_add(other);
        }
    }

    /// The counts beside the decisions, by their names in reports.
    fn counters_mut(&mut self) -> [(&'static str, &mut u64); 4] {
        [
            ("delayed", &mut self.delayed),
            ("settled_units", &mut self.settled_units),
            ("penalties", &mut self.penalties),
            ("slots_taken", &mut self.slots_taken),
        ]
    }

    fn counters(&self) -> [(&'static str, u64); 4] {
        [
            ("delayed", self.delayed),
            ("settled_units", self.settled_units),
            ("penalties", self.penalties),
            ("slots_taken", self.slots_taken),
        ]
    }

    fn to_node(&self) -> Node {
        let mut node = Node::map::<String>([]);
        for outcome in Outcome::ALL {
            let counts = self.counts.iter();
            let counts = counts.filter(|((o, _), count)| *o == outcome && **count > 0);
            let counts: Vec<_> = counts
                .map(|((_, by), count)| (by.word(), Node::number(*count)))
                .collect();
            if !counts.is_empty() {
                node.set(outcome.word(), Node::map(counts));
            }
        }
        for (name, count) in self.counters() {
            if count > 0 {
                node.set(name, Node::number(count));
            }
        }
        node
    }

    fn read(node: &Node) -> Self {
        let mut activity = Self::default();
        for (name, count) in activity.counters_mut() {
            *count = count_in(node, name);
        }
        for outcome in Outcome::ALL {
            for (word, count) in entries(node.get(outcome.word())) {
                if let (Some(by), Some(count)) = (DecidedBy::from_word(word), number(count)) {
                    activity.add(outcome, by, count);
                }
            }
        }
        activity
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

    fn to_node(&self) -> Node {
        let values = self.bucket.iter();
        let values = values.map(|(name, value)| (name, value.as_deref()));
        let mut node = Node::map([
            ("limit", Node::text(self.limit.as_str())),
            ("bucket", values_node(values)),
            ("requests", Node::number(self.requests)),
        ]);
        if self.denied > 0 {
            node.set("denied", Node::number(self.denied));
        }
        if self.over > 0 {
            node.set("over", Node::number(self.over));
        }
        if let Some(last) = &self.last {
            node.set("last", last.to_node());
        }
        node
    }

    fn read(node: &Node) -> Option<Self> {
        Some(Self {
            limit: node.get("limit")?.as_text()?.parse().ok()?,
            bucket: read_values(node, "bucket"),
            requests: count_in(node, "requests"),
            denied: count_in(node, "denied"),
            over: count_in(node, "over"),
            last: node.get("last").and_then(Denial::read),
        })
    }
}

impl Denial {
    fn to_node(&self) -> Node {
        let values = self.descriptor.iter();
        let values = values.map(|(name, value)| (name, Some(value.as_slice())));
        let mut node = Node::map([
            ("at_ms", Node::number(self.at_ms)),
            ("outcome", Node::text(self.outcome.word())),
            ("by", Node::text(self.by.word())),
            ("descriptor", values_node(values)),
        ]);
        if let Some(proxy) = &self.proxy {
            node.set("proxy", Node::text(proxy));
        }
        node
    }

    fn read(node: &Node) -> Option<Self> {
        let word = |field: &str| node.get(field)?.as_text();
        let descriptor = read_values(node, "descriptor").into_iter();
        Some(Self {
            at_ms: number(node.get("at_ms")?)?,
            outcome: Outcome::from_word(word("outcome")?)?,
            by: DecidedBy::from_word(word("by")?)?,
            proxy: word("proxy").map(str::to_owned),
            descriptor: descriptor
                .filter_map(|(name, value)| Some((name, value?)))
                .collect(),
        })
    }
}

impl ActivityReport {
    /// As it is stored.
    pub fn to_json(&self) -> String {
        let Activity {
            requests,
            limits,
            unmatched,
            errors,
            buckets,
        } = &self.activity;
        let limits = limits
            .iter()
            .map(|(name, limit)| (name.as_str(), limit.to_node()));
        record::json(&report_of([
            ("covered_ms", Node::number(self.covered_ms)),
            ("allowed", Node::number(requests.allowed)),
            ("denied", Node::number(requests.denied)),
            ("unmatched", Node::number(*unmatched)),
            ("errors", Node::number(*errors)),
            ("limits", Node::map(limits)),
            (
                "buckets",
                Node::list(buckets.iter().map(BucketActivity::to_node)),
            ),
        ]))
    }

    /// Reads a report; one that cannot be read counts as empty.
    pub fn read(json: &str) -> Self {
        let Some(report) = read_report(json) else {
            return Self::default();
        };
        let buckets = report.get("buckets").map_or(&[][..], Node::items);
        let limits = limits(&report, "limits");
        Self {
            covered_ms: count_in(&report, "covered_ms"),
            activity: Activity {
                requests: RequestCounts {
                    allowed: count_in(&report, "allowed"),
                    denied: count_in(&report, "denied"),
                },
                limits: limits
                    .map(|(name, node)| (name, LimitActivity::read(node)))
                    .collect(),
                unmatched: count_in(&report, "unmatched"),
                errors: count_in(&report, "errors"),
                buckets: buckets.iter().filter_map(BucketActivity::read).collect(),
            },
        }
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

// ---- Reports as documents. Unknown fields are skipped and unreadable ones left out: reports are for
// operators, and no decision depends on them.

const FORMAT: u64 = 1;

/// A report of this format with these fields.
fn report_of(fields: impl IntoIterator<Item = (&'static str, Node)>) -> Node {
    let format = [("format", Node::number(FORMAT))];
    Node::map(format.into_iter().chain(fields))
}

/// Reads a report; `None`: it is of another format, or no report.
fn read_report(json: &str) -> Option<Node> {
    let report: Node = serde_json::from_str(json).ok()?;
    (number(report.get("format")?) == Some(FORMAT)).then_some(report)
}

fn number(node: &Node) -> Option<u64> {
    node.as_text()?.parse().ok()
}

/// A field that counts something; absent, it is 0.
fn count_in(report: &Node, field: &str) -> u64 {
    report.get(field).and_then(number).unwrap_or(0)
}

/// The entries of a map whose keys are names of limits.
fn limits<'n>(report: &'n Node, field: &str) -> impl Iterator<Item = (Name, &'n Node)> {
    entries(report.get(field)).filter_map(|(key, node)| Some((key.parse().ok()?, node)))
}

/// The entries of a map whose keys are names or domains.
fn named<'n>(report: &'n Node, field: &str) -> impl Iterator<Item = (Name, &'n Node)> {
    entries(report.get(field)).filter_map(|(key, node)| Some((Name::domain(key).ok()?, node)))
}

/// The entries of a map; none of anything else.
fn entries(node: Option<&Node>) -> impl Iterator<Item = (&str, &Node)> {
    let entries = match node.map(|node| &node.value) {
        Some(Value::Map(entries)) => entries.as_slice(),
        _ => &[],
    };
    entries.iter().map(|e| (e.key.as_str(), &e.value))
}

/// `[17, "00ff…"]`.
fn revision_node(revision: &Revision) -> Node {
    let digest = format!("{:016x}", revision.digest);
    Node::list([Node::number(revision.number), Node::text(digest)])
}

fn read_revision(node: &Node) -> Option<Revision> {
    let [number_node, digest] = node.items() else {
        return None;
    };
    Some(Revision {
        number: number(number_node)?,
        digest: u64::from_str_radix(digest.as_text()?, 16).ok()?,
    })
}

/// Entries of a descriptor or a bucket.
fn values_node<'v>(values: impl IntoIterator<Item = (&'v Name, Option<&'v [u8]>)>) -> Node {
    let fields = values.into_iter();
    Node::map(fields.map(|(name, value)| (name.as_str(), value_to_node(value))))
}

fn read_values(report: &Node, field: &str) -> Vec<(Name, Option<Vec<u8>>)> {
    named(report, field)
        .map(|(name, node)| (name, node_to_value(node)))
        .collect()
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
