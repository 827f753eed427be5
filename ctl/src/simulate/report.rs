//! What a simulation found.

use policy::Node;
use serde::{Serialize, Serializer};

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
