//! Buckets and proxies, as operators see them.

use std::collections::BTreeMap;

use policy::Name;

use super::{Lane, RedisStore, request::Request, value};
use crate::{
    Cursor, EditError, LimitOf, PROXY_LIFE_MS, ResetReport, Signature, StoreError, Which, edit,
    scripts::{BUCKET_RESET, POLICY_PROXIES},
};

impl RedisStore {
    pub(super) async fn reset(
        &self,
        of: &LimitOf<'_>,
        which: Which<'_>,
        by: &Signature,
    ) -> Result<ResetReport, EditError> {
        let LimitOf { domain, limit } = *of;
        // Buckets first: a cache filled from one of them before it goes is dropped by the new
        // generation afterwards.
        let (buckets, what) = match which {
            Which::Bucket(values) => {
                let key = self.keys().bucket_of(domain, limit, values);
                (self.make_unused(std::slice::from_ref(&key)).await?, key)
            }
            Which::All => (
                self.make_all_unused(domain, &limit.name).await?,
                "*".to_owned(),
            ),
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

    pub(super) async fn proxies(
        &self,
        domain: &Name,
        seen: &BTreeMap<Name, Vec<String>>,
    ) -> Result<BTreeMap<Name, u64>, StoreError> {
        if seen.is_empty() {
            return Ok(BTreeMap::new());
        }
        let mut keys = Vec::with_capacity(seen.len());
        let mut args = vec![PROXY_LIFE_MS.to_string()];
        for (limit, proxies) in seen {
            keys.push(self.keys().proxies(domain, limit));
            args.push(proxies.len().to_string());
            args.extend(proxies.iter().cloned());
        }
        let reply = self.control_script(&POLICY_PROXIES, &keys, &args).await?;
        let counts = value::integers(reply)?;
        let counts = counts.into_iter().map(|n| u64::try_from(n).unwrap_or(0));
        Ok(seen.keys().cloned().zip(counts).collect())
    }
}
