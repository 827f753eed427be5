//! Buckets as they are shown: as text, and as JSON.

mod card;
mod fields;

use algorithms::{DEBT_MAX_CAPACITIES, Kind};
use insight::Window;
use policy::{Limit, Name, Override, Quota};
use serde::{Serialize, Serializer};
use store::Inspection;

use super::holders::HeldSlot;
use crate::{
    bucket::Values,
    render::{Page, View},
};

/// A bucket, its limit and its state.
#[derive(Debug)]
pub struct Bucket {
    pub domain: Name,
    pub limit: Limit,
    pub values: Values,
    /// The override that gives the bucket its numbers, if one does.
    pub in_force: Option<Override>,
    pub inspection: Inspection,
    /// The time until one more unit is available.
    pub next_ms: Option<u64>,
    pub node: String,
    /// Whether the limit, or its domain, is paused.
    pub paused: bool,
    /// Of requests in flight, who holds the slots.
    pub holders: Option<Vec<HeldSlot>>,
}

/// One bucket, or those of a request.
#[derive(Debug)]
pub struct Report {
    buckets: Vec<Bucket>,
    list: bool,
}

impl Report {
    /// One bucket; in JSON an object.
    pub fn one(bucket: Bucket) -> Self {
        Self {
            buckets: vec![bucket],
            list: false,
        }
    }

    /// Any number of buckets; in JSON a list.
    pub fn many(buckets: Vec<Bucket>) -> Self {
        Self {
            buckets,
            list: true,
        }
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.buckets.as_slice() {
            [only] if !self.list => only.fields().serialize(serializer),
            many => serializer.collect_seq(many.iter().map(Bucket::fields)),
        }
    }
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let cards: Vec<String> = self
            .buckets
            .iter()
            .map(|bucket| bucket.card(page))
            .collect();
        cards.join("\n")
    }

    fn names(&self) -> Vec<String> {
        self.buckets
            .iter()
            .map(|bucket| bucket.inspection.key.clone())
            .collect()
    }
}

impl Bucket {
    /// Used units. A bucket whose limit was lowered below them counts as just used up.
    fn used(&self) -> Option<u64> {
        let answer = &self.inspection.answer;
        answer
            .limit
            .map(|limit| limit.saturating_sub(answer.remaining))
    }

    /// The calendar window that the bucket counts in.
    fn window(&self) -> Option<Window> {
        Window::of(&self.quota_in_force()?, self.inspection.now_ms)
    }

    /// The numbers that the bucket follows; `None`: it is unlimited.
    fn quota_in_force(&self) -> Option<Quota> {
        match &self.in_force {
            None => Some(self.limit.quota),
            Some(found) => found.quota.of(&self.limit.quota),
        }
    }

    /// Units that the bucket owes beyond what it holds, by the time that they take to drain, and the most
    /// that it may owe so; `None`: none, or the time depends on leases or a penalty.
    fn owed(&self) -> Option<(u64, u64)> {
        let answer = &self.inspection.answer;
        let quota = self.quota_in_force()?;
        let algorithm = quota.algorithm();
        let drains = matches!(
            algorithm.kind(),
            Kind::TokenBucket | Kind::Gcra | Kind::LeakyBucket
        );
        let known = self.inspection.leased == 0 && answer.penalty.left_ms < answer.reset_after_ms;
        if !drains || !known {
            return None;
        }
        let numbers = algorithm.numbers();
        let drained = answer.reset_after_ms.saturating_mul(numbers.y) / numbers.x.max(1);
        let owed = drained.saturating_sub(numbers.limit);
        let most = numbers.limit.saturating_mul(DEBT_MAX_CAPACITIES - 1);
        (owed > 0).then_some((owed, most))
    }
}
