//! envoyproxy/ratelimit's configuration: trees of descriptors, one or more files for a domain.
//!
//! The rules are those of its commit 6bcd4d2f8eda (it has no versions), where a `*` is a wildcard anywhere in a value.
//! Trees become one limit for each descriptor that has a `rate_limit`, and an unlimited one for each
//! that has neither a `rate_limit` nor descriptors below it, because such a descriptor keeps less
//! specific ones from applying.

use std::collections::{HashMap, HashSet};

use documents::{Entry, Field, Node, Path, Place, Problems, Value, similar};
use policy::{DescriptorPattern, EntryPattern};

use crate::{
    Conversion, File,
    assemble::{DomainDraft, Draft, Fields, Unique, assemble, name_of},
    report::{Reading, load_all, truth, yaml},
};

/// Reads files; those of one domain are merged, as with `MERGE_DOMAIN_CONFIG`.
pub(crate) fn convert(files: &[File<'_>]) -> Result<Conversion, Vec<Problems>> {
    let mut readings = load_all(files, yaml)?;
    let mut configs: Vec<(usize, RateLimitConfig)> = Vec::new();
    for (file, reading) in readings.iter_mut().enumerate() {
        configs.extend(
            read_configs(reading)
                .into_iter()
                .map(|config| (file, config)),
        );
    }
    let domains = domains(&configs, &mut readings);
    assemble(domains, readings)
}

// --- Reading a file. What envoyproxy/ratelimit rejects is an error here as well; what it accepts and
// ignores is reported.

const ROOT: [&str; 2] = ["domain", "descriptors"];
const DESCRIPTOR: [&str; 10] = [
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];
const RATE_LIMIT: [&str; 5] = ["name", "replaces", "unit", "requests_per_unit", "unlimited"];

/// The configuration in a file, or several in a `ConfigMap`; problems are reported.
fn read_configs(reading: &mut Reading) -> Vec<RateLimitConfig> {
    let nodes = std::mem::take(&mut reading.nodes);
    if let Some(second) = nodes.get(1).filter(|_| !reading.of_config_map) {
        reading
            .errors
            .add(&Path::Root, second.place, "a second document in one file")
            .push_hint("envoyproxy/ratelimit ignores it; use one file per document");
    }
    nodes
        .iter()
        .filter_map(|node| config(node, reading))
        .collect()
}

/// One of them; `None` if anything in it is wrong.
fn config(node: &Node, reading: &mut Reading) -> Option<RateLimitConfig> {
    let root = Field::root(node);
    if node.get("kind").is_some() {
        root.report(
            &mut reading.errors,
            "a Kubernetes resource, and no ConfigMap",
        )
        .push_hint("give the configuration itself, or the ConfigMap that it is in");
        return None;
    }
    let mut config = RateLimitConfig::default();
    for entry in root.entries("a `domain` and `descriptors`", &mut reading.errors)? {
        let field = root.below(entry);
        match entry.key.as_str() {
            "domain" => {
                config.domain = text(&field, "the name of a domain", reading);
                config.place = entry.value.place;
            }
            "descriptors" => config.descriptors = descriptors(&field, reading),
            _ => unexpected(&root, entry, &ROOT, reading),
        }
    }
    if config.domain.is_empty() {
        root.report(&mut reading.errors, "`domain` is missing or empty");
    }
    Some(config).filter(|_| reading.errors.problems.is_empty())
}

fn descriptors(list: &Field<'_>, reading: &mut Reading) -> Vec<Descriptor> {
    let Value::List(items) = &list.node.value else {
        list.expected("a list of descriptors", &mut reading.errors);
        return Vec::new();
    };
    let items = items
        .iter()
        .enumerate()
        .map(|(index, node)| list.item(index, node));
    items
        .filter_map(|item| descriptor(&item, reading))
        .collect()
}

fn descriptor(item: &Field<'_>, reading: &mut Reading) -> Option<Descriptor> {
    let entries = item.entries("a descriptor with a `key`", &mut reading.errors)?;
    let mut found = Descriptor {
        place: entries.first().and_then(|entry| entry.place),
        ..Descriptor::default()
    };
    for entry in entries {
        let field = item.below(entry);
        match entry.key.as_str() {
            "key" => found.key = text(&field, "a key", reading),
            "value" => found.value = text(&field, "a value", reading),
            "rate_limit" => found.rate_limit = rate_limit(&field, reading),
            "descriptors" => found.descriptors = descriptors(&field, reading),
            "shadow_mode" => found.shadow_mode = flag(&field, reading),
            "quota_mode" => found.quota_mode = flag(&field, reading),
            "share_threshold" => found.share_threshold = flag(&field, reading),
            "detailed_metric" | "value_to_metric" => {
                if flag(&field, reading) {
                    metric(&field, reading);
                }
            }
            "metadata" => {
                field
                    .report(&mut reading.lost, "this metadata is not sent to Envoy")
                    .push_hint("the answer's metadata names the limits of each descriptor instead");
            }
            _ => unexpected(item, entry, &DESCRIPTOR, reading),
        }
    }
    check(item, &found, reading);
    Some(found)
}

fn metric(field: &Field<'_>, reading: &mut Reading) {
    field
        .report(
            &mut reading.changed,
            "metrics never hold values, only names of limits",
        )
        .push_hint("`rlctl top` and `rlctl denials` show which values use a limit most");
}

/// Checks a descriptor as envoyproxy/ratelimit does.
fn check(item: &Field<'_>, found: &Descriptor, reading: &mut Reading) {
    let place = found.place.or(item.node.place);
    let errors = &mut reading.errors;
    if found.key.is_empty() {
        errors.add(&item.path, place, "a descriptor needs a `key`");
    }
    let composite = found.composite_key();
    if found.share_threshold && !composite.contains('*') {
        let path = Path::Field(&item.path, "share_threshold");
        errors
            .add(&path, place, "only values with a `*` can share a threshold")
            .push_hint("a key without a value: leave the entry out of the descriptor instead");
    }
}

fn rate_limit(limit: &Field<'_>, reading: &mut Reading) -> Option<RateLimit> {
    let entries = limit.entries("a `unit` and `requests_per_unit`", &mut reading.errors)?;
    let (mut name, mut replaces) = (String::new(), Vec::new());
    let (mut unit, mut requests, mut unlimited) = (None, 0, false);
    for entry in entries {
        let field = limit.below(entry);
        match entry.key.as_str() {
            "name" => name = text(&field, "the name of a limit", reading),
            "replaces" => replaces = read_replaces(&field, reading),
            "unit" => unit = read_unit(&field, reading),
            "requests_per_unit" => requests = read_requests(&field, reading).unwrap_or(0),
            "unlimited" => unlimited = flag(&field, reading),
            _ => unexpected(limit, entry, &RATE_LIMIT, reading),
        }
    }
    if !name.is_empty() && replaces.contains(&name) {
        limit.report(&mut reading.errors, format!("`{name}` replaces itself"));
    }
    let has_unit = limit.node.get("unit").is_some();
    let quota = match (unlimited, unit) {
        (true, None) if !has_unit => {
            if requests > 0 {
                let message = "`requests_per_unit` has no effect beside `unlimited`";
                limit
                    .report(&mut reading.changed, message)
                    .push_hint("nor has it in envoyproxy/ratelimit");
            }
            Quota::Unlimited
        }
        (true, _) => {
            limit.report(&mut reading.errors, "both `unlimited` and a `unit`");
            return None;
        }
        (false, Some(period)) => Quota::Rate { requests, period },
        (false, None) => {
            if !has_unit {
                limit
                    .report(&mut reading.errors, "a rate limit needs a `unit`")
                    .push_hint("or `unlimited: true`");
            }
            return None;
        }
    };
    Some(RateLimit {
        name,
        replaces,
        quota,
    })
}

fn read_replaces(list: &Field<'_>, reading: &mut Reading) -> Vec<String> {
    let Value::List(items) = &list.node.value else {
        list.expected("a list of names, like [{name: other}]", &mut reading.errors);
        return Vec::new();
    };
    let mut names = Vec::new();
    for (index, node) in items.iter().enumerate() {
        let item = list.item(index, node);
        match node.get("name").and_then(Node::as_text) {
            Some(name) if !name.is_empty() => names.push(name.to_owned()),
            _ => {
                item.report(
                    &mut reading.errors,
                    "expected the name of a limit, like {name: other}",
                );
            }
        }
    }
    names
}

fn read_unit(field: &Field<'_>, reading: &mut Reading) -> Option<&'static str> {
    let lower = { field.text("a unit of time", &mut reading.errors)? }.to_ascii_lowercase();
    let found = UNITS.iter().find(|(word, _)| *word == lower);
    if found.is_none() {
        let words = UNITS.map(|(word, _)| word);
        let what = format!("one of {}", words.join(", "));
        let problem = field.expected(&what, &mut reading.errors);
        if let Some(meant) = similar(&lower, &words) {
            problem.push_hint(format!("did you mean `{meant}`?"));
        }
    }
    found.map(|(_, period)| *period)
}

fn read_requests(field: &Field<'_>, reading: &mut Reading) -> Option<u32> {
    let digits = field.node.as_text().map(|text| text.replace('_', ""));
    let number = digits.and_then(|digits| digits.parse().ok());
    if number.is_none() {
        let what = format!("a whole number of at most {}", u32::MAX);
        field.expected(&what, &mut reading.errors);
    }
    number
}

/// Reports a field that envoyproxy/ratelimit has elsewhere and ignores here.
fn unexpected(parent: &Field<'_>, entry: &Entry, expected: &[&str], reading: &mut Reading) {
    let path = Path::Field(&parent.path, &entry.key);
    let known = [&ROOT[..], &DESCRIPTOR, &RATE_LIMIT].concat();
    if known.contains(&entry.key.as_str()) {
        let message = format!("`{}` has no effect here", entry.key);
        reading
            .changed
            .add(&path, entry.place, message)
            .push_hint("nor has it in envoyproxy/ratelimit, which ignores it");
        return;
    }
    let problem = reading.errors.add(&path, entry.place, "unknown field");
    match similar(&entry.key, expected) {
        Some(meant) => problem.push_hint(format!("did you mean `{meant}`?")),
        None => problem.push_hint(format!("known fields: {}", expected.join(", "))),
    }
}

fn text(field: &Field<'_>, what: &str, reading: &mut Reading) -> String {
    let text = field.text(what, &mut reading.errors);
    text.unwrap_or_default().to_owned()
}

fn flag(field: &Field<'_>, reading: &mut Reading) -> bool {
    let found = field.node.as_text().and_then(truth);
    if found.is_none() {
        field.expected("true or false", &mut reading.errors);
    }
    found.unwrap_or(false)
}

// --- The configuration of envoyproxy/ratelimit.

/// The limits of one domain, or a part of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RateLimitConfig {
    /// The domain.
    pub domain: String,
    /// The position of the domain, if it was read from a file.
    pub place: Option<Place>,
    /// The descriptors at the top.
    pub descriptors: Vec<Descriptor>,
}

/// A key, perhaps with a value, its limit and the descriptors below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The key of the entry.
    pub key: String,
    /// Its value; each `*` matches any text, and an empty value matches any value.
    pub value: String,
    /// Its position, if it was read from a file.
    pub place: Option<Place>,
    /// `rate_limit`.
    pub rate_limit: Option<RateLimit>,
    /// A request over the limit passes, and is counted.
    pub shadow_mode: bool,
    /// A request over the limit passes as long as another such limit has units left.
    pub quota_mode: bool,
    /// The values that a wildcard matches share one bucket.
    pub share_threshold: bool,
    /// The descriptors below.
    pub descriptors: Vec<Descriptor>,
}

/// The limit of a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The name by which `replaces` of other limits refers to it.
    pub name: String,
    /// The limits that this one suppresses.
    pub replaces: Vec<String>,
    /// The number.
    pub quota: Quota,
}

/// A rate, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// Not limited.
    Unlimited,
    /// This many requests in each unit of time.
    Rate {
        /// The number.
        requests: u32,
        /// The length of a window, as a limits file writes it.
        period: &'static str,
    },
}

/// The lengths of windows, as a limits file writes them. In envoyproxy/ratelimit a month has 30 days and a
/// year 365.
const UNITS: [(&str, &str); 7] = [
    ("second", "s"),
    ("minute", "m"),
    ("hour", "h"),
    ("day", "d"),
    ("week", "7d"),
    ("month", "30d"),
    ("year", "365d"),
];

impl Descriptor {
    /// `key` or `key_value`: envoyproxy/ratelimit distinguishes the descriptors of one list by it,
    /// and uses it in the names of statistics.
    pub(crate) fn composite_key(&self) -> String {
        if self.value.is_empty() {
            self.key.clone()
        } else {
            format!("{}_{}", self.key, self.value)
        }
    }
}

// --- Turns the trees into limits: one for each path from the root to a `rate_limit`.

/// Longer than the path of any request, and safe for the stack.
const MAX_DEPTH: usize = 32;

/// Limits of a domain, as many as a limits file may have, and names in all their `replaces`.
const MAX_LIMITS: usize = 10_000;
/// Keys and values of all descriptors of these limits, in bytes. What is stored may take a quarter.
const MAX_BYTES: usize = 4 << 20;
const MAX_REPLACED: usize = 100_000;

/// The limits of all domains, in the order in which the domains appear; each configuration comes
/// with the number of its file.
fn domains(configs: &[(usize, RateLimitConfig)], readings: &mut [Reading]) -> Vec<DomainDraft> {
    let mut order: Vec<&str> = Vec::new();
    let mut by_domain: HashMap<&str, Vec<(usize, &RateLimitConfig)>> = HashMap::new();
    for (file, config) in configs {
        let parts = by_domain.entry(&config.domain).or_default();
        if parts.is_empty() {
            order.push(&config.domain);
        } else if let Some(reading) = readings.get_mut(*file) {
            let message = format!("more of the domain `{}`, which is merged", config.domain);
            reading
                .changed
                .add(&Path::Root, config.place, message)
                .push_hint(
                    "envoyproxy/ratelimit does so with MERGE_DOMAIN_CONFIG, else it refuses",
                );
        }
        parts.push((*file, config));
    }
    let parts = order
        .into_iter()
        .filter_map(|name| Some((name, by_domain.get(name)?)));
    parts
        .map(|(name, parts)| domain(name, parts, readings))
        .collect()
}

fn domain(
    name: &str,
    parts: &[(usize, &RateLimitConfig)],
    readings: &mut [Reading],
) -> DomainDraft {
    let mut rules = Vec::new();
    let mut composite_keys = HashSet::new();
    for (file, config) in parts {
        let Some(reading) = readings.get_mut(*file) else {
            continue;
        };
        let mut walk = Walk {
            file: *file,
            reading,
            rules: &mut rules,
        };
        walk.list(&config.descriptors, &[], &mut composite_keys);
    }
    if let Some(rule) = rules.get(MAX_LIMITS)
        && let Some(reading) = readings.get_mut(rule.file)
    {
        let message = format!("more than {MAX_LIMITS} limits in the domain");
        reading.errors.add(&Path::Root, rule.last.place, message);
        rules.truncate(MAX_LIMITS);
    }
    let bytes = |rule: &Rule<'_>| -> usize {
        let way = rule.way.iter();
        way.map(|on| on.key.len() + on.value.len() + 1).sum()
    };
    // Counted before any is written out: each limit repeats what is above it.
    let mut written = 0_usize;
    let beyond = rules.iter().find(|rule| {
        written = written.saturating_add(bytes(rule));
        written > MAX_BYTES
    });
    if let Some(rule) = beyond
        && let Some(reading) = readings.get_mut(rule.file)
    {
        let message = format!("the descriptors of the domain's limits take over {MAX_BYTES} bytes");
        let problem = { &mut reading.errors }.add(&Path::Root, rule.last.place, message);
        problem.push_hint("each limit has the keys and values above it, too");
        rules.clear();
    }
    let mut names = Names::from_rules(&rules);
    let mut limits = Vec::with_capacity(rules.len());
    for rule in &rules {
        if let Some(reading) = readings.get_mut(rule.file) {
            limits.push(Draft {
                node: names.limit(rule, reading),
                file: rule.file,
                place: rule.last.place,
            });
        }
    }
    DomainDraft {
        name: name.to_owned(),
        limits,
    }
}

/// A descriptor that decides about requests, and its ancestors.
struct Rule<'c> {
    file: usize,
    way: Vec<&'c Descriptor>,
    last: &'c Descriptor,
}

impl<'c> Rule<'c> {
    fn rate_limit(&self) -> Option<&'c RateLimit> {
        self.last.rate_limit.as_ref()
    }

    /// The name given in the configuration.
    fn given_name(&self) -> Option<&'c str> {
        let name = self.rate_limit().map(|limit| limit.name.as_str());
        name.filter(|name| !name.is_empty())
    }

    /// The name in envoyproxy/ratelimit's statistics, within the domain.
    fn full_key(&self) -> String {
        let keys: Vec<String> = self.way.iter().map(|on| on.composite_key()).collect();
        keys.join(".")
    }
}

struct Walk<'w, 'c> {
    file: usize,
    reading: &'w mut Reading,
    rules: &'w mut Vec<Rule<'c>>,
}

impl<'c> Walk<'_, 'c> {
    fn list(
        &mut self,
        descriptors: &'c [Descriptor],
        above: &[&'c Descriptor],
        composite_keys: &mut HashSet<String>,
    ) {
        for descriptor in descriptors {
            let key = descriptor.composite_key();
            if !composite_keys.insert(key.clone()) {
                let message = format!("a second descriptor `{key}` in the same list");
                self.reading
                    .errors
                    .add(&Path::Root, descriptor.place, message);
            }
            let mut way = above.to_vec();
            way.push(descriptor);
            self.below(descriptor, way);
        }
    }

    fn below(&mut self, descriptor: &'c Descriptor, way: Vec<&'c Descriptor>) {
        if way.len() > MAX_DEPTH {
            let message = format!("more than {MAX_DEPTH} descriptors below one another");
            self.reading
                .errors
                .add(&Path::Root, descriptor.place, message);
            return;
        }
        self.note(descriptor);
        self.list(&descriptor.descriptors, &way, &mut HashSet::new());
        // A descriptor with neither a limit nor children ends the search, and limits nothing.
        if descriptor.rate_limit.is_some() || descriptor.descriptors.is_empty() {
            self.rules.push(Rule {
                file: self.file,
                way,
                last: descriptor,
            });
        }
    }

    fn note(&mut self, descriptor: &Descriptor) {
        if descriptor.key.contains('*') {
            let message = format!(
                "the `*` in the key `{}` stands only for itself",
                descriptor.key
            );
            self.reading
                .changed
                .add(&Path::Root, descriptor.place, message)
                .push_hint("envoyproxy/ratelimit takes it for a wildcard, as in a value");
        }
        let limit = descriptor.rate_limit.as_ref();
        let is_rate = limit.is_some_and(|limit| limit.quota != Quota::Unlimited);
        for (field, of) in [
            ("shadow_mode", descriptor.shadow_mode && !is_rate),
            ("quota_mode", descriptor.quota_mode && limit.is_none()),
        ] {
            if of {
                let message = format!("`{field}` has no effect without a rate beside it");
                { &mut self.reading.changed }
                    .add(&Path::Root, descriptor.place, message)
                    .push_hint("nor has it in envoyproxy/ratelimit");
            }
        }
    }
}

/// The names of all limits of a domain, and the limits that each given name stands for.
struct Names<'c> {
    unique: Unique,
    by_given_name: HashMap<&'c str, Vec<String>>,
    in_order: std::vec::IntoIter<String>,
    replaced: usize,
}

impl<'c> Names<'c> {
    fn from_rules(rules: &[Rule<'c>]) -> Self {
        let mut given: HashMap<&str, usize> = HashMap::new();
        for name in rules.iter().filter_map(Rule::given_name) {
            *given.entry(name).or_default() += 1;
        }
        let mut unique = Unique::default();
        let mut by_given_name: HashMap<&str, Vec<String>> = HashMap::new();
        let mut in_order = Vec::with_capacity(rules.len());
        for rule in rules {
            // A given name need not be unique.
            let alone = rule.given_name().filter(|name| given.get(name) == Some(&1));
            let name = unique.name(&alone.map_or_else(|| rule.full_key(), str::to_owned));
            if let Some(given) = rule.given_name() {
                by_given_name.entry(given).or_default().push(name.clone());
            }
            in_order.push(name);
        }
        Self {
            unique,
            by_given_name,
            in_order: in_order.into_iter(),
            replaced: 0,
        }
    }

    /// The limit of the next rule.
    fn limit(&mut self, rule: &Rule<'c>, reading: &mut Reading) -> Node {
        let full_key = rule.full_key();
        let name = self.in_order.next();
        let name = name.unwrap_or_else(|| self.unique.name(&full_key));
        let mut fields = Fields::default();
        let shows_all = name == name_of(&full_key) && name == full_key;
        fields.text("name", name);
        if !shows_all {
            fields.description(&full_key);
        }
        fields.set("descriptor", pattern(rule, reading));
        let last = rule.last;
        if rule.way.iter().any(|on| on.share_threshold) {
            fields.set("share_threshold", share_threshold(rule));
        }
        match rule.rate_limit().map(|limit| limit.quota) {
            Some(Quota::Rate { requests, period }) => {
                fields.text("algorithm", "fixed_window");
                fields.text("rate", format!("{requests}/{period}"));
                if last.shadow_mode {
                    fields.text("enforce", "0%");
                }
            }
            Some(Quota::Unlimited) | None => fields.set("unlimited", true.into()),
        }
        if last.quota_mode && rule.rate_limit().is_some() {
            fields.set("quota_mode", true.into());
        }
        let replaced = self.replaced(rule, reading);
        if !replaced.is_empty() {
            fields.set("replaces", Node::list(replaced.into_iter().map(Node::text)));
        }
        fields.finish()
    }

    fn replaced(&mut self, rule: &Rule<'c>, reading: &mut Reading) -> Vec<String> {
        let mut replaced: Vec<String> = Vec::new();
        for given in rule.rate_limit().map_or(&[][..], |limit| &limit.replaces) {
            let Some(names) = self.by_given_name.get(given.as_str()) else {
                let message = format!("no limit of the domain is called `{given}`");
                reading
                    .changed
                    .add(&Path::Root, rule.last.place, message)
                    .push_hint("so it replaces nothing, here as in envoyproxy/ratelimit");
                continue;
            };
            self.replaced = self.replaced.saturating_add(names.len());
            if self.replaced > MAX_REPLACED {
                let message = format!("`replaces` stand for more than {MAX_REPLACED} limits");
                let place = rule.last.place;
                reading.errors.add(&Path::Root, place, message);
                break;
            }
            replaced.extend(names.iter().cloned());
        }
        // A limit may be listed twice.
        let mut known = HashSet::new();
        replaced.retain(|name| known.insert(name.clone()));
        replaced
    }
}

fn pattern(rule: &Rule<'_>, reading: &mut Reading) -> Node {
    let entries = rule.way.iter().map(|on| match on.value.as_str() {
        "" => EntryPattern::any(&on.key),
        value => EntryPattern::wildcard(&on.key, value),
    });
    match DescriptorPattern::new(entries.collect()) {
        Ok(pattern) => Node::list(pattern.to_items().into_iter().map(Node::text)),
        Err(error) => {
            let place = rule.last.place;
            reading.errors.add(&Path::Root, place, error.to_string());
            Node::list([])
        }
    }
}

/// `true` if all wildcards share, or else the keys of those that do.
fn share_threshold(rule: &Rule<'_>) -> Node {
    let wildcards = || rule.way.iter().filter(|on| on.value.contains('*'));
    if wildcards().all(|on| on.share_threshold) {
        return true.into();
    }
    let shared = wildcards().filter(|on| on.share_threshold);
    Node::list(shared.map(|on| Node::text(&on.key)))
}
