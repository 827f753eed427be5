//! Encodes the answers to `POST /v1/check`.

use policy::{Compiled, Name, value_to_node};
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::slots::format_slot;
use crate::{Answer, ApiError, LimitAnswer, Mode};

/// Why a check that was willing to wait was answered at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// It can never pass: it costs more than a limit's capacity.
    ExceedsCapacity,
    /// It cannot pass within the time it would have waited.
    WaitTooShort,
}

/// The answer to one check, as JSON.
#[derive(Serialize)]
pub struct Reply<'a> {
    allowed: bool,
    matched: usize,
    revision: u64,
    now_ms: u64,
    remaining: Option<u64>,
    retry_after_ms: i64,
    reset_after_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    limits: Vec<LimitReply<'a>>,
    denied_by: Vec<&'a str>,
    would_deny: Vec<&'a str>,
    degraded_by: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

#[derive(Serialize)]
struct LimitReply<'a> {
    name: &'a str,
    bucket: Bucket<'a>,
    allowed: bool,
    /// Absent for the default mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    limit: Option<u64>,
    remaining: Option<u64>,
    charged: u64,
    retry_after_ms: i64,
    reset_after_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<String>,
    /// Present only if there is a penalty.
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<bool>,
}

struct Bucket<'a>(&'a [(Name, Option<Vec<u8>>)]);

impl Serialize for Bucket<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in self.0 {
            map.serialize_entry(key.as_str(), &value_to_node(value.as_deref()))?;
        }
        map.end()
    }
}

impl<'a> Reply<'a> {
    /// Converts an answer to JSON; `policy` is the one that decided.
    pub fn new(answer: &'a Answer, policy: &Compiled) -> Self {
        let summary = answer.summary();
        let limits: Vec<LimitReply<'a>> = answer
            .limits
            .iter()
            .map(|limit| LimitReply::new(limit, policy))
            .collect();
        let queues = limits.iter().any(|limit| limit.delay_ms.is_some());
        Self {
            allowed: answer.allowed,
            matched: limits.len(),
            revision: answer.revision.number,
            now_ms: answer.now_ms,
            remaining: summary.remaining,
            retry_after_ms: or_never(summary.retry_after_ms),
            reset_after_ms: summary.reset_after_ms,
            delay_ms: queues.then_some(summary.delay_ms),
            limits,
            denied_by: names(&summary.denied_by),
            would_deny: names(&summary.would_deny),
            degraded_by: names(&summary.degraded_by),
            reason: None,
            token: None,
        }
    }

    /// Adds the token of the reservations, from [`super::token`].
    #[must_use]
    pub fn reserved_as(mut self, token: Option<String>) -> Self {
        self.token = token;
        self
    }

    /// Adds the reason why the check did not wait.
    #[must_use]
    pub fn because(mut self, reason: Reason) -> Self {
        self.reason = Some(reason);
        self
    }
}

impl<'a> LimitReply<'a> {
    fn new(limit: &'a LimitAnswer, policy: &Compiled) -> Self {
        let index = policy.position(limit.name.as_str());
        let quota = index.and_then(|index| policy.limit(index)).map(|l| l.quota);
        let queue = quota.is_some_and(|quota| quota.parameters().max_delay_ms.is_some());
        Self {
            name: limit.name.as_str(),
            bucket: Bucket(&limit.bucket),
            allowed: limit.allowed,
            mode: match limit.mode {
                Mode::Enforce => None,
                Mode::Shadow => Some("shadow"),
                Mode::Degrade => Some("degrade"),
            },
            limit: limit.limit,
            remaining: limit.limit.map(|_| limit.remaining),
            charged: limit.charged,
            retry_after_ms: or_never(limit.retry_after_ms),
            reset_after_ms: limit.reset_after_ms,
            delay_ms: (queue && limit.limit.is_some()).then_some(limit.delay_ms),
            slot: limit
                .slot
                .filter(|_| limit.charged > 0)
                .map(|slot| format_slot(slot, limit.charged)),
            penalty: (limit.penalty.left_ms > 0).then_some(true),
        }
    }
}

fn names<'a>(names: &[&'a Name]) -> Vec<&'a str> {
    names.iter().map(|name| name.as_str()).collect()
}

/// −1 is "never" in JSON.
fn or_never(ms: Option<u64>) -> i64 {
    ms.map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX))
}

/// The body that answers a single check.
pub fn check_reply(reply: &Reply<'_>) -> String {
    serde_json::to_string(reply).unwrap_or_default()
}

/// The body that answers a batch: an answer or an error for each check, in order.
pub fn batch_reply<'a>(
    revision: u64,
    results: impl IntoIterator<Item = Result<Reply<'a>, ApiError>>,
) -> String {
    #[derive(Serialize)]
    struct Batch<'a> {
        revision: u64,
        results: Vec<One<'a>>,
    }
    let results = results.into_iter().map(|result| match result {
        Ok(reply) => One::Decided(Box::new(reply)),
        Err(error) => One::Failed { error },
    });
    let batch = Batch {
        revision,
        results: results.collect(),
    };
    serde_json::to_string(&batch).unwrap_or_default()
}

#[derive(Serialize)]
#[serde(untagged)]
enum One<'a> {
    Decided(Box<Reply<'a>>),
    Failed { error: ApiError },
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::{ErrorCode, Slot, answer::tests::limit};

    fn policy() -> Compiled {
        let text = br"
domain: shop
limits:
  - {name: per-user, per: [user], rate: 10/s, burst: 20}
  - {name: exports, algorithm: leaky_bucket, rate: 2/s, burst: 10, over_limit: queue}
";
        Compiled::new(limits_file::read("limits.yaml", text).unwrap())
    }

    #[test]
    fn a_reply_equals_the_documented_example() {
        let mut per_user = limit("per-user");
        per_user.bucket = vec![("user".parse().unwrap(), Some(b"alice".to_vec()))];
        per_user.remaining = 19;
        per_user.charged = 1;
        per_user.reset_after_ms = 100;
        let mut answer = Answer {
            now_ms: 1_763_000_000_000,
            allowed: true,
            limits: vec![per_user],
            ..Answer::default()
        };
        answer.revision.number = 17;
        let policy = policy();
        assert_eq!(
            check_reply(&Reply::new(&answer, &policy)),
            concat!(
                r#"{"allowed":true,"matched":1,"revision":17,"now_ms":1763000000000,"#,
                r#""remaining":19,"retry_after_ms":0,"reset_after_ms":100,"#,
                r#""limits":[{"name":"per-user","bucket":{"user":"alice"},"allowed":true,"#,
                r#""limit":20,"remaining":19,"charged":1,"#,
                r#""retry_after_ms":0,"reset_after_ms":100}],"#,
                r#""denied_by":[],"would_deny":[],"degraded_by":[]}"#
            )
        );
    }

    #[test]
    fn a_queue_reports_its_delay_even_if_zero() {
        let answer = Answer {
            limits: vec![limit("exports")],
            ..Answer::default()
        };
        let policy = policy();
        let body = check_reply(&Reply::new(&answer, &policy));
        assert_eq!(body.matches(r#""delay_ms":0"#).count(), 2, "{body}");
    }

    #[test]
    fn a_queue_names_the_slot_of_what_it_admits() {
        let mut exports = limit("exports");
        exports.charged = 2;
        exports.slot = Some(Slot {
            start_ms: 17,
            parts: 1,
            since_ms: 5,
            turn: 0,
        });
        let answer = Answer {
            limits: vec![exports],
            ..Answer::default()
        };
        let policy = policy();
        let body = check_reply(&Reply::new(&answer, &policy));
        assert!(body.contains(r#""slot":"17.1.5.0.2""#), "{body}");
    }

    #[test]
    fn a_penalty_is_named_only_while_it_lasts() {
        let mut penalized = limit("per-user");
        penalized.allowed = false;
        penalized.retry_after_ms = Some(900_000);
        penalized.penalty.left_ms = 900_000;
        let mut counting = limit("exports");
        counting.penalty.denials = 7;
        let answer = Answer {
            limits: vec![penalized, counting],
            ..Answer::default()
        };
        let body = check_reply(&Reply::new(&answer, &policy()));
        let with_penalty = r#""retry_after_ms":900000,"reset_after_ms":0,"penalty":true}"#;
        assert!(body.contains(with_penalty), "{body}");
        assert_eq!(body.matches("penalty").count(), 1, "{body}");
    }

    #[test]
    fn a_batch_answers_in_order_with_errors_of_its_own() {
        let mut denied = limit("per-user");
        denied.allowed = false;
        denied.retry_after_ms = None;
        denied.mode = Mode::Shadow;
        denied.bucket = vec![
            ("user".parse().unwrap(), None),
            ("raw".parse().unwrap(), Some(vec![0xff])),
        ];
        let answer = Answer {
            allowed: true,
            limits: vec![denied],
            ..Answer::default()
        };
        let policy = policy();
        let reply = Reply::new(&answer, &policy).because(Reason::ExceedsCapacity);
        let error = ApiError::new(ErrorCode::StoreUnavailable, "one shard is down");
        insta::assert_snapshot!(batch_reply(17, [Ok(reply), Err(error)]), @r#"{"revision":17,"results":[{"allowed":true,"matched":1,"revision":0,"now_ms":0,"remaining":null,"retry_after_ms":0,"reset_after_ms":0,"limits":[{"name":"per-user","bucket":{"user":null,"raw":{"base64":"/w=="}},"allowed":false,"mode":"shadow","limit":20,"remaining":20,"charged":0,"retry_after_ms":-1,"reset_after_ms":0}],"denied_by":[],"would_deny":["per-user"],"degraded_by":[],"reason":"exceeds_capacity"},{"error":{"code":"store_unavailable","message":"one shard is down"}}]}"#);
    }
}
