//! Turns the trees into limits: one for each path from the root to a `rate_limit`.

use std::collections::{HashMap, HashSet};

use documents::{Node, Path};
use policy::{DescriptorPattern, EntryPattern};

use super::{Descriptor, Quota, RateLimit, RateLimitConfig};
use crate::{
    assemble::{DomainDraft, Draft, Fields},
    names::{Unique, name_of},
    report::Reading,
};

/// Longer than the path of any request, and safe for the stack.
const MAX_DEPTH: usize = 32;

/// Limits of a domain, as many as a limits file may have, and names in all their `replaces`.
const MAX_LIMITS: usize = 10_000;
const MAX_REPLACED: usize = 100_000;

/// The limits of all domains, in the order in which the domains appear; each configuration comes
/// with the number of its file.
pub(super) fn domains(
    configs: &[(usize, RateLimitConfig)],
    readings: &mut [Reading],
) -> Vec<DomainDraft> {
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
    let mut names = Names::of(&rules);
    let mut limits = Vec::with_capacity(rules.len());
    for rule in &rules {
        if let Some(reading) = readings.get_mut(rule.file) {
            limits.push(Draft {
                node: names.limit(rule, reading),
                file: rule.file,
                place: rule.descriptor().place,
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
    fn descriptor(&self) -> &'c Descriptor {
        self.last
    }

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
        if descriptor.rate_limit.is_none() && descriptor.shadow_mode {
            let message = "`shadow_mode` has no effect without a `rate_limit` beside it";
            self.reading
                .changed
                .add(&Path::Root, descriptor.place, message)
                .push_hint("nor has it in envoyproxy/ratelimit");
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
    fn of(rules: &[Rule<'c>]) -> Self {
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
        let last = rule.descriptor();
        if rule.way.iter().any(|on| on.share_threshold) {
            fields.set("share_threshold", share_threshold(rule));
        }
        match rule.rate_limit().map(|limit| limit.quota) {
            Some(Quota::Rate { requests, unit }) => {
                fields.text("algorithm", "fixed_window");
                fields.text("rate", format!("{requests}/{}", unit.period()));
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
                    .add(&Path::Root, rule.descriptor().place, message)
                    .push_hint("so it replaces nothing, here as in envoyproxy/ratelimit");
                continue;
            };
            self.replaced = self.replaced.saturating_add(names.len());
            if self.replaced > MAX_REPLACED {
                let message = format!("`replaces` stand for more than {MAX_REPLACED} limits");
                let place = rule.descriptor().place;
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
            let place = rule.descriptor().place;
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
