//! Writes policies as documents (limits files and stored records): only what differs from the defaults, in the
//! order of the manual.

use algorithms::{Adaptive, Kind, Penalty};
use documents::{Choice, Duration, Name, Node, format_timestamp, value_to_node};
use patterns::Pattern;
use policy::{
    ChoiceOf, Compiled, DEFAULT_MAX_DELAY_MS, DEFAULT_SHARE, DescriptorLimit, Exemption, IfAbsent,
    IfMissing, Limit, MAX_COST, Matcher, OnFailure, OverLimit, Override, OverrideQuota, Pause,
    Policy, Pricing, RateText, RequestPlace, RequestPrice, RequestValue, Reserve, ResponsePrice,
    ResponseValue, Row, Scope, ShareText, Source, Term,
};

use crate::read::DEFAULT_SLOT_TTL_MS;

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

/// What a document can have.
pub trait ToNode {
    /// As its author would write it: the fields that differ from the defaults.
    fn to_node(&self) -> Node;
}

impl ToNode for Limit {
    fn to_node(&self) -> Node {
        let mut node = node_without_overrides(self);
        if !self.overrides.is_empty() {
            let overrides = self.overrides.iter();
            let overrides = overrides.map(|found| override_node(found, &self.per));
            node.set("overrides", Node::list(overrides));
        }
        node
    }
}

/// As [`ToNode::to_node`], for stores that keep the overrides separately.
pub fn node_without_overrides(limit: &Limit) -> Node {
    let mut fields = Writer::default();
    fields.set("name", Node::text(limit.name.as_str()));
    if let Some(description) = &limit.description {
        fields.set("description", Node::text(description));
    }
    match &limit.descriptor {
        Some(rule) => write_descriptor(rule, &mut fields),
        None => write_applies(limit, &mut fields),
    }
    write_numbers(limit, &mut fields);
    write_handling(limit, &mut fields);
    Node::map(fields.0)
}

fn write_applies(limit: &Limit, fields: &mut Writer) {
    if !limit.matchers.is_empty() {
        fields.set("match", matchers_node(&limit.matchers));
    }
    fields.names("per", &limit.per);
    fields.choice::<IfMissing>("if_missing", limit.if_missing);
}

fn write_numbers(limit: &Limit, fields: &mut Writer) {
    if limit.is_unlimited() {
        return;
    }
    let parameters = limit.quota.parameters();
    fields.set("algorithm", Node::text(ChoiceOf(parameters.kind).word()));
    if parameters.kind == Kind::Concurrency {
        fields.number("limit", Some(parameters.rate.units));
        let ttl_ms = Some(parameters.rate.period_ms).filter(|ms| *ms != DEFAULT_SLOT_TTL_MS);
        if let Some(ms) = ttl_ms {
            fields.set("slot_ttl", Node::text(Duration(ms).to_string()));
        }
        if let Some(rule) = parameters.adaptive {
            fields.set("adaptive", adaptive_node(rule));
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
        fields.set("align", Node::text(ChoiceOf(align).word()));
    }
    if let Some(time_zone) = parameters.time_zone {
        fields.set("time_zone", Node::text(time_zone));
    }
    if let Some(day) = parameters.week_start {
        fields.set("week_start", Node::text(ChoiceOf(day).word()));
    }
    match &limit.pricing {
        Some(pricing) => fields.set("cost", pricing.to_node()),
        None => fields.number("cost", Some(limit.cost).filter(|cost| *cost != 1)),
    }
    fields.choice::<OverLimit>("over_limit", limit.over_limit);
    if let Some(ms) = parameters
        .max_delay_ms
        .filter(|ms| *ms != DEFAULT_MAX_DELAY_MS)
    {
        fields.set("max_delay", Node::text(Duration(ms).to_string()));
    }
    fields.number("deny_status", limit.deny_status.map(u64::from));
    if let Some(penalty) = limit.penalty {
        fields.set("penalty", penalty_node(penalty));
    }
}

fn write_handling(limit: &Limit, fields: &mut Writer) {
    if limit.enforce_percent != 100 {
        fields.set("enforce", Node::text(format!("{}%", limit.enforce_percent)));
    }
    fields.choice::<OnFailure>("on_failure", limit.on_failure);
    fields.choice::<Scope>("scope", limit.scope);
    if let Some(percent) = limit.precheck_percent {
        fields.set("precheck", Node::text(format!("{percent}%")));
    }
    if let Some(ms) = limit.lease_ttl_ms {
        let ttl = Node::text(Duration(ms).to_string());
        fields.set("lease", Node::map([("ttl", ttl)]));
    }
    if limit.hidden {
        fields.set("hidden", true.into());
    }
    fields.names("replaces", &limit.replaces);
    fields.names("partition", &limit.partition);
    fields.number("fleet_size", limit.fleet_size);
    if let Some(paused) = limit.paused {
        fields.set("paused", paused.to_node());
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

/// The override as its author would write it; `per` is the limit's.
pub fn override_node(found: &Override, per: &[Name]) -> Node {
    let values = per.iter().zip(&found.values);
    let values = values.map(|(key, value)| (key.as_str(), value_to_node(value.as_deref())));
    let mut fields = Writer::default();
    fields.set("values", Node::map(values));
    match found.quota {
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
    if let Some(until) = found.until_ms {
        fields.set("until", Node::text(format_timestamp(until)));
    }
    Node::map(fields.0)
}

impl ToNode for Policy {
    fn to_node(&self) -> Node {
        let mut node = domain_node(&self.domain, self.paused, &self.exempt);
        let limits = self.limits.iter().map(ToNode::to_node);
        node.set("limits", Node::list(limits));
        node
    }
}

/// Without overrides, of which there may be very many.
impl ToNode for Compiled {
    fn to_node(&self) -> Node {
        let mut node = domain_node(self.domain(), self.paused(), self.exemptions());
        let limits = self.limits().iter();
        let limits = limits.map(|limit| node_without_overrides(limit));
        node.set("limits", Node::list(limits));
        node
    }
}

/// What a limits file says besides its limits.
pub fn domain_node(domain: &Name, paused: Option<Pause>, exempt: &[Exemption]) -> Node {
    let mut fields = Writer::default();
    fields.set("domain", Node::text(domain.as_str()));
    if let Some(paused) = paused {
        fields.set("paused", paused.to_node());
    }
    if !exempt.is_empty() {
        fields.set("exempt", exemptions_node(exempt));
    }
    Node::map(fields.0)
}

impl ToNode for Exemption {
    fn to_node(&self) -> Node {
        Node::map([
            ("name", Node::text(self.name.as_str())),
            ("match", matchers_node(&self.matchers)),
        ])
    }
}

/// Exemptions as a domain lists them.
pub fn exemptions_node(exemptions: &[Exemption]) -> Node {
    Node::list(exemptions.iter().map(ToNode::to_node))
}

/// The value of `paused`.
impl ToNode for Pause {
    fn to_node(&self) -> Node {
        match self.until_ms {
            None => true.into(),
            Some(0) => false.into(),
            Some(ms) => Node::map([("until", Node::text(format_timestamp(ms)))]),
        }
    }
}

fn adaptive_node(rule: Adaptive) -> Node {
    let mut node = Node::map([
        ("min", Node::number(rule.min)),
        ("max", Node::number(rule.max)),
        ("latency", Node::text(Duration(rule.latency_ms).to_string())),
    ]);
    if rule.share != DEFAULT_SHARE {
        node.set("share", Node::text(ShareText(rule.share).to_string()));
    }
    node
}

fn penalty_node(penalty: Penalty) -> Node {
    let time = |ms| Node::text(Duration(ms).to_string());
    let mut node = Node::map([
        ("after", Node::number(penalty.after)),
        ("within", time(penalty.within_ms)),
        ("for", time(penalty.for_ms)),
    ]);
    if penalty.grow > 1 {
        node.set("grow", Node::number(penalty.grow));
        node.set("max", time(penalty.max_ms));
    }
    node
}

fn matchers_node(matchers: &[Matcher]) -> Node {
    let entries = matchers.iter();
    Node::map(entries.map(|matcher| (matcher.key.as_str(), patterns_node(&matcher.patterns))))
}

fn patterns_node(patterns: &[Pattern]) -> Node {
    match patterns {
        [only] => Node::text(only.as_str()),
        many => Node::list(many.iter().map(|pattern| Node::text(pattern.as_str()))),
    }
}

// ---- costs ----

impl ToNode for Pricing {
    fn to_node(&self) -> Node {
        match self {
            Self::Request(price) => price.to_node(),
            Self::Response(price) => price.to_node(),
        }
    }
}

impl ToNode for RequestPrice {
    fn to_node(&self) -> Node {
        let mut fields = Vec::new();
        if !self.from.is_empty() {
            fields.push(("from", one_or_list(&self.from)));
        }
        if !self.table.is_empty() {
            fields.push(("table", Node::list(self.table.iter().map(ToNode::to_node))));
        }
        fields.push(("default", Node::number(self.default)));
        Node::map(fields)
    }
}

impl ToNode for Row {
    fn to_node(&self) -> Node {
        Node::map([
            ("match", matchers_node(&self.matchers)),
            ("units", Node::number(self.units)),
        ])
    }
}

impl ToNode for RequestValue {
    fn to_node(&self) -> Node {
        let mut fields = vec![match &self.place {
            RequestPlace::Header(name) => ("request_header", Node::text(name)),
            RequestPlace::Json(pointer) => ("request_json", Node::text(pointer.to_string())),
        }];
        if self.min > 0 {
            fields.push(("min", Node::number(self.min)));
        }
        if self.max < MAX_COST {
            fields.push(("max", Node::number(self.max)));
        }
        Node::map(fields)
    }
}

impl ToNode for ResponsePrice {
    fn to_node(&self) -> Node {
        let mut fields = vec![("from", one_or_list(&self.from))];
        if let [Source::Status { units, .. }] = self.from.as_slice() {
            fields.push(("units", Node::number(*units)));
        }
        fields.push(("reserve", self.reserve.to_node()));
        if let Some(units) = self.on_error.filter(|units| *units > 0) {
            fields.push(("on_error", Node::number(units)));
        }
        match self.if_absent {
            IfAbsent::Estimate if !self.has_status() => {}
            IfAbsent::Reserved if self.has_status() => {}
            IfAbsent::Estimate => fields.push(("if_absent", Node::text("estimate"))),
            IfAbsent::Reserved => fields.push(("if_absent", Node::text("reserved"))),
            IfAbsent::Max => fields.push(("if_absent", Node::text("max"))),
            IfAbsent::Units(units) => fields.push(("if_absent", Node::number(units))),
        }
        if self.has_max() {
            fields.push(("max", Node::number(self.max)));
        }
        Node::map(fields)
    }
}

impl ToNode for Reserve {
    fn to_node(&self) -> Node {
        if self.from.is_empty() && self.cap_percent == 100 {
            return Node::number(self.default);
        }
        let mut fields = Vec::new();
        if !self.from.is_empty() {
            fields.push(("from", one_or_list(&self.from)));
        }
        fields.push(("default", Node::number(self.default)));
        if self.cap_percent != 100 {
            fields.push(("cap", Node::text(format!("{}%", self.cap_percent))));
        }
        Node::map(fields)
    }
}

impl ToNode for Source {
    fn to_node(&self) -> Node {
        match self {
            Self::Status { of, .. } => {
                let statuses = of.iter().map(|(from, to)| {
                    if from == to {
                        Node::number(u64::from(*from))
                    } else {
                        Node::text(format!("{}xx", from / 100))
                    }
                });
                Node::map([("status", Node::list(statuses))])
            }
            Self::Sum(terms) => match terms.as_slice() {
                [only] => only.to_node(),
                many => Node::map([("sum", Node::list(many.iter().map(ToNode::to_node)))]),
            },
        }
    }
}

impl ToNode for Term {
    fn to_node(&self) -> Node {
        let texts = |keys: &[String]| Node::list(keys.iter().map(Node::text));
        let place = match &self.place {
            ResponseValue::Json(pointer) => ("response_json", Node::text(pointer.to_string())),
            ResponseValue::Header(name) => ("response_header", Node::text(name)),
            ResponseValue::Trailer(name) => ("response_trailer", Node::text(name)),
            ResponseValue::Metadata(keys) => ("metadata", texts(keys)),
        };
        let mut fields = vec![place];
        if self.weight != 1 {
            fields.push(("weight", Node::number(self.weight)));
        }
        Node::map(fields)
    }
}

fn one_or_list(items: &[impl ToNode]) -> Node {
    match items {
        [only] => only.to_node(),
        many => Node::list(many.iter().map(ToNode::to_node)),
    }
}
