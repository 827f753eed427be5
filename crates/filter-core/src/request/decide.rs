//! Decides as many limits of a request as this proxy can; a check decides the others.

use std::sync::Arc;

use policy::{Match, Mode, Name};
use protocol::{DecidedBy, Outcome};

use crate::{
    active_policy::{ActivePolicy, PolicyState},
    cache::DebtSpan,
    cost::RequestBody,
    host::{Contended, Host, Now, Random},
    local_bucket::{Start, Take},
    metrics::Event,
    request::{
        Claims, DenyingLimits, Extracted, Held, Hold, LimitCheck, LocalUnits, Measured,
        PendingCheck, Plan, Request, Stream, quota_status,
    },
    response::{Denial, QuotaStatus},
    worker::{Edits, HOLDING_MS, Refusal, ResponseNeeds, Step, StreamId, Worker},
};

impl Worker {
    /// Decides a request here if possible, otherwise by a check. `body`: its body, if it was read.
    pub(crate) fn decide(
        &mut self,
        host: &impl Host,
        now: &dyn Fn() -> Now,
        stream: StreamId,
        request: &impl Request,
        body: Option<&RequestBody>,
    ) {
        match &self.policy.state {
            PolicyState::NoLimits => self.pass(stream, Edits::default(), Vec::new()),
            PolicyState::Limits(policy) => {
                let policy = Arc::clone(policy);
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
                self.check_with_limiter(host, now(), check);
            }
        }
    }

    fn decide_by(
        &mut self,
        host: &impl Host,
        (now, stream): (&dyn Fn() -> Now, StreamId),
        policy: Arc<ActivePolicy>,
        request: &impl Request,
        body: Option<&RequestBody>,
    ) {
        let entries = policy.plan.extract(request);
        let value = &|key| entries.at(key);
        let now_ms = if policy.has_pauses { now().wall_ms } else { 0 };
        let matches = match policy.compiled.matching_values(value, now_ms) {
            Ok(matches) => matches,
            Err(exemption) => {
                self.counts.exempted(&exemption.name);
                return self.pass(stream, Edits::default(), Vec::new());
            }
        };
        let opaque = policy.opaque(&entries);
        if matches.is_empty() && opaque.is_none() {
            return self.pass(stream, Edits::default(), Vec::new());
        }
        let now = now();
        if let Some(denial) = self.missing(now, &matches, &entries) {
            self.reporter.denied();
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
        check.queued_us = now.mono_us;
        if let Some(denial) = self.take_local(host, now, &mut check) {
            return self.deny(host, now, &mut check, denial);
        }
        self.acquire_units(host, now, &mut check);
        check.head = request.header(":method") == Some(b"HEAD");
        let adaptive = |of: &LimitCheck| of.limit.quota.parameters().adaptive.is_some();
        if check.limit_checks.iter().any(adaptive) {
            check.measured = Measured::new(request, body);
        }
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
                let values = found.values.iter().copied();
                let key = (self.process.table).key((limit.name.as_str(), limit.generation), values);
                (self.reporter).add(now, key, limit, DecidedBy::Missing, entries);
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
            .matching_values(&|key| entries.at(key), now.wall_ms);
        self.limit_checks(&matches.unwrap_or_default(), policy, now)
    }

    fn limit_checks(
        &self,
        matches: &[Match<'_, '_>],
        policy: &ActivePolicy,
        now: Now,
    ) -> Vec<LimitCheck> {
        let table = &self.process.table;
        let mut limit_checks = Vec::with_capacity(matches.len());
        let matches = matches.iter().filter(|found| found.missing.is_none());
        limit_checks.extend(matches.filter_map(|found| LimitCheck::new(found, policy, table, now)));
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
        let last_failure_us = self.outage.breaker.last_failure_us();
        let mut denying = DenyingLimits::default();
        let opaque = check.opaque.is_some();
        for limit_check in { check.limit_checks.iter_mut() }
            .filter(|limit_check| limit_check.is_global() && limit_check.mode != Mode::Shadow)
        {
            let limit = Arc::clone(&limit_check.limit);
            let bucket = limit_check.bucket;
            let known = self.cache.get_fresh(bucket, now, last_failure_us);
            let (status, denial) = if let Some(known) = known {
                (known.status, known.denial)
            } else {
                let entry = self.process.table.read(host, bucket, now).entry;
                self.cache.store_entry(bucket, &entry, now);
                let span = DebtSpan::from_algorithm(&limit.quota, now);
                limit_check.has_debt = entry.debt.units(span, now.mono_us) > 0;
                (entry.status, entry.denial)
            };
            limit_check.status = status;
            // Another worker may have received a grant since the denial.
            let worker_lease = self.leases.find(bucket);
            let cost = limit_check.asked;
            let shared_units = worker_lease.map_or(0, |worker_lease| worker_lease.shared.left);
            let denial = denial.filter(|denial| {
                let denies = denial.denies(cost, now, limit.penalty);
                denies && (shared_units < cost || denial.is_penalty())
            });
            if let Some(denial) = denial.filter(|_| limit_check.mode == Mode::Enforce && !opaque) {
                denying.add(&limit.name, limit.hidden, denial.retry_after_ms(now));
                denying.answer_with(limit.deny_status);
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

    // --- Charges buckets of this proxy: limits with `scope: proxy`, and prechecks in front of global ones.

    /// Charges the buckets of `scope: proxy` limits, then the prechecks.
    fn take_local(
        &mut self,
        host: &impl Host,
        now: Now,
        check: &mut PendingCheck,
    ) -> Option<Denial> {
        let PendingCheck {
            limit_checks,
            claims,
            ..
        } = check;
        let enforced = |limit_check: &LimitCheck| limit_check.mode == Mode::Enforce;
        for limit_check in limit_checks.iter_mut() {
            if !limit_check.is_global()
                && enforced(limit_check)
                && !self.take_proxy(host, now, limit_check, claims)
            {
                return self.local_denial(limit_check, DecidedBy::Proxy);
            }
        }
        for limit_check in limit_checks {
            // Leased units need no check, so no precheck guards one.
            let sent = enforced(limit_check) && !limit_check.leased;
            if sent && !self.take_precheck(host, now, limit_check) {
                return self.local_denial(limit_check, DecidedBy::Precheck);
            }
        }
        None
    }

    /// Charges a bucket of this proxy; returns whether the cost fits.
    fn take_proxy(
        &mut self,
        host: &impl Host,
        now: Now,
        limit_check: &mut LimitCheck,
        claims: &mut Claims,
    ) -> bool {
        let Some(algorithm) = &limit_check.local else {
            return true;
        };
        let bucket = self.local_bucket(limit_check, algorithm, Start::Full);
        let Ok((decision, slot)) = bucket.decide(host, now, limit_check.cost, Take::Charge) else {
            self.counts.happened(Event::Contended);
            return false;
        };
        // The other modes are charged when nothing can deny the request any more.
        if decision.allowed && limit_check.mode == Mode::Enforce {
            let algorithm = Arc::clone(algorithm);
            claims
                .local
                .push(LocalUnits::new(limit_check, algorithm, slot, now));
        }
        limit_check.decided = Some(decision);
        decision.allowed
    }

    /// Charges the precheck of a global bucket, if there is one; returns whether the cost fits. A
    /// precheck counts the checks that are sent, so its charge is never refunded.
    fn take_precheck(&mut self, host: &impl Host, now: Now, limit_check: &mut LimitCheck) -> bool {
        let Some(algorithm) = &limit_check.limit.precheck else {
            return true;
        };
        let bucket = self.local_bucket(limit_check, algorithm, Start::Precheck);
        match bucket.decide(host, now, limit_check.cost, Take::Charge) {
            Ok((decision, _)) => {
                limit_check.decided = Some(decision);
                decision.allowed
            }
            // The limiter decides instead.
            Err(Contended) => true,
        }
    }

    /// The denial by a local bucket.
    fn local_denial(&mut self, limit_check: &LimitCheck, source: DecidedBy) -> Option<Denial> {
        let limit = &limit_check.limit;
        let algorithm = match source {
            DecidedBy::Precheck => limit.precheck.as_ref()?,
            _ => limit_check.local.as_deref()?,
        };
        self.counts.decided(&limit.name, Outcome::Denied, source);
        // Contended: the client may retry at once.
        let retry_after_ms = (limit_check.decided).map_or(Some(1), |d| d.retry_after.millis());
        let quotas = limit_check.decided.filter(|_| !limit.hidden);
        let quota_statuses: Vec<QuotaStatus> = quotas
            .map(|decision| quota_status(limit, algorithm, &decision, limit_check.cost))
            .into_iter()
            .collect();
        let mut denying = DenyingLimits::default();
        denying.add(&limit.name, limit.hidden, retry_after_ms);
        denying.answer_with(limit.deny_status);
        Some(denying.denial(source, quota_statuses))
    }
}

// --- Carries out decisions: requests continue, are held, or are answered here.

/// What an admitted request needs besides the limits decided here.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// The client's quota at the limits decided elsewhere.
    pub(crate) quota_statuses: Vec<QuotaStatus>,
    /// Limits that mark the request as degraded.
    pub(crate) degraded: Vec<Name>,
    /// How long the request is held, in milliseconds.
    pub(crate) delay_ms: u64,
}

impl Worker {
    /// Admits a request, at once or when the delay of its queues is over.
    pub(crate) fn admit(
        &mut self,
        host: &impl Host,
        now: Now,
        check: &mut PendingCheck,
        mut admission: Admission,
    ) {
        let delay_ms = check.delay_ms(now).max(admission.delay_ms);
        if delay_ms > 0 && check.stream.is_some() && !self.may_hold(&mut check.claims) {
            return self.refuse_hold(host, now, check, delay_ms);
        }
        for limit_check in &mut check.limit_checks {
            self.admit_local(host, now, limit_check, &mut check.claims, &mut admission);
            self.admit_leased(now, limit_check, &mut admission);
        }
        let mut claims = std::mem::take(&mut check.claims);
        let Some(stream) = check.stream else {
            return self.undo_left(claims);
        };
        let edits = Edits {
            degraded: (!admission.degraded.is_empty()).then(|| {
                let names: Vec<&str> = admission.degraded.iter().map(Name::as_str).collect();
                names.join(", ")
            }),
            needs: claims
                .meter
                .as_ref()
                .map_or_else(ResponseNeeds::default, |meter| meter.needs()),
        };
        let quotas = admission.quota_statuses;
        self.keep(now, stream, &mut claims);
        if delay_ms == 0 {
            return self.pass(stream, edits, quotas);
        }
        let until_us = now.after_ms(delay_ms);
        self.requests.streams.insert(stream, Stream::Held);
        self.requests.holds.add(Held {
            until_us,
            stream,
            edits,
            quotas,
            claims,
        });
        self.ticks.by(now, until_us, HOLDING_MS);
    }

    /// Lets a request continue. Its response will show `quotas`.
    pub(crate) fn pass(&mut self, stream: StreamId, edits: Edits, quotas: Vec<QuotaStatus>) {
        if quotas.is_empty() {
            self.requests.streams.remove(stream);
        } else {
            let passed = Stream::Passed(quotas);
            self.requests.streams.insert(stream, passed);
        }
        self.steps.push_back(Step::Continue { stream, edits });
    }

    /// Answers a request here.
    pub(crate) fn refuse(&mut self, stream: StreamId, denial: Denial) {
        self.requests.streams.remove(stream);
        let refusal = Box::new(Refusal {
            denial,
            config: Arc::clone(&self.config),
            random: Random::new(self.random.next_u64()),
            reply_cache: Arc::clone(&self.reply_cache),
        });
        self.steps.push_back(Step::Refuse { stream, refusal });
    }

    /// Refuses a request by a decision of this proxy.
    pub(crate) fn deny(
        &mut self,
        host: &impl Host,
        now: Now,
        check: &mut PendingCheck,
        denial: Denial,
    ) {
        self.undo(host, now, std::mem::take(&mut check.claims));
        if let Some(stream) = check.stream {
            self.record_denial(now, check, &denial);
            self.refuse(stream, denial);
        }
    }

    /// Whether a request may be held; if so, it now has a permit.
    pub(crate) fn may_hold(&self, claims: &mut Claims) -> bool {
        claims.permit = (claims.permit.take()).or_else(|| self.requests.holds.permit());
        claims.permit.is_some()
    }

    /// Gets a permit to hold a request that a queue may delay, before anything else is charged for it.
    /// Without a permit, the check allows no delay; a request that a queue of this proxy already delays
    /// is refused, and `false` returned.
    fn prepare_hold(&mut self, host: &impl Host, now: Now, check: &mut PendingCheck) -> bool {
        if !check.may_be_held() {
            return true;
        }
        if self.may_hold(&mut check.claims) {
            check.hold = Hold::Permitted;
            return true;
        }
        check.hold = Hold::Barred;
        let delay_ms = check.delay_ms(now);
        if delay_ms == 0 {
            return true;
        }
        self.refuse_hold(host, now, check, delay_ms);
        false
    }

    /// Refuses a request because `hold.max` requests are held.
    pub(crate) fn refuse_hold(
        &mut self,
        host: &impl Host,
        now: Now,
        check: &mut PendingCheck,
        delay_ms: u64,
    ) {
        self.counts.happened(Event::HoldFull);
        let mut denying = DenyingLimits::default();
        for limit in check.queues() {
            let denied = Outcome::Denied;
            self.counts.decided(&limit.name, denied, DecidedBy::Proxy);
            denying.add(&limit.name, limit.hidden, Some(delay_ms));
            denying.answer_with(limit.deny_status);
        }
        let quotas = check.limit_checks.iter();
        let quotas = quotas.filter_map(LimitCheck::quota_status).collect();
        let denial = denying.denial(DecidedBy::Proxy, quotas);
        self.deny(host, now, check, denial);
    }

    /// Counts the decision of a local limit for a request that continues.
    fn admit_local(
        &mut self,
        host: &impl Host,
        now: Now,
        limit_check: &mut LimitCheck,
        claims: &mut Claims,
        admission: &mut Admission,
    ) {
        if limit_check.local.is_none() {
            return;
        }
        // Limits that do not deny are charged only when the request is admitted.
        if limit_check.mode != Mode::Enforce {
            self.take_proxy(host, now, limit_check, claims);
        }
        let (limit, decided) = (&limit_check.limit, limit_check.decided);
        let fits = decided.is_some_and(|decision| decision.allowed);
        let decision = match limit_check.mode {
            _ if fits => Outcome::Allowed,
            Mode::Degrade => {
                admission.degraded.push(limit.name.clone());
                Outcome::Degraded
            }
            Mode::Enforce | Mode::Shadow => Outcome::WouldDeny,
        };
        self.counts.decided(&limit.name, decision, DecidedBy::Proxy);
        admission.quota_statuses.extend(limit_check.quota_status());
    }

    /// Counts a limit that leased units settle, for a request that continues.
    fn admit_leased(&mut self, now: Now, limit_check: &LimitCheck, admission: &mut Admission) {
        if limit_check.leased {
            let (allowed, source) = (Outcome::Allowed, DecidedBy::Lease);
            self.counts
                .decided(&limit_check.limit.name, allowed, source);
            let quota_status = self.leased_status(limit_check, now);
            admission.quota_statuses.extend(quota_status);
        }
    }
}
