//! Decides as many limits of a request as this proxy can; a check decides the others.

use std::rc::Rc;

use policy::{Match, Mode};
use protocol::{DecidedBy, Outcome};

use crate::{
    active_policy::{ActivePolicy, PolicyState},
    cache::DebtSpan,
    cost::RequestBody,
    host::Host,
    metrics::Event,
    request::{
        Admission, DenyingLimits, Extracted, LimitCheck, PendingCheck, Plan, Request, Stream,
    },
    response::{Denial, QuotaHeaders},
    time::Now,
    worker::{Edits, StreamId, Worker},
};

impl Worker {
    /// Decides a request here if possible, otherwise by a check. `body`: its body, if it was read.
    pub(crate) fn decide(
        &mut self,
        host: &impl Host,
        now: Now,
        stream: StreamId,
        request: &impl Request,
        body: Option<&RequestBody>,
    ) {
        match &self.policy.state {
            PolicyState::NoLimits => self.pass(stream, Edits::default(), QuotaHeaders::default()),
            PolicyState::Limits(policy) => {
                let policy = Rc::clone(policy);
                self.decide_by(host, (now, stream), policy, request, body);
            }
            PolicyState::Unknown => {
                let keys: Vec<_> = self
                    .config
                    .sources
                    .iter()
                    .map(|(key, _)| key.clone())
                    .collect();
                let plan = Plan::new(&keys, &self.config.sources);
                let check =
                    PendingCheck::new(stream, None, plan.extract(request), Vec::new(), None);
                self.check_with_limiter(host, now, check);
            }
        }
    }

    fn decide_by(
        &mut self,
        host: &impl Host,
        (now, stream): (Now, StreamId),
        policy: Rc<ActivePolicy>,
        request: &impl Request,
        body: Option<&RequestBody>,
    ) {
        let entries = policy.plan.extract(request);
        let values = entries.values();
        let matches = match policy.compiled.matching_values(&values, now.wall_ms) {
            Ok(matches) => matches,
            Err(exemption) => {
                self.counts.exempted(&exemption.name);
                return self.pass(stream, Edits::default(), QuotaHeaders::default());
            }
        };
        let opaque = policy.opaque(&values);
        if matches.is_empty() && opaque.is_none() {
            return self.pass(stream, Edits::default(), QuotaHeaders::default());
        }
        if let Some(denial) = self.missing(now, &matches, &entries) {
            return self.refuse(stream, denial);
        }
        let mut limit_checks = self.limit_checks(&matches, &policy, now);
        drop(matches);
        if body.is_none() && self.reads_body(now, stream, &limit_checks, request) {
            return;
        }
        for limit_check in &mut limit_checks {
            limit_check.price(request, &entries, body);
        }
        let mut check = PendingCheck::new(stream, Some(policy), entries, limit_checks, opaque);
        self.reserve_units(now, &mut check);
        if let Some(denial) = self.cached_denial(host, now, &mut check) {
            self.deny(host, now, &mut check, denial);
            return self.denials.count(now, check);
        }
        if let Some(denial) = self.take_local(host, now, &mut check) {
            return self.deny(host, now, &mut check, denial);
        }
        self.acquire_units(host, now, &mut check);
        check.head = request.header(":method") == Some(b"HEAD");
        if check.opaque.is_none() && !check.limit_checks.iter().any(LimitCheck::is_global) {
            if !check.limit_checks.is_empty() {
                self.reporter.admitted();
            }
            self.admit(host, now, &mut check, Admission::default());
            if check
                .limit_checks
                .iter()
                .any(|limit_check| limit_check.lease_query.is_some())
            {
                self.push_background(check);
            }
            return;
        }
        self.check_with_limiter(host, now, check);
    }

    /// The denial of a request that lacks an entry, where a limit denies such requests.
    fn missing(
        &mut self,
        now: Now,
        matches: &[Match<'_, '_>],
        entries: &Extracted,
    ) -> Option<Denial> {
        let mut denying = DenyingLimits::default();
        for found in matches.iter().filter(|found| found.missing.is_some()) {
            let limit = found.limit;
            let decision = if found.enforced {
                denying.add(&limit.name, limit.hidden, None);
                if let Some(shared) = self.process.shared() {
                    let values = found.values.iter().copied();
                    let key = shared.table.key(limit.name.as_str(), values);
                    (self.reporter).add(now, key, limit, DecidedBy::Missing, entries);
                }
                Outcome::Denied
            } else {
                Outcome::WouldDeny
            };
            self.counts
                .decided(&limit.name, decision, DecidedBy::Missing);
            self.counts.happened(Event::Missing);
        }
        (!denying.is_empty()).then(|| denying.denial(DecidedBy::Missing, Vec::new()))
    }

    /// The limits that apply to a request with these entries: none where it is exempt.
    pub(crate) fn limit_checks_of(
        &self,
        entries: &Extracted,
        policy: &ActivePolicy,
        now: Now,
    ) -> Vec<LimitCheck> {
        let matches = policy
            .compiled
            .matching_values(&entries.values(), now.wall_ms);
        self.limit_checks(&matches.unwrap_or_default(), policy, now)
    }

    fn limit_checks(
        &self,
        matches: &[Match<'_, '_>],
        policy: &ActivePolicy,
        now: Now,
    ) -> Vec<LimitCheck> {
        let Some(shared) = self.process.shared() else {
            return Vec::new();
        };
        let mut limit_checks = Vec::with_capacity(matches.len());
        let matches = matches.iter().filter(|found| found.missing.is_none());
        limit_checks
            .extend(matches.filter_map(|found| LimitCheck::new(found, policy, &shared.table, now)));
        limit_checks
    }

    /// Looks up the global buckets in the caches. Repeats a denial that still holds, unless a limit may
    /// match that only the limiter can evaluate and that replaces the denying one.
    fn cached_denial(
        &mut self,
        host: &impl Host,
        now: Now,
        check: &mut PendingCheck,
    ) -> Option<Denial> {
        let shared = self.process.shared()?;
        let last_failure_us = self.outage.breaker.last_failure_us();
        let mut denying = DenyingLimits::default();
        let opaque = check.opaque.is_some();
        for limit_check in { check.limit_checks.iter_mut() }
            .filter(|limit_check| limit_check.is_global() && limit_check.mode != Mode::Shadow)
        {
            let limit = Rc::clone(&limit_check.limit);
            let (key, generation) = (limit_check.key, limit.generation);
            let known = self.cache.get_fresh(key, generation, now, last_failure_us);
            let (status, denial) = if let Some(known) = known {
                (known.status, known.denial)
            } else {
                let entry = shared.table.read(host, key, generation, now).entry;
                self.cache.store_entry(key, generation, &entry, now);
                let span = DebtSpan::of(limit.quota.algorithm(), now);
                limit_check.has_debt = entry.debt.units(span, now.mono_us) > 0;
                (entry.status, entry.denial)
            };
            limit_check.status = status;
            // Another worker may have received a grant since the denial.
            let worker_lease = self.leases.find(key, generation);
            let cost = limit_check.cost;
            let shared_units = worker_lease.map_or(0, |worker_lease| worker_lease.shared);
            let denial = denial.filter(|denial| {
                let denies = denial.denies(cost, now, limit.penalty);
                denies && (shared_units < cost || denial.is_penalty())
            });
            if let Some(denial) = denial.filter(|_| limit_check.mode == Mode::Enforce && !opaque) {
                denying.add(&limit.name, limit.hidden, denial.retry_after_ms(now));
                self.counts
                    .decided(&limit.name, Outcome::Denied, DecidedBy::DenyCache);
                if denial.is_penalty() {
                    self.counts.happened(Event::Penalized);
                } else if limit.penalty.is_some() {
                    limit_check.denied = u64::from(limit_check.fits_when_unused());
                }
            }
        }
        if denying.is_empty() {
            return None;
        }
        let enforced =
            { check.limit_checks.iter() }.filter(|limit_check| limit_check.mode == Mode::Enforce);
        let quota_statuses = enforced.filter_map(|of| of.cached_status(now)).collect();
        Some(denying.denial(DecidedBy::DenyCache, quota_statuses))
    }

    /// Queues a check of the request.
    fn check_with_limiter(&mut self, host: &impl Host, now: Now, mut check: PendingCheck) {
        self.name_request(now, &mut check);
        let waits = check.policy.is_none()
            || check.opaque.is_some()
            || check
                .limit_checks
                .iter()
                .any(|limit_check| limit_check.is_global() && limit_check.mode != Mode::Shadow)
            // A shadow limit counts requests in flight too.
            || check.slot.is_some()
            || check.reserves();
        if let Some(stream) = check.stream
            && waits
        {
            if !self.prepare_hold(host, now, &mut check) {
                return;
            }
            self.requests.streams.insert(stream, Stream::Waiting);
        } else {
            // The remaining limits are in shadow mode: the request does not wait for them.
            self.admit(host, now, &mut check, Admission::default());
            check.stream = None;
        }
        if let Err(check) = self.calls.batcher.push(check) {
            self.counts.happened(Event::QueueFull);
            self.decide_unsent(host, now, check);
        }
    }
}
