//! What was decided in one domain, kept until it is told.

use std::collections::{BTreeMap, HashMap};

use policy::Name;
use protocol::{DecidedBy, LimitAnswer, Outcome, compact};
use store::{Activity, Denial, LimitActivity, Noted, Slot, Stretch};
use tokio::time::Instant;

use super::{
    busiest::{self, Busiest},
    heard::millis,
};
use crate::metrics::{DomainCounters, LimitCounts};

/// Limits in a note; of more, those that decided most.
const LIMITS_MAX: usize = 2000;

/// A long slot is told every so many times that a short one is.
const LONG_EVERY: u64 = 10;

/// Buckets that are watched one by one between two tellings; beyond that one in [`SAMPLED`] stands
/// for as many.
const WATCHED_MAX: u32 = 2000;
const SAMPLED: u64 = 16;

/// One domain's ledger.
#[derive(Debug)]
pub(super) struct Ledger {
    /// What the counters said when they were last looked at.
    counted: BTreeMap<Name, LimitCounts>,
    unmatched: u64,
    undecided: u64,
    /// What proxies reported since.
    reported: HashMap<(Name, Outcome, DecidedBy), u64>,
    closed: u64,
    watched: u32,
    busy: Busiest,
    denied: Busiest,
    open: [Open; 2],
}

/// The slot that is being filled.
#[derive(Debug)]
struct Open {
    slot: Slot,
    since: Instant,
    activity: Activity,
}

/// A note that is due.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) slot: Slot,
    pub(super) noted: Noted,
    /// The slot is over: once this was written a new one begins.
    is_final: bool,
}

impl Ledger {
    /// Empty at a time, by the store's clock.
    pub(super) fn new(now_ms: u64) -> Self {
        Self {
            counted: BTreeMap::new(),
            unmatched: 0,
            undecided: 0,
            reported: HashMap::new(),
            closed: 0,
            watched: 0,
            busy: Busiest::default(),
            denied: Busiest::default(),
            open: Stretch::ALL.map(|stretch| Open::new(stretch.slot(now_ms))),
        }
    }

    /// One limit decided about a bucket.
    pub(super) fn watch(&mut self, answer: &LimitAnswer, denial: impl FnOnce(Outcome) -> Denial) {
        let by = match self.watched.checked_add(1) {
            Some(watched) if watched <= WATCHED_MAX => 1,
            _ if fastrand::u64(..SAMPLED) == 0 => SAMPLED,
            _ => return,
        };
        self.watched = self.watched.saturating_add(1);
        self.busy.add(&answer.name, &answer.bucket, by, None);
        if !answer.allowed {
            let denial = denial(answer.outcome());
            self.denied
                .add(&answer.name, &answer.bucket, by, Some(denial));
        }
    }

    /// A proxy told what it decided by itself, of limits that there are.
    pub(super) fn report(&mut self, report: compact::Report, now_ms: u64) {
        for tally in report.tallies {
            let key = (tally.limit, tally.outcome, tally.by);
            let known = self.reported.entry(key).or_default();
            *known = known.saturating_add(tally.count);
        }
        for told in report.denied {
            let last = Denial {
                at_ms: now_ms.saturating_sub(told.ago_ms),
                outcome: Outcome::Denied,
                by: told.by,
                proxy: Some(report.proxy.clone()).filter(|proxy| !proxy.is_empty()),
                descriptor: told.descriptor,
            };
            self.busy.add(&told.limit, &told.bucket, told.count, None);
            self.denied
                .add(&told.limit, &told.bucket, told.count, Some(last));
        }
    }

    /// Takes over what was counted since the last time, and says what is to be told.
    pub(super) fn close(&mut self, counters: &DomainCounters, now_ms: u64) -> Vec<Due> {
        self.watched = 0;
        self.closed = self.closed.wrapping_add(1);
        let news = self.news(counters);
        let mut due = Vec::new();
        for open in &mut self.open {
            let nothing = news == Activity::default();
            open.activity.merge(news.clone());
            let now = open.slot.stretch.slot(now_ms);
            let is_final = now.number != open.slot.number;
            // A slot is told while it fills, so that nobody waits for its end.
            let is_long = open.slot.stretch == Stretch::Long;
            let is_time = if is_long {
                self.closed.is_multiple_of(LONG_EVERY) && open.activity != Activity::default()
            } else {
                !nothing
            };
            if !is_final && !is_time {
                continue;
            }
            // Told late, after an outage of the store, it counts as the last one.
            let late = now.number.saturating_sub(1);
            let number = if is_final {
                open.slot.number.max(late)
            } else {
                open.slot.number
            };
            let mut activity = bounded(&open.activity);
            if !is_long {
                activity.buckets = busiest::buckets(&self.busy, &self.denied);
                if is_final {
                    self.busy = Busiest::default();
                    self.denied = Busiest::default();
                }
            }
            due.push(Due {
                slot: Slot { number, ..now },
                noted: Noted {
                    activity,
                    covered_ms: millis(open.since.elapsed()),
                },
                is_final,
            });
        }
        due
    }

    /// What was due has been told.
    pub(super) fn told(&mut self, due: &[Due], now_ms: u64) {
        for due in due.iter().filter(|due| due.is_final) {
            let stretch = due.slot.stretch;
            for open in &mut self.open {
                if open.slot.stretch == stretch {
                    *open = Open::new(stretch.slot(now_ms));
                }
            }
        }
    }

    fn news(&mut self, counters: &DomainCounters) -> Activity {
        let mut news = Activity {
            unmatched: since(&mut self.unmatched, counters.unmatched_count()),
            errors: since(&mut self.undecided, counters.undecided_count()),
            ..Activity::default()
        };
        let mut counted = BTreeMap::new();
        for (name, now) in counters.counts() {
            let before = self.counted.get(name).copied().unwrap_or_default();
            let limit = now.since(before);
            if limit != LimitActivity::default() {
                news.limits.insert(name.clone(), limit);
            }
            counted.insert(name.clone(), now);
        }
        // Limits that are gone are forgotten.
        self.counted = counted;
        for ((name, outcome, by), count) in self.reported.drain() {
            let limit = news.limits.entry(name).or_default();
            limit.add(outcome, by, count);
        }
        news
    }
}

impl Open {
    fn new(slot: Slot) -> Self {
        Self {
            slot,
            since: Instant::now(),
            activity: Activity::default(),
        }
    }
}

/// What a counter counted since it was last looked at. It begins anew if its limit was away.
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
