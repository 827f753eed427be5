//! Buckets and their keys, for operators.

use std::sync::atomic::Ordering;

use async_trait::async_trait;
use policy::{Compiled, Limit, Name};
use redis_link::{Lane, Request, is_refused, slot, value};

use super::{RedisStore, SCAN_COUNT};
use crate::{
    Buckets, CheckError, Credit, CreditReport, Cursor, Diagnostics, EditError, Inspection, KeyScan,
    LimitOf, ListedBucket, Page, ResetOf, ResetReport, ResetScope, Signature, StoreError,
    plan::{
        CheckPlan, edit,
        script::{self, Bucket, Clock, Credited},
    },
    scripts::{BUCKET_RESET, CREDIT},
};

/// How many entries of a log (the newest) or slots (those that expire last) an inspection shows.
const RAW_ITEMS: i64 = 100;

#[async_trait]
impl Buckets for RedisStore {
    async fn inspect(
        &self,
        policy: &Compiled,
        limit: &Name,
        values: &[Option<Vec<u8>>],
        cost: u64,
    ) -> Result<Inspection, CheckError> {
        let now_ms = self.now_ms().await?;
        let planned = CheckPlan::of_bucket(policy, limit, values, cost, self.keys(), now_ms)?;
        let key = planned.key_of(policy.domain(), self.keys());
        let verdict = if planned.check.limits.is_empty() {
            None
        } else {
            self.decide(&[&planned]).await.pop()
        };
        let answer = match verdict {
            Some(verdict) => {
                let (verdict, now_ms) = verdict?;
                planned.answer(policy, &verdict, now_ms)
            }
            None => planned.without_buckets(policy, now_ms),
        };
        let (state, ttl_ms) = self.raw_state(&key).await?;
        let slot = slot(key.as_bytes());
        Ok(Inspection {
            now_ms: answer.now_ms,
            answer: answer.limits.into_iter().next().ok_or_else(value::short)?,
            slot,
            // The slot map is known by now: the node has just answered.
            node: self.servers.node_of(slot, self.control_deadline()).await,
            key,
            state,
            ttl_ms,
        })
    }

    async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError> {
        let glob = self.keys().bucket_glob(domain, limit);
        let (next, keys) = self.scan(&glob, cursor).await?;
        self.options.walked.fetch_add(SCAN_COUNT, Ordering::Relaxed);
        let buckets = keys.into_iter().filter_map(|key| {
            let parsed = self.keys().parse_bucket(key.as_bytes())?;
            // The glob also finds limits whose name only starts like the one asked for.
            let wanted = limit.is_none_or(|limit| parsed.limit == *limit);
            wanted.then_some(ListedBucket {
                key,
                limit: parsed.limit,
                partition: parsed.partition,
                values: parsed.values,
            })
        });
        Ok(Page {
            buckets: buckets.collect(),
            next,
        })
    }

    async fn scan_keys(&self, cursor: Cursor) -> Result<KeyScan, StoreError> {
        let glob = format!("{}*", self.keys().prefix());
        let (next, keys) = self.scan(&glob, cursor).await?;
        self.options.walked.fetch_add(SCAN_COUNT, Ordering::Relaxed);
        let keys = keys
            .into_iter()
            .filter_map(|key| self.keys().limit_key(key));
        Ok(KeyScan {
            keys: keys.collect(),
            scanned: SCAN_COUNT,
            next,
        })
    }

    async fn ttls_ms(&self, keys: &[&str]) -> Result<Vec<Option<u64>>, StoreError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let ask = |key: &&str| redis_link::cmd(("PTTL", *key));
        let replies = self.control_all(keys.iter().map(ask)).await?;
        // -1: the key does not expire; -2: it is gone already.
        let ttl = |reply| match value::integer(reply)? {
            -1 => Ok(None),
            ms => Ok(Some(u64::try_from(ms).unwrap_or(0))),
        };
        replies.into_iter().map(ttl).collect()
    }

    async fn reset(
        &self,
        of: &LimitOf<'_>,
        which: ResetScope<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError> {
        let LimitOf { domain, limit } = *of;
        // Buckets first: the new generation then drops any cache that was filled from one of them
        // before.
        let (buckets, key) = match which {
            ResetScope::Bucket(values) => {
                let key = self.keys().bucket_of(domain, limit, values);
                (
                    self.make_unused(limit, std::slice::from_ref(&key)).await?,
                    Some(key),
                )
            }
            ResetScope::All => {
                let begun = edit::reset(limit, ResetOf::AllStarted, None);
                self.write_plan(domain, &edit::Expected::Any, &begun, by)
                    .await?;
                let buckets = self.make_all_unused(domain, limit).await?;
                (buckets, None)
            }
        };
        let of = key.as_deref().map_or(ResetOf::All, ResetOf::Bucket);
        let values = match which {
            ResetScope::Bucket(values) => Some(values),
            ResetScope::All => None,
        };
        let plan = edit::reset(limit, of, values);
        let revision = self
            .write_plan(domain, &edit::Expected::Any, &plan, by)
            .await?;
        Ok(ResetReport {
            buckets,
            revision: revision.number,
        })
    }

    async fn credit(&self, credit: &Credit<'_>, by: &Signature) -> Result<CreditReport, EditError> {
        let policy = credit.policy;
        let (limit, values) = (credit.limit, credit.values);
        let now_ms = self.now_ms().await?;
        let planned = CheckPlan::of_bucket(policy, limit, values, 0, self.keys(), now_ms)?;
        let Some(bucket) = planned.check.limits.first() else {
            return Ok(CreditReport::of_nothing(policy));
        };
        let mut report = self.credit_bucket(credit, bucket).await?;
        // The bucket first: the new generation then drops any cache that was filled from it before.
        if let Some(limit) = planned.limit().filter(|_| report.used && !credit.peek) {
            let plan = edit::credit(limit, credit.units, (values, &bucket.key));
            let revision = self
                .write_plan(policy.domain(), &edit::Expected::Any, &plan, by)
                .await?;
            report.revision = revision.number;
        }
        Ok(report)
    }
}

impl RedisStore {
    /// What a key holds, as text, and for how long, in milliseconds.
    async fn raw_state(&self, key: &str) -> Result<(Option<String>, Option<u64>), StoreError> {
        // Tries every type: the server refuses the wrong ones with WRONGTYPE.
        let raw = [
            redis_link::cmd(("PTTL", key)),
            redis_link::cmd(("GET", key)),
            redis_link::cmd(("HGETALL", key)),
            redis_link::cmd(("ZRANGE", key, -RAW_ITEMS, -1, "WITHSCORES")),
            redis_link::cmd(("LRANGE", key, -RAW_ITEMS, -1)),
        ];
        let mut answers = self.control_each(raw).await.into_iter();
        let ttl = answers.next().ok_or_else(value::short)??;
        let state = answers.flatten().find_map(value::shown);
        Ok((state, u64::try_from(value::integer(ttl)?).ok()))
    }

    async fn make_all_unused(&self, domain: &Name, limit: &Limit) -> Result<u64, StoreError> {
        let mut removed = 0;
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self.list(domain, Some(&limit.name), from).await?;
            let keys: Vec<String> = page.buckets.into_iter().map(|b| b.key).collect();
            removed += self.make_unused(limit, &keys).await?;
            cursor = page.next;
        }
        if limit.penalty.is_some() {
            self.end_penalties(domain, limit).await?;
        }
        Ok(removed)
    }

    /// Deletes the denials of a limit's buckets, also of unused ones: a penalty may outlive the usage.
    async fn end_penalties(&self, domain: &Name, limit: &Limit) -> Result<(), StoreError> {
        let glob = self.keys().denials_glob(domain, &limit.name);
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let (next, keys) = self.scan(&glob, from).await?;
            let of_limit = |key: &String| {
                let bucket = self.keys().parse_denials(key);
                bucket.is_some_and(|of| of.domain == *domain && of.limit == limit.name)
            };
            let unlink = keys
                .iter()
                .filter(|key| of_limit(key))
                .map(|key| redis_link::cmd(("UNLINK", key)));
            self.control_all(unlink).await?;
            cursor = next;
        }
        Ok(())
    }

    async fn make_unused(&self, limit: &Limit, keys: &[String]) -> Result<u64, StoreError> {
        if keys.is_empty() {
            return Ok(0);
        }
        let calls = keys.iter().map(|key| {
            let mut keys = vec![key.clone()];
            if limit.settles() {
                keys.push(self.keys().reservations_of(key));
            }
            if limit.penalty.is_some() {
                keys.push(self.keys().denials_of(key));
            }
            Request::call(&BUCKET_RESET, &keys, &[1])
        });
        let calls: Vec<Request> = calls.collect();
        let deadline = self.control_deadline();
        let mut removed = 0;
        let answers = self.servers.run(Lane::Control, &calls, deadline).await;
        for (call, mut answer) in calls.iter().zip(answers) {
            // The server refuses a script with two keys while their slot is migrated.
            if is_refused(&answer, "TRYAGAIN") {
                answer = self.control_script_until(call, deadline).await;
            }
            removed += u64::try_from(value::integer(answer?)?).unwrap_or(0);
        }
        Ok(removed)
    }

    async fn credit_bucket(
        &self,
        credit: &Credit<'_>,
        bucket: &Bucket<'_>,
    ) -> Result<CreditReport, EditError> {
        let call = script::Credit {
            bucket,
            units: credit.units,
            peek: credit.peek,
            force: credit.force,
        };
        let call = script::encode_credit(&call, Clock::Server);
        let call = Request::call(&CREDIT, &call.keys, &call.args);
        let numbers = value::integers(self.control_script(&call).await?)?;
        match script::decode_credited(&numbers) {
            Ok(Credited::Stale) => Err(CheckError::Stale.into()),
            Ok(Credited::Corrupt) => Err(CheckError::CorruptBucket(credit.limit.clone()).into()),
            Ok(Credited::Done {
                used,
                left_before,
                left,
                reset_after_ms,
            }) => Ok(CreditReport {
                used,
                left_before,
                left,
                reset_after_ms,
                revision: credit.policy.revision().number,
            }),
            Err(error) => Err(StoreError::Corrupt(error.to_string()).into()),
        }
    }
}
