//! The worked scenarios of `tests/vectors`, through every engine.
//!
//! They come from an independent reference in exact rationals.

use crate::support::{Engine, KINDS, RustEngine, Share, Subject, on_twins};
use algorithms::check::{Options, Verdict};
use algorithms::{
    Adaptive, Algorithm, Align, InFlightSlot, Kind, Pace, Parameters, Rate, RetryAfter, SlotAct,
    SlotId, SlotOp,
};
use serde_json::{Map, Value};
use std::ops::Range;
use store::script::{Credit, Credited};

const EXAMPLES: &str = include_str!("../../../../tests/vectors/examples.json");

/// A queue without a longest delay is bounded by its capacity alone.
const UNBOUNDED_MS: u64 = 1 << 51;

fn duration_ms(text: &str) -> u64 {
    text.trim_end_matches("ms").parse().unwrap()
}

fn algorithm(limit: &Map<String, Value>) -> Algorithm {
    let text = |field: &str| limit.get(field).and_then(Value::as_str);
    let (units, period) = text("rate").unwrap().split_once('/').unwrap();
    let name = text("algorithm").unwrap();
    let kind = KINDS.into_iter().find(|kind| kind.name() == name).unwrap();
    let max_delay_ms = text("max_delay").map_or(UNBOUNDED_MS, duration_ms);
    Algorithm::new(&Parameters {
        kind,
        rate: Rate::new(units.parse().unwrap(), duration_ms(period)),
        burst: limit.get("burst").and_then(Value::as_u64),
        max_delay_ms: (text("over_limit") == Some("queue")).then_some(max_delay_ms),
        align: text("align").map(|align| match align {
            "first_request" => Align::FirstRequest,
            _ => Align::Epoch,
        }),
        sub_windows: limit.get("sub_windows").and_then(Value::as_u64),
        strict: limit.get("strict").and_then(Value::as_bool),
        time_zone: None,
        week_start: None,
        adaptive: None,
    })
    .unwrap()
}

/// A field of the answer, as scenarios write it.
fn answer(field: &str, verdict: &Verdict, names: &[Value]) -> Value {
    let decisions = || verdict.limits.iter().map(|limit| limit.decision);
    match field {
        "allowed" => Value::from(verdict.allowed),
        "remaining" => Value::from(decisions().map(|of| of.remaining).min()),
        "retry_after_ms" => decisions()
            .map(|of| of.retry_after)
            .fold(RetryAfter::Now, RetryAfter::later)
            .millis()
            .map_or((-1).into(), Value::from),
        "reset_after_ms" => Value::from(decisions().map(|of| of.reset_after_ms).max()),
        "delay_ms" if verdict.allowed => Value::from(decisions().map(|of| of.delay_ms).max()),
        "delay_ms" => Value::Null,
        "denied_by" => { decisions().zip(names) }
            .filter(|(of, _)| !of.allowed)
            .map(|(_, name)| name.clone())
            .collect(),
        other => panic!("unknown expectation {other}"),
    }
}

/// Runs a scenario and returns what differs from what it expects.
fn run(scenario: &Value, engine: &mut dyn Engine) -> Vec<String> {
    let limits = scenario["limits"].as_array().unwrap().iter();
    let mut limits: Vec<_> = limits.map(|l| l.as_object().unwrap().clone()).collect();
    let id = scenario["id"].as_str().unwrap();
    let mut generation = 1;
    let mut differences = Vec::new();
    for (index, step) in scenario["steps"].as_array().unwrap().iter().enumerate() {
        if let Some(set) = step.get("set") {
            let set = set.as_object().unwrap();
            let mut named = limits.iter_mut().filter(|of| of["name"] == set["name"]);
            named.next().unwrap().extend(set.clone());
            generation += 1;
            continue;
        }
        let subject = |limit: &Map<String, Value>| {
            let key = format!("vectors:{id}:{}", limit["name"].as_str().unwrap());
            Subject {
                generation,
                cost: step["cost"].as_u64().unwrap(),
                ..Subject::new(&key, algorithm(limit))
            }
        };
        let subjects: Vec<_> = limits.iter().map(subject).collect();
        let now_ms = step["t_ms"].as_u64().unwrap();
        let verdict = engine.check(&subjects, now_ms, Options::default()).unwrap();
        let names: Vec<_> = limits.iter().map(|limit| limit["name"].clone()).collect();
        for (field, expected) in step["expect"].as_object().unwrap() {
            let actual = answer(field, &verdict, &names);
            if actual != *expected {
                let at = format!("{id} step {index} {field}");
                differences.push(format!("{at}: {actual}, not {expected}"));
            }
        }
    }
    differences
}

fn run_all(mut run: impl FnMut(&Value) -> Vec<String>) {
    let file: Value = serde_json::from_str(EXAMPLES).unwrap();
    let scenarios = file["scenarios"].as_array().unwrap();
    assert!(scenarios.len() >= 40);
    let differences: Vec<_> = scenarios.iter().flat_map(&mut run).collect();
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn in_rust() {
    run_all(|scenario| run(scenario, &mut RustEngine::default()));
}

/// Each scenario has keys of its own, so one store will do.
fn compare(twin: &mut dyn Engine) {
    run_all(|scenario| run(scenario, twin));
}

on_twins! {
    scenarios: compare;
    adaptive: compare_adaptive((0, 6), (0, 2), (1, 2));
}

// ---- Adaptive limits. Each vector lists the slots that are freed, with how many were in use, what the answer
// was, and the limit after it.

const ADAPTIVE: &str = include_str!("../../../../tests/vectors/adaptive.jsonl");

/// A bucket that a vector's frees go to.
struct AdaptiveBucket<'e> {
    engine: &'e mut dyn Engine,
    subject: Subject,
    /// The secrets of the slots in use, the oldest first.
    held: Range<u64>,
}

impl AdaptiveBucket<'_> {
    /// Frees the oldest slot of so many in use; returns the limit.
    fn free(&mut self, now_ms: u64, in_use: u64, act: SlotAct) -> u64 {
        let op = |secret, act| {
            let id = SlotId::new(7, SlotId::SERVICE, secret);
            let ttl_ms = 86_400_000;
            SlotOp {
                slot: InFlightSlot { id, ttl_ms }.into(),
                act,
            }
        };
        // An operator who gives slots back says nothing of the service.
        let units = (self.held.end - self.held.start).saturating_sub(in_use);
        if units > 0 {
            let bucket = self.subject.bucket();
            let credit = Credit {
                bucket: &bucket,
                units,
                peek: false,
                force: false,
            };
            let credited = self.engine.credit(&credit, now_ms);
            assert!(matches!(credited, Credited::Done { used: true, .. }));
            self.held.start += units;
        }
        let entered = self.held.end..self.held.start + in_use;
        self.held.end = self.held.end.max(entered.end);
        let ops = entered.map(|secret| op(secret, SlotAct::Enter));
        self.subject.lease.free = ops.chain([op(self.held.start, act)]).collect();
        self.held.start += 1;
        let verdict = self.engine.one(&self.subject, now_ms);
        verdict.limit_milli.unwrap()
    }
}

fn run_adaptive(line: &str, nth: usize, engine: &mut dyn Engine) {
    let vector: Value = serde_json::from_str(line).unwrap();
    let number = |field: &str| vector[field].as_u64().unwrap();
    let rule = Adaptive {
        min: number("min"),
        max: number("max"),
        latency_ms: number("latency"),
        share: number("share"),
    };
    let parameters = Parameters {
        adaptive: Some(rule),
        ..Parameters::new(Kind::Concurrency, number("limit"), 86_400_000)
    };
    let algorithm = Algorithm::new(&parameters).unwrap();
    let key = format!("vectors:adaptive:{nth}");
    let mut subject = Subject::new(&key, algorithm);
    subject.cost = 0;
    let mut bucket = AdaptiveBucket {
        engine,
        subject,
        held: 1_000_000..1_000_000,
    };
    // The first free starts the first window.
    bucket.free(number("at"), 1, SlotAct::Free(1));
    for (step, free) in vector["frees"].as_array().unwrap().iter().enumerate() {
        let act = match free[2].as_str() {
            Some("in_time") => SlotAct::Answered(Pace::InTime),
            Some("late") => SlotAct::Answered(Pace::Late),
            Some("slow") => SlotAct::Answered(Pace::Slow),
            _ => SlotAct::Free(1),
        };
        let [at_ms, in_use, limit] = [0, 1, 3].map(|field| free[field].as_u64().unwrap());
        let found = bucket.free(at_ms, in_use, act);
        assert_eq!(found, limit, "vector {nth}, free {step}: {free}");
    }
}

#[test]
fn adaptive_in_rust() {
    for (nth, line) in ADAPTIVE.lines().enumerate() {
        run_adaptive(line, nth, &mut RustEngine::default());
    }
}

/// Each vector on one of the servers, and some in the interpreter.
fn compare_adaptive(twin: &mut dyn Engine, (first, of): Share) {
    for (nth, line) in ADAPTIVE.lines().enumerate().skip(first).step_by(of) {
        run_adaptive(line, nth, twin);
    }
}
