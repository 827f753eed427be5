//! Scenarios: limits, edits and requests at given times, run through an engine.
//!
//! [`read`] turns a document into [`Scenario`]s, or says everything that is
//! wrong with it; [`run`] decides every step with the scenario's own clock and
//! gives a [`Report`], whose differences from what was expected decide the exit
//! code. [`Phase`]s of [`Traffic`] make steps where none are written
//! down.

mod scenario;
mod traffic;

use std::sync::Arc;

use clap::ValueEnum;
use policy::{Node, Policy, Value};
use protocol::Check;
use serde::{Serialize, Serializer};
use store::{CheckError, Engine};

use crate::{cli::Global, error::Error, printer::Printer, session::Session};
pub use scenario::{Expected, Request, Scenario, Settle, Step, read};
pub(crate) use scenario::{insert, items};
pub use traffic::{Backend, Phase, Service, Traffic, TrafficError, steps};

// --- Where scenarios and cases are decided.

/// Bound: buckets in use of a simulation or of the cases of a test. Beyond it, it ends with an error.
const BUCKETS_MAX: usize = 10_000_000;

/// After so many requests Ctrl-C is noticed: an engine in memory never waits.
pub(crate) const YIELD_EVERY: usize = 1000;

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// The algorithms in this program.
    Local,
    /// The scripts on a server.
    Redis,
}

impl EngineKind {
    /// Its word in flags and results.
    pub fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Redis => "redis",
        }
    }
}

/// Makes an engine for each scenario or case: each has buckets of its own.
#[derive(Debug)]
pub enum Engines<'p> {
    /// The algorithms in this program.
    Local,
    /// The scripts on a server.
    Redis {
        /// The server.
        session: Box<Session<'p>>,
        /// The run of the engine that was made last.
        run: u64,
    },
}

impl<'p> Engines<'p> {
    /// Engines of a kind. On a server, their keys are apart from those of other programs.
    ///
    /// # Errors
    /// There is no such server.
    pub fn open(kind: EngineKind, global: &Global, printer: &'p Printer) -> Result<Self, Error> {
        Ok(match kind {
            EngineKind::Local => Self::Local,
            EngineKind::Redis => Self::Redis {
                session: Box::new(Session::open(global, printer)?),
                // Unique per process and millisecond, and readable in a key.
                run: (u64::from(std::process::id()) << 44) ^ crate::now_ms(),
            },
        })
    }

    /// An engine whose buckets are unused.
    pub fn engine(&mut self, policy: Policy) -> Engine {
        match self {
            Self::Local => Engine::new(policy, BUCKETS_MAX),
            Self::Redis { session, run } => {
                *run = run.wrapping_add(1);
                Engine::on_server(policy, Arc::clone(&session.store), *run)
            }
        }
    }

    /// Deletes what an engine wrote on a server, whatever it has found, and returns that.
    ///
    /// # Errors
    /// The engine's, or the server's.
    pub async fn close<T>(&self, engine: Engine, found: Result<T, CheckError>) -> Result<T, Error> {
        let forgotten = engine.forget().await;
        let found = found.map_err(|error| self.failed(&error))?;
        forgotten.map_err(|error| self.failed(&error.into()))?;
        Ok(found)
    }

    fn failed(&self, error: &CheckError) -> Error {
        match (error, self) {
            (CheckError::Stale, _) => Error::usage("a limit is older than its bucket"),
            (_, Self::Local) => Error::usage(error.to_string()),
            (_, Self::Redis { session, .. }) => session.check_failed(error),
        }
    }
}

// --- Running scenarios.

/// Runs every scenario with its own clock and its own buckets.
///
/// # Errors
/// The engine's error, if it could not decide.
pub async fn run(scenarios: &[Scenario], engines: &mut Engines<'_>) -> Result<Report, Error> {
    let mut report = Report {
        scenarios: Vec::with_capacity(scenarios.len()),
    };
    for scenario in scenarios {
        let mut engine = engines.engine(scenario.policy.clone());
        let run = run_one(scenario, &mut engine).await;
        report.scenarios.push(engines.close(engine, run).await?);
    }
    Ok(report)
}

async fn run_one(scenario: &Scenario, engine: &mut Engine) -> Result<Run, CheckError> {
    let mut run = Run {
        id: scenario.id.clone(),
        steps: Vec::with_capacity(scenario.steps.len()),
        requests: Vec::with_capacity(scenario.steps.len()),
        differences: Vec::new(),
    };
    let mut backend = scenario.backend.clone();
    // By step: the request, and its answer.
    let mut decided: Vec<Option<(Check, protocol::Answer)>> = Vec::new();
    for (at, step) in scenario.steps.iter().enumerate() {
        if at.is_multiple_of(YIELD_EVERY) {
            tokio::task::yield_now().await;
        }
        let (mut of_step, mut answer, mut expect) = (None, None, &[][..]);
        let request = match step {
            Step::Edit(edited) => {
                engine.edit(edited.clone());
                None
            }
            Step::Leave { t_ms, step } => {
                // Whoever has left has no slot to free.
                if let Some((request, answer)) = decided.get_mut(*step).and_then(Option::as_mut) {
                    engine.release(*t_ms, request, answer).await?;
                    for limit in &mut answer.limits {
                        limit.verdict.slot = None;
                    }
                }
                Some((*t_ms, 0))
            }
            Step::Settle(settle) => {
                if let Some((request, given)) = decided.get(settle.step).and_then(Option::as_ref) {
                    let used = |_: &_| Some(settle.cost);
                    let seen = engine.settle(settle.t_ms, request, given, used).await?;
                    (answer, expect) = (Some(Answer::settled(&seen)), &settle.expect[..]);
                }
                Some((settle.t_ms, settle.cost))
            }
            Step::Check(request) => {
                let (seen, held) = decide(request, engine, &mut backend).await?;
                (answer, expect, of_step) = (Some(seen), &request.expect[..], held);
                Some((request.t_ms, request.cost))
            }
        };
        if let Some(answer) = &answer {
            run.differences.extend(differences(at, expect, answer));
        }
        decided.push(of_step);
        run.steps.push(answer);
        run.requests.push(request);
    }
    Ok(run)
}

/// Decides a request; one that passes ends when the service has answered it. Without a service, returns also what
/// the request holds.
async fn decide(
    request: &Request,
    engine: &mut Engine,
    backend: &mut Backend,
) -> Result<(Answer, Option<(Check, protocol::Answer)>), CheckError> {
    let mut check = engine.request(request.descriptor.clone());
    (check.cost, check.peek) = (request.cost, request.peek);
    let decision = engine.decide(request.t_ms, &check).await?;
    let mut answer = Answer::new(&decision.answer);
    let start_ms = request.t_ms.saturating_add(answer.delay_ms.unwrap_or(0));
    if answer.allowed && !request.peek {
        answer.took_ms = backend.took_ms(start_ms);
    }
    if answer.took_ms.is_some() {
        engine.end_at((start_ms, answer.took_ms), check, decision, Vec::new());
        return Ok((answer, None));
    }
    Ok((answer, Some((check, decision.answer))))
}

/// By the fields of the answer in JSON.
fn differences(step: usize, expect: &[Expected], answer: &Answer) -> Vec<Difference> {
    let answer = match expect {
        [] => return Vec::new(),
        _ => crate::render::to_node(answer).unwrap_or(Value::Null.into()),
    };
    let compare = |expected: &Expected| {
        let actual = answer.get(&expected.field).cloned();
        let actual = actual.unwrap_or(Value::Null.into());
        (actual != expected.value).then(|| Difference {
            step,
            field: expected.field.clone(),
            expected: expected.value.clone(),
            actual,
        })
    };
    expect.iter().filter_map(compare).collect()
}

// --- What a simulation found.

/// The answers to every scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// In the order of the file.
    pub scenarios: Vec<Run>,
}

/// One scenario as it was answered.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The scenario.
    pub id: String,
    /// One per step; `None` for an edit, or where a client leaves. For a settlement, the answer to a
    /// request of cost 0 at that time.
    pub steps: Vec<Option<Answer>>,
    /// The time of each step in milliseconds, and its cost: the actual one of a settlement, 0 where a
    /// client leaves; `None` for an edit.
    #[serde(skip)]
    pub requests: Vec<Option<(u64, u64)>>,
    /// Where the answers are not what was expected.
    #[serde(skip)]
    pub differences: Vec<Difference>,
}

/// The answer to one request, of its enforcing limits together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Whether it passes.
    pub allowed: bool,
    /// The least of the limits; `None` where no limit counts.
    pub remaining: Option<u64>,
    /// The largest of those that deny; −1: never.
    #[serde(serialize_with = "or_never")]
    pub retry_after_ms: Option<u64>,
    /// The largest of the limits.
    pub reset_after_ms: u64,
    /// The limits that deny.
    pub denied_by: Vec<String>,
    /// How long the request is held; `None` if it is denied.
    pub delay_ms: Option<u64>,
    /// Units that a settlement gave back; `None` for a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_back: Option<u64>,
    /// Units that a settlement charged beyond the reservation; `None` for a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub excess: Option<u64>,
    /// How long the service took, with the time that the request waited in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<u64>,
    /// The number of the adaptive limit, the least of several; `None`: none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptive_limit: Option<u64>,
}

/// A field of an answer that differs from the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The step, counted from 0.
    pub step: usize,
    /// The field.
    pub field: String,
    /// What was expected.
    pub expected: Node,
    /// What was answered.
    pub actual: Node,
}

#[expect(
    clippy::ref_option,
    reason = "serde hands over a reference to the field"
)]
fn or_never<S: Serializer>(ms: &Option<u64>, serializer: S) -> Result<S::Ok, S::Error> {
    match ms {
        Some(ms) => serializer.serialize_u64(*ms),
        None => serializer.serialize_i64(-1),
    }
}

impl Report {
    /// Whether every answer is as expected.
    pub fn as_expected(&self) -> bool {
        self.scenarios.iter().all(|run| run.differences.is_empty())
    }
}

impl Answer {
    fn new(answer: &protocol::Answer) -> Self {
        let summary = answer.summary();
        Self {
            allowed: answer.allowed,
            remaining: summary.remaining,
            retry_after_ms: summary.retry_after_ms,
            reset_after_ms: summary.reset_after_ms,
            denied_by: summary.denied_by.iter().map(ToString::to_string).collect(),
            delay_ms: answer.allowed.then_some(summary.delay_ms),
            given_back: None,
            excess: None,
            took_ms: None,
            adaptive_limit: { answer.limits.iter() }
                .filter(|limit| limit.verdict.limit_milli.is_some())
                .filter_map(|limit| limit.limit)
                .min(),
        }
    }

    fn settled(answer: &protocol::Answer) -> Self {
        let reserved = || answer.limits.iter().map(|limit| limit.verdict.reserved);
        Self {
            given_back: Some(reserved().map(|of| of.given_back).sum()),
            excess: Some(reserved().map(|of| of.excess).sum()),
            ..Self::new(answer)
        }
    }
}

#[cfg(test)]
mod tests;
