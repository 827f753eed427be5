//! What was decided, and who was denied.

use std::collections::BTreeMap;

use policy::{Name, Node};
use protocol::{DecidedBy, Outcome, compact::RequestCounts};

use super::document;

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
    /// The buckets with the most requests or denials, in no order. Others are not reported.
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

/// What one bucket of a limit decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketActivity {
    /// The limit.
    pub limit: Name,
    /// The values of its `per`, cut where they are very long.
    pub bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// Requests that limiters saw or proxies denied. On a busy limiter an estimate.
    pub requests: u64,
    /// Of those, the denied ones, and those that would have been.
    pub denied: u64,
    /// The last one denied.
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
            *count = document::count(node, name);
        }
        for outcome in Outcome::ALL {
            for (word, count) in document::entries(node.get(outcome.word())) {
                if let (Some(by), Some(count)) =
                    (DecidedBy::from_word(word), document::number(count))
                {
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

    /// Merges the entries of each bucket.
    fn join_buckets(&mut self) {
        type Key = (Name, Vec<(Name, Option<Vec<u8>>)>);
        let mut joined: BTreeMap<Key, BucketActivity> = BTreeMap::new();
        for bucket in std::mem::take(&mut self.buckets) {
            let key = (bucket.limit.clone(), bucket.bucket.clone());
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
    fn merge(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.denied = self.denied.saturating_add(other.denied);
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
            ("bucket", document::values_node(values)),
            ("requests", Node::number(self.requests)),
        ]);
        if self.denied > 0 {
            node.set("denied", Node::number(self.denied));
        }
        if let Some(last) = &self.last {
            node.set("last", last.to_node());
        }
        node
    }

    fn read(node: &Node) -> Option<Self> {
        Some(Self {
            limit: node.get("limit")?.as_text()?.parse().ok()?,
            bucket: document::read_values(node, "bucket"),
            requests: document::count(node, "requests"),
            denied: document::count(node, "denied"),
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
            ("descriptor", document::values_node(values)),
        ]);
        if let Some(proxy) = &self.proxy {
            node.set("proxy", Node::text(proxy));
        }
        node
    }

    fn read(node: &Node) -> Option<Self> {
        let word = |field: &str| node.get(field)?.as_text();
        let descriptor = document::read_values(node, "descriptor").into_iter();
        Some(Self {
            at_ms: document::number(node.get("at_ms")?)?,
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
        document::json(&document::report([
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
        let Some(report) = document::read(json) else {
            return Self::default();
        };
        let buckets = report.get("buckets").map_or(&[][..], Node::items);
        let limits = document::limits(&report, "limits");
        Self {
            covered_ms: document::count(&report, "covered_ms"),
            activity: Activity {
                requests: RequestCounts {
                    allowed: document::count(&report, "allowed"),
                    denied: document::count(&report, "denied"),
                },
                limits: limits
                    .map(|(name, node)| (name, LimitActivity::read(node)))
                    .collect(),
                unmatched: document::count(&report, "unmatched"),
                errors: document::count(&report, "errors"),
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
            for (limiter, report) in reports {
                let own = covered.entry(limiter).or_default();
                *own = own.saturating_add(report.covered_ms);
                in_slot.merge(report.activity);
            }
            summary.slots.push(SlotActivity {
                requests: in_slot.requests,
                limits: in_slot.limits.clone(),
            });
            summary.activity.merge(in_slot);
        }
        summary.activity.join_buckets();
        summary.covered_ms = covered.into_values().max().unwrap_or(0);
        summary
    }
}

#[cfg(test)]
mod tests;
