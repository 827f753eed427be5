//! Charges buckets of this proxy: limits with `scope: proxy`, and prechecks in front of global ones.

use algorithms::Algorithm;
use policy::Mode;
use protocol::{DecidedBy, Outcome};

use crate::{
    active_policy::ActivePolicy,
    cache::Role,
    host::{Contended, Host},
    local_bucket::{LocalBucket, Start, Take},
    metrics::Event,
    request::{DenyingLimits, LeaseUse, LimitCheck, LocalDecision, quota_status},
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
        policy: &ActivePolicy,
        limit_checks: &mut [LimitCheck],
    ) -> Option<Denial> {
        let enforced = |limit_check: &LimitCheck| limit_check.mode == Mode::Enforce;
        for n in 0..limit_checks.len() {
            let limit_check = limit_checks.get_mut(n)?;
            if limit_check.is_global() || !enforced(limit_check) {
                continue;
            }
            let allowed = self.take_proxy(host, now, policy, limit_check);
            if !allowed {
                return self.local_denial(host, now, policy, limit_checks, n, DecidedBy::Proxy);
            }
        }
        for n in 0..limit_checks.len() {
            let limit_check = limit_checks.get_mut(n)?;
            // Leased units need no check, so no precheck guards one.
            let sent = enforced(limit_check) && limit_check.lease == LeaseUse::None;
            if sent && !self.take_precheck(host, now, policy, limit_check) {
                return self.local_denial(host, now, policy, limit_checks, n, DecidedBy::Precheck);
            }
        }
        None
    }

    /// Charges a bucket of this proxy; returns whether the cost fits.
    pub(crate) fn take_proxy(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &ActivePolicy,
        limit_check: &mut LimitCheck,
    ) -> bool {
        let taken = limit_check.local.as_ref().map(|algorithm| {
            self.take_from(host, now, policy, limit_check, Start::Full, algorithm)
        });
        match taken {
            None => true,
            Some(Ok(taken)) => {
                limit_check.decided = Some(taken);
                taken.decision.allowed
            }
            Some(Err(Contended)) => {
                self.counts.happened(Event::Contended);
                false
            }
        }
    }

    /// Charges the precheck of a global bucket, if there is one; returns whether the cost fits. A
    /// precheck counts the checks that are sent, so its charge is never refunded.
    fn take_precheck(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &ActivePolicy,
        limit_check: &mut LimitCheck,
    ) -> bool {
        let Some(algorithm) = policy.precheck(limit_check.at) else {
            return true;
        };
        match self.take_from(host, now, policy, limit_check, Start::Precheck, algorithm) {
            Ok(taken) => {
                limit_check.decided = Some(taken);
                taken.decision.allowed
            }
            // The limiter decides instead.
            Err(Contended) => true,
        }
    }

    fn take_from(
        &self,
        host: &impl Host,
        now: Now,
        policy: &ActivePolicy,
        limit_check: &LimitCheck,
        start: Start,
        algorithm: &Algorithm,
    ) -> Result<LocalDecision, Contended> {
        let (Some(limit), Some(shared)) =
            (policy.compiled.limit(limit_check.at), self.process.shared())
        else {
            return Err(Contended);
        };
        let bucket = LocalBucket {
            table: &shared.table,
            key: match start {
                Start::Precheck => limit_check.key.in_role(Role::Precheck),
                _ => limit_check.key,
            },
            generation: limit.generation,
            algorithm,
            start,
        };
        let (decision, slot) = bucket.decide(host, now, limit_check.cost, Take::Charge)?;
        Ok(LocalDecision {
            decision,
            slot,
            at_ms: now.wall_ms,
        })
    }

    /// The denial by a local bucket. The buckets charged before it are refunded.
    fn local_denial(
        &mut self,
        host: &impl Host,
        now: Now,
        policy: &ActivePolicy,
        limit_checks: &[LimitCheck],
        denied_by: usize,
        source: DecidedBy,
    ) -> Option<Denial> {
        self.refund_local(host, now, policy, limit_checks);
        let limit_check = limit_checks.get(denied_by)?;
        let limit = policy.compiled.limit(limit_check.at)?;
        let algorithm = match source {
            DecidedBy::Precheck => policy.precheck(limit_check.at)?,
            _ => limit_check.local.as_ref()?,
        };
        self.counts.decided(&limit.name, Outcome::Denied, source);
        let decided = limit_check.decided.map(|taken| taken.decision);
        // Contended: the client may retry at once.
        let retry_after_ms = decided.map_or(Some(1), |d| d.retry_after.millis());
        let quotas = decided.filter(|_| !limit.hidden);
        let quota_statuses: Vec<QuotaStatus> = quotas
            .map(|decision| quota_status(limit, algorithm, &decision, limit_check.cost))
            .into_iter()
            .collect();
        let mut denying = DenyingLimits::default();
        denying.add(&limit.name, limit.hidden, retry_after_ms);
        Some(denying.denial(source, quota_statuses))
    }
}
