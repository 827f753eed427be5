//! Telling the limiter what was decided without it, for people to read.
//!
//! Counts are taken over from the metrics, so that a request costs nothing more. Of the denied
//! buckets the first few of a second are remembered: one that is denied often is denied early.

use policy::{Limit, Name};
use protocol::{
    API_HEADER, API_VERSION, DecidedBy, REPORT_CBOR,
    compact::{DeniedBucket, Report},
};

use super::{ActivePolicy, Call, CallAnswer, REPORT_PATH, Worker, pending_check::LimitCheck};
use crate::{
    batcher::CallId, descriptor::Extracted, host::Host, random::Random, response::Denial,
    shared_table::BucketKey, time::Now,
};

/// Between reports, before jitter.
const EVERY_US: u64 = 1_000_000;
/// How long a limiter that knows of no reports is left alone.
const UNKNOWN_US: u64 = 60_000_000;
/// How long an answer is waited for before the next report.
const PATIENCE_US: u64 = 5_000_000;
/// How long a report may take, in milliseconds: nobody waits for it.
const TIMEOUT_MS: u64 = 500;
/// Buckets that are remembered from one report to the next.
const BUCKETS_MAX: usize = 32;

/// What this worker is going to tell.
#[derive(Debug)]
pub(super) struct Reporter {
    denied: Vec<Denied>,
    /// Where the buckets denied are, in the same order: they are compared at every denial.
    keys: Vec<BucketKey>,
    /// The report under way, and when it left.
    in_flight: Option<(CallId, u64)>,
    next_us: u64,
    random: Random,
}

/// A bucket that was denied here.
#[derive(Debug)]
struct Denied {
    limit: Name,
    by: DecidedBy,
    bucket: Vec<(Name, Option<Vec<u8>>)>,
    /// Of the first request denied.
    descriptor: Vec<(Name, Vec<u8>)>,
    count: u64,
    last_us: u64,
}

impl Reporter {
    pub(super) fn new(random: Random) -> Self {
        Self {
            denied: Vec::new(),
            keys: Vec::new(),
            in_flight: None,
            next_us: 0,
            random,
        }
    }

    /// A bucket was denied here.
    pub(super) fn add(
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

    /// Whether there is nothing to tell, but what the metrics have.
    pub(super) fn is_idle(&self) -> bool {
        self.denied.is_empty() && self.in_flight.is_none()
    }

    fn is_due(&mut self, now: Now) -> bool {
        if let Some((_, since_us)) = self.in_flight
            && now.mono_us.saturating_sub(since_us) < PATIENCE_US
        {
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
    /// Remembers the buckets by which a request was denied here.
    #[inline(never)]
    pub(super) fn record_denial(
        &mut self,
        now: Now,
        policy: &ActivePolicy,
        limit_checks: &[LimitCheck],
        entries: &Extracted,
        denial: &Denial,
    ) {
        for limit_check in limit_checks {
            if let Some(limit) = policy.compiled.limit(limit_check.at)
                && denial.by.iter().any(|(name, _)| *name == limit.name)
            {
                (self.reporter).add(now, limit_check.key, limit, denial.source, entries);
            }
        }
    }

    /// Tells the limiter, if it is time and there is anything. While none answers, it waits.
    pub(super) fn send_report(&mut self, host: &impl Host, now: Now) {
        if !self.reporter.is_due(now) || self.breaker.is_open(host, now) {
            return;
        }
        let Some(shared) = &self.shared else {
            return;
        };
        let report = Report {
            domain: self.config.domain.clone(),
            proxy: shared.proxy.clone(),
            tallies: self.counts.take_unreported(),
            denied: self.reporter.take_denied(now),
        };
        if report.tallies.is_empty() && report.denied.is_empty() {
            return;
        }
        let id = self.batcher.new_id();
        self.reporter.in_flight = Some((id, now.mono_us));
        self.call(Call {
            id,
            method: "POST",
            path: REPORT_PATH.to_owned(),
            headers: vec![("content-type", REPORT_CBOR.to_owned())],
            body: Some(report.encode()),
            timeout_ms: TIMEOUT_MS.max(self.config.limiter.timeout_ms),
        });
    }

    /// Whether an answer is one to a report. A report that was lost is not told again: it may
    /// have arrived.
    pub(super) fn on_report_answer(
        &mut self,
        now: Now,
        id: CallId,
        answer: Option<&impl CallAnswer>,
    ) -> bool {
        if self
            .reporter
            .in_flight
            .is_none_or(|(in_flight, _)| in_flight != id)
        {
            return false;
        }
        self.reporter.in_flight = None;
        let has = |name: &str, value: &str| {
            let header = answer.and_then(|answer| answer.header(name));
            header == Some(value.as_bytes())
        };
        if has(API_HEADER, API_VERSION) && has(":status", "404") {
            // A limiter of an earlier version.
            self.reporter.next_us = now.mono_us.saturating_add(UNKNOWN_US);
        }
        true
    }
}
