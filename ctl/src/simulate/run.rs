//! Running scenarios.

mod held;

use algorithms::{
    Debits, RetryAfter, SlotId,
    check::{LimitVerdict, Mode, Options, Verdict},
};
use policy::{Compiled, Descriptor, Match, Resolved};

use super::{
    Answer, Difference, Engine, Expected, Report, Request, Run, Scenario, Settle, Step, Subject,
};
use crate::error::Error;

use held::{Asked, Held};

/// The options of a check that frees a leaving client's slot. `force`: also after an edit of the
/// limit, when that frees nothing.
const LEAVING: Options = Options {
    peek: true,
    denied: false,
    force: true,
    debits: Debits::Admitted,
    patience_ms: 0,
};

/// Runs every scenario with its own clock and its own buckets.
///
/// # Errors
/// The engine's error, if it could not decide.
pub async fn run(scenarios: &[Scenario], engine: &mut impl Engine) -> Result<Report, Error> {
    let mut report = Report {
        scenarios: Vec::with_capacity(scenarios.len()),
    };
    for (index, scenario) in scenarios.iter().enumerate() {
        report
            .scenarios
            .push(run_one(index, scenario, engine).await?);
    }
    Ok(report)
}

async fn run_one(
    index: usize,
    scenario: &Scenario,
    engine: &mut impl Engine,
) -> Result<Run, Error> {
    let mut run = Run {
        id: scenario.id.clone(),
        steps: Vec::with_capacity(scenario.steps.len()),
        requests: Vec::with_capacity(scenario.steps.len()),
        differences: Vec::new(),
    };
    let mut policy = Compiled::new(scenario.policy.clone());
    let mut held: Vec<Held> = Vec::with_capacity(scenario.steps.len());
    for (at, step) in scenario.steps.iter().enumerate() {
        let (mut of_step, mut answer, mut expect) = (Held::default(), None, &[][..]);
        let request = match step {
            Step::Edit(edited) => {
                policy = Compiled::new(edited.clone());
                None
            }
            Step::Leave { t_ms, step } => {
                let left = held.get_mut(*step);
                let slots = left.map(|held| std::mem::take(&mut held.slots));
                let slots = slots.unwrap_or_default();
                engine.check(&slots, *t_ms, LEAVING).await?;
                Some((*t_ms, 0))
            }
            Step::Settle(settle) => {
                let reserved = held.get(settle.step).map(|held| &held.reserved[..]);
                let asked = Asked::Settle(reserved.unwrap_or_default(), settle.cost);
                let request = settle.look_at(scenario);
                let (seen, _) = check(index, &policy, &request, asked, engine).await?;
                (answer, expect) = (Some(seen), &settle.expect[..]);
                Some((settle.t_ms, settle.cost))
            }
            Step::Check(request) => {
                let id = SlotId::new(0, SlotId::PROGRAM, u64::try_from(at).unwrap_or(0) + 1);
                let asked = Asked::Reserve(id);
                let (given, holds) = check(index, &policy, request, asked, engine).await?;
                (of_step, answer, expect) = (holds, Some(given), &request.expect[..]);
                Some((request.t_ms, request.cost))
            }
        };
        if let Some(answer) = &answer {
            run.differences.extend(differences(at, expect, answer));
        }
        held.push(of_step);
        run.steps.push(answer);
        run.requests.push(request);
    }
    Ok(run)
}

fn differences(step: usize, expect: &[Expected], answer: &Answer) -> Vec<Difference> {
    let compare = |expected: &Expected| {
        let actual = answer.field(&expected.field);
        (actual != expected.value).then(|| Difference {
            step,
            field: expected.field.clone(),
            expected: expected.value.clone(),
            actual,
        })
    };
    expect.iter().filter_map(compare).collect()
}

impl Settle {
    /// A peek of cost 0 with the descriptor of the request that has ended.
    fn look_at(&self, scenario: &Scenario) -> Request {
        let descriptor = match scenario.steps.get(self.step) {
            Some(Step::Check(request)) => request.descriptor.clone(),
            _ => Descriptor::new(),
        };
        Request {
            t_ms: self.t_ms,
            cost: 0,
            peek: true,
            descriptor,
            expect: Vec::new(),
        }
    }
}

async fn check(
    scenario: usize,
    policy: &Compiled,
    request: &Request,
    asked: Asked<'_>,
    engine: &mut impl Engine,
) -> Result<(Answer, Held), Error> {
    let mut subjects = Vec::new();
    let mut names = Vec::new();
    let mut refused = Vec::new();
    for found in policy.matching(&request.descriptor, request.t_ms) {
        if found.missing.is_some() {
            // `if_missing: deny` denies it, whatever is left.
            refused.extend(found.enforced.then(|| found.limit.name.to_string()));
            continue;
        }
        // Several values of a descriptor may share a bucket.
        let (limit, mode, index) = (found.limit, mode(&found), found.index);
        let values = found.into_values();
        let quota = policy.quota_for(index, &values, request.t_ms);
        if let Some(Resolved::Quota(quota)) = quota {
            names.push(limit.name.to_string());
            let algorithm = calendar::at(quota.algorithm(), request.t_ms).for_request(asked.id());
            let costs = asked.of(limit);
            let algorithm = match &costs {
                Some(_) => algorithm.owing_beyond(),
                None => algorithm,
            };
            subjects.push(Subject {
                bucket: format!("{scenario}:{}:{values:?}", limit.name),
                algorithm,
                generation: limit.generation,
                cost: if limit.gives_slots() {
                    request.cost.min(1)
                } else {
                    let each = limit.units_of(&request.descriptor, algorithm.limit());
                    each.saturating_mul(request.cost)
                },
                free: Vec::new(),
                costs,
                penalty: limit.penalty,
                mode,
            });
        }
    }
    let options = Options {
        peek: request.peek,
        denied: !refused.is_empty(),
        force: false,
        debits: Debits::Admitted,
        patience_ms: 0,
    };
    let verdict = engine.check(&subjects, request.t_ms, options).await?;
    let mut answer = answer(&verdict, &names, refused);
    if let Asked::Settle(..) = asked {
        let sum = |of: fn(&LimitVerdict) -> u64| verdict.limits.iter().map(of).sum();
        answer.given_back = Some(sum(|limit| limit.reserved.given_back));
        answer.excess = Some(sum(|limit| limit.reserved.excess));
    }
    let held = Held::of(&names, subjects, &verdict);
    Ok((answer, held))
}

fn mode(found: &Match<'_, '_>) -> Mode {
    match found.mode() {
        policy::Mode::Enforce => Mode::Enforce,
        policy::Mode::Shadow | policy::Mode::Degrade => Mode::Observe,
    }
}

fn answer(verdict: &Verdict, names: &[String], refused: Vec<String>) -> Answer {
    let summary = verdict.summary();
    let allowed = verdict.allowed && refused.is_empty();
    let denied = summary
        .denied_by
        .iter()
        .filter_map(|index| names.get(*index).cloned());
    Answer {
        allowed,
        remaining: if refused.is_empty() {
            summary.remaining
        } else {
            Some(0)
        },
        retry_after_ms: match summary.retry_after {
            _ if !refused.is_empty() => None,
            RetryAfter::Now => Some(0),
            RetryAfter::Millis(ms) => Some(ms),
            RetryAfter::Never => None,
        },
        reset_after_ms: summary.reset_after_ms,
        denied_by: refused.into_iter().chain(denied).collect(),
        delay_ms: allowed.then_some(summary.delay_ms),
        given_back: None,
        excess: None,
    }
}
