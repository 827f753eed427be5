//! Checks of Envoy's rate limit service: several descriptors of one request.

use std::collections::HashMap;

use algorithms::{Debits, Kind, Parameters, check::Options};
use policy::{Algorithm, Compiled, DESCRIPTOR, Mode, Rate};
use protocol::{Answer, Check, OwnUnits, ServiceCheck, ServicePart};

use super::{CheckPlan, LimitPlan, Query, Target};
use crate::plan::{Keys, script::Bucket};

impl<'p> CheckPlan<'p> {
    /// Resolves such a check.
    pub(super) fn of_service(
        policy: &'p Compiled,
        check: &'p Check,
        service: &'p ServiceCheck,
        keys: &Keys,
        now_ms: u64,
        force: bool,
    ) -> Self {
        let (mut limits, mut buckets) = (Vec::<LimitPlan<'p>>::new(), Vec::new());
        let mut counts = Vec::with_capacity(service.parts.len());
        for part in &service.parts {
            let before = limits.len();
            let matches = policy.matching(&part.descriptor, now_ms).into_iter();
            let applying = matches.filter(|found| {
                let replaced = part.rate.is_some() && found.limit.descriptor.is_some();
                // What is unlimited stays so, even if another limit replaces it.
                let skipped = check.limit(&found.limit.name).is_some_and(|of| of.skip)
                    && !found.limit.is_unlimited();
                !replaced && !skipped
            });
            let asked = Query::ServiceDescriptor(part, service.own, check.slot);
            let plan = |found| LimitPlan::new(policy, found, asked, keys, now_ms, &mut buckets);
            limits.extend(applying.map(plan));
            let own = part
                .rate
                .filter(|_| policy.exemption(&part.descriptor).is_none())
                .and_then(|rate| of_request(policy, part, rate, asked, keys, &mut buckets));
            limits.extend(own);
            counts.push(limits.len().saturating_sub(before));
        }
        let together = !service.quotas_elsewhere && deny_together(&limits, &mut buckets);
        let buckets = merge_equal(&mut limits, buckets);
        let (peek, debits) = match service.own {
            Some(OwnUnits::Look) => (true, Debits::Admitted),
            Some(OwnUnits::Charge(_)) => (false, Debits::Reported),
            Some(OwnUnits::Refund(_)) => (true, Debits::Refunded),
            Some(OwnUnits::Fitting) | None => (false, Debits::Admitted),
        };
        let refused = limits.iter().any(LimitPlan::refuses);
        let options = Options {
            peek,
            denied: refused,
            force,
            debits,
            patience_ms: 0,
        };
        Self {
            counts,
            together,
            ..Self::of(limits, buckets, options, None)
        }
    }
}

/// The limit that a descriptor brings itself.
fn of_request<'p>(
    policy: &'p Compiled,
    part: &ServicePart,
    rate: Rate,
    asked: Query<'p>,
    keys: &Keys,
    buckets: &mut Vec<Bucket<'p>>,
) -> Option<LimitPlan<'p>> {
    let parameters = Parameters::new(Kind::FixedWindow, rate.units, rate.period_ms);
    let quota = Algorithm::new(&parameters).ok()?;
    let limit = policy.request_limit()?;
    let window = rate.period_ms.to_string().into_bytes();
    let text = part.descriptor.get(DESCRIPTOR)?.to_vec();
    let values = vec![Some(text), Some(window)];
    let mode = Mode::Enforce;
    buckets.push(asked.bucket(policy, limit, &values, &quota, mode, keys));
    Some(LimitPlan {
        limit,
        values,
        mode,
        what: Target::Bucket(buckets.len() - 1),
    })
}

/// Lets the limits with `quota_mode` deny the check if it fits none of them. One that is lifted or
/// only reports is never over its quota, so there the others deny nothing either: returns false.
fn deny_together(limits: &[LimitPlan<'_>], buckets: &mut [Bucket<'_>]) -> bool {
    let quotas = || limits.iter().filter(|limit| limit.limit.has_quota_mode());
    let denies = |limit: &LimitPlan<'_>| {
        limit.limit.enforces(&limit.values) && matches!(limit.what, Target::Bucket(_))
    };
    let all = quotas().all(denies);
    for limit in quotas().filter(|_| all) {
        if let Target::Bucket(at) = limit.what
            && let Some(bucket) = buckets.get_mut(at)
        {
            bucket.part.mode = algorithms::check::Mode::Together;
        }
    }
    all
}

/// Merges equal buckets of one check into one that costs the sum.
fn merge_equal<'p>(limits: &mut [LimitPlan<'p>], buckets: Vec<Bucket<'p>>) -> Vec<Bucket<'p>> {
    if buckets.len() < 2 {
        return buckets;
    }
    let mut merged: Vec<Bucket<'p>> = Vec::with_capacity(buckets.len());
    let mut known: HashMap<String, usize> = HashMap::new();
    let touching = limits.iter_mut();
    let touching = touching.filter(|limit| matches!(limit.what, Target::Bucket(_)));
    for (limit, bucket) in touching.zip(buckets) {
        let nth = *known.entry(bucket.key.clone()).or_insert(merged.len());
        let Some(Bucket { part: sum, .. }) = merged.get_mut(nth) else {
            limit.what = Target::Bucket(nth);
            merged.push(bucket);
            continue;
        };
        let part = bucket.part;
        sum.cost = match sum.algorithm.kind() {
            Kind::Concurrency => sum.cost.max(part.cost),
            _ => sum.cost.saturating_add(part.cost),
        };
        sum.debit = sum.debit.saturating_add(part.debit);
        // Equal descriptors that bring different limits share a bucket: the smaller limit decides.
        if part.algorithm.limit() < sum.algorithm.limit() {
            sum.algorithm = part.algorithm;
        }
        limit.what = Target::Same(nth, Box::new(part.algorithm));
    }
    merged
}

/// Says of limits that deny together, if all are over, that they denied.
pub(super) fn show_who_denied(answer: &mut Answer, together: &[bool]) {
    let mut limits = answer.limits.iter().zip(together);
    if limits.any(|(limit, together)| *together && limit.verdict.decision.allowed) {
        return;
    }
    for (limit, together) in answer.limits.iter_mut().zip(together) {
        if *together {
            limit.mode = Mode::Enforce;
        }
    }
}
