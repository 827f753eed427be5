//! `on_failure: local`: a bucket of this proxy, with its share of the limit.

use std::rc::Rc;

use algorithms::{Algorithm, Decision, QueueSlot};
use policy::Mode;
use protocol::{DecidedBy, Outcome};

use super::{FallbackInput, FallbackResult};
use crate::{
    active_policy::FallbackBucket,
    cache::DebtSpan,
    host::Host,
    local_bucket::{LocalBucket, Start, Take},
    request::{LocalUnits, Share, quota_status},
    time::Now,
    worker::Worker,
};

impl Worker {
    /// Decides one limit by its fallback bucket.
    pub(super) fn fall_back_locally(
        &mut self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        result: &mut FallbackResult,
    ) {
        let limit_check = input.limit_check;
        let (limit, cost) = (&limit_check.limit, limit_check.cost);
        let decided = match limit.fallback_bucket(limit_check.status, cost, now) {
            FallbackBucket::Unlimited => return,
            FallbackBucket::Impossible => None,
            FallbackBucket::Bucket(algorithm, span) => {
                let decided = self.decide_bucket(host, now, input, &algorithm, span);
                decided.map(|(decision, slot)| {
                    // Of other buckets, the charge is a debt already.
                    if slot.is_some() && limit_check.mode == Mode::Enforce {
                        result.claims.local.push(LocalUnits {
                            key: limit_check.key,
                            generation: limit.generation,
                            algorithm: Rc::new(algorithm),
                            cost,
                            slot,
                            at_ms: now.wall_ms,
                        });
                    }
                    (algorithm, decision)
                })
            }
        };
        let fits = decided
            .as_ref()
            .is_some_and(|(_, decision)| decision.allowed);
        self.record_local(input, fits, result);
        if !fits && limit_check.mode == Mode::Enforce {
            let wait_ms = decided.as_ref().and_then(|(_, d)| d.retry_after.millis());
            result.exhausted.add(&limit.name, limit.hidden, wait_ms);
        }
        let Some((algorithm, decision)) = decided.filter(|_| limit_check.mode == Mode::Enforce)
        else {
            return;
        };
        let admission = &mut result.admission;
        admission.delay_ms = admission.delay_ms.max(decision.delay_ms);
        if !limit.hidden {
            (admission.quota_statuses).push(quota_status(limit, &algorithm, &decision, cost));
        }
    }

    /// Decides a limit on requests in flight by this proxy's share of it.
    pub(super) fn fall_back_on_share(
        &mut self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        result: &mut FallbackResult,
    ) {
        let FallbackInput {
            limit_check, take, ..
        } = *input;
        let limit = &limit_check.limit;
        let quota = match limit_check.status {
            Some(status) => match status.limit {
                Some(quota) => quota,
                None => return,
            },
            None => limit.quota.algorithm().limit(),
        };
        let size = Share::size(quota, limit.proxies());
        let ttl_ms = limit.quota.parameters().rate.period_ms;
        let mut share = Share::of(limit_check.key, ttl_ms);
        let peek = take == Take::Peek;
        let taken = self
            .process
            .shared()
            .and_then(|shared| share.take(&shared.table, host, now, size, peek).ok());
        let fits = taken == Some(true);
        if fits && !peek {
            result.claims.in_flight.shares.push(share);
        }
        self.record_local(input, fits, result);
        if !fits && limit_check.mode == Mode::Enforce {
            result.exhausted.add_without_time(&limit.name, limit.hidden);
        }
    }

    /// Counts a decision of this proxy, and marks a request that is degraded.
    fn record_local(&mut self, input: &FallbackInput<'_>, fits: bool, result: &mut FallbackResult) {
        let limit = &input.limit_check.limit.name;
        let outcome = match input.limit_check.mode {
            Mode::Degrade if !fits => return result.admission.degraded.push(limit.clone()),
            Mode::Enforce if !fits => Outcome::Denied,
            _ if input.take != Take::Peek => Outcome::Allowed,
            _ => return,
        };
        self.counts.decided(limit, outcome, DecidedBy::Local);
    }

    /// Decides by the fallback bucket; `None`: contended.
    fn decide_bucket(
        &self,
        host: &impl Host,
        now: Now,
        input: &FallbackInput<'_>,
        algorithm: &Algorithm,
        span: DebtSpan,
    ) -> Option<(Decision, Option<QueueSlot>)> {
        let FallbackInput {
            limit_check, take, ..
        } = *input;
        let limit = &limit_check.limit;
        let bucket = LocalBucket {
            table: &self.process.shared()?.table,
            key: limit_check.key,
            generation: limit.generation,
            algorithm,
            start: Start::Fallback {
                proxies: limit.proxies(),
                answering: self.calls.retry_budget.answered_lately(now),
                span,
            },
        };
        bucket.decide(host, now, limit_check.cost, take).ok()
    }
}
