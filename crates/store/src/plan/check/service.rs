//! Checks of Envoy's rate limit service: several descriptors of one request.

use std::collections::HashMap;

use algorithms::{Debits, Kind, Parameters, check::Options};
use policy::{Algorithm, Compiled, DESCRIPTOR, Mode, Rate};
use protocol::{Answer, Check, OwnUnits, ServiceCheck, ServicePart};

use super::{Bucket, CheckPlan, LimitPlan, Query, Target};
use crate::plan::Keys;

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
        let mut limits: Vec<LimitPlan<'p>> = Vec::new();
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
            limits.extend(applying.map(|found| LimitPlan::new(policy, found, asked, keys, now_ms)));
            let own = part
                .rate
                .filter(|_| policy.exemption(&part.descriptor).is_none())
                .and_then(|rate| of_request(policy, part, rate, asked, keys));
            limits.extend(own);
            counts.push(limits.len().saturating_sub(before));
        }
        if !service.quotas_elsewhere {
            deny_together(&mut limits);
        }
        merge_equal(&mut limits);
        let (peek, debits) = match service.own {
            Some(OwnUnits::Look) => (true, Debits::Admitted),
            Some(OwnUnits::Charge(_)) => (false, Debits::Reported),
            Some(OwnUnits::Refund(_)) => (true, Debits::Refunded),
            Some(OwnUnits::Fitting) | None => (false, Debits::Admitted),
        };
        let refused = limits.iter().any(LimitPlan::refuses);
        Self {
            parts: limits,
            counts,
            options: Options {
                peek,
                denied: refused,
                force,
                debits,
                patience_ms: 0,
            },
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
) -> Option<LimitPlan<'p>> {
    let parameters = Parameters::new(Kind::FixedWindow, rate.units, rate.period_ms);
    let quota = Algorithm::new(&parameters).ok()?;
    let limit = policy.request_limit()?;
    let window = rate.period_ms.to_string().into_bytes();
    let text = part.descriptor.get(DESCRIPTOR)?.to_vec();
    let values = vec![Some(text), Some(window)];
    let mode = Mode::Enforce;
    let bucket = Bucket::new(policy, limit, &values, &quota, asked, mode, keys);
    Some(LimitPlan {
        limit,
        values,
        mode,
        what: Target::Bucket(bucket),
    })
}

/// Lets the limits with `quota_mode` deny the check if it fits none of them. One that is lifted or
/// only reports is never over its quota, so there the others deny nothing either.
fn deny_together(limits: &mut [LimitPlan<'_>]) {
    let quotas = || limits.iter().filter(|limit| limit.limit.has_quota_mode());
    let denies = |limit: &LimitPlan<'_>| {
        limit.limit.enforces(&limit.values) && matches!(limit.what, Target::Bucket(_))
    };
    if !quotas().all(denies) {
        return;
    }
    for limit in limits
        .iter_mut()
        .filter(|limit| limit.limit.has_quota_mode())
    {
        if let Target::Bucket(bucket) = &mut limit.what {
            bucket.mode = algorithms::check::Mode::Together;
        }
    }
}

/// Merges equal buckets of one check into one that costs the sum.
fn merge_equal(limits: &mut [LimitPlan<'_>]) {
    if limits.len() < 2 {
        return;
    }
    // By key: the place among the limits, and among the buckets.
    let mut known: HashMap<String, (usize, usize)> = HashMap::new();
    let mut buckets = 0;
    for at in 0..limits.len() {
        let Some(LimitPlan {
            what: Target::Bucket(bucket),
            ..
        }) = limits.get(at)
        else {
            continue;
        };
        let Some((first, nth)) = known.get(&bucket.key).copied() else {
            known.insert(bucket.key.clone(), (at, buckets));
            buckets += 1;
            continue;
        };
        let (cost, debit, algorithm) = (bucket.cost, bucket.debit, bucket.algorithm);
        if let Some(LimitPlan {
            what: Target::Bucket(sum),
            ..
        }) = limits.get_mut(first)
        {
            sum.cost = match sum.algorithm.kind() {
                Kind::Concurrency => sum.cost.max(cost),
                _ => sum.cost.saturating_add(cost),
            };
            sum.debit = sum.debit.saturating_add(debit);
            // Equal descriptors that bring different limits share a bucket: the smaller limit decides.
            if algorithm.limit() < sum.algorithm.limit() {
                sum.algorithm = algorithm;
            }
        }
        if let Some(limit) = limits.get_mut(at) {
            let target = std::mem::replace(&mut limit.what, Target::Unlimited);
            if let Target::Bucket(bucket) = target {
                limit.what = Target::Same(nth, Box::new(bucket));
            }
        }
    }
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
