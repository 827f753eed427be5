//! From decisions to the answer of a call.

use std::collections::HashMap;

use policy::Mode;
use protocol::{Answer, ApiError, LimitAnswer};
use store::CheckError;

use super::messages::{
    Code, CurrentLimit, DescriptorStatus, Duration, Kind, ListValue, RateLimitRequest,
    RateLimitResponse, Struct, Value,
};
use super::scalars::{UNITS, Unit};
use crate::api::{decide::Decided, refusal};

/// Whether a call is over a limit.
pub(super) fn is_over(response: &RateLimitResponse) -> bool {
    response.overall_code == i32::from(Code::OverLimit)
}

/// The answer where no limit applies.
pub(super) fn of_nothing(request: &RateLimitRequest) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: request.descriptors.iter().map(|_| unlimited()).collect(),
        ..RateLimitResponse::default()
    }
}

fn unlimited() -> DescriptorStatus {
    DescriptorStatus {
        code: Code::Ok.into(),
        ..DescriptorStatus::default()
    }
}

/// The answer, and the number of descriptors that no limit matched. `places` has for each
/// descriptor its check and its index within that check.
pub(super) fn of_decided(
    request: &RateLimitRequest,
    places: &[(usize, usize)],
    decided: &Decided,
) -> Result<(RateLimitResponse, usize), ApiError> {
    let mut answers: Vec<&Answer> = Vec::with_capacity(decided.decisions.len());
    for decision in &decided.decisions {
        answers.push(decision.as_ref().map_err(undecided)?);
    }
    let allowed = answers.iter().all(|answer| answer.allowed);
    let policy = &decided.policy.compiled;
    let mut statuses = Vec::with_capacity(places.len());
    let mut unmatched = 0;
    for (check, part) in places {
        let limits = answers.get(*check).map(|answer| answer.part(*part));
        let limits = limits.unwrap_or_default();
        let own = request.descriptors.get(statuses.len());
        let exempt = || own.is_some_and(|own| policy.exemption(&super::entries(own)).is_some());
        if limits.is_empty() && (policy.exemptions().is_empty() || !exempt()) {
            unmatched += 1;
        }
        let own = own.and_then(super::rate);
        let rate = |limit: &LimitAnswer| {
            if limit.name.as_str() == policy::REQUEST_LIMIT {
                return own;
            }
            let known = policy.position(limit.name.as_str());
            let known = known.and_then(|at| policy.limit(at));
            // A limit on requests in flight has no unit of time.
            known
                .filter(|limit| !limit.gives_slots())
                .map(|limit| limit.quota.parameters().rate)
        };
        statuses.push(status(limits, rate));
    }
    let response = RateLimitResponse {
        overall_code: if allowed { Code::Ok } else { Code::OverLimit }.into(),
        statuses,
        dynamic_metadata: metadata(&answers),
        ..RateLimitResponse::default()
    };
    Ok((response, unmatched))
}

/// The status of a descriptor: that of the tightest limit that applies.
fn status(
    limits: &[LimitAnswer],
    rate: impl Fn(&LimitAnswer) -> Option<policy::Rate>,
) -> DescriptorStatus {
    let tightness = |limit: &&LimitAnswer| (limit.allowed, limit.remaining);
    let enforced = |limit: &&LimitAnswer| limit.mode == Mode::Enforce;
    let limited = || limits.iter().filter(|limit| limit.limit.is_some());
    let tightest = limited().filter(enforced).min_by_key(tightness);
    let Some(tightest) = tightest.or_else(|| limited().min_by_key(tightness)) else {
        return unlimited();
    };
    let over = !tightest.allowed && tightest.mode == Mode::Enforce;
    DescriptorStatus {
        code: if over { Code::OverLimit } else { Code::Ok }.into(),
        current_limit: rate(tightest).map(|rate| {
            let mut units = UNITS.iter();
            let unit = units.find(|(.., ms)| *ms == rate.period_ms);
            CurrentLimit {
                requests_per_unit: u32::try_from(rate.units).unwrap_or(u32::MAX),
                unit: unit.map_or(Unit::Unknown, |(unit, ..)| *unit).into(),
                name: shown(tightest).to_owned(),
            }
        }),
        limit_remaining: u32::try_from(tightest.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(duration(tightest.reset_after_ms)),
    }
}

/// The name of a limit; empty for one that the call itself contained.
fn shown(limit: &LimitAnswer) -> &str {
    let name = limit.name.as_str();
    if name == policy::REQUEST_LIMIT {
        ""
    } else {
        name
    }
}

fn duration(ms: u64) -> Duration {
    let nanos = i32::try_from(ms % 1000).unwrap_or(0) * 1_000_000;
    Duration {
        seconds: i64::try_from(ms / 1000).unwrap_or(i64::MAX),
        nanos,
    }
}

/// The names of the limits that applied, and of those that were exceeded.
fn metadata(answers: &[&Answer]) -> Option<Struct> {
    let limits = || answers.iter().flat_map(|answer| &answer.limits);
    let names = |matching: &dyn Fn(&LimitAnswer) -> bool| {
        let mut names: Vec<&str> = limits().filter(|l| matching(l)).map(shown).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| !name.is_empty());
        names
    };
    let lists = [
        ("limits", names(&|_| true)),
        (
            "denied_by",
            names(&|l| !l.allowed && l.mode == Mode::Enforce),
        ),
        (
            "would_deny",
            names(&|l| !l.allowed && l.mode != Mode::Enforce),
        ),
    ];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let fields: HashMap<String, Value> = lists
        .map(|(key, names)| {
            let values = names.into_iter().map(Value::from).collect();
            let kind = Some(Kind::List(ListValue { values }));
            (key.to_owned(), Value { kind })
        })
        .collect();
    (!fields.is_empty()).then_some(Struct { fields })
}

fn undecided(error: &CheckError) -> ApiError {
    refusal::of_check(error)
}
