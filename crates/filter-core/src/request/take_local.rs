//! Charges buckets of this proxy: limits with `scope: proxy`, and prechecks in front of global ones.

use std::rc::Rc;

use algorithms::{Algorithm, Decision, QueueSlot};
use policy::Mode;
use protocol::{DecidedBy, Outcome};

use crate::{
    cache::Role,
    host::{Contended, Host},
    local_bucket::{LocalBucket, Start, Take},
    metrics::Event,
    request::{Claims, DenyingLimits, LimitCheck, LocalUnits, PendingCheck, quota_status},
    response::{Denial, QuotaStatus},
    time::Now,
    worker::Worker,
};

impl Worker {
    /// Charges the buckets of `scope: proxy` limits, then the prechecks.
    pub(super) fn take_local(
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
    pub(crate) fn take_proxy(
        &mut self,
        host: &impl Host,
        now: Now,
        limit_check: &mut LimitCheck,
        claims: &mut Claims,
    ) -> bool {
        let Some(algorithm) = &limit_check.local else {
            return true;
        };
        let Ok((decision, slot)) = self.take_from(host, now, limit_check, Start::Full, algorithm)
        else {
            self.counts.happened(Event::Contended);
            return false;
        };
        // The other modes are charged when nothing can deny the request any more.
        if decision.allowed && limit_check.mode == Mode::Enforce {
            claims.local.push(LocalUnits {
                key: limit_check.key,
                generation: limit_check.limit.generation,
                algorithm: Rc::clone(algorithm),
                cost: limit_check.cost,
                slot,
                at_ms: now.wall_ms,
            });
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
        match self.take_from(host, now, limit_check, Start::Precheck, algorithm) {
            Ok((decision, _)) => {
                limit_check.decided = Some(decision);
                decision.allowed
            }
            // The limiter decides instead.
            Err(Contended) => true,
        }
    }

    fn take_from(
        &self,
        host: &impl Host,
        now: Now,
        limit_check: &LimitCheck,
        start: Start,
        algorithm: &Algorithm,
    ) -> Result<(Decision, Option<QueueSlot>), Contended> {
        let shared = self.process.shared().ok_or(Contended)?;
        let bucket = LocalBucket {
            table: &shared.table,
            key: match start {
                Start::Precheck => limit_check.key.in_role(Role::Precheck),
                _ => limit_check.key,
            },
            generation: limit_check.limit.generation,
            algorithm,
            start,
        };
        bucket.decide(host, now, limit_check.cost, Take::Charge)
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
        Some(denying.denial(source, quota_statuses))
    }
}
