//! The penalty state of a bucket, as `inspect` and `explain` show it.

use insight::penalty::state;
use policy::Limit;
use protocol::Mode;
use serde::Serialize;
use store::Inspection;

/// The penalty of a bucket.
#[derive(Debug, Serialize)]
pub struct BucketPenalty {
    left_ms: u64,
    denials: u64,
    /// The others are 0 because its slot of a Cluster is moving.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unread: bool,
    /// The same as a sentence.
    #[serde(skip)]
    pub text: String,
}

impl BucketPenalty {
    /// `None`: the limit has no penalty.
    pub fn of(limit: &Limit, found: &Inspection) -> Option<Self> {
        let rule = limit.penalty.as_ref()?;
        let status = &found.answer.penalty;
        let enforced = found.answer.mode != Mode::Shadow;
        Some(Self {
            left_ms: status.left_ms,
            denials: status.denials,
            unread: status.unread,
            text: state(rule, status, enforced, found.now_ms),
        })
    }
}
