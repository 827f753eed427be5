//! Envoy's rate limit service: `ShouldRateLimit` over gRPC, and the same as `POST /json`.
//!
//! A call becomes checks of its domain, which are bounded and batched like all others. The
//! descriptors without units of their own form one check, charged all or nothing. Each descriptor
//! with its own units is a separate check, because it reports the usage so far.

mod compare;
mod health;
mod messages;

use std::{collections::HashMap, sync::Arc};

use hyper::{StatusCode, body::Incoming, http::request::Parts};
use policy::{
    Compiled, DESCRIPTOR, Descriptor, MAX_DESCRIPTOR_KEY, MULTIPLE_VALUES, Mode, Name, Rate,
    normal_value, push_entry,
};
use protocol::{
    Answer, ApiError, Check, Decision, ErrorCode, LimitAnswer, LimitRequest, MAX_ENTRIES, OwnUnits,
    RetryAfter, ServiceCheck, ServicePart,
};
use store::CheckError;
use tokio::time::Instant;

use super::{
    Answered, Api,
    body::MemoryPermit,
    check::{Encoding, encoding},
    decide::Decided,
    grpc, refusal,
};
use crate::{
    domains::{Active, Lookup},
    serve::{self, Peer},
    trace,
};
pub(crate) use compare::Comparison;
pub(crate) use health::Watched;
pub(super) use health::{CHECK as HEALTH_CHECK, WATCH as HEALTH_WATCH};
use messages::{
    Code, CurrentLimit, DescriptorStatus, Duration, Kind, ListValue, RateLimitDescriptor,
    RateLimitRequest, RateLimitResponse, Struct, UNITS, Unit, Value,
};

/// The path of the call that decides.
pub(super) const SHOULD_RATE_LIMIT: &str =
    "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Bound: descriptors in a call of the rate limit service. Beyond it, 400; nothing is charged.
const MAX_DESCRIPTORS: usize = 1024;

/// Bound: what a call of the rate limit service may cost, in token buckets, where several are
/// charged all or nothing. Beyond it, 400; nothing is charged.
///
/// They are one check, which no script call can leave to the next one: while it runs, about a
/// millisecond, the store answers nobody else.
const TOGETHER_MAX: usize = 128;

impl Api {
    /// `ShouldRateLimit`.
    pub(super) async fn should_rate_limit(&self, body: Incoming, peer: Arc<Peer>) -> Answered {
        let response = self.rate_limit(body, peer, grpc::decode).await?;
        Ok(grpc::answer(&response))
    }

    /// `POST /json`: 200, or 429 where a limit is exceeded.
    pub(super) async fn should_rate_limit_json(
        &self,
        head: &Parts,
        body: Incoming,
        peer: Arc<Peer>,
    ) -> Answered {
        encoding(&head.headers, &[Encoding::Json])?;
        let decode = |bytes: &[u8]| {
            serde_json::from_slice(bytes)
                .map_err(|error| ApiError::new(ErrorCode::InvalidRequest, error.to_string()))
        };
        let response = self.rate_limit(body, peer, decode).await?;
        let status = if is_over(&response) {
            StatusCode::TOO_MANY_REQUESTS
        } else {
            StatusCode::OK
        };
        Ok(serve::answer(
            status,
            serve::JSON,
            messages::to_json(&response).to_string(),
        ))
    }

    async fn rate_limit(
        &self,
        body: Incoming,
        peer: Arc<Peer>,
        decode: fn(&[u8]) -> Result<RateLimitRequest, ApiError>,
    ) -> Result<RateLimitResponse, ApiError> {
        let _permit = self.bounds.enter()?;
        let body = self.receive(body, peer).await?;
        let (request, mut memory) = self.bounds.bodies.decode(body, decode).await?;
        let domain = validate(&request)?;
        let policy = self.service_policy(&domain)?;
        let known = policy.is_some().then(|| domain.clone());
        let response = if let Some(policy) = policy {
            self.decided(&domain, &request, &policy, &mut memory)
                .await?
        } else {
            self.count_unmatched("domain", request.descriptors.len());
            unlimited(&request)
        };
        if let Some(comparison) = &self.comparison {
            comparison.send(known, &request, &response);
        }
        Ok(response)
    }

    async fn decided(
        &self,
        domain: &Name,
        request: &RateLimitRequest,
        policy: &Active,
        memory: &mut MemoryPermit,
    ) -> Result<RateLimitResponse, ApiError> {
        let now_ms = self.telemetry.now_ms();
        let checks = ServiceChecks::new(request, &policy.compiled, now_ms);
        memory.hold(&checks.checks).ok_or_else(refusal::no_room)?;
        trace::set_request(domain, checks.checks.len());
        if checks.checks.is_empty() {
            return Ok(unlimited(request));
        }
        checks.bounded(policy, now_ms)?;
        let deadline = Instant::now() + self.bounds.store_timeout;
        let ServiceChecks { checks, places } = checks;
        let decided = self.decide(domain, checks, deadline, None).await?;
        trace::decided(&decided.decisions);
        let (response, unmatched) = from_decided(request, &places, &decided)?;
        self.count_unmatched("limit", unmatched);
        Ok(response)
    }

    /// Counts descriptors that nothing limits: there is no such `domain`, or no such `limit` in it.
    fn count_unmatched(&self, reason: &'static str, descriptors: usize) {
        let counter = self.metrics.unmatched_descriptors.get([reason.into()]);
        counter.inc_by(u64::try_from(descriptors).unwrap_or(u64::MAX));
    }

    /// The policy in force in a domain; `None`: there is no such domain, so nothing is limited.
    fn service_policy(&self, domain: &Name) -> Result<Option<Arc<Active>>, ApiError> {
        match self.domains.find(domain.as_str()) {
            Lookup::Active(active) => Ok(Some(active)),
            Lookup::Unknown => Ok(None),
            Lookup::NotLoaded(why) => Err(ApiError::new(ErrorCode::PolicyUnavailable, why)),
        }
    }
}

/// Validates what does not depend on limits; returns the domain.
fn validate(request: &RateLimitRequest) -> Result<Name, ApiError> {
    let domain = Name::domain(&request.domain);
    let domain = domain.map_err(|error| refusal::invalid("domain", error.to_string()))?;
    let descriptors = &request.descriptors;
    if descriptors.is_empty() {
        return Err(refusal::invalid("descriptors", "at least one is needed"));
    }
    if descriptors.len() > MAX_DESCRIPTORS {
        let message = format!("at most {MAX_DESCRIPTORS} in one call");
        return Err(refusal::invalid("descriptors", message));
    }
    for (n, descriptor) in descriptors.iter().enumerate() {
        let field = || format!("descriptors[{n}]");
        let fits = |key: &String| (1..=MAX_DESCRIPTOR_KEY).contains(&key.len());
        if !descriptor.entries.iter().all(|entry| fits(&entry.key)) {
            let message = format!("a key is 1 to {MAX_DESCRIPTOR_KEY} bytes");
            return Err(refusal::invalid(&field(), message));
        }
        if descriptor.entries.len() > MAX_ENTRIES {
            let message = format!("at most {MAX_ENTRIES} entries in one descriptor");
            return Err(refusal::invalid(&field(), message));
        }
        if let Some(limit) = &descriptor.limit
            && rate(descriptor).is_none()
        {
            let message = format!("limit: no such unit: {}", limit.unit);
            return Err(refusal::invalid(&field(), message));
        }
    }
    Ok(domain)
}

/// The rate that a descriptor itself contains.
fn rate(descriptor: &RateLimitDescriptor) -> Option<Rate> {
    let limit = descriptor.limit.as_ref()?;
    let mut units = UNITS.iter();
    let (_, _, period_ms) = units.find(|(unit, ..)| i32::from(*unit) == limit.unit)?;
    Some(Rate::new(u64::from(limit.requests_per_unit), *period_ms))
}

/// The checks of one call.
struct ServiceChecks {
    checks: Vec<Check>,
    /// For each descriptor its check, and its index within that check.
    places: Vec<(usize, usize)>,
}

impl ServiceChecks {
    fn new(request: &RateLimitRequest, policy: &Compiled, now_ms: u64) -> Self {
        let cost = u64::from(request.hits_addend.max(1));
        let parts = request.descriptors.iter().map(|descriptor| ServicePart {
            descriptor: entries(descriptor),
            cost,
            rate: rate(descriptor),
        });
        let parts: Vec<ServicePart> = parts.collect();
        let replaced = replaced(&parts, policy, now_ms);
        let mut built = Self {
            checks: Vec::new(),
            places: Vec::with_capacity(parts.len()),
        };
        let mut together: Option<usize> = None;
        for (part, descriptor) in parts.into_iter().zip(&request.descriptors) {
            let own = own_units(descriptor, || {
                part.rate.is_none() && policy.is_fitting(&part.descriptor, now_ms)
            });
            let at = match (own, together) {
                (None, Some(at)) => at,
                (own, _) => {
                    let at = built.checks.len();
                    if own.is_none() {
                        together = Some(at);
                    }
                    built.checks.push(Check {
                        // Any cost but 0 counts as a charge, 0 as a peek.
                        cost: u64::from(own != Some(OwnUnits::Look)),
                        limits: replaced.clone(),
                        service: Some(Box::new(ServiceCheck {
                            parts: Vec::new(),
                            own,
                            quotas_elsewhere: false,
                        })),
                        ..Check::default()
                    });
                    at
                }
            };
            let service = built.checks.get_mut(at).and_then(|c| c.service.as_mut());
            if let Some(service) = service {
                built.places.push((at, service.parts.len()));
                let cost = match (own, &descriptor.hits_addend) {
                    (Some(OwnUnits::Fitting), Some(units)) => units.value,
                    _ => part.cost,
                };
                service.parts.push(ServicePart { cost, ..part });
            }
        }
        built.mark_split_quotas(policy, now_ms);
        built
    }

    /// Limits with `quota_mode` deny a call if all are over: no check alone knows if several have some.
    fn mark_split_quotas(&mut self, policy: &Compiled, now_ms: u64) {
        if self.checks.len() < 2 {
            return;
        }
        let services = || {
            self.checks
                .iter()
                .filter_map(|check| check.service.as_ref())
        };
        let has_quotas = |service: &ServiceCheck| {
            let parts = service.parts.iter().filter(|part| part.rate.is_none());
            let mut parts = parts.map(|part| policy.has_quota_mode(&part.descriptor, now_ms));
            parts.any(|has| has)
        };
        if services().filter(|service| has_quotas(service)).count() < 2 {
            return;
        }
        for service in self.checks.iter_mut().filter_map(|c| c.service.as_mut()) {
            service.quotas_elsewhere = true;
        }
    }

    /// Refuses descriptors that together cost the store too much, before any of the call is charged.
    fn bounded(&self, policy: &Active, now_ms: u64) -> Result<(), ApiError> {
        for check in &self.checks {
            let parts = check.service.as_ref().map_or(0, |s| s.parts.len());
            let weight = policy.weight_together(check, now_ms, TOGETHER_MAX);
            if parts > 1 && weight > TOGETHER_MAX {
                let message = format!(
                    "they are charged all or nothing, and at once they cost the store as much as \
                     {weight} token buckets; at most {TOGETHER_MAX} in one call"
                );
                return Err(refusal::invalid("descriptors", message));
            }
        }
        Ok(())
    }
}

/// The entries that limits match: those whose key is a plain name, and the whole descriptor as one
/// text.
fn entries(descriptor: &RateLimitDescriptor) -> Descriptor {
    let mut text = Vec::new();
    let mut known = Descriptor::new();
    for entry in &descriptor.entries {
        let (key, value) = (entry.key.as_bytes(), entry.value.as_bytes());
        push_entry(&mut text, key, value);
        if let Ok(name) = entry.key.parse::<Name>() {
            let value = match known.get(name.as_str()) {
                // It is stored in its normal form: two spellings of a path are one value.
                Some(other) if other != normal_value(name.as_str(), value.to_vec()) => {
                    MULTIPLE_VALUES
                }
                _ => value,
            };
            known.insert(name, value);
        }
    }
    if let Ok(name) = DESCRIPTOR.parse() {
        known.insert(name, text);
    }
    known
}

/// The limits that others replace, over all descriptors of the call.
fn replaced(parts: &[ServicePart], policy: &Compiled, now_ms: u64) -> Vec<LimitRequest> {
    if parts.len() < 2 || !policy.has_replaces() {
        return Vec::new();
    }
    let mut replaced = Vec::new();
    for part in parts.iter().filter(|part| part.rate.is_none()) {
        replaced.extend(policy.replaced_by(&policy.matching_all(&part.descriptor, now_ms)));
    }
    replaced.sort_unstable();
    replaced.dedup();
    let names = replaced.into_iter().filter_map(|at| policy.limit(at));
    names
        .map(|limit| LimitRequest {
            skip: true,
            ..LimitRequest::new(limit.name.clone())
        })
        .collect()
}

/// How a descriptor's own units are applied; `None`: it has none.
fn own_units(descriptor: &RateLimitDescriptor, fitting: impl FnOnce() -> bool) -> Option<OwnUnits> {
    let units = descriptor.hits_addend.as_ref()?.value;
    Some(match units {
        0 => OwnUnits::Look,
        _ if descriptor.is_negative_hits => OwnUnits::Refund(units),
        _ if fitting() => OwnUnits::Fitting,
        _ => OwnUnits::Charge(units),
    })
}

// --- From decisions to the answer of a call

/// Whether a call is over a limit.
fn is_over(response: &RateLimitResponse) -> bool {
    response.overall_code == i32::from(Code::OverLimit)
}

/// The answer where no limit applies.
fn unlimited(request: &RateLimitRequest) -> RateLimitResponse {
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
            Some(enforced && !answer.verdict.decision.allowed)
        });
        let all_over = over
            .next()
            .is_some_and(|first| first && over.all(|over| over));
        quotas.all_over = all_over;
        quotas
    }

    /// Whether a limit with `quota_mode` is enforced for this bucket; `None`: it is another limit.
    fn enforced(&self, answer: &LimitAnswer) -> Option<bool> {
        let limit = self
            .policy
            .named(&answer.name)
            .filter(|limit| limit.has_quota_mode())?;
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
        !answer.verdict.decision.allowed && (answer.mode == Mode::Enforce || quota)
    }
}

/// The answer, and the number of descriptors that no limit matched. `places` has for each
/// descriptor its check and its index within that check.
fn from_decided(
    request: &RateLimitRequest,
    places: &[(usize, usize)],
    decided: &Decided,
) -> Result<(RateLimitResponse, usize), ApiError> {
    let answers: Result<Vec<&Answer>, _> = decided.decisions.iter().map(Result::as_ref).collect();
    let answers = answers.map_err(|first| undecided(first, &decided.decisions))?;
    let policy = &decided.policy.compiled;
    let quotas = Quotas::new(policy, &answers);
    let allowed = answers.iter().all(|answer| answer.allowed) && !quotas.all_over;
    let mut statuses = Vec::with_capacity(places.len());
    let mut unmatched = 0;
    // Of each check the limits of its further descriptors.
    let mut rest: Vec<&[LimitAnswer]> = { answers.iter() }
        .map(|answer| answer.limits.as_slice())
        .collect();
    for (check, part) in places {
        let count = answers
            .get(*check)
            .and_then(|answer| answer.parts.get(*part));
        let rest = count.zip(rest.get_mut(*check));
        let limits = rest.and_then(|(count, rest)| rest.split_off(..*count));
        let limits = limits.unwrap_or_default();
        let own = request.descriptors.get(statuses.len());
        if limits.is_empty() {
            let exempt = || own.is_some_and(|own| policy.exemption(&entries(own)).is_some());
            unmatched += usize::from(policy.exemptions().is_empty() || !exempt());
            statuses.push(admitted(0));
            continue;
        }
        let own = own.and_then(rate);
        let rate_of = |limit: &LimitAnswer| {
            if limit.name.as_str() == policy::REQUEST_LIMIT {
                return own;
            }
            // A limit on requests in flight has no unit of time.
            policy
                .named(&limit.name)
                .filter(|limit| !limit.gives_slots())
                .map(|limit| limit.quota.parameters().rate)
        };
        statuses.push(status(limits, &quotas, rate_of));
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
        dynamic_metadata: metadata(&answers, &quotas, policy),
    };
    Ok((response, unmatched))
}

/// The status of a descriptor: that of the tightest limit that applies.
fn status(
    limits: &[LimitAnswer],
    quotas: &Quotas<'_>,
    rate: impl Fn(&LimitAnswer) -> Option<Rate>,
) -> DescriptorStatus {
    let tightness = |limit: &&LimitAnswer| {
        let Decision {
            allowed, remaining, ..
        } = limit.verdict.decision;
        // A limit that passes and is hidden is shown only if there is no other.
        (allowed, allowed && is_hidden(limit), remaining)
    };
    let limited = || limits.iter().filter(|limit| limit.limit.is_some());
    let counting = limited().filter(|limit| quotas.counts(limit));
    let tightest = counting.min_by_key(tightness);
    let Some(tightest) = tightest.or_else(|| limited().min_by_key(tightness)) else {
        return admitted(u32::MAX);
    };
    let decision = &tightest.verdict.decision;
    let over = !decision.allowed && quotas.counts(tightest);
    let code = if over { Code::OverLimit } else { Code::Ok }.into();
    if is_hidden(tightest) {
        return DescriptorStatus {
            code,
            ..DescriptorStatus::default()
        };
    }
    let waiting_helps = decision.allowed || decision.retry_after != RetryAfter::Never;
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
        limit_remaining: u32::try_from(decision.remaining).unwrap_or(u32::MAX),
        duration_until_reset: waiting_helps.then(|| duration(decision.reset_after_ms)),
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

/// Whole seconds, rounded up: Envoy's header has the seconds alone, and would say 0 while the limit still denies.
fn duration(ms: u64) -> Duration {
    Duration {
        seconds: i64::try_from(ms.div_ceil(1000)).unwrap_or(i64::MAX),
    }
}

/// The names of the limits that applied, and of those that were exceeded; and the status that a denying one has.
fn metadata(answers: &[&Answer], quotas: &Quotas<'_>, policy: &Compiled) -> Option<Struct> {
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
        (
            "would_deny",
            names(&|l| !l.verdict.decision.allowed && !quotas.denies(l)),
        ),
    ];
    let lists = lists.into_iter().filter(|(_, names)| !names.is_empty());
    let mut fields: HashMap<String, Value> = lists
        .map(|(key, names)| {
            let values = names.into_iter().map(Value::from).collect();
            let kind = Some(Kind::List(ListValue { values }));
            (key.to_owned(), Value { kind })
        })
        .collect();
    let mut denying = limits().filter(|limit| quotas.denies(limit));
    if let Some(status) = denying.find_map(|limit| policy.named(&limit.name)?.deny_status) {
        let kind = Some(Kind::Number(status.into()));
        fields.insert("deny_status".to_owned(), Value { kind });
    }
    (!fields.is_empty()).then_some(Struct { fields })
}

/// The error of a call by that of its first check without a decision. The call has one answer, which does not say
/// that nothing was charged if another of its checks was or may have been.
fn undecided(first: &CheckError, decisions: &[Result<Answer, CheckError>]) -> ApiError {
    let in_doubt = |decision: &Result<_, CheckError>| match decision {
        Ok(_) => true,
        Err(error) => refusal::code(error) == ErrorCode::StoreUnavailable,
    };
    let mut error = refusal::of_check(first);
    if decisions.iter().any(in_doubt) {
        error.code = ErrorCode::StoreUnavailable;
    }
    error
}
