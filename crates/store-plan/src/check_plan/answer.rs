//! The verdict on one limit as its part of an answer.

use std::ops::RangeFrom;

use algorithms::{Kind, check::LimitVerdict};
use protocol::LimitAnswer;

use super::{LimitPlan, Target};

impl LimitPlan<'_> {
    /// `buckets` counts the buckets of the parts before.
    pub(super) fn answer(
        self,
        buckets: &mut RangeFrom<usize>,
        verdicts: &[LimitVerdict],
    ) -> LimitAnswer {
        let mut answer = LimitAnswer {
            name: self.limit.name.clone(),
            generation: self.limit.generation,
            bucket: self.limit.per.iter().cloned().zip(self.values).collect(),
            mode: self.mode,
            allowed: true,
            charged: 0,
            limit: None,
            window_ms: 0,
            remaining: 0,
            retry_after_ms: Some(0),
            reset_after_ms: 0,
            delay_ms: 0,
            hidden: self.limit.hidden,
            lease: None,
            slot: None,
            reservation: None,
            reserved: protocol::Reserved::default(),
            penalty: protocol::PenaltyStatus::default(),
        };
        match self.what {
            Target::Unlimited => {}
            Target::Missing => {
                answer.allowed = false;
                answer.retry_after_ms = None;
                answer.limit = Some(0);
            }
            Target::Bucket(bucket) => {
                answer.limit = Some(bucket.algorithm.limit());
                answer.window_ms = bucket.algorithm.window_ms();
                if let Some(verdict) = buckets.next().and_then(|at| verdicts.get(at)) {
                    fill(&mut answer, verdict);
                    let costs = bucket.costs.as_deref();
                    let (number, units) = (verdict.reserved.number, verdict.charged);
                    answer.reservation = costs.and_then(|c| c.reservation(number, units));
                }
                if bucket.algorithm.kind() == Kind::Concurrency {
                    complete(&mut answer);
                }
            }
            Target::Same(at, bucket) => {
                answer.limit = Some(bucket.algorithm.limit());
                answer.window_ms = bucket.algorithm.window_ms();
                if let Some(verdict) = verdicts.get(at) {
                    fill(&mut answer, verdict);
                }
            }
        }
        answer
    }
}

/// The longest `retry_after` of a limit on requests in flight: a request may end at any moment.
const RETRY_MAX_MS: u64 = 1000;

/// Adds to the answer of a limit on requests in flight what its bucket cannot supply.
fn complete(answer: &mut LimitAnswer) {
    answer.retry_after_ms = answer.retry_after_ms.map(|ms| ms.min(RETRY_MAX_MS));
    if let Some(slot) = answer.slot.as_mut().filter(|_| answer.charged > 0) {
        slot.turn = answer.generation;
    }
}

fn fill(answer: &mut LimitAnswer, verdict: &LimitVerdict) {
    let decision = &verdict.decision;
    answer.allowed = decision.allowed;
    answer.charged = verdict.charged;
    answer.remaining = decision.remaining;
    answer.retry_after_ms = decision.retry_after.millis();
    answer.reset_after_ms = decision.reset_after_ms;
    answer.delay_ms = decision.delay_ms;
    answer.penalty = verdict.penalty;
    answer.reserved = verdict.reserved;
    answer.lease = verdict.lease;
    answer.slot = verdict.slot;
}
