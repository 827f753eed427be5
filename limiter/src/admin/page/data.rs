//! The data of the views, from the limits in force here and from the store.

mod findings;

use std::{sync::Arc, time::Duration};

use insight::{Finding, LiveEntries};
use policy::{Limit, Name, Override, Scope};
use store::{ActivitySummary, Fleet, HistoryEntry, Inspection, Resolution, SlotActivity, Store};

use super::{
    cache::{Cache, Reading},
    query::Query,
};
use crate::domains::{Active, Domains};

use findings::Findings;

/// How long a value read from the store serves other readers: limiters report once a second.
const VALID: Duration = Duration::from_secs(1);

/// The period over which rates are measured, in milliseconds.
const SPAN_MS: u64 = 10_000;

/// The period that lines of rates over time show, in milliseconds.
const TREND_MS: u64 = 60_000;

/// Edits on one view of the history, and the most that are read: each may take a megabyte.
pub(super) const EDITS: usize = 10;
pub(super) const EDITS_MAX: usize = 100;

/// What the views are made of.
pub(crate) struct Data {
    store: Arc<dyn Store>,
    domains: Arc<Domains>,
    limiter: String,
    activity: Cache<Name, ActivitySummary>,
    trend: Cache<Name, Vec<SlotActivity>>,
    fleet: Cache<(), Fleet>,
    findings: Findings,
}

/// A view with its data.
pub(super) struct View {
    pub(super) shared: Shared,
    pub(super) what: What,
}

/// The data of one view.
pub(super) enum What {
    Overview(Reading<ActivitySummary>, Trend, Reading<Fleet>),
    Limits(Reading<ActivitySummary>),
    Limit(Reading<ActivitySummary>, Trend),
    Bucket(Box<Result<Bucket, String>>),
    Fleet(Reading<Fleet>),
    History(Result<Vec<HistoryEntry>, String>),
    /// Why the findings are not current, if they are not.
    Problems(Option<String>),
}

/// What was decided in each time slot of the last minute, from the earliest on.
pub(super) type Trend = Option<Arc<Vec<SlotActivity>>>;

/// The data that every view shows.
pub(super) struct Shared {
    pub(super) limiter: String,
    pub(super) store: String,
    pub(super) memory: bool,
    pub(super) domains: Vec<Name>,
    pub(super) domain: Option<Name>,
    /// The policy in force in the domain.
    pub(super) active: Option<Arc<Active>>,
    /// Why the store cannot be read, if it cannot.
    pub(super) away: Option<String>,
    pub(super) findings: Arc<Vec<Finding>>,
    pub(super) now_ms: u64,
}

/// One bucket, read on request.
pub(super) struct Bucket {
    pub(super) limit: Limit,
    pub(super) values: Vec<Option<Vec<u8>>>,
    pub(super) inspection: Result<Inspection, String>,
    pub(super) in_force: Option<Override>,
}

impl Data {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        domains: Arc<Domains>,
        limiter: String,
        prefix: String,
    ) -> Self {
        Self {
            findings: Findings::new(Arc::clone(&store), Arc::clone(&domains), prefix),
            store,
            domains,
            limiter,
            activity: Cache::new(VALID),
            trend: Cache::new(VALID),
            fleet: Cache::new(VALID),
        }
    }

    /// Reads the data of a path; `None`: there is no such path.
    pub(super) async fn gather(&self, path: &str, query: &Query) -> Option<View> {
        let known = [
            "/",
            "/limits",
            "/limit",
            "/bucket",
            "/fleet",
            "/history",
            "/problems",
        ];
        if !known.contains(&path) {
            return None;
        }
        let fleet = self.fleet.get((), async || self.store.fleet().await).await;
        let findings = self.findings.get(fleet.value.as_deref()).await;
        let shared = self.shared(query, &findings);
        let what = match path {
            "/limits" => What::Limits(self.activity(&shared).await),
            "/limit" => What::Limit(self.activity(&shared).await, self.trend(&shared).await),
            "/bucket" => What::Bucket(Box::new(
                self.bucket(&shared, query, fleet.value.as_deref()).await,
            )),
            "/fleet" => What::Fleet(fleet),
            "/history" => What::History(self.history(&shared, query).await),
            "/problems" => What::Problems(findings.error),
            _ => What::Overview(
                self.activity(&shared).await,
                self.trend(&shared).await,
                fleet,
            ),
        };
        Some(View { shared, what })
    }

    fn shared(&self, query: &Query, findings: &Reading<Vec<Finding>>) -> Shared {
        let table = self.domains.all();
        let wanted = query.text("domain");
        let named = wanted
            .as_deref()
            .and_then(|wanted| table.get_key_value(wanted));
        // An unknown name selects no domain, rather than another one.
        let found = if wanted.is_some() {
            named
        } else {
            table.first_key_value()
        };
        let address = self.store.address();
        Shared {
            limiter: self.limiter.clone(),
            memory: address == "memory",
            store: address,
            domains: table.keys().cloned().collect(),
            domain: found.map(|(name, _)| name.clone()),
            active: found.and_then(|(_, domain)| domain.active.clone()),
            away: self.domains.poll().error.map(|error| error.to_string()),
            findings: findings.value.clone().unwrap_or_default(),
            now_ms: self.store.estimated_now_ms(),
        }
    }

    async fn activity(&self, shared: &Shared) -> Reading<ActivitySummary> {
        let Some(domain) = &shared.domain else {
            return Reading::default();
        };
        let read = async || self.store.activity(domain, Resolution::Fine, SPAN_MS).await;
        self.activity.get(domain.clone(), read).await
    }

    async fn trend(&self, shared: &Shared) -> Trend {
        let domain = shared.domain.as_ref()?;
        let read = async || {
            let read = self.store.activity(domain, Resolution::Fine, TREND_MS);
            // The latest slot still fills.
            read.await.map(|mut seen| {
                seen.slots.pop();
                seen.slots
            })
        };
        self.trend.get(domain.clone(), read).await.value
    }

    async fn history(&self, shared: &Shared, query: &Query) -> Result<Vec<HistoryEntry>, String> {
        let Some(domain) = &shared.domain else {
            return Ok(Vec::new());
        };
        let skipped = query
            .number("page", 1)
            .saturating_sub(1)
            .saturating_mul(EDITS);
        let skipped = skipped.min(EDITS_MAX);
        // One more than shown, to know whether there is a next page.
        let edits = self.store.history(domain, skipped + EDITS + 1).await;
        let edits = edits.map_err(|error| error.to_string())?;
        Ok(edits.into_iter().skip(skipped).collect())
    }

    async fn bucket(
        &self,
        shared: &Shared,
        query: &Query,
        fleet: Option<&Fleet>,
    ) -> Result<Bucket, String> {
        let active = shared.active.as_ref().ok_or("There are no limits.")?;
        let compiled = &active.compiled;
        let name = query.text("limit").unwrap_or_default();
        let index = compiled.position(&name).ok_or("There is no such limit.")?;
        let limit = compiled.limit(index).ok_or("There is no such limit.")?;
        if limit.scope == Scope::Proxy {
            return Err(
                "The buckets of this limit are in the proxies, not in the store.".to_owned(),
            );
        }
        let live = fleet.map(LiveEntries::of).unwrap_or_default();
        let value = |key: &Name| {
            let given = query
                .all()
                .find(|(name, _)| name.strip_prefix("v.") == Some(key.as_str()));
            match given {
                Some((_, value)) => {
                    let altered = live.alter(compiled.domain(), key.as_str(), value)?;
                    Ok(Some(altered.value))
                }
                None if query
                    .all()
                    .any(|given| given == ("without", key.as_str().as_bytes())) =>
                {
                    Ok(None)
                }
                None => Err(format!("Which {key}? The limit has one bucket for each.")),
            }
        };
        let values = limit.per.iter().map(value).collect::<Result<Vec<_>, _>>()?;
        let inspection = self.store.inspect(compiled, &limit.name, &values, 1).await;
        let now_ms = shared.now_ms;
        let found = compiled.override_for(index, &values).cloned();
        Ok(Bucket {
            limit: limit.clone(),
            inspection: inspection.map_err(|error| error.to_string()),
            in_force: found.filter(|found| found.until_ms.is_none_or(|until| now_ms < until)),
            values,
        })
    }
}
