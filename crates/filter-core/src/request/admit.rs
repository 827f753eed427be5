//! Carries out decisions: requests continue, are held, or are answered here.

use std::rc::Rc;

use policy::{Mode, Name};
use protocol::{DecidedBy, Outcome};

use crate::{
    active_policy::ActivePolicy,
    cost::Meter,
    host::Host,
    local_bucket::{LocalBucket, Start},
    metrics::Event,
    random::Random,
    request::{
        Held, HeldSlots, HoldPermit, LeaseUse, LimitCheck, LocalSlot, PendingCheck, Slots, Stream,
    },
    response::{Denial, QuotaHeaders, QuotaStatus},
    time::Now,
    worker::{Edits, HOLDING_MS, Refusal, ResponseNeeds, Step, StreamId, Worker},
};

/// What an admitted request needs besides the limits decided here.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// The client's quota at the limits decided elsewhere.
    pub(crate) quota_statuses: Vec<QuotaStatus>,
    /// Limits that mark the request as degraded.
    pub(crate) degraded: Vec<Name>,
    /// How long the request is held, in milliseconds.
    pub(crate) delay_ms: u64,
    /// The request's slots in queues that were decided elsewhere.
    pub(crate) slots: Slots,
    /// Its slots at limits on requests in flight.
    pub(crate) in_flight: HeldSlots,
    /// The units it reserved until its response ends.
    pub(crate) meter: Option<Box<Meter>>,
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
        if let Some(policy) = check.policy.clone() {
            for limit_check in &mut check.limit_checks {
                self.admit_local(host, now, &policy, limit_check, &mut admission);
                self.admit_leased(now, &policy, limit_check, &mut admission);
            }
        }
        let Some(stream) = check.stream else {
            self.requests.metered.cancel(admission.meter.as_deref());
            return self.requests.in_flight.release(admission.in_flight);
        };
        let edits = Edits {
            degraded: (!admission.degraded.is_empty()).then(|| {
                let names: Vec<&str> = admission.degraded.iter().map(Name::as_str).collect();
                names.join(", ")
            }),
            needs: admission
                .meter
                .as_ref()
                .map_or_else(ResponseNeeds::default, |meter| meter.needs()),
        };
        let quotas = QuotaHeaders {
            quota_statuses: admission.quota_statuses,
        };
        let mut slots = admission.slots;
        if let Some(policy) = &check.policy {
            slots.local.extend(local_slots(policy, &check.limit_checks));
        }
        if admission.delay_ms == 0 {
            if let Some(policy) = &check.policy {
                self.spend(policy, &mut check.limit_checks);
            }
            self.pass(stream, edits, quotas);
            self.hold_slots(now, stream, admission.in_flight);
            self.requests.metered.follow(stream, admission.meter);
        } else if let Some(permit) = self.hold_permit(check) {
            if let Some(policy) = &check.policy {
                self.spend(policy, &mut check.limit_checks);
            }
            let until_us = now.after_ms(admission.delay_ms);
            self.requests.streams.insert(stream, Stream::Held);
            self.requests.holds.add(Held {
                until_us,
                stream,
                edits,
                quotas,
                slots,
                permit,
            });
            self.ticks.by(now, until_us, HOLDING_MS);
            self.hold_slots(now, stream, admission.in_flight);
            self.requests.metered.follow(stream, admission.meter);
        } else {
            self.requests.in_flight.release(admission.in_flight);
            self.requests.metered.cancel(admission.meter.as_deref());
            self.requests.holds.release_slots(slots);
            if let Some(policy) = &check.policy {
                self.cancel_units(policy, &check.limit_checks);
            }
            self.refuse_hold(stream, check, admission.delay_ms, quotas.quota_statuses);
        }
    }

    /// Lets a request continue. Its response will show `quotas`.
    pub(crate) fn pass(&mut self, stream: StreamId, edits: Edits, quotas: QuotaHeaders) {
        if quotas.quota_statuses.is_empty() {
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
        let refusal = Refusal {
            denial,
            config: Rc::clone(&self.config),
            random: Random::new(self.random.next_u64()),
            reply_cache: Rc::clone(&self.reply_cache),
        };
        self.steps.push_back(Step::Refuse { stream, refusal });
    }

    /// Whether a request may be held; if so, it now has a permit.
    pub(crate) fn may_hold(&self, check: &mut PendingCheck) -> bool {
        check.hold.permit = self.hold_permit(check);
        check.hold.permit.is_some()
    }

    /// The permit to hold a request: its own, or a new one.
    fn hold_permit(&self, check: &mut PendingCheck) -> Option<HoldPermit> {
        check
            .hold
            .permit
            .take()
            .or_else(|| self.requests.holds.permit())
    }

    /// Gets a permit to hold a request that a queue may delay, before anything else is charged for it.
    /// Without a permit, the check allows no delay; a request that a queue of this proxy already delays
    /// is refused, and `false` returned.
    pub(crate) fn prepare_hold(
        &mut self,
        host: &impl Host,
        now: Now,
        check: &mut PendingCheck,
    ) -> bool {
        if !check.may_be_held() {
            return true;
        }
        check.hold.permit = self.requests.holds.permit();
        check.hold.barred = check.hold.permit.is_none();
        check.hold.entries = Some(Box::new(check.entries.clone()));
        let delays = check
            .limit_checks
            .iter()
            .filter_map(|limit_check| limit_check.decided);
        let delay_ms = delays.map(|taken| taken.decision.delay_ms).max();
        let delay_ms = delay_ms.filter(|ms| *ms > 0 && check.hold.barred);
        let (Some(delay_ms), Some(stream)) = (delay_ms, check.stream) else {
            return true;
        };
        if let Some(policy) = check.policy.clone() {
            self.refund_local(host, now, &policy, &check.limit_checks);
        }
        self.refuse_hold(stream, check, delay_ms, Vec::new());
        false
    }

    /// Refuses a request because `hold.max` requests are held.
    pub(crate) fn refuse_hold(
        &mut self,
        stream: StreamId,
        check: &PendingCheck,
        delay_ms: u64,
        quota_statuses: Vec<QuotaStatus>,
    ) {
        self.counts.happened(Event::HoldFull);
        let denial = Denial {
            by: check.queues(),
            source: DecidedBy::Proxy,
            retry_after_ms: Some(delay_ms),
            quota_statuses,
        };
        self.refuse(stream, denial);
    }

    /// Counts the decision of a local limit for a request that continues.
    fn admit_local(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &Rc<ActivePolicy>,
        limit_check: &mut LimitCheck,
        admission: &mut Admission,
    ) {
        let (Some(_), Some(limit)) = (&limit_check.local, policy.compiled.limit(limit_check.at))
        else {
            return;
        };
        // Limits that do not deny are charged only when the request is admitted.
        if limit_check.mode != Mode::Enforce {
            self.take_proxy(host, now, policy, limit_check);
        }
        let decided = limit_check.decided.map(|taken| taken.decision);
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
        admission
            .quota_statuses
            .extend(limit_check.quota_status(limit));
        let delay_ms = decided.map_or(0, |decision| decision.delay_ms);
        admission.delay_ms = admission.delay_ms.max(delay_ms);
    }

    /// Counts a limit that leased units settle, for a request that continues.
    fn admit_leased(
        &mut self,
        now: Now,
        policy: &ActivePolicy,
        limit_check: &LimitCheck,
        admission: &mut Admission,
    ) {
        if let (true, Some(limit)) = (
            limit_check.lease != LeaseUse::None,
            policy.compiled.limit(limit_check.at),
        ) {
            let (allowed, source) = (Outcome::Allowed, DecidedBy::Lease);
            self.counts.decided(&limit.name, allowed, source);
            let quota_status = self.leased_status(limit_check, limit, now);
            admission.quota_statuses.extend(quota_status);
        }
    }

    /// Refunds the charges of a request that does not continue: to local buckets and to leases.
    pub(crate) fn refund_local(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &ActivePolicy,
        limit_checks: &[LimitCheck],
    ) {
        self.cancel_units(policy, limit_checks);
        let Some(shared) = self.process.shared() else {
            return;
        };
        for limit_check in limit_checks
            .iter()
            .filter(|limit_check| limit_check.mode == Mode::Enforce)
        {
            let (Some(algorithm), Some(limit)) =
                (&limit_check.local, policy.compiled.limit(limit_check.at))
            else {
                continue;
            };
            if let Some(taken) = limit_check.decided.filter(|taken| taken.decision.allowed) {
                let bucket = LocalBucket {
                    table: &shared.table,
                    key: limit_check.key,
                    generation: limit.generation,
                    algorithm,
                    start: Start::Full,
                };
                // Contended: the bucket keeps a charge that should be refunded.
                let _ = bucket.refund(host, now, taken.at_ms, limit_check.cost, taken.slot);
            }
        }
    }
}

/// The request's slots in queues of this proxy.
fn local_slots(policy: &ActivePolicy, limit_checks: &[LimitCheck]) -> Vec<LocalSlot> {
    let enforced = limit_checks
        .iter()
        .filter(|limit_check| limit_check.mode == Mode::Enforce);
    let slots = enforced.filter_map(|limit_check| {
        let (taken, limit) = (limit_check.decided?, policy.compiled.limit(limit_check.at)?);
        Some(LocalSlot {
            key: limit_check.key,
            generation: limit.generation,
            algorithm: **limit_check.local.as_ref()?,
            cost: limit_check.cost,
            slot: taken.slot?,
            at_ms: taken.at_ms,
        })
    });
    slots.collect()
}
