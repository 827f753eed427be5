//! Checks of Envoy's rate limit service: several descriptors of one request.

use std::collections::HashMap;

use algorithms::{Debits, Kind, Parameters, check::Options};
use policy::{Compiled, DESCRIPTOR, Match, Mode, Quota, Rate};
use protocol::{Answer, Check, LimitAnswer, OwnUnits, ServiceCheck, ServicePart};

use super::{Bucket, CheckPlan, LimitPlan, Target, query::Query};
use crate::Keys;

impl<'p> CheckPlan<'p> {
    /// Resolves such a check.
    pub(super) fn of_service(
        policy: &'p Compiled,
        check: &Check,
        service: &ServiceCheck,
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
                !replaced && !check.skip.contains(&found.limit.name)
            });
            let asked = Query::Part(part, service.own, check.slot);
            limits.extend(applying.map(|found| LimitPlan::new(policy, found, asked, keys, now_ms)));
            let own = part
                .rate
                .filter(|_| policy.exemption(&part.descriptor).is_none())
                .and_then(|rate| of_request(policy, part, rate, asked, keys));
            limits.extend(own);
            counts.push(limits.len().saturating_sub(before));
        }
        merge_equal(&mut limits);
        let (peek, debits) = match service.own {
            Some(OwnUnits::Look) => (true, Debits::Admitted),
            Some(OwnUnits::Charge(_)) => (false, Debits::Reported),
            Some(OwnUnits::GiveBack(_)) => (true, Debits::GivenBack),
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
            },
        }
    }
}

/// The limit that a descriptor brings itself.
fn of_request<'p>(
    policy: &'p Compiled,
    part: &ServicePart,
    rate: Rate,
    asked: Query<'_>,
    keys: &Keys,
) -> Option<LimitPlan<'p>> {
    let parameters = Parameters::new(Kind::FixedWindow, rate.units, rate.period_ms);
    let quota = Quota::new(&parameters).ok()?;
    let limit = policy.request_limit()?;
    let window = rate.period_ms.to_string();
    let text = part.descriptor.get(DESCRIPTOR)?;
    let found = Match {
        index: usize::MAX,
        limit,
        values: vec![Some(text), Some(window.as_bytes())],
        shared: None,
        enforced: true,
        missing: None,
    };
    let values = found.into_values();
    let mode = Mode::Enforce;
    let bucket = Bucket::new(policy, limit, &values, quota.algorithm(), asked, mode, keys);
    Some(LimitPlan {
        limit,
        values,
        mode: Mode::Enforce,
        what: Target::Bucket(bucket),
    })
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
        let (cost, debit) = (bucket.cost, bucket.debit);
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
        }
        if let Some(limit) = limits.get_mut(at) {
            let target = std::mem::replace(&mut limit.what, Target::Unlimited);
            if let Target::Bucket(bucket) = target {
                limit.what = Target::Same(nth, Box::new(bucket));
            }
        }
    }
}

/// Denies a check for the limits with `quota_mode` whose descriptors are all over. None of them was
/// charged then: to the script they are shadow limits.
pub(super) fn deny_where_all_are_over(answer: &mut Answer, of_quota: &[bool]) {
    let over =
        |limit: &LimitAnswer, quota: bool| !limit.allowed && (quota || limit.mode == Mode::Enforce);
    let mut from = 0;
    let (mut limited, mut all_over) = (false, true);
    for count in &answer.parts {
        let limits = answer.limits.iter().zip(of_quota).skip(from).take(*count);
        from += count;
        let mut bounded = limits.filter(|(limit, _)| limit.limit.is_some()).peekable();
        if bounded.peek().is_some() {
            limited = true;
            all_over = all_over && bounded.any(|(limit, quota)| over(limit, *quota));
        }
    }
    if !(limited && all_over) {
        return;
    }
    for (limit, quota) in answer.limits.iter_mut().zip(of_quota) {
        if *quota && !limit.allowed {
            limit.mode = Mode::Enforce;
            answer.allowed = false;
        }
    }
}
