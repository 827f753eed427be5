//! Reports for `rlctl`: which limits are in force at which limiters and proxies, what was decided,
//! and which buckets were denied.
//!
//! The limiter writes the reports to the store once a second in one pipelined call, on a connection
//! that checks do not use; that of the fleet also soon after a proxy has another revision. Nothing
//! waits for them, and no decision depends on them.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use policy::{Compiled, Name};
use protocol::{
    Answer, Check, DecidedBy, LimitAnswer, Outcome,
    compact::{self, RequestCounts},
};
use store::{
    Activity, ActivityReport, BUCKETS_REPORTED, BucketActivity, CheckError, Denial, FleetReport,
    LimitActivity, Report, Resolution, Store, TimeSlot,
};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use crate::{
    domains::Domains,
    fleet::{Fleet, millis},
    metrics::{DomainCounters, LimitCounts},
};

/// How often the reports are written.
const EVERY: Duration = Duration::from_secs(1);

/// How soon the proxies alone are, once one has another revision, so that whoever waits for an edit need not wait for a whole
/// second; and how much longer for each proxy in the report, so that those of 5,000 are not written more often.
const SOON: Duration = Duration::from_millis(100);
const SOON_PER_PROXY: Duration = Duration::from_micros(200);

/// Bound: domains in a limiter's reports. Beyond it, further ones are not reported.
const DOMAINS_MAX: usize = 1000;

/// Bound: domains whose buckets are counted by five minutes and by the hour. Beyond it, only by five
/// seconds.
const LONG_DOMAINS_MAX: usize = 100;

/// The most activity reports in one call.
const REPORTS_MAX: usize = 64;

/// What is reported, and what it is collected in.
pub(crate) struct Telemetry {
    store: Arc<dyn Store>,
    /// This limiter's name.
    limiter: String,
    recorders: Mutex<HashMap<Name, ActivityRecorder>>,
    /// What each lane of checks decided since the last report. A lane locks only its own, which
    /// nobody else wants for more than a moment a second.
    lanes: Vec<Mutex<HashMap<Name, Decided>>>,
}

impl Telemetry {
    pub(crate) fn new(store: Arc<dyn Store>, limiter: String, lanes: usize) -> Self {
        Self {
            store,
            limiter,
            recorders: Mutex::default(),
            lanes: (0..lanes).map(|_| Mutex::default()).collect(),
        }
    }

    /// Counts decisions of a lane in the order of their checks, each with the proxy that sent the check,
    /// if one did.
    pub(crate) fn decided<'c>(
        &self,
        lane: usize,
        policy: &Compiled,
        checks: impl Iterator<Item = (&'c Check, Option<&'c str>)>,
        decisions: &[Result<Answer, CheckError>],
    ) {
        let Some(lane) = self.lanes.get(lane) else {
            return;
        };
        let mut domains = lane.lock().unwrap_or_else(PoisonError::into_inner);
        let domain = policy.domain();
        if !domains.contains_key(domain) && domains.len() < DOMAINS_MAX {
            domains.insert(domain.clone(), Decided::default());
        }
        let Some(recorder) = domains.get_mut(domain) else {
            return;
        };
        for ((check, proxy), decision) in checks.zip(decisions) {
            let Ok(answer) = decision else {
                continue;
            };
            recorder.count_spent(check, answer);
            let is_final = !answer.is_repeated(policy, check.patience_ms);
            if check.cost == 0 || check.peek || !is_final {
                continue;
            }
            if !answer.limits.is_empty() {
                recorder.request(answer.allowed);
            }
            for limit in &answer.limits {
                recorder.count(limit, |outcome| Denial {
                    at_ms: answer.now_ms,
                    outcome,
                    by: DecidedBy::Limiter,
                    proxy: proxy.map(str::to_owned),
                    descriptor: descriptor(check, limit),
                });
            }
        }
    }

    /// The store's approximate clock, in milliseconds since the epoch.
    pub(crate) fn now_ms(&self) -> u64 {
        self.store.estimated_now_ms()
    }

    /// Counts the decisions that a proxy reported.
    pub(crate) fn reported(&self, report: compact::Report) {
        let mut recorders = self.recorders();
        if let Some(recorder) = self.recorder(&mut recorders, &report.domain) {
            recorder.report(report, self.store.estimated_now_ms());
        }
    }

    /// Writes the reports, forever. The first one has the limits: without them this limiter would seem
    /// behind the last edit for a second.
    pub(crate) async fn write_forever(&self, domains: &Domains, fleet: &Fleet) {
        while domains.poll().answered.is_none() {
            sleep(EVERY / 50).await;
        }
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut proxies = 0;
        loop {
            tokio::select! {
                biased;
                _ = ticks.tick() => {
                    self.write_once(domains, fleet, false).await;
                }
                () = fleet.has_news() => {
                    // Others have it a moment later.
                    sleep(SOON.max(SOON_PER_PROXY * proxies)).await;
                    let report = fleet_report(domains, fleet);
                    let listed: usize = report.proxies.values().map(Vec::len).sum();
                    proxies = u32::try_from(listed).unwrap_or(u32::MAX);
                    self.write_fleet(&report).await;
                }
            }
        }
    }

    /// Writes what was decided since the last report, and that this limiter ends: otherwise readers
    /// take it for one that failed.
    pub(crate) async fn write_last(&self, domains: &Domains, fleet: &Fleet) {
        self.write_once(domains, fleet, true).await;
    }

    async fn write_once(&self, domains: &Domains, fleet: &Fleet, is_last: bool) {
        let fleet_report = FleetReport {
            is_last,
            ..fleet_report(domains, fleet)
        };
        if !self.write_fleet(&fleet_report).await {
            return;
        }
        let due = self.collect(domains, is_last);
        let reports: Vec<Report<'_>> = due
            .iter()
            .flat_map(|(domain, due)| due.iter().map(move |due| (domain, due)))
            .map(|(domain, due)| Report::Activity {
                domain,
                slot: due.slot,
                report: &due.report,
            })
            .collect();
        for reports in reports.chunks(REPORTS_MAX) {
            if let Err(error) = self.store.report(&self.limiter, reports).await {
                // Keep the counts and report them when the store is back.
                tracing::debug!(%error, "cannot report decisions");
                return;
            }
        }
        let now_ms = self.store.estimated_now_ms();
        let mut recorders = self.recorders();
        for (domain, due) in &due {
            if let Some(recorder) = recorders.get_mut(domain) {
                recorder.written(due, now_ms);
            }
        }
    }

    /// Returns whether it was written.
    async fn write_fleet(&self, report: &FleetReport) -> bool {
        let report = [Report::Fleet(report)];
        let written = self.store.report(&self.limiter, &report).await;
        if let Err(error) = &written {
            tracing::debug!(%error, "cannot report which limits proxies have in force");
        }
        written.is_ok()
    }

    /// The reports that are due, by domain. Domains that are gone are removed.
    fn collect(&self, domains: &Domains, all_slots: bool) -> Vec<(Name, Vec<Due>)> {
        let all = domains.all();
        let now_ms = self.store.estimated_now_ms();
        let mut recorders = self.recorders();
        for lane in &self.lanes {
            let decided = std::mem::take(&mut *lane.lock().unwrap_or_else(PoisonError::into_inner));
            for (domain, decided) in decided {
                if let Some(recorder) = self.recorder(&mut recorders, &domain) {
                    recorder.add(&decided);
                }
            }
        }
        recorders.retain(|name, _| all.contains_key(name));
        share_long_tops(&mut recorders);
        let mut due = Vec::new();
        for (name, domain) in &*all {
            if let Some(active) = &domain.active
                && let Some(recorder) = self.recorder(&mut recorders, name)
            {
                due.push((
                    name.clone(),
                    recorder.collect(&active.counters, now_ms, all_slots),
                ));
            }
        }
        due
    }

    /// A domain's recorder; `None`: there are too many.
    fn recorder<'l>(
        &self,
        recorders: &'l mut HashMap<Name, ActivityRecorder>,
        domain: &Name,
    ) -> Option<&'l mut ActivityRecorder> {
        if !recorders.contains_key(domain) && recorders.len() < DOMAINS_MAX {
            let recorder = ActivityRecorder {
                has_long_tops: recorders.len() < LONG_DOMAINS_MAX,
                ..ActivityRecorder::new(self.store.estimated_now_ms())
            };
            recorders.insert(domain.clone(), recorder);
        }
        recorders.get_mut(domain)
    }

    fn recorders(&self) -> MutexGuard<'_, HashMap<Name, ActivityRecorder>> {
        self.recorders
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives what domains that are gone had to those that came when there were too many.
fn share_long_tops(recorders: &mut HashMap<Name, ActivityRecorder>) {
    let with = recorders.values().filter(|recorder| recorder.has_long_tops);
    let free = LONG_DOMAINS_MAX.saturating_sub(with.count());
    let without = recorders
        .values_mut()
        .filter(|recorder| !recorder.has_long_tops);
    for recorder in without.take(free) {
        recorder.has_long_tops = true;
    }
}

/// The limits in force here, and the proxies that sent requests.
fn fleet_report(domains: &Domains, fleet: &Fleet) -> FleetReport {
    let all = domains.all();
    let in_force = all.iter().filter_map(|(name, domain)| {
        let revision = domain.active.as_ref()?.compiled.revision();
        Some((name.clone(), revision.clone()))
    });
    FleetReport {
        revisions: in_force.collect(),
        proxies: fleet.alive(),
        is_last: false,
    }
}

/// The entries to report for a request that was over a limit.
fn descriptor(check: &Check, limit: &LimitAnswer) -> Vec<(Name, Vec<u8>)> {
    if check.service.is_none() {
        let entries = check.descriptor.iter();
        let cut = entries.map(|(name, value)| (name.clone(), cut_value(value).to_vec()));
        return cut.collect();
    }
    let values = limit.bucket.iter();
    let cut = values
        .filter_map(|(name, value)| Some((name.clone(), cut_value(value.as_deref()?).to_vec())));
    cut.collect()
}

// --- The activity of one domain until it is written to the store

/// Bound: limits of a domain in a limiter's report. Beyond it, those that decided least are left
/// out.
const LIMITS_MAX: usize = 2000;

/// The long slots are written once per this many writes of the short one.
const LONG_EVERY: u64 = 10;

/// Decisions between two writes that are counted in their buckets one by one; of further ones, one
/// in [`SAMPLED`] is counted with that weight.
const COUNTED_MAX: u32 = 2000;
const SAMPLED: u64 = 16;

/// The activity of one domain.
#[derive(Debug)]
struct ActivityRecorder {
    /// The counters' values when they were last read.
    counted: BTreeMap<Name, LimitCounts>,
    unmatched: u64,
    undecided: u64,
    /// What proxies have reported since.
    reported: HashMap<(Name, Outcome, DecidedBy), u64>,
    /// Requests that this limiter or a proxy decided since.
    requests: RequestCounts,
    collections: u64,
    has_long_tops: bool,
    open: [Open; Resolution::ALL.len()],
}

/// The buckets that one lane of checks decided since the last report.
#[derive(Debug, Default)]
struct Decided {
    requests: RequestCounts,
    sampled: u32,
    tops: Tops,
}

impl Decided {
    /// Counts a request that some limit decided.
    fn request(&mut self, allowed: bool) {
        self.requests.add(RequestCounts {
            allowed: u64::from(allowed),
            denied: u64::from(!allowed),
        });
    }

    /// Counts one decision of a limit about a bucket.
    fn count(&mut self, answer: &LimitAnswer, denial: impl FnOnce(Outcome) -> Denial) {
        let by = match self.sampled.checked_add(1) {
            Some(sampled) if sampled <= COUNTED_MAX => 1,
            _ if fastrand::u64(..SAMPLED) == 0 => SAMPLED,
            _ => return,
        };
        self.sampled = self.sampled.saturating_add(1);
        let last = (!answer.verdict.decision.allowed).then(|| denial(answer.outcome()));
        self.tops.add(&answer.name, &answer.bucket, by, last);
    }

    /// Counts the leased units that a proxy spent without a check: without them the busiest buckets of
    /// leased limits would seem idle.
    fn count_spent(&mut self, check: &Check, answer: &Answer) {
        for of in &check.limits {
            let settlements = of.lease.iter().flat_map(|lease| &lease.settle);
            let spent = settlements.fold(0, |sum: u64, settled| sum.saturating_add(settled.spent));
            if spent == 0 {
                continue;
            }
            let mut limits = answer.limits.iter();
            if let Some(limit) = limits.find(|limit| limit.name == of.limit) {
                self.tops.add(&limit.name, &limit.bucket, spent, None);
            }
        }
    }
}

/// A slot that is being filled.
#[derive(Debug)]
struct Open {
    slot: TimeSlot,
    since: Instant,
    activity: Activity,
    tops: Tops,
}

/// A report that is due.
#[derive(Debug)]
struct Due {
    slot: TimeSlot,
    report: ActivityReport,
    /// The slot has ended: a new one begins once this report is written.
    is_final: bool,
}

impl ActivityRecorder {
    /// Empty at a time, by the store's clock.
    fn new(now_ms: u64) -> Self {
        Self {
            counted: BTreeMap::new(),
            unmatched: 0,
            undecided: 0,
            reported: HashMap::new(),
            requests: RequestCounts::default(),
            collections: 0,
            has_long_tops: true,
            open: Resolution::ALL.map(|resolution| Open::new(resolution.slot(now_ms))),
        }
    }

    /// Adds what a lane of checks decided.
    fn add(&mut self, decided: &Decided) {
        self.requests.add(decided.requests);
        self.count_buckets(&decided.tops);
    }

    fn count_buckets(&mut self, tops: &Tops) {
        for open in &mut self.open {
            if self.has_long_tops || open.slot.resolution == Resolution::Fine {
                open.tops.merge(tops, open.slot.resolution);
            }
        }
    }

    /// Counts decisions that a proxy made without a call, of limits that exist.
    fn report(&mut self, report: compact::Report, now_ms: u64) {
        self.requests.add(report.requests);
        let mut tops = Tops::default();
        for tally in report.tallies {
            let key = (tally.limit, tally.outcome, tally.by);
            let known = self.reported.entry(key).or_default();
            *known = known.saturating_add(tally.count);
        }
        for denied in report.denied {
            let last = Denial {
                at_ms: now_ms.saturating_sub(denied.ago_ms),
                outcome: Outcome::Denied,
                by: denied.by,
                proxy: Some(report.proxy.clone()).filter(|proxy| !proxy.is_empty()),
                descriptor: denied.descriptor,
            };
            tops.add(&denied.limit, &denied.bucket, denied.count, Some(last));
        }
        self.count_buckets(&tops);
    }

    /// Reads what was counted since the last time; returns the reports that are due.
    /// `all`: of every slot in which something was decided, whether or not it is time.
    fn collect(&mut self, counters: &DomainCounters, now_ms: u64, all: bool) -> Vec<Due> {
        self.collections = self.collections.wrapping_add(1);
        let new = self.new_activity(counters);
        let mut due = Vec::new();
        for open in &mut self.open {
            let nothing = new == Activity::default();
            open.activity.merge(new.clone());
            let now = open.slot.resolution.slot(now_ms);
            let is_final = now.number != open.slot.number;
            // A slot is written while it fills, so that readers need not wait for its end.
            let is_time = if open.slot.resolution == Resolution::Fine {
                !nothing
            } else {
                (all || self.collections.is_multiple_of(LONG_EVERY))
                    && open.activity != Activity::default()
            };
            if !is_final && !is_time {
                continue;
            }
            // A report delayed by an outage of the store goes into the last complete slot.
            let late = now.number.saturating_sub(1);
            let number = if is_final {
                open.slot.number.max(late)
            } else {
                open.slot.number
            };
            let mut activity = bounded(&open.activity);
            activity.buckets = open.tops.buckets();
            due.push(Due {
                slot: TimeSlot { number, ..now },
                report: ActivityReport {
                    activity,
                    // The first report of a domain counts what came before its recorder was made: over
                    // 0 ms that would be no rate.
                    covered_ms: millis(open.since.elapsed().max(EVERY)),
                },
                is_final,
            });
        }
        due
    }

    /// Starts new slots after the final reports were written.
    fn written(&mut self, due: &[Due], now_ms: u64) {
        for due in due.iter().filter(|due| due.is_final) {
            let resolution = due.slot.resolution;
            for open in &mut self.open {
                if open.slot.resolution == resolution {
                    *open = Open::new(resolution.slot(now_ms));
                }
            }
        }
    }

    fn new_activity(&mut self, counters: &DomainCounters) -> Activity {
        let mut new = Activity {
            requests: std::mem::take(&mut self.requests),
            unmatched: since(&mut self.unmatched, counters.unmatched_count()),
            errors: since(&mut self.undecided, counters.undecided_count()),
            ..Activity::default()
        };
        let mut counted = BTreeMap::new();
        for (name, now) in counters.counts() {
            let before = self.counted.get(name).copied().unwrap_or_default();
            let limit = now.since(before);
            if limit != LimitActivity::default() {
                new.limits.insert(name.clone(), limit);
            }
            // Most of 10,000 limits never decide.
            if now != LimitCounts::default() {
                counted.insert(name.clone(), now);
            }
        }
        // This drops removed limits.
        self.counted = counted;
        for ((name, outcome, by), count) in self.reported.drain() {
            let limit = new.limits.entry(name).or_default();
            limit.add(outcome, by, count);
        }
        new
    }
}

impl Open {
    fn new(slot: TimeSlot) -> Self {
        Self {
            slot,
            since: Instant::now(),
            activity: Activity::default(),
            tops: Tops::default(),
        }
    }
}

/// How much a counter grew since it was last read. It restarts at 0 if its limit was removed
/// meanwhile.
pub(crate) fn since(before: &mut u64, now: u64) -> u64 {
    let before = std::mem::replace(before, now);
    now.checked_sub(before).unwrap_or(now)
}

fn bounded(activity: &Activity) -> Activity {
    let mut activity = activity.clone();
    if activity.limits.len() > LIMITS_MAX {
        let decided = |limit: &LimitActivity| limit.counts.values().sum::<u64>();
        let mut all: Vec<_> = std::mem::take(&mut activity.limits).into_iter().collect();
        all.sort_by_key(|(_, limit)| std::cmp::Reverse(decided(limit)));
        all.truncate(LIMITS_MAX);
        activity.limits = all.into_iter().collect();
    }
    activity
}

// --- The top-k buckets by count, in bounded memory (space-saving: Metwally, Agrawal, El Abbadi,
// 2005). A bucket with more than 1/[`COUNTERS`] of the total count is always among them.

/// Bound: buckets that a limiter watches for the busiest. Beyond it, the least counted one makes
/// room.
const COUNTERS: usize = 128;

/// The values of a limit's `per`, as answers have them.
type Values = [(Name, Option<Vec<u8>>)];

/// The top-k buckets of an interval.
#[derive(Debug, Default)]
struct TopK {
    hasher: RandomState,
    counted: HashMap<u64, Counted>,
    /// The least count when last searched for, and the keys of buckets that had it then.
    least: (u64, Vec<u64>),
}

#[derive(Debug)]
struct Counted {
    limit: Name,
    bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// The count, and how much of it may be the count of the bucket that this one replaced.
    count: u64,
    inherited: u64,
    last: Option<Denial>,
}

impl TopK {
    /// Counts a bucket.
    fn add(&mut self, limit: &Name, bucket: &Values, by: u64, last: Option<Denial>) {
        let key = self.key(limit, bucket);
        if let Some(known) = self.counted.get_mut(&key) {
            known.count = known.count.saturating_add(by);
            if last.is_some() {
                known.last = last;
            }
            return;
        }
        let inherited = self.make_room();
        let counted = Counted {
            limit: limit.clone(),
            bucket: cut_values(bucket),
            count: inherited.saturating_add(by),
            inherited,
            last,
        };
        self.counted.insert(key, counted);
    }

    /// Adds what was counted elsewhere, at least.
    fn merge(&mut self, other: &Self, with_last: bool) {
        for counted in other.counted.values() {
            let count = counted.count.saturating_sub(counted.inherited);
            let last = counted.last.as_ref().filter(|_| with_last).cloned();
            self.add(&counted.limit, &counted.bucket, count, last);
        }
    }

    /// Hashes a bucket; only a collision merges two buckets.
    fn key(&self, limit: &Name, bucket: &Values) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        limit.hash(&mut hasher);
        for (_, value) in bucket {
            value.as_deref().map(cut_value).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Removes the least counted bucket if there are too many; returns its count.
    fn make_room(&mut self) -> u64 {
        if self.counted.len() < COUNTERS {
            return 0;
        }
        if let Some(count) = self.remove_least() {
            return count;
        }
        // Counts only grow, so one scan serves until all buckets with the least count are removed
        // or have grown.
        let count = self.counted.values().map(|counted| counted.count).min();
        let of_least = self.counted.iter();
        let of_least = of_least.filter(|(_, counted)| Some(counted.count) == count);
        self.least = (count.unwrap_or(0), of_least.map(|(key, _)| *key).collect());
        self.remove_least().unwrap_or(0)
    }

    /// Removes a bucket that still has the least count; `None`: none is known.
    fn remove_least(&mut self) -> Option<u64> {
        let (count, keys) = &mut self.least;
        while let Some(key) = keys.pop() {
            if self
                .counted
                .get(&key)
                .is_some_and(|counted| counted.count == *count)
            {
                self.counted.remove(&key);
                return Some(*count);
            }
        }
        None
    }

    /// The most counted, each with a lower bound of its count.
    fn top(&self) -> impl Iterator<Item = (u64, &Counted)> {
        let mut all: Vec<(u64, &Counted)> = self
            .counted
            .values()
            .map(|counted| (counted.count.saturating_sub(counted.inherited), counted))
            .collect();
        all.sort_unstable_by_key(|(count, _)| std::cmp::Reverse(*count));
        all.into_iter().take(BUCKETS_REPORTED)
    }
}

/// The top-k buckets by what became of their requests, so that none takes another's place.
///
/// What is reported of a bucket is at most what there was, and lacks at most three parts of its limit's
/// domain: 1/[`COUNTERS`] of the decisions of each lane and second, as much of the slot, and where it was not
/// among those reported, what the last one reported had.
#[derive(Debug, Default)]
struct Tops {
    busy: TopK,
    denied: TopK,
    /// Over limits that deny nothing. They may be most of all, where a limit is tried out.
    over: TopK,
}

impl Tops {
    /// Counts requests of a bucket; `last`: they were over the limit.
    fn add(&mut self, limit: &Name, bucket: &Values, by: u64, last: Option<Denial>) {
        self.busy.add(limit, bucket, by, None);
        let over = match &last {
            Some(denial) if denial.outcome == Outcome::Denied => &mut self.denied,
            Some(_) => &mut self.over,
            None => return,
        };
        over.add(limit, bucket, by, last);
    }

    /// Adds what was counted elsewhere. Long slots keep no last request: it would be most of a report.
    fn merge(&mut self, other: &Self, resolution: Resolution) {
        let with_last = resolution == Resolution::Fine;
        self.busy.merge(&other.busy, with_last);
        self.denied.merge(&other.denied, with_last);
        self.over.merge(&other.over, with_last);
    }

    /// The top buckets of each kind, each bucket once.
    fn buckets(&self) -> Vec<BucketActivity> {
        let mut all: Vec<BucketActivity> = Vec::new();
        let mut note = |counted: &Counted, requests: u64, set: &dyn Fn(&mut BucketActivity)| {
            let same =
                |b: &&mut BucketActivity| b.limit == counted.limit && b.bucket == counted.bucket;
            let at_least = |bucket: &mut BucketActivity| {
                bucket.requests = bucket.requests.max(requests);
                if bucket.last.is_none() {
                    bucket.last.clone_from(&counted.last);
                }
                set(bucket);
            };
            if let Some(known) = all.iter_mut().find(same) {
                return at_least(known);
            }
            let mut bucket = BucketActivity {
                limit: counted.limit.clone(),
                bucket: counted.bucket.clone(),
                requests: 0,
                denied: 0,
                over: 0,
                last: None,
            };
            at_least(&mut bucket);
            all.push(bucket);
        };
        for (count, counted) in self.busy.top() {
            note(counted, count, &|_| ());
        }
        for (count, counted) in self.denied.top() {
            note(counted, count, &|bucket| bucket.denied = count);
        }
        for (count, counted) in self.over.top() {
            note(counted, count, &|bucket| bucket.over = count);
        }
        all
    }
}

/// The reported part of a value: enough to recognise it, and too short to fill the store.
fn cut_value(value: &[u8]) -> &[u8] {
    value.get(..compact::Report::MAX_VALUE).unwrap_or(value)
}

fn cut_values(values: &Values) -> Vec<(Name, Option<Vec<u8>>)> {
    let cut = |value: &Option<Vec<u8>>| value.as_deref().map(|value| cut_value(value).to_vec());
    let cut = values
        .iter()
        .map(|(name, value)| (name.clone(), cut(value)));
    cut.collect()
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod top_k_tests;
