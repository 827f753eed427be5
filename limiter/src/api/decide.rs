//! From checks to decisions: through the batcher, and once more if the policy was stale.

use std::{sync::Arc, time::Duration};

use policy::{Compiled, Limit, Name, SlotId};
use protocol::{
    Answer, ApiError, Check, ErrorCode, LimitRequest, Pace, SlotAct, Took,
    json::{self, Reason},
};
use store::{CheckError, CheckPlanError, new_slot_id};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::{Api, body::InflightPermit, refusal};
use crate::{
    batch::{Decisions, Outcome, SlotGuard, Undecided},
    domains::Active,
    metrics::DomainCounters,
    serve::Phase,
    trace,
};

/// The checks of one request, decided.
pub(super) struct Decided {
    /// The policy that decided; where the limits changed meanwhile, the newer one.
    pub(super) policy: Arc<Active>,
    /// One for each check, in order.
    pub(super) decisions: Decisions,
    /// The checks, without those after the last that was sent.
    checks: Vec<Check>,
}

impl Api {
    /// Decides the checks of one request, of a proxy or a program, before `deadline`.
    pub(super) async fn decide(
        &self,
        domain: &Name,
        mut checks: Vec<Check>,
        deadline: Instant,
        proxy: Option<Arc<str>>,
    ) -> Result<Decided, ApiError> {
        let started = Instant::now();
        for check in &mut checks {
            name(check);
        }
        let policy = self.active(domain)?;
        let count = checks.len();
        let outcome = self
            .batcher
            .decide(&policy, checks, false, deadline, proxy.clone());
        let outcome = trace::of_store(outcome).await;
        let outcome = outcome.map_err(|error| {
            policy.counters.undecided(count);
            refusal::of_undecided(error, self.bounds.store_timeout)
        })?;
        let mut decided = Decided {
            policy,
            decisions: outcome.decisions,
            checks: outcome.checks,
        };
        if !decided.stale().is_empty() {
            let mut guards = vec![self.batcher.hold(&decided.policy, false, outcome.given)];
            self.ask_again(domain, &mut decided, &mut guards, deadline, proxy)
                .await;
            for guard in guards {
                guard.keep();
            }
        }
        decided.count();
        let took = started.elapsed().as_secs_f64();
        self.metrics.check_duration_seconds.observe(took);
        Ok(decided)
    }

    /// Repeats stale checks with the policy read anew. If it is not newer, forces them: the buckets
    /// carry a revision that the store has lost.
    async fn ask_again(
        &self,
        domain: &Name,
        decided: &mut Decided,
        guards: &mut Vec<SlotGuard>,
        deadline: Instant,
        proxy: Option<Arc<str>>,
    ) {
        self.metrics.stale.inc();
        if timeout_at(deadline, self.domains.refreshed(Some(domain))).await != Ok(true) {
            return;
        }
        let Ok(policy) = self.active(domain) else {
            return;
        };
        let unchanged = Arc::ptr_eq(&policy, &decided.policy);
        decided.policy = policy;
        for force in [false, true] {
            let places = decided.stale();
            if places.is_empty() || (unchanged && !force) {
                continue;
            }
            let checks = places.iter().filter_map(|at| decided.checks.get(*at));
            let checks = checks.cloned().collect();
            let calling =
                self.batcher
                    .decide(&decided.policy, checks, force, deadline, proxy.clone());
            let outcome = match trace::of_store(calling).await {
                Ok(outcome) => outcome,
                // The checks stay stale, which also means that nothing was charged.
                Err(Undecided::Overloaded | Undecided::NotSent) => return,
                Err(Undecided::TimedOut) => Outcome {
                    decisions: vec![Err(self.batcher.error(Undecided::TimedOut)); places.len()],
                    ..Outcome::default()
                },
            };
            guards.push(self.batcher.hold(&decided.policy, force, outcome.given));
            for (place, decision) in places.iter().zip(outcome.decisions) {
                if let Some(slot) = decided.decisions.get_mut(*place) {
                    *slot = decision;
                }
            }
        }
    }
}

/// Makes an id for a check to which a limit on requests in flight may give a slot.
fn name(check: &mut Check) {
    if check.slot.is_none() {
        let mark = match check.service {
            Some(_) => SlotId::SERVICE,
            None => SlotId::PROGRAM,
        };
        check.slot = Some(new_slot_id(mark));
    }
}

/// Counts a check in the domain's metrics.
fn count(
    check: &Check,
    answer: &Answer,
    Active {
        counters, compiled, ..
    }: &Active,
) {
    // Peeks are not counted, nor a denial that is not the request's answer.
    let charging = check.cost > 0 && !check.peek;
    let decided = charging && !answer.is_repeated(compiled, check.patience_ms);
    if decided {
        let exempt = exemptions(check, compiled);
        for name in &exempt {
            counters.exempted(name);
        }
        if answer.limits.is_empty() && exempt.is_empty() {
            counters.unmatched();
        }
    }
    for limit in &answer.limits {
        let skipped = check.skipped().any(|name| *name == limit.name);
        counters.answered(limit, decided && !skipped);
    }
    for request in &check.limits {
        count_settled(request, check.took, counters, compiled);
    }
}

/// The exemptions of a check, or of its descriptors.
fn exemptions<'p>(check: &Check, policy: &'p Compiled) -> Vec<&'p Name> {
    let parts = { check.service.iter() }.flat_map(|service| &service.parts);
    let of_parts = parts.filter_map(|part| policy.exemption(&part.descriptor));
    let of_check = || policy.exemption(&check.descriptor);
    let of_check = check.service.is_none().then(of_check).flatten();
    { of_check.into_iter().chain(of_parts) }
        .map(|exemption| &exemption.name)
        .collect()
}

/// Counts what a check gave back and settled at one limit.
fn count_settled(
    request: &LimitRequest,
    took: Option<Took>,
    counters: &DomainCounters,
    policy: &Compiled,
) {
    let limit = &request.limit;
    let known = policy.named(limit);
    let rule = known.and_then(|limit| limit.quota.parameters().adaptive);
    let said = took.zip(rule).map(|(took, rule)| took.pace(&rule));
    for op in request.slots.iter().filter(|op| op.act.frees()) {
        counters.freed(limit);
        if op.act == SlotAct::Answered(Pace::Slow) || said == Some(Pace::Slow) {
            counters.slow(limit);
        }
    }
    if let Some(price) = known.and_then(Limit::response_price) {
        for settled in &request.settle {
            let units = price.cut(settled.units);
            counters.cost_settled(limit, units, units < settled.units);
        }
    }
    for settlement in request.lease.iter().flat_map(|lease| &lease.settle) {
        counters.settled(limit, settlement);
    }
}

impl Decided {
    /// The checks to be repeated under a newer policy.
    fn stale(&self) -> Vec<usize> {
        let decisions = self.decisions.iter().enumerate();
        let stale = decisions.filter(|(_, decision)| matches!(decision, Err(CheckError::Stale)));
        stale.map(|(at, _)| at).collect()
    }

    /// The token of what a check reserved; `None`: nothing.
    pub(super) fn token(&self, domain: &Name, at: usize) -> Option<String> {
        let check = self.checks.get(at).filter(|check| check.reserve)?;
        let answer = self.decisions.get(at)?.as_ref().ok()?;
        json::token(domain, &check.descriptor, answer)
    }

    /// Counts the decisions in the domain's metrics.
    fn count(&self) {
        let policy = &self.policy;
        let counters = &policy.counters;
        for (at, decision) in self.decisions.iter().enumerate() {
            match decision {
                Ok(answer) => {
                    if let Some(check) = self.checks.get(at) {
                        count(check, answer, policy);
                    }
                }
                Err(CheckError::Plan(CheckPlanError::NoMatch)) => counters.unmatched(),
                Err(
                    CheckError::Store(_)
                    | CheckError::PartiallyCharged(_)
                    | CheckError::CorruptBucket(_)
                    | CheckError::Stale,
                ) => counters.undecided(1),
                Err(_) => {}
            }
        }
    }

    /// The error if the store decided nothing. If one check may have been charged, all may.
    ///
    /// A caller takes it for a fault of this limiter, and goes on without any if it meets some in a row: so the
    /// trouble of a single bucket is none.
    pub(super) fn all_failed(&self) -> Option<ApiError> {
        let ours = |decision: &Result<_, CheckError>| {
            let failed = decision.as_ref().err()?;
            let error = refusal::of_check(failed);
            let ours = error.code.http_status() == 503 && !refusal::is_of_the_bucket(failed);
            ours.then_some(error)
        };
        let errors: Option<Vec<ApiError>> = self.decisions.iter().map(ours).collect();
        let doubt = |error: &ApiError| error.code == ErrorCode::StoreUnavailable;
        errors?.into_iter().rev().max_by_key(doubt)
    }
}

// --- Checks that wait for permits (`wait_ms`), for programs that call the limiter themselves
//
// Waiting is unfair: the limiter checks again once the denial's `retry_after` has passed, and
// another check may be faster. When the client disconnects, its wait ends at once, and nothing
// more is charged.

/// How often a check that waits looks for a slot of a request in flight, in milliseconds; or as often as makes a
/// thousand checks a second of all that wait.
const SLOT_MS: u64 = 50;

impl Api {
    /// Decides one check, repeating it for up to `wait`; returns the reason if the wait ended
    /// early.
    pub(super) async fn decide_waiting(
        &self,
        domain: &Name,
        mut check: Check,
        wait: Duration,
        mut permit: InflightPermit,
    ) -> Result<(Decided, Option<Reason>), ApiError> {
        if wait > self.bounds.max_wait {
            let max = self.bounds.max_wait.as_millis();
            let message = format!("this limiter lets checks wait {max} ms at most (--max-wait)");
            return Err(refusal::invalid("wait_ms", message));
        }
        if check.peek || check.cost == 0 {
            let message = "a check that charges nothing cannot wait for permits";
            return Err(refusal::invalid("wait_ms", message));
        }
        let until = Instant::now() + wait;
        let mut waiting = None;
        loop {
            let deadline = Instant::now() + self.bounds.store_timeout;
            // What counts the denials has to know which of them is final.
            let left = until.saturating_duration_since(Instant::now());
            check.patience_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
            let decided = self
                .decide(domain, vec![check.clone()], deadline, None)
                .await?;
            let answer = match decided.decisions.first() {
                Some(Ok(answer)) if !answer.allowed => answer,
                _ => return Ok((decided, None)),
            };
            let policy = &decided.policy.compiled;
            let slot_ms = u64::try_from(self.bounds.waiting.used()).unwrap_or(u64::MAX);
            let Some(wait_ms) = answer.wait_ms(policy, slot_ms.max(SLOT_MS)) else {
                return Ok((decided, Some(Reason::ExceedsCapacity)));
            };
            if !answer.is_repeated(policy, check.patience_ms) {
                return Ok((decided, Some(Reason::WaitTooShort)));
            }
            let pause = Duration::from_millis(wait_ms.min(check.patience_ms));
            let again = Instant::now() + pause;
            if waiting.is_none() {
                waiting = Some(self.bounds.waiting.enter().ok_or_else(too_many)?);
            }
            // A waiting check is not a request in flight.
            drop(permit);
            tokio::select! {
                () = sleep_until(again) => {}
                // The denial was not counted: another limiter gives the answer.
                () = self.lifecycle.reached(Phase::Leave) => return Err(refusal::ending()),
            }
            permit = self.bounds.enter()?;
        }
    }
}

fn too_many() -> ApiError {
    ApiError::new(
        ErrorCode::TooManyWaiters,
        "as many checks as this limiter takes are waiting already (--max-waiters)",
    )
}
