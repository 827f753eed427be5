//! Reports this proxy's own decisions to the limiter: counts, and denials that count towards penalties.
//!
//! The metrics provide the counts, so a request costs nothing more. A report contains the first 32
//! denied buckets of its second: a bucket that is denied often is denied early.

use policy::{Limit, Name, Positions};
use protocol::{
    DecidedBy, REPORT_CBOR,
    compact::{DeniedBucket, Report, RequestCounts},
};

use crate::{
    active_policy::PolicyState,
    cache::BucketKey,
    call::REPORT_PATH,
    host::{Host, Now, Random},
    request::{Extracted, LimitCheck, PendingCheck},
    response::Denial,
    worker::Worker,
};

/// The time between reports, before jitter.
const EVERY_US: u64 = 1_000_000;
/// How long a report may be in flight before the next is sent.
const PATIENCE_US: u64 = 5_000_000;
/// The timeout of a report, in milliseconds. No request waits for it.
const TIMEOUT_MS: u64 = 500;
/// Bound: denied buckets in a proxy's report. Beyond it, others of that second are counted by limit
/// only.
const BUCKETS_MAX: usize = 32;

/// The next report of this worker.
#[derive(Debug)]
pub(crate) struct Reporter {
    /// Requests that were decided without the limiter.
    requests: RequestCounts,
    /// Buckets that denied a request without the limiter, with the time of their last denial.
    denied: Vec<(DeniedBucket, Now)>,
    /// The keys of the denied buckets, in the same order, for a fast search.
    keys: Vec<BucketKey>,
    next_us: u64,
    random: Random,
}

impl Reporter {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            requests: RequestCounts::default(),
            denied: Vec::new(),
            keys: Vec::new(),
            next_us: 0,
            random,
        }
    }

    /// Records a denial by a bucket.
    pub(crate) fn add(
        &mut self,
        now: Now,
        key: BucketKey,
        limit: &Limit,
        by: DecidedBy,
        entries: &Extracted,
    ) {
        let known = self.keys.iter().position(|known| *known == key);
        if let Some(known) = known.and_then(|at| self.denied.get_mut(at)) {
            known.0.count += 1;
            known.1 = now;
        } else if self.denied.len() < BUCKETS_MAX {
            self.keys.push(key);
            self.denied.push((first_denial(limit, by, entries), now));
        }
    }

    /// Counts a request that passes without the limiter.
    pub(crate) fn admitted(&mut self) {
        self.requests.allowed += 1;
    }

    /// Counts a request that is denied without the limiter.
    pub(crate) fn denied(&mut self) {
        self.requests.denied += 1;
    }

    /// Whether there is nothing to report besides the metrics.
    pub(crate) fn is_idle(&self) -> bool {
        self.denied.is_empty()
    }

    /// Whether it is time for a report. `in_flight` is when the last one was sent, if it has not
    /// been answered.
    fn is_due(&mut self, now: Now, in_flight: Option<Now>) -> bool {
        let waits = |sent: Now| now.mono_us.saturating_sub(sent.mono_us) < PATIENCE_US;
        if in_flight.is_some_and(waits) {
            return false;
        }
        if !now.reached(self.next_us) {
            return false;
        }
        let pause_us = self.random.jittered(EVERY_US);
        self.next_us = now.mono_us.saturating_add(pause_us);
        true
    }

    fn take_denied(&mut self, now: Now) -> Vec<DeniedBucket> {
        self.keys.clear();
        let denied = self.denied.drain(..).map(|(denied, last)| DeniedBucket {
            ago_ms: now.mono_us.saturating_sub(last.mono_us) / 1000,
            ..denied
        });
        denied.collect()
    }
}

#[cold]
fn first_denial(limit: &Limit, by: DecidedBy, entries: &Extracted) -> DeniedBucket {
    let value = |name: &Name| entries.value(name).map(<[u8]>::to_vec);
    let request = entries.keys().iter().enumerate();
    DeniedBucket {
        limit: limit.name.clone(),
        by,
        count: 1,
        ago_ms: 0,
        bucket: (limit.per.iter())
            .map(|name| (name.clone(), value(name)))
            .collect(),
        descriptor: request
            .filter_map(|(at, name)| Some((name.clone(), entries.at(at)?.to_vec())))
            .collect(),
    }
}

impl Worker {
    /// Records a request that was denied without the limiter, and the buckets that denied it.
    #[inline(never)]
    pub(crate) fn record_denial(&mut self, now: Now, check: &PendingCheck, denial: &Denial) {
        self.reporter.denied();
        for LimitCheck { bucket, limit, .. } in &check.limit_checks {
            if denial.by.iter().any(|(name, _)| *name == limit.name) {
                (self.reporter).add(now, bucket.key, limit, denial.source, &check.entries);
            }
        }
    }

    /// Sends a report if one is due and not empty. It waits while the breaker is open.
    pub(crate) fn send_report(&mut self, host: &impl Host, now: Now) {
        if !self.reporter.is_due(now, self.calls.registry.report_sent())
            || self.outage.breaker.is_open(host, now)
        {
            return;
        }
        let report = Report {
            domain: self.config.domain.clone(),
            proxy: self.process.proxy.clone(),
            requests: std::mem::take(&mut self.reporter.requests),
            tallies: self.counts.take_unreported(),
            denied: self.reporter.take_denied(now),
        };
        if report.tallies.is_empty() && report.denied.is_empty() {
            return;
        }
        let id = self.calls.registry.start_report(now);
        self.post(id, REPORT_PATH, REPORT_CBOR, report.encode(), TIMEOUT_MS);
    }
}

// --- Denials by this worker's caches, which no limiter saw but a penalty counts. The worker counts them
// by bucket for a second and reports them by checks that charge nothing.
//
// A report is retried only if it certainly did not arrive. A report that is lost, or that waits while
// no limiter answers, is dropped: the penalty begins later.

/// Between reports of a bucket, in milliseconds.
const EVERY_MS: u64 = 1000;
/// Bound: buckets whose denials a worker reports in a second. Beyond it, denials of further buckets
/// do not count towards a penalty.
const REPORTS_MAX: usize = 1024;
/// Bound: reports of denials that a tick sends. Beyond it, the others follow at the next tick.
const AT_ONCE_MAX: usize = 64;

/// The denials to report.
#[derive(Debug, Default)]
pub(crate) struct Denials {
    /// The reports of this second: [`LimitCheck::denied`] counts.
    counted: Vec<PendingCheck>,
    /// Positions in `counted`, by the hashes of buckets.
    positions: Positions,
    /// When they are due.
    due_us: u64,
    /// The reports of the previous second that no tick has sent yet.
    due: Vec<PendingCheck>,
}

impl Denials {
    /// Counts a denied request, for each limit whose [`LimitCheck::denied`] is set.
    pub(crate) fn count(&mut self, now: Now, check: PendingCheck) {
        let (entries, mut limit_checks, mut more) = (check.entries, check.limit_checks, false);
        for limit_check in &mut limit_checks {
            // The units were released already.
            limit_check.leased = false;
            if limit_check.denied == 0 {
                continue;
            }
            if let Some(counted) = self.of(limit_check.bucket.key) {
                counted.denied += std::mem::take(&mut limit_check.denied);
            } else {
                more = true;
            }
        }
        let at = self.counted.len();
        let Some(policy) = check.policy.filter(|_| more && at < REPORTS_MAX) else {
            return;
        };
        if at == 0 {
            self.due_us = now.after_ms(EVERY_MS);
        }
        for limit_check in limit_checks.iter().filter(|of| of.denied > 0) {
            self.positions.add(limit_check.bucket.key.hash(), at);
        }
        let report = PendingCheck::background(policy, entries, limit_checks);
        self.counted.push(report);
    }

    /// The count of a bucket that has denied a request in this second.
    fn of(&mut self, key: BucketKey) -> Option<&mut LimitCheck> {
        let at = self.positions.of(key.hash()).next()?;
        let limit_checks = &mut self.counted.get_mut(at)?.limit_checks;
        limit_checks.iter_mut().find(|of| of.bucket.key == key)
    }

    /// Whether there is nothing to report.
    pub(crate) fn is_empty(&self) -> bool {
        self.counted.is_empty() && self.due.is_empty()
    }

    /// Takes the reports that a tick sends.
    fn take(&mut self, now: Now) -> Vec<PendingCheck> {
        if self.due.is_empty() && !self.counted.is_empty() && now.reached(self.due_us) {
            self.positions = Positions::default();
            self.due = std::mem::take(&mut self.counted);
        }
        self.due
            .split_off(self.due.len().saturating_sub(AT_ONCE_MAX))
    }
}

impl Worker {
    /// Reports the denials that are due, or drops them if the breaker is `open`. After an edit or a
    /// reset, the count of denials starts again, so older reports are dropped too.
    pub(crate) fn report_denials(&mut self, now: Now, open: bool) {
        for report in self.denials.take(now) {
            let PolicyState::Limits(current) = &self.policy.state else {
                return;
            };
            let policy = report
                .policy
                .as_ref()
                .map(|policy| policy.compiled.revision());
            if !open && policy == Some(current.compiled.revision()) {
                self.push_background(report);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cache::Table, host::at};

    fn denied(denials: &mut Denials, now: Now, user: u64, count: u64) {
        let text = "domain: shop\nlimits:\n  - {name: per-user, rate: 1/s}\n";
        let mut check = PendingCheck::of_limits(text, &[], now);
        let table = Table::new("shop", 16, [7; 16]);
        let [limit_check] = check.limit_checks.as_mut_slice() else {
            panic!("one limit")
        };
        let user = user.to_le_bytes();
        limit_check.bucket.key = table.key(("per-user", 1), [Some(&user[..])].into_iter());
        limit_check.denied = count;
        limit_check.leased = true;
        denials.count(now, check);
    }

    fn counts(taken: &[PendingCheck]) -> Vec<u64> {
        let requests = taken.iter().flat_map(PendingCheck::limit_requests);
        requests.map(|request| request.denied).collect()
    }

    #[test]
    fn a_buckets_denials_are_reported_together_a_second_after_the_first() {
        let mut denials = Denials::default();
        denied(&mut denials, at(5), 1, 0);
        assert!(denials.is_empty(), "no penalty counts that");
        for (ms, user) in [(5, 1), (500, 2), (900, 1), (1004, 1)] {
            denied(&mut denials, at(ms), user, 1);
            assert!(denials.take(at(1004)).is_empty() && !denials.is_empty());
        }
        let reports = denials.take(at(1005));
        assert_eq!(counts(&reports), [3, 1]);
        // What is leased is given back once, by the request.
        let mut limit_checks = reports.iter().flat_map(|report| &report.limit_checks);
        assert!(limit_checks.all(|of| !of.leased));
        assert!(denials.is_empty() && denials.take(at(9000)).is_empty());
        denied(&mut denials, at(9000), 1, 1);
        assert!(denials.take(at(9999)).is_empty());
        assert_eq!(counts(&denials.take(at(10_000))), [1]);
    }

    #[test]
    fn buckets_are_bounded_and_few_are_reported_at_once() {
        let mut denials = Denials::default();
        let most = u64::try_from(REPORTS_MAX).unwrap();
        for user in (0..2 * most).chain(0..most) {
            denied(&mut denials, at(1), user, 1);
        }
        let mut sum = 0;
        for tick in 0..REPORTS_MAX / AT_ONCE_MAX {
            let taken = denials.take(at(1001));
            assert_eq!(taken.len(), AT_ONCE_MAX, "{tick}");
            sum += counts(&taken).iter().sum::<u64>();
            denied(&mut denials, at(1001), 5, 1);
        }
        assert_eq!(sum, 2 * most);
        assert!(denials.take(at(1001)).is_empty());
        assert_eq!(counts(&denials.take(at(2001))), [16]);
    }
}
