//! A policy in force, with what is derived from it once.

use bytes::Bytes;
use hyper::header::HeaderValue;
use policy::{Compiled, Policy};
use store::Since;
use tokio::time::Instant;

use crate::metrics::{DomainCounters, Metrics};

/// A policy in force.
#[derive(Debug)]
pub(crate) struct Active {
    /// What requests are tested against.
    pub(crate) compiled: Compiled,
    /// What a check of its dearest limit weighs.
    pub(crate) weight: usize,
    /// What proxies are told of it.
    pub(crate) snapshot: Bytes,
    /// Its revision, as a strong entity tag.
    pub(crate) etag: HeaderValue,
    /// Its revision's number, as a header.
    pub(crate) revision_header: HeaderValue,
    /// Its counters.
    pub(crate) counters: DomainCounters,
    /// Since when it is in force.
    pub(crate) since: Instant,
}

impl Active {
    /// Compiles a policy and derives the rest; takes a while where there are many overrides.
    pub(crate) fn new(policy: Policy, metrics: &Metrics) -> Result<Self, String> {
        Self::of(Compiled::new(policy), metrics)
    }

    /// What these limits become by edits; `None` if they have to be read whole for that.
    pub(crate) fn caught_up(
        &self,
        since: Since,
        metrics: &Metrics,
    ) -> Option<Result<Self, String>> {
        let changed = since.overrides.into_iter();
        let changed = changed.map(|change| (change.limit, change.values, change.to));
        let compiled = self.compiled.caught_up(since.policy, changed)?;
        Some(Self::of(compiled, metrics))
    }

    fn of(compiled: Compiled, metrics: &Metrics) -> Result<Self, String> {
        let revision = compiled.revision();
        let (number, digest) = (revision.number, revision.digest);
        let snapshot = serde_json::to_vec(&compiled.to_snapshot()).map_err(|e| e.to_string())?;
        let etag = format!("\"{number}-{digest:016x}\"");
        let limits = compiled.limits().iter();
        let weights = limits.map(|limit| {
            let leased = limit.lease_ttl_ms.is_some();
            store::script::weight(limit.quota.algorithm(), leased)
        });
        Ok(Self {
            weight: weights.max().unwrap_or(1),
            snapshot: snapshot.into(),
            etag: HeaderValue::from_str(&etag).map_err(|e| e.to_string())?,
            revision_header: number.into(),
            counters: metrics.domain(&compiled),
            since: Instant::now(),
            compiled,
        })
    }
}
