//! Which limit applies to a descriptor of the rate limit service: a walk from entry to entry,
//! without backtracking. At each entry it prefers the exact value, then the first wildcard, then
//! the key alone; the last entry has to end at a limit.

use std::{collections::BTreeMap, sync::Arc};

use algorithms::{Kind, Parameters};

use documents::Name;

use super::Compiled;
use crate::{
    Algorithm, BucketEdits, ChargeMode, DESCRIPTOR, Entries, EntryPattern, IfMissing, Limit,
    OnFailure, OverLimit, REQUEST_LIMIT, Scope, SentDescriptor, push_entry,
};

/// The descriptors of a policy's limits, as a tree.
#[derive(Debug)]
pub(super) struct Walk {
    /// A walk starts at the first.
    nodes: Vec<Node>,
    /// Whether any of the limits charges only what fits.
    has_fitting: bool,
    /// Whether any of the limits denies only together with others.
    has_quotas: bool,
}

#[derive(Debug, Default)]
struct Node {
    /// By key and value, as an entry of a descriptor's text.
    exact: BTreeMap<Vec<u8>, usize>,
    /// In the order of the policy.
    wildcards: BTreeMap<Vec<u8>, Vec<(EntryPattern, usize)>>,
    /// By key.
    any: BTreeMap<Vec<u8>, usize>,
    /// The limit that a walk which ends here finds.
    limit: Option<usize>,
}

fn is_fitting(limit: &Limit) -> bool {
    let rule = limit.descriptor.as_ref();
    rule.is_some_and(|rule| rule.charge == ChargeMode::Fitting)
}

impl Compiled {
    /// Whether any limit replaces others.
    pub fn has_replaces(&self) -> bool {
        self.shape.has_replaces
    }

    /// Whether the limit of the rate limit service that applies to these entries charges only what
    /// fits, at a time in milliseconds since the epoch.
    pub fn is_fitting(&self, entries: &(impl Entries + ?Sized), now_ms: u64) -> bool {
        let walk = self.shape.service.walk.as_ref();
        let matches = || self.matching(entries, now_ms);
        walk.is_some_and(|walk| walk.has_fitting)
            && matches().iter().any(|found| is_fitting(found.limit))
    }

    /// Whether the limit of the rate limit service that applies to these entries denies only together
    /// with others (`quota_mode`), at a time in milliseconds since the epoch.
    pub fn has_quota_mode(&self, entries: &(impl Entries + ?Sized), now_ms: u64) -> bool {
        let walk = self.shape.service.walk.as_ref();
        let matches = || self.matching(entries, now_ms);
        walk.is_some_and(|walk| walk.has_quotas)
            && matches().iter().any(|found| found.limit.has_quota_mode())
    }
}

impl Walk {
    /// `None` where no limit has a descriptor.
    pub(super) fn new(limits: &[Arc<Limit>]) -> Option<Self> {
        let mut walk = Self {
            nodes: vec![Node::default()],
            has_fitting: limits.iter().any(|limit| is_fitting(limit)),
            has_quotas: limits.iter().any(|limit| limit.has_quota_mode()),
        };
        let mut wildcards = BTreeMap::new();
        for (index, limit) in limits.iter().enumerate() {
            let Some(rule) = &limit.descriptor else {
                continue;
            };
            let mut at = 0;
            for entry in rule.pattern.entries() {
                at = walk.child(at, entry, &mut wildcards);
            }
            if let Some(node) = walk.nodes.get_mut(at) {
                node.limit.get_or_insert(index);
            }
        }
        (walk.nodes.len() > 1).then_some(walk)
    }

    /// The node after an entry, created if there is none.
    fn child(
        &mut self,
        at: usize,
        entry: &EntryPattern,
        known_wildcards: &mut BTreeMap<(usize, String), usize>,
    ) -> usize {
        let new = self.nodes.len();
        let Some(node) = self.nodes.get_mut(at) else {
            return 0;
        };
        let key = entry.key().as_bytes().to_vec();
        let child = if let Some(value) = entry.exact_value() {
            let mut text = Vec::new();
            push_entry(&mut text, &key, value.as_bytes());
            *node.exact.entry(text).or_insert(new)
        } else if entry.is_wildcard() {
            let child = *known_wildcards
                .entry((at, entry.to_string()))
                .or_insert(new);
            if child == new {
                node.wildcards
                    .entry(key)
                    .or_default()
                    .push((entry.clone(), new));
            }
            child
        } else {
            *node.any.entry(key).or_insert(new)
        };
        if child == new {
            self.nodes.push(Node::default());
        }
        child
    }

    /// The limit that applies to a descriptor.
    pub(super) fn find(&self, descriptor: &SentDescriptor<'_>) -> Option<usize> {
        let mut node = self.nodes.first()?;
        let mut text = Vec::new();
        for (key, value) in descriptor.entries() {
            text.clear();
            push_entry(&mut text, key, value);
            let wildcard = || {
                let mut wildcards = node.wildcards.get(key)?.iter();
                let (_, child) = wildcards.find(|(entry, _)| entry.matches_value(value))?;
                Some(child)
            };
            let exact = node.exact.get(&text);
            let child = exact.or_else(wildcard).or_else(|| node.any.get(key))?;
            node = self.nodes.get(*child)?;
        }
        node.limit
    }
}

/// The bucket of a descriptor: its text, with the pattern in the place of values that share a
/// bucket. `None` if that is the unchanged text.
pub(super) fn bucket_of(
    limit: &Limit,
    descriptor: &SentDescriptor<'_>,
    text: &[u8],
) -> Option<Vec<u8>> {
    let patterns = limit.descriptor.iter();
    let patterns = patterns.flat_map(|rule| rule.pattern.entries());
    let any_shared = patterns.clone().any(|entry| entry.share_threshold);
    if !any_shared && !text.contains(&b'\\') {
        return None;
    }
    let mut bucket = Vec::with_capacity(text.len());
    for ((key, value), entry) in descriptor.entries().zip(patterns) {
        let pattern = entry.shared_value();
        push_entry(&mut bucket, key, pattern.as_deref().unwrap_or(value));
    }
    Some(bucket)
}

/// The limit of [`super::Compiled::request_limit`].
pub(super) fn request_limit() -> Option<Limit> {
    let parameters = Parameters::new(Kind::FixedWindow, 0, 1000);
    Some(Limit {
        name: Name::domain(REQUEST_LIMIT).ok()?,
        description: None,
        descriptor: None,
        matchers: Vec::new(),
        per: vec![DESCRIPTOR.parse().ok()?, "window".parse().ok()?],
        if_missing: IfMissing::default(),
        quota: Algorithm::new(&parameters).ok()?,
        cost: 1,
        pricing: None,
        over_limit: OverLimit::default(),
        deny_status: None,
        penalty: None,
        enforce_percent: 100,
        on_failure: OnFailure::default(),
        scope: Scope::default(),
        precheck_percent: None,
        lease_ttl_ms: None,
        hidden: true,
        overrides: Vec::new(),
        replaces: Vec::new(),
        partition: Vec::new(),
        paused: None,
        fleet_size: None,
        generation: 0,
        reset_generation: 0,
        bucket_edits: BucketEdits::default(),
        place: 0,
    })
}
