//! Reports this proxy's own decisions to the limiter.
//!
//! The metrics provide the counts, so a request costs nothing more. A report contains the first 32
//! denied buckets of its second: a bucket that is denied often is denied early.

use policy::{Limit, Name};
use protocol::{
    DecidedBy, REPORT_CBOR,
    compact::{DeniedBucket, Report, RequestCounts},
};

use crate::{
    cache::BucketKey,
    call::REPORT_PATH,
    host::Host,
    random::Random,
    request::{Extracted, LimitCheck, PendingCheck},
    response::Denial,
    time::Now,
    worker::{Call, Worker},
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
    denied: Vec<Denied>,
    /// The keys of the denied buckets, in the same order, for a fast search.
    keys: Vec<BucketKey>,
    next_us: u64,
    random: Random,
}

/// A bucket that denied a request without the limiter.
#[derive(Debug)]
struct Denied {
    limit: Name,
    by: DecidedBy,
    bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// The descriptor of the first denied request.
    descriptor: Vec<(Name, Vec<u8>)>,
    count: u64,
    last_us: u64,
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
            known.count += 1;
            known.last_us = now.mono_us;
        } else if self.denied.len() < BUCKETS_MAX {
            self.keys.push(key);
            self.denied.push(Denied::first(now, limit, by, entries));
        }
    }

    /// Counts a request that passes without the limiter.
    pub(crate) fn admitted(&mut self) {
        self.requests.allowed += 1;
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
        let denied = self.denied.drain(..).map(|denied| DeniedBucket {
            limit: denied.limit,
            by: denied.by,
            count: denied.count,
            ago_ms: now.mono_us.saturating_sub(denied.last_us) / 1000,
            bucket: denied.bucket,
            descriptor: denied.descriptor,
        });
        denied.collect()
    }
}

impl Denied {
    #[cold]
    fn first(now: Now, limit: &Limit, by: DecidedBy, entries: &Extracted) -> Self {
        let value = |name: &Name| entries.value(name).map(<[u8]>::to_vec);
        let request = entries.keys().iter().zip(entries.values());
        Self {
            limit: limit.name.clone(),
            by,
            bucket: (limit.per.iter())
                .map(|name| (name.clone(), value(name)))
                .collect(),
            descriptor: request
                .filter_map(|(name, value)| Some((name.clone(), value?.to_vec())))
                .collect(),
            count: 1,
            last_us: now.mono_us,
        }
    }
}

impl Worker {
    /// Records a request that was denied without the limiter, and the buckets that denied it.
    #[inline(never)]
    pub(crate) fn record_denial(&mut self, now: Now, check: &PendingCheck, denial: &Denial) {
        self.reporter.requests.denied += 1;
        for LimitCheck { key, limit, .. } in &check.limit_checks {
            if denial.by.iter().any(|(name, _)| *name == limit.name) {
                (self.reporter).add(now, *key, limit, denial.source, &check.entries);
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
        let Some(shared) = self.process.shared() else {
            return;
        };
        let report = Report {
            domain: self.config.domain.clone(),
            proxy: shared.proxy.clone(),
            requests: std::mem::take(&mut self.reporter.requests),
            tallies: self.counts.take_unreported(),
            denied: self.reporter.take_denied(now),
        };
        if report.tallies.is_empty() && report.denied.is_empty() {
            return;
        }
        let id = self.calls.registry.start_report(now);
        self.call(Call {
            id,
            method: "POST",
            path: REPORT_PATH.to_owned(),
            headers: vec![("content-type", REPORT_CBOR.to_owned())],
            body: Some(report.encode()),
            timeout_ms: TIMEOUT_MS.max(self.config.limiter.timeout_ms),
        });
    }
}
