//! Writes policies as documents (limits files, stored records, snapshots as JSON): only what differs from
//! the defaults, in the order of the manual.

use algorithms::{Kind, Penalty};
use documents::{Choice, Duration, Name, Node, format_timestamp, to_base64, value_to_node};
use patterns::Pattern;

use crate::{
    Compiled, DescriptorLimit, Exemption, IfMissing, Limit, Matcher, OnFailure, OverLimit,
    Override, OverrideQuota, Pause, Policy, Quota, Scope,
    limit::{DEFAULT_MAX_DELAY_MS, RateText, Written},
    read::{DEFAULT_SLOT_TTL_MS, FORMAT},
};

/// Fields in the order in which they are set.
#[derive(Default)]
struct Writer(Vec<(&'static str, Node)>);

impl Writer {
    fn set(&mut self, name: &'static str, node: Node) {
        self.0.push((name, node));
    }

    fn choice<T: Choice + Default>(&mut self, name: &'static str, value: T) {
        if value != T::default() {
            self.set(name, Node::text(value.word()));
        }
    }

    fn number(&mut self, name: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.set(name, Node::number(value));
        }
    }

    fn names(&mut self, name: &'static str, names: &[Name]) {
        if !names.is_empty() {
            self.set(
                name,
                Node::list(names.iter().map(|n| Node::text(n.as_str()))),
            );
        }
    }
}

impl Limit {
    /// The limit as its author would write it: the fields that differ from the defaults.
    pub fn to_node(&self) -> Node {
        let mut node = self.to_node_without_overrides();
        if !self.overrides.is_empty() {
            let overrides = self.overrides.iter().map(|o| o.to_node(&self.per));
            node.set("overrides", Node::list(overrides));
        }
        node
    }

    /// As [`Limit::to_node`], for stores that keep the overrides separately.
    pub fn to_node_without_overrides(&self) -> Node {
        let mut fields = Writer::default();
        fields.set("name", Node::text(self.name.as_str()));
        if let Some(description) = &self.description {
            fields.set("description", Node::text(description));
        }
        match &self.descriptor {
            Some(rule) => write_descriptor(rule, &mut fields),
            None => self.write_applies(&mut fields),
        }
        self.write_numbers(&mut fields);
        self.write_handling(&mut fields);
        Node::map(fields.0)
    }

    /// The limit as a stored record holds it: [`Limit::to_node`] and the generation.
    pub fn to_record(&self) -> Node {
        let mut node = self.to_node();
        if self.generation > 0 {
            node.set("generation", Node::number(self.generation));
        }
        node
    }

    fn write_applies(&self, fields: &mut Writer) {
        if !self.matchers.is_empty() {
            fields.set("match", matchers_node(&self.matchers));
        }
        fields.names("per", &self.per);
        fields.choice::<IfMissing>("if_missing", self.if_missing);
    }

    fn write_numbers(&self, fields: &mut Writer) {
        if self.is_unlimited() {
            return;
        }
        let parameters = self.quota.parameters();
        fields.set("algorithm", Node::text(Written(parameters.kind).word()));
        if parameters.kind == Kind::Concurrency {
            fields.number("limit", Some(parameters.rate.units));
            let ttl_ms = Some(parameters.rate.period_ms).filter(|ms| *ms != DEFAULT_SLOT_TTL_MS);
            if let Some(ms) = ttl_ms {
                fields.set("slot_ttl", Node::text(Duration(ms).to_string()));
            }
        } else {
            fields.set("rate", Node::text(RateText(parameters.rate).to_string()));
        }
        fields.number("burst", parameters.burst);
        fields.number("sub_windows", parameters.sub_windows);
        if let Some(strict) = parameters.strict {
            fields.set("strict", strict.into());
        }
        if let Some(align) = parameters.align {
            fields.set("align", Node::text(Written(align).word()));
        }
        if let Some(time_zone) = parameters.time_zone {
            fields.set("time_zone", Node::text(time_zone));
        }
        if let Some(day) = parameters.week_start {
            fields.set("week_start", Node::text(Written(day).word()));
        }
        match &self.pricing {
            Some(pricing) => fields.set("cost", pricing.to_node()),
            None => fields.number("cost", Some(self.cost).filter(|cost| *cost != 1)),
        }
        fields.choice::<OverLimit>("over_limit", self.over_limit);
        if let Some(ms) = parameters
            .max_delay_ms
            .filter(|ms| *ms != DEFAULT_MAX_DELAY_MS)
        {
            fields.set("max_delay", Node::text(Duration(ms).to_string()));
        }
        if let Some(penalty) = self.penalty {
            fields.set("penalty", penalty_node(penalty));
        }
    }

    fn write_handling(&self, fields: &mut Writer) {
        if self.enforce_percent != 100 {
            fields.set("enforce", Node::text(format!("{}%", self.enforce_percent)));
        }
        fields.choice::<OnFailure>("on_failure", self.on_failure);
        fields.choice::<Scope>("scope", self.scope);
        if let Some(percent) = self.precheck_percent {
            fields.set("precheck", Node::text(format!("{percent}%")));
        }
        if let Some(ms) = self.lease_ttl_ms {
            let ttl = Node::text(Duration(ms).to_string());
            fields.set("lease", Node::map([("ttl", ttl)]));
        }
        if self.hidden {
            fields.set("hidden", true.into());
        }
        fields.names("replaces", &self.replaces);
        fields.names("partition", &self.partition);
        fields.number("fleet_size", self.fleet_size);
        if let Some(paused) = self.paused {
            fields.set("paused", paused.to_node());
        }
    }
}

fn write_descriptor(rule: &DescriptorLimit, fields: &mut Writer) {
    let texts = |items: Vec<String>| Node::list(items.iter().map(Node::text));
    fields.set("descriptor", texts(rule.pattern.to_items()));
    let entries = rule.pattern.entries().iter();
    let wildcards: Vec<_> = entries.filter(|entry| entry.is_wildcard()).collect();
    let shared = wildcards.iter().filter(|entry| entry.share_threshold);
    let mut shared: Vec<String> = shared.map(|entry| entry.key().to_owned()).collect();
    shared.dedup();
    if wildcards.iter().all(|entry| entry.share_threshold) {
        if !wildcards.is_empty() {
            fields.set("share_threshold", true.into());
        }
    } else if !shared.is_empty() {
        fields.set("share_threshold", texts(shared));
    }
    if rule.unlimited {
        fields.set("unlimited", true.into());
    }
    if rule.quota_mode {
        fields.set("quota_mode", true.into());
    }
    fields.choice("charge", rule.charge);
}

impl Override {
    /// The override as its author would write it; `per` is the limit's.
    pub fn to_node(&self, per: &[Name]) -> Node {
        let values = per.iter().zip(&self.values);
        let values = values.map(|(key, value)| (key.as_str(), value_to_node(value.as_deref())));
        let mut fields = Writer::default();
        fields.set("values", Node::map(values));
        match self.quota {
            OverrideQuota::Unlimited => fields.set("unlimited", true.into()),
            OverrideQuota::Quota {
                kind,
                rate,
                burst,
                time_zone,
                ..
            } => {
                if kind == Kind::Concurrency {
                    fields.number("limit", rate.map(|rate| rate.units));
                } else if let Some(rate) = rate {
                    fields.set("rate", Node::text(RateText(rate).to_string()));
                }
                fields.number("burst", burst);
                if let Some(time_zone) = time_zone {
                    fields.set("time_zone", Node::text(time_zone));
                }
            }
        }
        if let Some(until) = self.until_ms {
            fields.set("until", Node::text(format_timestamp(until)));
        }
        Node::map(fields.0)
    }
}

impl Policy {
    /// The policy as a limits file: what `export` prints and `apply` reads.
    pub fn to_node(&self) -> Node {
        let mut fields = Writer::default();
        fields.set("domain", Node::text(self.domain.as_str()));
        if let Some(paused) = self.paused {
            fields.set("paused", paused.to_node());
        }
        if !self.exempt.is_empty() {
            fields.set("exempt", Exemption::list_node(&self.exempt));
        }
        fields.set("limits", Node::list(self.limits.iter().map(Limit::to_node)));
        Node::map(fields.0)
    }

    /// The record as a document: see [`Policy::from_record`].
    pub fn to_record(&self) -> Node {
        let mut node = self.to_node();
        node.set("format", Node::number(FORMAT));
        let limits = self.limits.iter().map(Limit::to_record);
        node.set("limits", Node::list(limits));
        node
    }
}

fn penalty_node(penalty: Penalty) -> Node {
    let time = |ms| Node::text(Duration(ms).to_string());
    Node::map([
        ("after", Node::number(penalty.after)),
        ("within", time(penalty.within_ms)),
        ("for", time(penalty.for_ms)),
    ])
}

pub(crate) fn matchers_node(matchers: &[Matcher]) -> Node {
    let entries = matchers.iter();
    Node::map(entries.map(|matcher| (matcher.key.as_str(), patterns_node(&matcher.patterns))))
}

pub(crate) fn patterns_node(patterns: &[Pattern]) -> Node {
    match patterns {
        [only] => Node::text(only.as_str()),
        many => Node::list(many.iter().map(|pattern| Node::text(pattern.as_str()))),
    }
}

/// The version of the meaning of a limit's fields, and that of a domain with exemptions: a reader
/// without a notion of them must not decide its limits.
const LEVEL: u64 = 1;
const LEVEL_WITH_EXEMPTIONS: u64 = 2;

impl Compiled {
    /// The snapshot with the edges of calendar windows around a time in milliseconds since the epoch.
    pub fn snapshot_at(&self, now_ms: u64) -> Vec<u8> {
        self.to_snapshot(&|parameters| calendar::edges_of(parameters, now_ms))
    }

    /// The snapshot as the filter's configuration has it: `limits`.
    pub fn snapshot_text(&self, now_ms: u64) -> String {
        to_base64(&self.snapshot_at(now_ms))
    }

    /// This policy as filters get it, as JSON for people and programs, with the edges of calendar windows
    /// around a time in milliseconds since the epoch: `GET /v1/policy` answers with it, and `rlctl apply`
    /// reads it as a limits file.
    pub fn to_snapshot_json(&self, now_ms: u64) -> Node {
        let revision = self.revision();
        // Only limiters decide limits of the rate limit service.
        let limits = self.limits().iter().enumerate();
        let limits = limits.filter(|(_, limit)| limit.descriptor.is_none());
        let mut snapshot = Node::map([
            ("format", Node::number(FORMAT)),
            ("domain", Node::text(self.domain().as_str())),
            (
                "revision",
                Node::map([
                    ("number", Node::number(revision.number)),
                    // As text: JSON readers elsewhere round large numbers.
                    ("digest", Node::text(format!("{:016x}", revision.digest))),
                ]),
            ),
            (
                "keys",
                Node::list(self.needed_keys().iter().map(|k| Node::text(k.as_str()))),
            ),
            (
                "limits",
                Node::list(limits.map(|(at, limit)| self.limit_snapshot(at, limit, now_ms))),
            ),
        ]);
        if !self.exemptions().is_empty() {
            snapshot.set("exempt", Exemption::list_node(self.exemptions()));
        }
        snapshot
    }

    /// When the edges in a snapshot of this time no longer cover the current time, in milliseconds
    /// since the epoch; `None`: it has no edges.
    pub fn snapshot_until_ms(&self, now_ms: u64) -> Option<u64> {
        let own = self.limits().iter().map(|limit| limit.quota);
        let of_proxies = self.limits().iter().enumerate();
        let of_proxies = of_proxies.filter(|(_, limit)| limit.scope == Scope::Proxy);
        let overrides = of_proxies.flat_map(|(at, limit)| {
            let overrides = self.overrides(at);
            overrides.filter_map(|found| found.quota.of(&limit.quota))
        });
        let quotas = own.chain(overrides);
        let ends = quotas.filter_map(|quota| {
            let (window, _) = calendar::window_of(quota.algorithm(), now_ms)?;
            Some(window.end_ms)
        });
        ends.min()
    }

    fn limit_snapshot(&self, at: usize, limit: &Limit, now_ms: u64) -> Node {
        let mut node = limit.to_node_without_overrides();
        node.unset("description");
        // On each limit, so that a filter too old to read it sends all requests to the limiter.
        if let Some(paused) = Pause::later(limit.paused, self.paused()) {
            node.set("paused", paused.to_node());
        }
        node.set("generation", Node::number(limit.generation));
        let level = match self.exemptions() {
            [] => LEVEL,
            _ => LEVEL_WITH_EXEMPTIONS,
        };
        node.set("level", Node::number(level));
        set_edges(&mut node, &limit.quota, now_ms);
        match limit.scope {
            Scope::Global if self.has_overrides(at) => node.set("has_overrides", true.into()),
            // Only the proxy decides these limits, so it needs their overrides.
            Scope::Proxy if self.has_overrides(at) => {
                let overrides = self.overrides(at).map(|found| {
                    let mut node = found.to_node(&limit.per);
                    if let Some(quota) = found.quota.of(&limit.quota) {
                        set_edges(&mut node, &quota, now_ms);
                    }
                    node
                });
                node.set("overrides", Node::list(overrides));
            }
            Scope::Global | Scope::Proxy => {}
        }
        node
    }
}

/// Adds the edges of calendar windows: the label of the first, their starts, and the end of the last.
fn set_edges(node: &mut Node, quota: &Quota, now_ms: u64) {
    if let Some(edges) = calendar::edges_of(quota.parameters(), now_ms) {
        let serial = u64::from(edges.serial());
        let numbers = [serial].into_iter().chain(edges.starts_ms());
        node.set("edges", Node::list(numbers.map(Node::number)));
    }
}
