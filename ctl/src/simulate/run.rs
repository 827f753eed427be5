//! Running scenarios.

use algorithms::{
    Debits, Freed, RetryAfter, SlotId,
    check::{Mode, Options, Verdict},
};
use policy::{Compiled, Match, Resolved};

use super::{Answer, Difference, Engine, Report, Request, Run, Scenario, Step, Subject};
use crate::error::Error;

/// A client leaves. It is believed after an edit of the limit too, when its slot frees nothing.
const LEAVING: Options = Options {
    peek: true,
    force: true,
    debits: Debits::Admitted,
};

/// Runs every scenario with its own clock and its own buckets.
///
/// # Errors
/// What the engine could not decide.
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
    // Of each step, what frees the slots that queues gave its request.
    let mut held: Vec<Vec<Subject>> = Vec::with_capacity(scenario.steps.len());
    for (at, step) in scenario.steps.iter().enumerate() {
        match step {
            Step::Edit(edited) => {
                policy = Compiled::new(edited.clone());
                run.steps.push(None);
                run.requests.push(None);
                held.push(Vec::new());
            }
            Step::Leave { t_ms, step } => {
                let subjects = held.get_mut(*step).map(std::mem::take).unwrap_or_default();
                engine.check(&subjects, *t_ms, LEAVING).await?;
                run.steps.push(None);
                run.requests.push(Some((*t_ms, 0)));
                held.push(Vec::new());
            }
            Step::Check(request) => {
                let id = SlotId::new(0, SlotId::PROGRAM, u64::try_from(at).unwrap_or(0) + 1);
                let (answer, slots) = check(index, &policy, request, id, engine).await?;
                held.push(slots);
                run.differences.extend(differences(at, request, &answer));
                run.steps.push(Some(answer));
                run.requests.push(Some((request.t_ms, request.cost)));
            }
        }
    }
    Ok(run)
}

fn differences(step: usize, request: &Request, answer: &Answer) -> Vec<Difference> {
    let compare = |expected: &super::Expected| {
        let actual = answer.field(&expected.field);
        (actual != expected.value).then(|| Difference {
            step,
            field: expected.field.clone(),
            expected: expected.value.clone(),
            actual,
        })
    };
    request.expect.iter().filter_map(compare).collect()
}

async fn check(
    scenario: usize,
    policy: &Compiled,
    request: &Request,
    id: SlotId,
    engine: &mut impl Engine,
) -> Result<(Answer, Vec<Subject>), Error> {
    let mut subjects = Vec::new();
    let mut names = Vec::new();
    let mut refused = Vec::new();
    for found in policy.matching(&request.descriptor, request.t_ms) {
        if found.missing.is_some() {
            // Denied without its entry, whatever is left.
            refused.extend(found.enforced.then(|| found.limit.name.to_string()));
            continue;
        }
        let quota = policy.quota_for(found.index, &found.values, request.t_ms);
        if let Some(Resolved::Quota(quota)) = quota {
            names.push(found.limit.name.to_string());
            subjects.push(Subject {
                bucket: bucket(scenario, &found),
                algorithm: calendar::at(quota.algorithm(), request.t_ms).for_request(id),
                generation: found.limit.generation,
                cost: if found.limit.gives_slots() {
                    request.cost.min(1)
                } else {
                    found.limit.cost.saturating_mul(request.cost)
                },
                free: Vec::new(),
                mode: mode(&found),
            });
        }
    }
    let options = Options {
        peek: request.peek || !refused.is_empty(),
        force: false,
        debits: Debits::Admitted,
    };
    let verdict = engine.check(&subjects, request.t_ms, options).await?;
    let held = held(subjects, &verdict);
    Ok((answer(&verdict, &names, refused), held))
}

/// What frees the slots that a check was given.
fn held(subjects: Vec<Subject>, verdict: &Verdict) -> Vec<Subject> {
    let given = subjects.into_iter().zip(&verdict.limits);
    let held = given.filter_map(|(subject, limit)| {
        let free = Freed {
            slot: limit.slot?,
            units: limit.charged,
        };
        Some(Subject {
            cost: 0,
            free: vec![free],
            ..subject
        })
    });
    held.collect()
}

fn mode(found: &Match<'_, '_>) -> Mode {
    match found.mode() {
        policy::Mode::Enforce => Mode::Enforce,
        policy::Mode::Shadow | policy::Mode::Degrade => Mode::Observe,
    }
}

/// The name of a bucket: different for different scenarios, limits and values.
fn bucket(scenario: usize, found: &Match<'_, '_>) -> String {
    format!("{scenario}:{}:{:?}", found.limit.name, found.values)
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
    }
}
