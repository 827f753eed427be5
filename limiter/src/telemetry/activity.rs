//! The activity of one domain until it is written to the store.

use std::collections::{BTreeMap, HashMap};

use policy::Name;
use protocol::{
    DecidedBy, LimitAnswer, Outcome,
    compact::{self, RequestCounts},
};
use store::{Activity, ActivityReport, Denial, LimitActivity, Resolution, TimeSlot};
use tokio::time::Instant;

use super::{
    proxy_registry::millis,
    top_k::{self, TopK},
};
use crate::metrics::{DomainCounters, LimitCounts};

/// The most limits in a report, chosen by their number of decisions.
const LIMITS_MAX: usize = 2000;

/// The long slot is written once per this many writes of the short one.
const LONG_EVERY: u64 = 10;

/// Decisions between two writes that are counted in their buckets one by one; of further ones, one
/// in [`SAMPLED`] is counted with that weight.
const COUNTED_MAX: u32 = 2000;
const SAMPLED: u64 = 16;

/// The activity of one domain.
#[derive(Debug)]
pub(super) struct ActivityRecorder {
    /// The counters' values when they were last read.
    counted: BTreeMap<Name, LimitCounts>,
    unmatched: u64,
    undecided: u64,
    /// What proxies have reported since.
    reported: HashMap<(Name, Outcome, DecidedBy), u64>,
    /// Requests that this limiter or a proxy decided since.
    requests: RequestCounts,
    collections: u64,
    busy: TopK,
    denied: TopK,
    open: [Open; 2],
}

/// The buckets that one lane of checks decided since the last report.
#[derive(Debug, Default)]
pub(super) struct Decided {
    requests: RequestCounts,
    sampled: u32,
    busy: TopK,
    denied: TopK,
}

impl Decided {
    /// Counts a request that some limit decided.
    pub(super) fn request(&mut self, allowed: bool) {
        self.requests.add(RequestCounts {
            allowed: u64::from(allowed),
            denied: u64::from(!allowed),
        });
    }

    /// Counts one decision of a limit about a bucket.
    pub(super) fn count(&mut self, answer: &LimitAnswer, denial: impl FnOnce(Outcome) -> Denial) {
        let by = match self.sampled.checked_add(1) {
            Some(sampled) if sampled <= COUNTED_MAX => 1,
            _ if fastrand::u64(..SAMPLED) == 0 => SAMPLED,
            _ => return,
        };
        self.sampled = self.sampled.saturating_add(1);
        self.busy.add(&answer.name, &answer.bucket, by, None);
        if !answer.allowed {
            let denial = denial(answer.outcome());
            self.denied
                .add(&answer.name, &answer.bucket, by, Some(denial));
        }
    }
}

/// A slot that is being filled.
#[derive(Debug)]
struct Open {
    slot: TimeSlot,
    since: Instant,
    activity: Activity,
}

/// A report that is due.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) slot: TimeSlot,
    pub(super) noted: ActivityReport,
    /// The slot has ended: a new one begins once this report is written.
    is_final: bool,
}

impl ActivityRecorder {
    /// Empty at a time, by the store's clock.
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            counted: BTreeMap::new(),
            unmatched: 0,
            undecided: 0,
            reported: HashMap::new(),
            requests: RequestCounts::default(),
            collections: 0,
            busy: TopK::default(),
            denied: TopK::default(),
            open: Resolution::ALL.map(|resolution| Open::new(resolution.slot(now_ms))),
        }
    }

    /// Adds what a lane of checks decided.
    pub(super) fn add(&mut self, decided: Decided) {
        self.requests.add(decided.requests);
        self.busy.merge(decided.busy);
        self.denied.merge(decided.denied);
    }

    /// Counts decisions that a proxy made without a call, of limits that exist.
    pub(super) fn report(&mut self, report: compact::Report, now_ms: u64) {
        self.requests.add(report.requests);
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
            self.busy
                .add(&denied.limit, &denied.bucket, denied.count, None);
            self.denied
                .add(&denied.limit, &denied.bucket, denied.count, Some(last));
        }
    }

    /// Reads what was counted since the last time; returns the reports that are due.
    pub(super) fn collect(&mut self, counters: &DomainCounters, now_ms: u64) -> Vec<Due> {
        self.collections = self.collections.wrapping_add(1);
        let new = self.new_activity(counters);
        let mut due = Vec::new();
        for open in &mut self.open {
            let nothing = new == Activity::default();
            open.activity.merge(new.clone());
            let now = open.slot.resolution.slot(now_ms);
            let is_final = now.number != open.slot.number;
            // A slot is written while it fills, so that readers need not wait for its end.
            let is_long = open.slot.resolution == Resolution::Coarse;
            let is_time = if is_long {
                self.collections.is_multiple_of(LONG_EVERY) && open.activity != Activity::default()
            } else {
                !nothing
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
            if !is_long {
                activity.buckets = top_k::buckets(&self.busy, &self.denied);
                if is_final {
                    self.busy = TopK::default();
                    self.denied = TopK::default();
                }
            }
            due.push(Due {
                slot: TimeSlot { number, ..now },
                noted: ActivityReport {
                    activity,
                    covered_ms: millis(open.since.elapsed()),
                },
                is_final,
            });
        }
        due
    }

    /// Starts new slots after the final reports were written.
    pub(super) fn written(&mut self, due: &[Due], now_ms: u64) {
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
            counted.insert(name.clone(), now);
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

#[cfg(test)]
mod tests;
