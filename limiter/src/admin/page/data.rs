//! The data of the views, from the limits in force here and from the store.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::future::join_all;
use insight::{
    Finding, LiveEntries, Severity,
    findings::{self, limits, server},
};
use policy::{Limit, Name, Override, Policy, Revision, Scope};
use store::{
    ActivitySummary, BucketActivity, Fleet, Head, HeadState, HistoryEntry, Inspection, Resolution,
    SlotActivity, Store, StoreError,
};
use tokio::{runtime::Handle, sync::Mutex, task::spawn_blocking, time::Instant};

use super::Query;
use crate::domains::{Active, Domains};

/// How long a value read from the store serves other readers: limiters report once a second.
const VALID: Duration = Duration::from_secs(1);

/// The period over which rates are measured, in milliseconds.
const SPAN_MS: u64 = 10_000;

/// The period over which the buckets that used most are counted, in milliseconds, and how long that
/// serves readers: it takes longest to read.
const DAY_MS: u64 = 86_400_000;
const DAY_VALID: Duration = Duration::from_mins(1);

/// The buckets of a day that are shown.
pub(super) const DAY_BUCKETS: usize = 10;

/// The period that lines of rates over time show, in milliseconds.
const TREND_MS: u64 = 60_000;

/// Buckets of one limit, and of a domain, whose slots in use are read for a table: each is a call.
const SLOTS_OF_LIMIT: usize = 5;
const SLOTS_MAX: usize = 50;

/// Reports cut values at this length.
pub(super) const CUT: usize = 128;

/// Edits on one view of the history, and the most that are read: each may take a megabyte.
pub(super) const EDITS: usize = 10;
pub(super) const EDITS_MAX: usize = 100;

/// The edits of one view of the history.
pub(super) type Edits = Arc<Vec<HistoryEntry>>;

/// What the views are made of.
pub(crate) struct Data {
    store: Arc<dyn Store>,
    domains: Arc<Domains>,
    limiter: String,
    activity: Cache<Name, ActivitySummary>,
    trend: Cache<Name, Vec<SlotActivity>>,
    day: Cache<Name, Vec<BucketActivity>>,
    fleet: Cache<(), Fleet>,
    slots: Cache<Name, SlotsInUse>,
    history: Cache<(Name, usize), Vec<HistoryEntry>>,
    findings: Findings,
}

/// A view with its data.
pub(super) struct View {
    pub(super) shared: Shared,
    pub(super) what: What,
}

/// The data of one view.
pub(super) enum What {
    Overview(
        Reading<ActivitySummary>,
        Trend,
        Reading<Fleet>,
        Reading<Vec<BucketActivity>>,
    ),
    Limits(Reading<ActivitySummary>),
    Limit(Reading<ActivitySummary>, Trend),
    Bucket(Box<Result<Bucket, String>>),
    Fleet(Reading<Fleet>),
    History(Result<Edits, String>),
    /// Why the findings are not current, if they are not.
    Problems(Option<String>),
}

/// What was decided in each time slot of the last minute, from the earliest on.
pub(super) type Trend = Option<Arc<Vec<SlotActivity>>>;

/// How many slots of a bucket are in use, and how many it has, by limit and values. Only busy buckets
/// are there: requests in flight are counted by bucket, and nothing counts them by limit.
pub(super) type SlotsInUse = BTreeMap<(Name, Vec<Option<Vec<u8>>>), (u64, u64)>;

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
    /// Empty where the view has no rates.
    pub(super) slots: Arc<SlotsInUse>,
    pub(super) now_ms: u64,
}

/// One bucket, read on request.
pub(super) struct Bucket {
    pub(super) limit: Limit,
    pub(super) values: Vec<Option<Vec<u8>>>,
    /// How proxies alter the values that were asked for.
    pub(super) notes: Vec<String>,
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
            day: Cache::new(DAY_VALID),
            fleet: Cache::new(VALID),
            slots: Cache::new(VALID),
            history: Cache {
                // Ten megabytes, if each edit is as large as the history keeps.
                kept_max: 1,
                ..Cache::new(VALID)
            },
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
        let mut shared = self.shared(query, &findings);
        let what = match path {
            "/limits" => What::Limits(self.activity(&mut shared).await),
            "/limit" => What::Limit(self.activity(&mut shared).await, self.trend(&shared).await),
            "/bucket" => What::Bucket(Box::new(
                self.bucket(&shared, query, fleet.value.as_deref()).await,
            )),
            "/fleet" => What::Fleet(fleet),
            "/history" => What::History(self.history(&shared, query).await),
            "/problems" => What::Problems(findings.error),
            _ => What::Overview(
                self.activity(&mut shared).await,
                self.trend(&shared).await,
                fleet,
                self.day(&shared).await,
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
            slots: Arc::default(),
            now_ms: self.store.estimated_now_ms(),
        }
    }

    /// What was decided in the last ten seconds; also reads the slots in use.
    async fn activity(&self, shared: &mut Shared) -> Reading<ActivitySummary> {
        let Some(domain) = &shared.domain else {
            return Reading::default();
        };
        let read = async || self.store.activity(domain, Resolution::Fine, SPAN_MS).await;
        let seen = self.activity.get(domain.clone(), read).await;
        if let Some(active) = &shared.active {
            let read = async || self.slots(active, seen.value.as_deref()).await;
            let slots = self.slots.get(domain.clone(), read).await;
            shared.slots = slots.value.unwrap_or_default();
        }
        seen
    }

    /// Reads the slots in use of each limit's only bucket, or of its busiest ones.
    async fn slots(
        &self,
        active: &Active,
        seen: Option<&ActivitySummary>,
    ) -> Result<SlotsInUse, String> {
        let limits = active.compiled.limits().iter();
        let limits = limits.filter(|limit| limit.gives_slots() && limit.scope != Scope::Proxy);
        let buckets = limits.flat_map(|limit| {
            let busy = seen.map(|seen| busiest(seen, limit)).unwrap_or_default();
            let buckets = if limit.per.is_empty() {
                vec![Vec::new()]
            } else {
                busy
            };
            buckets.into_iter().map(move |values| (limit, values))
        });
        let reads = buckets.take(SLOTS_MAX).map(async |(limit, values)| {
            let read = self
                .store
                .inspect(&active.compiled, &limit.name, &values, 1);
            let answer = read.await.map_err(|error| error.to_string())?.answer;
            let slots = answer
                .limit
                .map(|of| (of.saturating_sub(answer.verdict.decision.remaining), of));
            Ok(slots.map(|slots| ((limit.name.clone(), values), slots)))
        });
        let read: Result<Vec<_>, String> = join_all(reads).await.into_iter().collect();
        Ok(read?.into_iter().flatten().collect())
    }

    async fn trend(&self, shared: &Shared) -> Trend {
        let domain = shared.domain.as_ref()?;
        let read = async || {
            let read = self.store.activity(domain, Resolution::Fine, TREND_MS);
            // The latest slot still fills.
            read.await.map(|mut seen| {
                seen.slots.pop();
                // Nobody looks at the buckets of each slot, which are most of it.
                for slot in &mut seen.slots {
                    slot.buckets = Vec::new();
                }
                seen.slots
            })
        };
        self.trend.get(domain.clone(), read).await.value
    }

    /// The buckets with the most requests of the last 24 hours.
    async fn day(&self, shared: &Shared) -> Reading<Vec<BucketActivity>> {
        let Some(domain) = &shared.domain else {
            return Reading::default();
        };
        let (store, of) = (Arc::clone(&self.store), domain.clone());
        let read = async move || {
            // Reading the reports of a day takes longer than a check may wait.
            let runtime = Handle::current();
            let read = move || runtime.block_on(store.activity(&of, Resolution::Hourly, DAY_MS));
            let seen = spawn_blocking(read)
                .await
                .map_err(|error| error.to_string());
            let mut buckets = seen?.map_err(|error| error.to_string())?.activity.buckets;
            buckets.sort_by_key(|found| Reverse(found.requests));
            buckets.truncate(DAY_BUCKETS);
            buckets.shrink_to_fit();
            Ok::<_, String>(buckets)
        };
        self.day.get(domain.clone(), read).await
    }

    async fn history(&self, shared: &Shared, query: &Query) -> Result<Edits, String> {
        let Some(domain) = &shared.domain else {
            return Ok(Edits::default());
        };
        let skipped = query
            .number("page", 1)
            .saturating_sub(1)
            .saturating_mul(EDITS);
        let skipped = skipped.min(EDITS_MAX);
        // One more than shown, to know whether there is a next page.
        let read = async || {
            let edits = self.store.history(domain, skipped + EDITS + 1).await?;
            Ok::<_, StoreError>(edits.into_iter().skip(skipped).collect())
        };
        let reading = self.history.get((domain.clone(), skipped), read).await;
        match reading.error {
            Some(error) => Err(error),
            None => Ok(reading.value.unwrap_or_default()),
        }
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
        let live = fleet.map(LiveEntries::from_fleet).unwrap_or_default();
        let mut notes = Vec::new();
        let mut value = |key: &Name| {
            let given = query
                .all()
                .find(|(name, _)| name.strip_prefix("v.") == Some(key.as_str()));
            match given {
                Some((_, value)) => {
                    let altered = live.alter(compiled.domain(), key.as_str(), value)?;
                    notes.extend(altered.note);
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
        let values = limit
            .per
            .iter()
            .map(&mut value)
            .collect::<Result<Vec<_>, _>>()?;
        let inspection = self.store.inspect(compiled, &limit.name, &values, 1).await;
        let now_ms = shared.now_ms;
        let found = compiled.override_for(index, &values).cloned();
        Ok(Bucket {
            limit: limit.clone(),
            inspection: inspection.map_err(|error| error.to_string()),
            in_force: found.filter(|found| found.until_ms.is_none_or(|until| now_ms < until)),
            values,
            notes,
        })
    }
}

/// The values of a limit's buckets with the most requests. An edit may have changed `per` since, and
/// values that reports have cut name no bucket.
fn busiest(seen: &ActivitySummary, limit: &Limit) -> Vec<Vec<Option<Vec<u8>>>> {
    let is_whole = |found: &&BucketActivity| {
        let per = found.bucket.iter().map(|(key, _)| key);
        let mut values = found.bucket.iter().filter_map(|(_, value)| value.as_ref());
        per.eq(&limit.per) && values.all(|value| value.len() < CUT)
    };
    let buckets = seen.activity.buckets.iter();
    let mut buckets: Vec<_> = buckets
        .filter(|found| found.limit == limit.name)
        .filter(is_whole)
        .collect();
    buckets.sort_by_key(|found| Reverse(found.requests));
    buckets.truncate(SLOTS_OF_LIMIT);
    buckets.into_iter().map(values).collect()
}

/// The values of a bucket in a report.
pub(super) fn values(found: &BucketActivity) -> Vec<Option<Vec<u8>>> {
    found
        .bucket
        .iter()
        .map(|(_, value)| value.clone())
        .collect()
}

// --- Values read from the store at most once per period, for all readers

/// Bound: readings of the store that the page keeps for a second. Beyond it, the oldest makes room.
const KEPT_MAX: usize = 32;

/// The last good value, and any error since.
#[derive(Debug)]
pub(super) struct Reading<T> {
    /// `None`: the store never returned it.
    pub(super) value: Option<Arc<T>>,
    /// How old the value is.
    pub(super) age: Duration,
    /// Why the store did not return a newer one.
    pub(super) error: Option<String>,
}

struct Kept<T> {
    value: Option<Arc<T>>,
    read: Instant,
    tried: Instant,
    error: Option<String>,
}

/// Readings by key.
struct Cache<K, T> {
    valid: Duration,
    kept_max: usize,
    kept: Mutex<BTreeMap<K, Kept<T>>>,
}

impl<K: Ord + Clone, T> Cache<K, T> {
    fn new(valid: Duration) -> Self {
        Self {
            valid,
            kept_max: KEPT_MAX,
            kept: Mutex::new(BTreeMap::new()),
        }
    }

    /// The value of a key, read again if it is old.
    async fn get<E: std::fmt::Display>(
        &self,
        key: K,
        read: impl AsyncFnOnce() -> Result<T, E>,
    ) -> Reading<T> {
        // The lock is held during the read, so that a second reader gets the first one's result.
        let mut kept = self.kept.lock().await;
        if kept
            .get(&key)
            .is_none_or(|kept| kept.tried.elapsed() >= self.valid)
        {
            let result = read().await;
            let now = Instant::now();
            let before = kept.remove(&key);
            let fresh = match result {
                Ok(value) => Kept {
                    value: Some(Arc::new(value)),
                    read: now,
                    tried: now,
                    error: None,
                },
                Err(error) => Kept {
                    read: before.as_ref().map_or(now, |kept| kept.read),
                    value: before.and_then(|kept| kept.value),
                    tried: now,
                    error: Some(error.to_string()),
                },
            };
            if kept.len() >= self.kept_max {
                let oldest = kept.iter().min_by_key(|(_, kept)| kept.tried);
                let oldest = oldest.map(|(key, _)| key.clone());
                oldest.map(|oldest| kept.remove(&oldest));
            }
            kept.insert(key.clone(), fresh);
        }
        let kept = kept.get(&key);
        Reading {
            value: kept.and_then(|kept| kept.value.clone()),
            age: kept.map_or(Duration::ZERO, |kept| kept.read.elapsed()),
            error: kept.and_then(|kept| kept.error.clone()),
        }
    }
}

impl<T> Default for Reading<T> {
    fn default() -> Self {
        Self {
            value: None,
            age: Duration::ZERO,
            error: None,
        }
    }
}

// --- Findings: those of `rlctl doctor` except leftover keys, which require a scan of the store

/// How long findings serve other readers: they take a dozen calls to the servers.
const FINDINGS_VALID: Duration = Duration::from_secs(5);

/// How long findings about unchanged limits serve: pauses and overrides may end meanwhile.
const LIMITS_VALID: Duration = Duration::from_secs(30);

/// Domains that are looked at.
const DOMAINS_MAX: usize = 256;

struct Findings {
    store: Arc<dyn Store>,
    domains: Arc<Domains>,
    /// What every key in the store starts with.
    prefix: String,
    found: Cache<(), Vec<Finding>>,
    /// By domain, because ten thousand limits take a while to examine.
    of_limits: Mutex<BTreeMap<Name, OfLimits>>,
}

/// The findings about the limits of a domain.
struct OfLimits {
    revision: Revision,
    found: Instant,
    findings: Vec<Finding>,
}

impl Findings {
    fn new(store: Arc<dyn Store>, domains: Arc<Domains>, prefix: String) -> Self {
        Self {
            store,
            domains,
            prefix,
            found: Cache::new(FINDINGS_VALID),
            of_limits: Mutex::default(),
        }
    }

    /// The findings, the worst first.
    async fn get(&self, fleet: Option<&Fleet>) -> Reading<Vec<Finding>> {
        let read = async || {
            let mut findings = self.of_this_limiter();
            match self.of_store(fleet).await {
                Ok(found) => findings.extend(found),
                Err(error) => findings.push(self.away(&error)),
            }
            findings.sort_by_key(|finding| finding.severity);
            Ok::<_, StoreError>(findings)
        };
        self.found.get((), read).await
    }

    fn away(&self, error: &StoreError) -> Finding {
        let what = format!("it cannot be read: {error}");
        let why = "checks get no decision, and proxies follow each limit's on_failure";
        Finding::new(Severity::Error, "store", self.store.address(), what, why)
    }

    /// Findings about records that this limiter cannot use.
    fn of_this_limiter(&self) -> Vec<Finding> {
        let table = self.domains.all();
        let faulty = table.iter().filter_map(|(domain, state)| {
            let fault = state.fault.as_ref()?;
            let what = format!(
                "this limiter cannot use its stored limits: {}",
                fault.message
            );
            let why = "it keeps the last limits that it loaded, if it loaded any";
            let finding = Finding::new(
                Severity::Error,
                "records",
                format!("domain {domain}"),
                what,
                why,
            );
            let domain = findings::shell_word(domain.as_str());
            Some(finding.mend(format!(
                "rlctl history --domain {domain}    # what was written last?"
            )))
        });
        faulty.collect()
    }

    async fn of_store(&self, fleet: Option<&Fleet>) -> Result<Vec<Finding>, StoreError> {
        let store = &self.store;
        let heads = store.heads().await?;
        let health = store.health().await?;
        let now_ms = store.estimated_now_ms();
        let (address, prefix) = (store.address(), self.prefix.as_str());
        let mut findings = server::clocks(&health, store::wall_ms());
        for node in &health {
            findings.extend(server::look(node, &address, prefix));
        }
        if let Some(fleet) = fleet {
            findings.extend(limits::flushed(fleet, &heads, None));
            findings.extend(self.behind(fleet, &heads, now_ms).await?);
        }
        if heads.is_empty() && findings.is_empty() {
            findings.push(limits::no_domain());
        }
        let live = Arc::new(fleet.map(LiveEntries::from_fleet).unwrap_or_default());
        for head in heads.into_iter().take(DOMAINS_MAX) {
            match head.state {
                HeadState::Missing => findings.push(limits::lost(&head.domain)),
                HeadState::Unreadable(why) => findings.push(limits::unreadable(&head.domain, &why)),
                HeadState::Live(_) => {
                    findings.extend(self.of_domain(&head.domain, &live, now_ms).await);
                }
                HeadState::Deleted(_) => {}
            }
        }
        Ok(findings)
    }

    async fn behind(
        &self,
        fleet: &Fleet,
        heads: &[Head],
        now_ms: u64,
    ) -> Result<Vec<Finding>, StoreError> {
        let mut findings = Vec::new();
        for head in heads.iter().take(DOMAINS_MAX) {
            let HeadState::Live(revision) = &head.state else {
                continue;
            };
            // Reads the history only if a limiter or proxy is stale.
            if findings::behind(fleet, &head.domain, revision, None).is_empty() {
                continue;
            }
            let last = self.store.history(&head.domain, 1).await?;
            let age_ms = last.first().map(|edit| now_ms.saturating_sub(edit.at_ms));
            findings.extend(findings::behind(fleet, &head.domain, revision, age_ms));
        }
        Ok(findings)
    }

    /// Findings about the limits in force here.
    async fn of_domain(&self, domain: &Name, live: &Arc<LiveEntries>, now_ms: u64) -> Vec<Finding> {
        let table = self.domains.all();
        let active = table.get(domain).and_then(|found| found.active.clone());
        let Some(active) = active else {
            return Vec::new();
        };
        let mut kept = self.of_limits.lock().await;
        let revision = active.compiled.revision().clone();
        if let Some(kept) = kept.get(domain)
            && kept.revision == revision
            && kept.found.elapsed() < LIMITS_VALID
        {
            return kept.findings.clone();
        }
        let live = Arc::clone(live);
        let look = move || limits::look(&policy_of(&active), &live, now_ms);
        let findings = spawn_blocking(look).await.unwrap_or_default();
        kept.retain(|name, _| table.contains_key(name));
        let of_limits = OfLimits {
            revision,
            found: Instant::now(),
            findings: findings.clone(),
        };
        kept.insert(domain.clone(), of_limits);
        findings
    }
}

/// The limits in force without their overrides.
fn policy_of(active: &Active) -> Policy {
    let compiled = &active.compiled;
    Policy {
        domain: compiled.domain().clone(),
        revision: compiled.revision().clone(),
        paused: compiled.paused(),
        exempt: compiled.exemptions().to_vec(),
        limits: { compiled.limits().iter() }
            .map(|limit| (**limit).clone())
            .collect(),
    }
}

#[cfg(test)]
mod tests;
