//! Carries out decisions: requests continue, are held, or are answered here.

use std::rc::Rc;

use policy::{Mode, Name};
use protocol::{DecidedBy, Outcome};

use crate::{
    host::Host,
    metrics::Event,
    random::Random,
    request::{Claims, Held, LimitCheck, PendingCheck, Stream},
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
        for limit_check in &mut check.limit_checks {
            self.admit_local(host, now, limit_check, &mut check.claims, &mut admission);
            self.admit_leased(now, limit_check, &mut admission);
        }
        let mut claims = std::mem::take(&mut check.claims);
        let Some(stream) = check.stream else {
            return self.undo_left(claims);
        };
        let delay_ms = admission.delay_ms;
        if delay_ms > 0 && !self.may_hold(&mut claims) {
            self.undo(host, now, claims);
            return self.refuse_hold(stream, check, delay_ms, admission.quota_statuses);
        }
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
        let quotas = QuotaHeaders {
            quota_statuses: admission.quota_statuses,
        };
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
    pub(crate) fn prepare_hold(
        &mut self,
        host: &impl Host,
        now: Now,
        check: &mut PendingCheck,
    ) -> bool {
        if !check.may_be_held() {
            return true;
        }
        check.hold.barred = !self.may_hold(&mut check.claims);
        check.hold.entries = Some(Box::new(check.entries.clone()));
        let delays = check
            .limit_checks
            .iter()
            .filter_map(|limit_check| limit_check.decided);
        let delay_ms = delays.map(|decision| decision.delay_ms).max();
        let delay_ms = delay_ms.filter(|ms| *ms > 0 && check.hold.barred);
        let (Some(delay_ms), Some(stream)) = (delay_ms, check.stream) else {
            return true;
        };
        self.undo(host, now, std::mem::take(&mut check.claims));
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
        let delay_ms = decided.map_or(0, |decision| decision.delay_ms);
        admission.delay_ms = admission.delay_ms.max(delay_ms);
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
