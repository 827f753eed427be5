//! Scenarios: limits, edits and requests at given times, run through an engine.
//!
//! [`read`] turns a document into [`Scenario`]s, or says everything that is
//! wrong with it; [`run`] decides every step with the scenario's own clock and
//! gives a [`Report`], whose differences from what was expected decide the exit
//! code. [`Phase`]s of [`Traffic`] make steps where none are written
//! down.

mod scenario;
mod traffic;

use std::collections::HashMap;

use algorithms::{
    Algorithm, CostSettlement, Debits, Denials, Penalty, Reservation, RetryAfter, SlotId, SlotOp,
    check::{Costs, LimitVerdict, Mode, Options, Part, PenaltyRequest, Stored, Verdict, check},
};
use policy::{Compiled, Descriptor, Limit, Match, Node, Resolved};
use serde::{Serialize, Serializer};

use crate::error::Error;
pub use scenario::{Expected, Request, Scenario, Settle, Step, read};
pub use traffic::{Phase, Traffic, TrafficError, steps};

// --- Running scenarios.

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
                let (seen, _) = decide(index, &policy, &request, asked, engine).await?;
                (answer, expect) = (Some(seen), &settle.expect[..]);
                Some((settle.t_ms, settle.cost))
            }
            Step::Check(request) => {
                let id = SlotId::new(0, SlotId::PROGRAM, u64::try_from(at).unwrap_or(0) + 1);
                let asked = Asked::Reserve(id);
                let (given, holds) = decide(index, &policy, request, asked, engine).await?;
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

async fn decide(
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
    let held = Held::new(&names, subjects, &verdict);
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
    /// A field by its name in JSON.
    pub fn field(&self, name: &str) -> Node {
        let number = |n: Option<u64>| n.map_or_else(null, Node::number);
        match name {
            "allowed" => self.allowed.into(),
            "remaining" => number(self.remaining),
            "retry_after_ms" => match self.retry_after_ms {
                Some(ms) => Node::number(ms),
                None => policy::Value::Number("-1".to_owned()).into(),
            },
            "reset_after_ms" => Node::number(self.reset_after_ms),
            "denied_by" => Node::list(self.denied_by.iter().map(Node::text)),
            "delay_ms" => number(self.delay_ms),
            "given_back" => number(self.given_back),
            "excess" => number(self.excess),
            _ => null(),
        }
    }
}

fn null() -> Node {
    policy::Value::Null.into()
}

// --- The engines that decide the checks of a simulation.

/// One limit's part in a check.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The key of the bucket, unique among scenarios.
    pub bucket: String,
    /// The numbers of the bucket.
    pub algorithm: Algorithm,
    /// Counts the edits of the limit.
    pub generation: u64,
    /// Units the check takes.
    pub cost: u64,
    /// Slots to free in the bucket of a queue.
    pub free: Vec<SlotOp>,
    /// What the check reserves and settles, if responses of the limit say their cost.
    pub costs: Option<Reserving>,
    /// When the bucket is penalized.
    pub penalty: Option<Penalty>,
    /// Whether it can deny.
    pub mode: Mode,
}

impl Subject {
    /// Its part in a check, with what is stored.
    pub fn part<'a>(
        &'a self,
        stored: Option<&'a Stored>,
        denials: Option<&'a Denials>,
    ) -> Part<'a> {
        Part {
            stored,
            cost: self.cost,
            free: &self.free,
            costs: self.costs.as_ref().map(Reserving::ask),
            penalty: self.penalty.map(|penalty| PenaltyRequest {
                penalty,
                stored: denials,
                reported: 0,
            }),
            mode: self.mode,
            ..Part::new(&self.algorithm, self.generation)
        }
    }
}

/// What a check reserves and settles.
#[derive(Clone, Debug, Default)]
pub struct Reserving {
    /// Its cost is a reservation with this secret.
    pub secret: Option<u64>,
    /// The actual costs of earlier requests.
    pub settle: Vec<CostSettlement>,
}

impl Reserving {
    /// As the algorithms take it.
    pub fn ask(&self) -> Costs<'_> {
        Costs {
            secret: self.secret,
            settle: &self.settle,
            count_open: false,
        }
    }
}

/// Decides checks at given times, and keeps the charged buckets.
pub trait Engine {
    /// Decides one check; one verdict per subject, in order.
    ///
    /// # Errors
    /// The engine could not decide, for instance because the numbers are older than the bucket's: a
    /// scenario edits its limits in order.
    fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> impl Future<Output = Result<Verdict, Error>>;
}

/// The Rust algorithms, in this process. Nothing expires.
#[derive(Debug, Default)]
pub struct Local {
    buckets: HashMap<String, Stored>,
    denials: HashMap<String, Denials>,
}

impl Engine for Local {
    async fn check(
        &mut self,
        subjects: &[Subject],
        now_ms: u64,
        options: Options,
    ) -> Result<Verdict, Error> {
        let parts: Vec<Part<'_>> = subjects
            .iter()
            .map(|subject| {
                let bucket = &subject.bucket;
                subject.part(self.buckets.get(bucket), self.denials.get(bucket))
            })
            .collect();
        let (verdict, writes) = check(&parts, now_ms, options).map_err(|stale| {
            let (limit, generation) = (stale.limit, stale.generation);
            Error::usage(format!(
                "limit {limit} is older than its bucket, at {generation}"
            ))
        })?;
        for (subject, write) in subjects.iter().zip(writes) {
            if let Some(stored) = write {
                self.buckets.insert(subject.bucket.clone(), stored);
            }
        }
        for (subject, limit) in subjects.iter().zip(&verdict.limits) {
            if let Some(denials) = limit.denials {
                self.denials.insert(subject.bucket.clone(), denials);
            }
        }
        Ok(verdict)
    }
}

// --- What requests of a scenario hold until they end.

/// What a request holds once it is admitted.
#[derive(Default)]
struct Held {
    /// What frees the slots that limits gave it.
    pub slots: Vec<Subject>,
    /// Units that its response settles, by limit.
    pub reserved: Vec<(String, CostSettlement)>,
}

impl Held {
    /// The slots and reservations that the limits of these names gave.
    pub fn new(names: &[String], subjects: Vec<Subject>, verdict: &Verdict) -> Self {
        Self {
            reserved: reserved(names, &subjects, verdict),
            slots: slots(subjects, verdict),
        }
    }
}

/// What a check asks of limits whose responses say their cost.
#[derive(Clone, Copy)]
enum Asked<'h> {
    /// The request of this id reserves units.
    Reserve(SlotId),
    /// A request that reserved these units has cost this many.
    Settle(&'h [(String, CostSettlement)], u64),
}

impl Asked<'_> {
    pub fn id(self) -> SlotId {
        match self {
            Self::Reserve(id) => id,
            Self::Settle(..) => SlotId::default(),
        }
    }

    pub fn of(self, limit: &Limit) -> Option<Reserving> {
        let price = limit.response_price()?;
        Some(match self {
            Self::Reserve(id) => Reserving {
                secret: Some(id.secret),
                settle: Vec::new(),
            },
            Self::Settle(reserved, cost) => {
                let own = reserved
                    .iter()
                    .filter(|(name, _)| name == limit.name.as_str());
                let settle = own.map(|(_, settled)| CostSettlement {
                    units: cost.min(price.max),
                    ..*settled
                });
                Reserving {
                    secret: None,
                    settle: settle.collect(),
                }
            }
        })
    }
}

/// What a check reserved.
fn reserved(
    names: &[String],
    subjects: &[Subject],
    verdict: &Verdict,
) -> Vec<(String, CostSettlement)> {
    let limits = names.iter().zip(subjects).zip(&verdict.limits);
    let reserved = limits.filter_map(|((name, subject), limit)| {
        let secret = subject.costs.as_ref()?.secret?;
        let number = Some(limit.reserved.number).filter(|number| *number > 0)?;
        let settlement = CostSettlement {
            reservation: Reservation {
                secret,
                number,
                units: limit.charged,
                seal: 0,
            },
            units: 0,
        };
        Some((name.clone(), settlement))
    });
    reserved.collect()
}

/// What frees the slots that a check was given.
fn slots(subjects: Vec<Subject>, verdict: &Verdict) -> Vec<Subject> {
    let given = subjects.into_iter().zip(&verdict.limits);
    let held = given.filter_map(|(subject, limit)| {
        let free = SlotOp::free(limit.slot?, limit.charged);
        Some(Subject {
            cost: 0,
            free: vec![free],
            costs: None,
            penalty: None,
            ..subject
        })
    });
    held.collect()
}

#[cfg(test)]
mod tests;
