//! A bucket as JSON.

use insight::Window;
use policy::Node;
use protocol::Mode;
use serde::Serialize;

use super::{Bucket, HeldSlot};
use crate::penalty::BucketPenalty;

/// The JSON of a bucket.
#[derive(Serialize)]
pub(super) struct Fields<'b> {
    domain: &'b str,
    limit: &'b str,
    bucket: Node,
    algorithm: Option<Node>,
    used: Option<u64>,
    remaining: Option<u64>,
    limit_units: Option<u64>,
    reset_after_ms: u64,
    retry_after_ms: i64,
    next_unit_ms: Option<u64>,
    enforced: bool,
    paused: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Window>,
    overridden: bool,
    leased: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owed: Option<u64>,
    ttl_ms: Option<u64>,
    redis_key: &'b str,
    slot: u16,
    node: &'b str,
    generation: u64,
    now_ms: u64,
    state: Option<&'b str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<BucketPenalty>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<&'b [HeldSlot]>,
}

impl Bucket {
    pub(super) fn fields(&self) -> Fields<'_> {
        let answer = &self.inspection.answer;
        let values = self.limit.per.iter().zip(&self.values);
        let values = values.map(|(key, v)| (key.as_str(), policy::value_to_node(v.as_deref())));
        Fields {
            domain: self.domain.as_str(),
            limit: self.limit.name.as_str(),
            bucket: Node::map(values),
            algorithm: self
                .limit
                .to_node_without_overrides()
                .get("algorithm")
                .cloned(),
            used: self.used(),
            remaining: answer.limit.map(|_| answer.remaining),
            limit_units: answer.limit,
            reset_after_ms: answer.reset_after_ms,
            // -1 is how the interfaces write "never".
            retry_after_ms: answer
                .retry_after_ms
                .map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX)),
            next_unit_ms: self.next_ms,
            enforced: answer.mode != Mode::Shadow,
            paused: self.paused,
            window: self.window(),
            overridden: self.in_force.is_some(),
            leased: self.inspection.leased,
            reserved: self.limit.settles().then_some(self.inspection.reserved),
            owed: self.owed().map(|(owed, _)| owed),
            ttl_ms: self.inspection.ttl_ms,
            redis_key: &self.inspection.key,
            slot: self.inspection.slot,
            node: &self.node,
            generation: answer.generation,
            now_ms: self.inspection.now_ms,
            state: self.inspection.state.as_deref(),
            penalty: BucketPenalty::of(&self.limit, &self.inspection),
            holders: self.holders.as_deref(),
        }
    }
}
