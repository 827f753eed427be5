//! A policy in force and what is derived from it.

use std::sync::{
    Arc, Mutex, OnceLock, PoisonError,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use hyper::header::HeaderValue;
use limits_file::ToNode as _;
use policy::{Compiled, Edits, Limit, Policy};
use protocol::{Answer, Check, SNAPSHOT_MAX, ServicePart};
use store::wall_ms;
use tokio::time::Instant;

use crate::{
    aside::{alone, compute},
    metrics::{DomainCounters, Metrics},
};

/// If no limit weighs more than this (a leased token bucket, or one with a penalty), all checks count the same.
const LIGHT: usize = 3;

/// A limit in [`Active::matching`].
const ONE: usize = 1024;

/// A policy in force.
#[derive(Debug)]
pub(crate) struct Active {
    /// What requests are tested against.
    pub(crate) compiled: Compiled,
    /// The weight of the most expensive limit.
    dearest: usize,
    /// How many limits a descriptor matched in the latest calls, on average, in 1/[`ONE`].
    matching: AtomicUsize,
    /// The latest snapshot made for proxies.
    snapshot: ArcSwap<Snapshot>,
    /// Whether one with new edges is being made.
    renewing: AtomicBool,
    /// Its revision's number, as a header.
    pub(crate) revision_header: HeaderValue,
    /// Its counters.
    pub(crate) counters: Arc<DomainCounters>,
    /// Since when it is in force.
    pub(crate) since: Instant,
}

/// The limits as proxies receive them.
#[derive(Debug)]
pub(crate) struct Snapshot {
    /// As filters read it, with what changed since earlier ones.
    made: policy::Snapshot,
    /// The tag that was asked for last, and what changed since it: nearly all proxies have the same.
    asked: Mutex<Option<(String, Bytes)>>,
    json: OnceLock<Bytes>,
    /// Its tag as a strong entity tag.
    pub(crate) etag: HeaderValue,
    /// When its edges become outdated, in milliseconds since the epoch.
    until_ms: u64,
}

impl Snapshot {
    fn new(compiled: &Compiled, now_ms: u64, before: Option<&Self>) -> Result<Self, String> {
        let made = limits_file::snapshot_after(compiled, now_ms, before.map(|before| &before.made));
        let etag = HeaderValue::try_from(format!("\"{}\"", made.tag()));
        let until_ms = limits_file::snapshot_until_ms(compiled, now_ms);
        Ok(Self {
            made,
            asked: Mutex::default(),
            json: OnceLock::new(),
            etag: etag.map_err(|e| e.to_string())?,
            until_ms: until_ms.unwrap_or(u64::MAX),
        })
    }

    /// As filters read it: whole.
    pub(crate) fn compact(&self) -> Bytes {
        Bytes::from_owner(Arc::clone(self.made.bytes()))
    }

    /// As filters read it: what changed since the snapshot with this entity tag, if that is known and short.
    pub(crate) fn since(&self, etag: &str) -> Option<Bytes> {
        let tag = etag.strip_prefix('"')?.strip_suffix('"')?;
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, changes)) = asked.as_ref().filter(|(known, _)| known == tag) {
            return Some(Bytes::clone(changes));
        }
        let changes = Bytes::from(self.made.since(tag)?);
        *asked = Some((tag.to_owned(), Bytes::clone(&changes)));
        Some(changes)
    }

    /// As a limits file, which people and programs read; `None` if making it panicked. Filters, which poll all the
    /// time, need none.
    pub(crate) async fn json(self: &Arc<Self>, policy: &Arc<Active>) -> Option<Bytes> {
        if let Some(made) = self.json.get() {
            return Some(Bytes::clone(made));
        }
        let (snapshot, policy) = (Arc::clone(self), Arc::clone(policy));
        let make = move || {
            let json = || serde_json::to_vec(&policy.compiled.to_node()).unwrap_or_default();
            Bytes::clone(snapshot.json.get_or_init(|| json().into()))
        };
        let _alone = alone().await;
        compute(make).await
    }
}

impl Active {
    /// The snapshot with the edges around a time in milliseconds since the epoch. While one caller waits for new
    /// edges, the others get the snapshot before.
    pub(crate) async fn snapshot(self: &Arc<Self>, now_ms: u64) -> Arc<Snapshot> {
        let before = self.snapshot.load_full();
        if now_ms < before.until_ms || self.renewing.swap(true, Ordering::AcqRel) {
            return before;
        }
        let of = Arc::clone(self);
        // A task of its own: it goes on if the caller's client disconnects.
        let renewed = tokio::spawn(async move {
            let _alone = alone().await;
            let policy = Arc::clone(&of);
            let renew = move || Snapshot::new(&policy.compiled, now_ms, Some(&before));
            if let Some(Ok(fresh)) = compute(renew).await {
                of.snapshot.store(Arc::new(fresh));
            }
            of.renewing.store(false, Ordering::Release);
        });
        let _ = renewed.await;
        self.snapshot.load_full()
    }

    /// Compiles a policy, after the one in force, and derives the rest; takes a while where there are many
    /// overrides.
    pub(crate) fn new(
        policy: Policy,
        metrics: &Metrics,
        before: Option<&Self>,
    ) -> Result<Self, String> {
        Self::from_compiled(Compiled::new(policy), metrics, before)
    }

    /// Applies edits to these limits; `None` if they must be read whole instead.
    pub(crate) fn caught_up(
        &self,
        edits: Edits,
        metrics: &Metrics,
    ) -> Option<Result<Self, String>> {
        let compiled = self.compiled.caught_up(edits)?;
        Some(Self::from_compiled(compiled, metrics, Some(self)))
    }

    fn from_compiled(
        compiled: Compiled,
        metrics: &Metrics,
        before: Option<&Self>,
    ) -> Result<Self, String> {
        let number = compiled.revision().number;
        let matching = before.map_or(ONE, |before| before.matching.load(Ordering::Relaxed));
        let before = before.map(|before| before.snapshot.load());
        let snapshot = Snapshot::new(&compiled, wall_ms(), before.as_deref().map(Arc::as_ref))?;
        // Editors refuse such limits, except where overrides that proxies need make them so large. Proxies
        // would keep what they have, and limiters not.
        let bytes = snapshot.made.bytes().len();
        if bytes > SNAPSHOT_MAX {
            return Err(format!(
                "proxies would receive {bytes} bytes of limits, more than the {SNAPSHOT_MAX} that they read: \
                 split the limits over several domains, or delete overrides of limits with `scope: proxy`"
            ));
        }
        let limits = compiled.limits().iter();
        let weights = limits.map(|limit| weight_of(limit, limit.lease_ttl_ms.is_some()));
        Ok(Self {
            dearest: weights.max().unwrap_or(1),
            matching: AtomicUsize::new(matching),
            snapshot: ArcSwap::from_pointee(snapshot),
            renewing: AtomicBool::new(false),
            revision_header: number.into(),
            counters: metrics.domain(&compiled),
            since: Instant::now(),
            compiled,
        })
    }

    /// What a check costs the store, in checks of one token bucket: the sum of the limits that match,
    /// or with cheap limits the most expensive one times as many as lately matched, unless it is to be
    /// `exact`; and what it settles. `now_ms` decides which of them are paused.
    pub(crate) fn weight(&self, check: &Check, now_ms: u64, exact: bool) -> usize {
        let settling = check.limits.iter();
        let settling = settling.filter(|of| !of.slots.is_empty() || !of.settle.is_empty());
        let settled = settling.filter_map(|of| {
            let algorithm = &self.compiled.named(&of.limit)?.quota;
            let (slots, settlements) = (of.slots.len(), of.settle.len());
            Some(store::script::settled_weight(algorithm, slots, settlements))
        });
        let settled: usize = settled.sum();
        // The store matches every check anyway; to match here as well costs more than it saves.
        if self.dearest <= LIGHT && !exact || check.service.is_some() {
            let matching = self.matching.load(Ordering::Relaxed);
            let limits = matching.saturating_mul(descriptors(check)).div_ceil(ONE);
            return settled + self.dearest.saturating_mul(limits);
        }
        let matching = self.compiled.matching(&check.descriptor, now_ms);
        let asked = matching
            .iter()
            .map(|found| found.limit)
            .filter(|limit| check.only.is_empty() || check.only.contains(&limit.name));
        let weights = asked.map(|limit| {
            let leased = check
                .limit(&limit.name)
                .is_some_and(|of| of.lease.is_some());
            weight_of(limit, leased)
        });
        settled + weights.sum::<usize>().max(1)
    }

    /// Records how many limits the checks of a call matched. More count at once, fewer bit by bit.
    pub(crate) fn called<'c, E: 'c>(
        &self,
        checks: impl Iterator<Item = (&'c Check, &'c Result<Answer, E>)>,
    ) {
        let (mut asked, mut matched) = (0_usize, 0_usize);
        for (check, decision) in checks {
            if let Ok(answer) = decision {
                asked += descriptors(check);
                matched += answer.limits.len();
            }
        }
        let Some(now) = matched.saturating_mul(ONE).checked_div(asked) else {
            return;
        };
        let before = self.matching.load(Ordering::Relaxed);
        let lower = before - before.saturating_sub(now).div_ceil(8);
        let matching = now.max(lower).max(ONE);
        self.matching.store(matching, Ordering::Relaxed);
    }

    /// What the descriptors of a check of the rate limit service cost the store together, each
    /// bucket counted; at most `enough` where that is certain without matching them.
    pub(crate) fn weight_together(&self, check: &Check, now_ms: u64, enough: usize) -> usize {
        let parts = check.service.iter().flat_map(|service| &service.parts);
        let buckets = self.compiled.limits().len().max(1);
        let most = parts.clone().count().saturating_mul(buckets);
        let most = most.saturating_mul(self.dearest);
        if most <= enough {
            return most;
        }
        let weight = |part: &ServicePart| {
            let matching = self.compiled.matching(&part.descriptor, now_ms);
            let limits = matching.iter().map(|found| found.limit);
            let charged = limits.filter(|limit| {
                let replaced = part.rate.is_some() && limit.descriptor.is_some();
                !replaced && !check.skipped().any(|name| *name == limit.name)
            });
            let weights = charged.map(|limit| weight_of(limit, false));
            weights.sum::<usize>() + usize::from(part.rate.is_some())
        };
        parts.map(weight).sum()
    }
}

/// How many descriptors the limits of a check are matched with.
fn descriptors(check: &Check) -> usize {
    let service = check.service.as_ref();
    service.map_or(1, |service| service.parts.len())
}

/// What a limit costs the store in a check, with its reservations and its denials.
fn weight_of(limit: &Limit, leased: bool) -> usize {
    let reserves = limit.response_price().is_some();
    store::script::weight(&limit.quota, leased)
        + store::script::more_keys_weight(reserves, limit.penalty.is_some())
}

#[cfg(test)]
mod tests;
