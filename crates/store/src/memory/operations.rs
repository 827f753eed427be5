//! What operators do with buckets in memory.

use async_trait::async_trait;
use policy::{Compiled, Name};
use redis_link::slot;
use store_plan::{CheckPlan, ResetOf, Signature, edit};

use super::{MemoryStore, lock};
use crate::store::held_units;
use crate::{
    Buckets, CheckError, Credit, CreditReport, Cursor, EditError, Inspection, LimitOf,
    ListedBucket, Page, ResetReport, ResetScope, StoreError,
};

/// Buckets per page of a listing.
const PAGE: usize = 1000;

#[async_trait]
impl Buckets for MemoryStore {
    async fn inspect(
        &self,
        policy: &Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
    ) -> Result<Inspection, CheckError> {
        let mut buckets = lock(&self.buckets);
        let now_ms = (self.clock)();
        let planned = CheckPlan::of_bucket(policy, limit, values, cost, &self.keys, now_ms)?;
        let key = planned.key_of(policy.domain(), &self.keys);
        let verdict = buckets.check(&planned, now_ms)?;
        let (leased, reserved) = held_units(&verdict);
        let answer = planned.answer(policy, &verdict, now_ms);
        let limits = answer.limits.into_iter();
        let missing = || StoreError::Corrupt("no answer for the bucket".to_owned());
        Ok(Inspection {
            leased,
            reserved,
            now_ms,
            answer: { limits }.next().ok_or_else(missing)?,
            slot: slot(key.as_bytes()),
            node: None,
            state: buckets.state(&key),
            ttl_ms: buckets.ttl_ms(&key, now_ms),
            key,
        })
    }

    async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError> {
        let keys = lock(&self.buckets).sorted_keys((self.clock)());
        let wanted = keys.into_iter().filter_map(|key| {
            let parsed = self.keys.parse_bucket(key.as_bytes())?;
            let asked = parsed.domain == *domain && limit.is_none_or(|l| parsed.limit == *l);
            asked.then_some(ListedBucket {
                key,
                limit: parsed.limit,
                partition: parsed.partition,
                values: parsed.values,
            })
        });
        let skipped = usize::try_from(cursor.scan).unwrap_or(usize::MAX);
        let mut buckets: Vec<_> = wanted.skip(skipped).take(PAGE + 1).collect();
        let more = buckets.len() > PAGE;
        buckets.truncate(PAGE);
        let next = Cursor {
            scan: cursor.scan + u64::try_from(PAGE).unwrap_or(u64::MAX),
            ..cursor
        };
        Ok(Page {
            buckets,
            next: more.then_some(next),
        })
    }

    async fn reset(
        &self,
        of: &LimitOf<'_>,
        which: ResetScope<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError> {
        let LimitOf { domain, limit } = *of;
        let now_ms = (self.clock)();
        let (buckets, key) = match which {
            ResetScope::Bucket(values) => {
                let key = self.keys.bucket_of(domain, limit, values);
                let removed = lock(&self.buckets).remove(|k| k == key, now_ms);
                (removed, Some(key))
            }
            ResetScope::All => {
                let begun = edit::reset(limit, ResetOf::AllStarted);
                lock(&self.domains).reset(domain, begun, by, now_ms)?;
                let ours = |key: &str| {
                    let parsed = self.keys.parse_bucket(key.as_bytes());
                    parsed.is_some_and(|p| p.domain == *domain && p.limit == limit.name)
                };
                (lock(&self.buckets).remove(ours, now_ms), None)
            }
        };
        let of = key.as_deref().map_or(ResetOf::All, ResetOf::Bucket);
        let plan = edit::reset(limit, of);
        let revision = lock(&self.domains).reset(domain, plan, by, now_ms)?;
        self.edited();
        Ok(ResetReport {
            buckets,
            revision: revision.number,
        })
    }

    async fn credit(&self, credit: &Credit<'_>, by: &Signature) -> Result<CreditReport, EditError> {
        let policy = credit.policy;
        let now_ms = (self.clock)();
        let (limit, values) = (credit.limit, credit.values);
        let planned = CheckPlan::of_bucket(policy, limit, values, 0, &self.keys, now_ms)?;
        let (Some(bucket), Some(limit)) = (planned.buckets().next(), planned.limit()) else {
            return Ok(CreditReport::of_nothing(policy));
        };
        let mut report = lock(&self.buckets).credit(credit, bucket, now_ms)?;
        if report.used && !credit.peek {
            let plan = edit::credit(limit, credit.units, &bucket.key);
            let revision = lock(&self.domains).reset(policy.domain(), plan, by, now_ms)?;
            report.revision = revision.number;
            self.edited();
        }
        Ok(report)
    }
}
