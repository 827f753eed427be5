//! Denials by this worker's caches, which no limiter saw but a penalty counts. The worker counts them
//! by bucket for a second and reports them by checks that charge nothing.
//!
//! A report is retried only if it certainly did not arrive. A report that is lost, or that waits while
//! no limiter answers, is dropped: the penalty begins later.

use policy::Positions;

use super::{LimitCheck, PendingCheck};
use crate::{active_policy::PolicyState, cache::BucketKey, time::Now, worker::Worker};

/// Between reports of a bucket, in milliseconds.
const EVERY_MS: u64 = 1000;
/// Bound: buckets whose denials a worker reports in a second. Beyond it, denials of further buckets
/// do not count towards a penalty.
///
/// Denials by further buckets are not counted.
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
            if let Some(counted) = self.of(limit_check.key) {
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
            self.positions.add(limit_check.key.hash(), at);
        }
        let report = PendingCheck::background(policy, entries, limit_checks);
        self.counted.push(report);
    }

    /// The count of a bucket that has denied a request in this second.
    fn of(&mut self, key: BucketKey) -> Option<&mut LimitCheck> {
        let at = self.positions.of(key.hash()).next()?;
        let limit_checks = &mut self.counted.get_mut(at)?.limit_checks;
        limit_checks.iter_mut().find(|of| of.key == key)
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
    use std::rc::Rc;

    use policy::{Compiled, Policy};

    use super::*;
    use crate::{
        active_policy::ActivePolicy,
        cache::Table,
        request::{NoProperty, Request},
        time::at,
        worker::StreamId,
    };

    struct Nothing;

    impl Request for Nothing {
        fn headers<'r>(&'r self, _: &str) -> impl Iterator<Item = &'r [u8]> {
            std::iter::empty()
        }
        fn property(&self, _: &[u8]) -> Result<Vec<u8>, NoProperty> {
            Err(NoProperty::Absent)
        }
    }

    fn denied(denials: &mut Denials, now: Now, user: u64, count: u64) {
        let text = b"domain: shop\nlimits:\n  - {name: per-user, rate: 1/s}\n";
        let compiled = Compiled::new(Policy::from_yaml("limits.yaml", text).unwrap());
        let policy = Rc::new(ActivePolicy::new(compiled, &[]));
        let entries = policy.plan.extract(&Nothing);
        let table = Table::new("shop", 16, [7; 16]);
        let values = entries.values();
        let matches = policy
            .compiled
            .matching_values(&values, 0)
            .unwrap_or_default();
        let mut limit_check = LimitCheck::new(&matches[0], &policy, &table, now).unwrap();
        let user = user.to_le_bytes();
        limit_check.key = table.key("per-user", [Some(&user[..])].into_iter());
        limit_check.denied = count;
        limit_check.leased = true;
        let (stream, limit_checks) = (StreamId(0), vec![limit_check]);
        let check = PendingCheck::new(stream, Some(policy), entries, limit_checks, None);
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
