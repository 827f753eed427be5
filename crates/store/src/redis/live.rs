//! Buckets and proxies, as operators see them.

use policy::Name;
use redis_link::{Lane, Request, value};

use super::RedisStore;
use crate::{
    ActiveProxies, Cursor, EditError, LimitOf, PROXIES_MAX, PROXY_LIFE_MS, ProxyCounts,
    RESET_BEGUN, ResetReport, ResetScope, Signature, StoreError, edit,
    scripts::{BUCKET_RESET, POLICY_PROXIES},
};

/// Limits and proxies in one script call, which takes the server about a millisecond.
const PROXIES_PER_CALL: usize = 500;

/// A limit, and some of the proxies that asked for it.
type Piece<'a> = (&'a Option<Name>, &'a [String]);

impl RedisStore {
    pub(super) async fn reset(
        &self,
        of: &LimitOf<'_>,
        which: ResetScope<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError> {
        let LimitOf { domain, limit } = *of;
        // Buckets first: a cache filled from one of them before it goes is dropped by the new
        // generation afterwards.
        let (buckets, what) = match which {
            ResetScope::Bucket(values) => {
                let key = self.keys().bucket_of(domain, limit, values);
                (self.make_unused(std::slice::from_ref(&key)).await?, key)
            }
            ResetScope::All => {
                let begun = edit::reset(limit, RESET_BEGUN);
                self.write_plan(domain, &edit::Expected::Any, &begun, by)
                    .await?;
                let buckets = self.make_all_unused(domain, &limit.name).await?;
                (buckets, "*".to_owned())
            }
        };
        let plan = edit::reset(limit, &what);
        let revision = self
            .write_plan(domain, &edit::Expected::Any, &plan, by)
            .await?;
        Ok(ResetReport {
            buckets,
            revision: revision.number,
        })
    }

    async fn make_all_unused(&self, domain: &Name, limit: &Name) -> Result<u64, StoreError> {
        let mut removed = 0;
        let mut cursor = Some(Cursor::default());
        while let Some(from) = cursor {
            let page = self.list(domain, Some(limit), from).await?;
            let keys: Vec<String> = page.buckets.into_iter().map(|b| b.key).collect();
            removed += self.make_unused(&keys).await?;
            cursor = page.next;
        }
        Ok(removed)
    }

    async fn make_unused(&self, keys: &[String]) -> Result<u64, StoreError> {
        if keys.is_empty() {
            return Ok(0);
        }
        let none: [String; 0] = [];
        let calls = keys
            .iter()
            .map(|key| Request::call(&BUCKET_RESET, &[key], &none));
        let calls: Vec<Request> = calls.collect();
        let deadline = self.control_deadline();
        let mut removed = 0;
        for answer in self.servers.run(Lane::Control, &calls, deadline).await {
            removed += u64::try_from(value::integer(answer?)?).unwrap_or(0);
        }
        Ok(removed)
    }

    pub(super) async fn count_proxies(
        &self,
        domain: &Name,
        seen: &ActiveProxies,
    ) -> Result<ProxyCounts, StoreError> {
        let mut counts = ProxyCounts::new();
        for call in in_calls(seen) {
            self.count_some(domain, &call, &mut counts).await?;
        }
        Ok(counts)
    }

    async fn count_some(
        &self,
        domain: &Name,
        asked: &[Piece<'_>],
        counts: &mut ProxyCounts,
    ) -> Result<(), StoreError> {
        let mut keys = Vec::with_capacity(asked.len());
        let mut args = vec![PROXY_LIFE_MS.to_string(), PROXIES_MAX.to_string()];
        for (limit, ids) in asked {
            keys.push(self.keys().proxies(domain, limit.as_ref()));
            args.push(ids.len().to_string());
            args.extend(ids.iter().cloned());
        }
        let reply = self.control_script(&POLICY_PROXIES, &keys, &args).await?;
        let found = value::integers(reply)?.into_iter();
        let found = found.map(|n| u64::try_from(n).unwrap_or(0));
        // A limit in several calls: the last has them all.
        let limits = asked.iter().map(|(limit, _)| (*limit).clone());
        counts.extend(limits.zip(found));
        Ok(())
    }
}

/// Cuts what was asked so that no part is much larger than [`PROXIES_PER_CALL`].
fn in_calls(seen: &ActiveProxies) -> Vec<Vec<Piece<'_>>> {
    let mut calls = Vec::new();
    let (mut call, mut size) = (Vec::new(), 0);
    for (limit, proxies) in seen {
        let none = proxies.is_empty().then_some(proxies.as_slice());
        for ids in proxies.chunks(PROXIES_PER_CALL).chain(none) {
            if size > 0 && size + 1 + ids.len() > PROXIES_PER_CALL {
                calls.push(std::mem::take(&mut call));
                size = 0;
            }
            call.push((limit, ids));
            size += 1 + ids.len();
        }
    }
    calls.push(call);
    calls.retain(|call| !call.is_empty());
    calls
}
