//! From decisions to the answer of a call.

use std::collections::HashMap;

use policy::{Compiled, Limit, Mode};
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
        statuses: request.descriptors.iter().map(|_| admitted(0)).collect(),
        ..RateLimitResponse::default()
    }
}

/// The status of a descriptor without a limit. In envoyproxy/ratelimit nothing is left where no limit
/// was found, and everything where one says `unlimited`.
fn admitted(left: u32) -> DescriptorStatus {
    DescriptorStatus {
        code: Code::Ok.into(),
        limit_remaining: left,
        ..DescriptorStatus::default()
    }
}

/// Limits with `quota_mode`. An exceeded one says so in its descriptor's status, and the call is over
/// once all of them are, whatever the other limits say.
struct Quotas<'p> {
    policy: &'p Compiled,
    all_over: bool,
}

impl<'p> Quotas<'p> {
    fn new(policy: &'p Compiled, answers: &[&Answer]) -> Self {
        let mut quotas = Self {
            policy,
            all_over: false,
        };
        let limits = answers.iter().flat_map(|answer| &answer.limits);
        let mut over = limits.filter_map(|answer| {
            let enforced = quotas.enforced(answer)?;
            Some(enforced && !answer.allowed)
        });
        let all_over = over
            .next()
            .is_some_and(|first| first && over.all(|over| over));
        quotas.all_over = all_over;
        quotas
    }

    /// Whether a limit with `quota_mode` is enforced for this bucket; `None`: it is another limit.
    fn enforced(&self, answer: &LimitAnswer) -> Option<bool> {
        let limit = known(self.policy, answer).filter(|limit| limit.has_quota_mode())?;
        let values: Vec<_> = answer
            .bucket
            .iter()
            .map(|(_, value)| value.as_deref())
            .collect();
        Some(limit.enforces(&values))
    }

    /// Whether an exceeded limit makes its descriptor's code `OVER_LIMIT`.
    fn counts(&self, answer: &LimitAnswer) -> bool {
        answer.mode == Mode::Enforce || self.enforced(answer) == Some(true)
    }

    fn denies(&self, answer: &LimitAnswer) -> bool {
        let quota = self.all_over && self.enforced(answer) == Some(true);
        !answer.allowed && (answer.mode == Mode::Enforce || quota)
    }
}

fn known<'p>(policy: &'p Compiled, answer: &LimitAnswer) -> Option<&'p Limit> {
    let at = policy.position(answer.name.as_str())?;
    policy.limit(at)
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
    let policy = &decided.policy.compiled;
    let quotas = Quotas::new(policy, &answers);
    let allowed = answers.iter().all(|answer| answer.allowed) && !quotas.all_over;
    let mut statuses = Vec::with_capacity(places.len());
    let mut unmatched = 0;
    for (check, part) in places {
        let limits = answers.get(*check).map(|answer| answer.part(*part));
        let limits = limits.unwrap_or_default();
        let own = request.descriptors.get(statuses.len());
        if limits.is_empty() {
            let exempt = || own.is_some_and(|own| policy.exemption(&super::entries(own)).is_some());
            unmatched += usize::from(policy.exemptions().is_empty() || !exempt());
            statuses.push(admitted(0));
            continue;
        }
        let own = own.and_then(super::rate);
        let rate = |limit: &LimitAnswer| {
            if limit.name.as_str() == policy::REQUEST_LIMIT {
                return own;
            }
            // A limit on requests in flight has no unit of time.
            known(policy, limit)
                .filter(|limit| !limit.gives_slots())
                .map(|limit| limit.quota.parameters().rate)
        };
        statuses.push(status(limits, &quotas, rate));
    }
    // Envoy writes the least numbers into its headers. Where a denial has none to show, those of others
    // would tell the client to go on.
    let over = i32::from(Code::OverLimit);
    let shows = |status: &DescriptorStatus| status.code == over && status.current_limit.is_some();
    if !allowed && !statuses.iter().any(shows) {
        for status in &mut statuses {
            status.current_limit = None;
        }
    }
    let response = RateLimitResponse {
        overall_code: if allowed { Code::Ok } else { Code::OverLimit }.into(),
        statuses,
        dynamic_metadata: metadata(&answers, &quotas),
        ..RateLimitResponse::default()
    };
    Ok((response, unmatched))
}

/// The status of a descriptor: that of the tightest limit that applies.
fn status(
    limits: &[LimitAnswer],
    quotas: &Quotas<'_>,
    rate: impl Fn(&LimitAnswer) -> Option<policy::Rate>,
) -> DescriptorStatus {
    let tightness = |limit: &&LimitAnswer| {
        // A limit that passes and is hidden is shown only if there is no other.
        (
            limit.allowed,
            limit.allowed && is_hidden(limit),
            limit.remaining,
        )
    };
    let limited = || limits.iter().filter(|limit| limit.limit.is_some());
    let counting = limited().filter(|limit| quotas.counts(limit));
    let tightest = counting.min_by_key(tightness);
    let Some(tightest) = tightest.or_else(|| limited().min_by_key(tightness)) else {
        return admitted(u32::MAX);
    };
    let over = !tightest.allowed && quotas.counts(tightest);
    let code = if over { Code::OverLimit } else { Code::Ok }.into();
    if is_hidden(tightest) {
        return DescriptorStatus {
            code,
            ..DescriptorStatus::default()
        };
    }
    let waiting_helps = tightest.allowed || tightest.retry_after_ms.is_some();
    DescriptorStatus {
        code,
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
        duration_until_reset: waiting_helps.then(|| duration(tightest.reset_after_ms)),
    }
}

/// Whether clients may not see a limit. The caller knows one that the call itself contained.
fn is_hidden(limit: &LimitAnswer) -> bool {
    limit.hidden && limit.name.as_str() != policy::REQUEST_LIMIT
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
fn metadata(answers: &[&Answer], quotas: &Quotas<'_>) -> Option<Struct> {
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
        ("denied_by", names(&|l| quotas.denies(l))),
        ("would_deny", names(&|l| !l.allowed && !quotas.denies(l))),
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
