//! Buckets and the server itself, as operators see them.

use std::collections::BTreeMap;

use policy::Name;
use redis::{Pipeline, Value};
use tokio::time::Instant;

use super::{
    RedisStore,
    link::Deadline,
    run::{self, Call},
    value,
};
use crate::{
    Cursor, EditError, LimitOf, ListedBucket, PROXY_LIFE_MS, Page, Pong, ResetReport, ScriptStatus,
    Signature, StoreError, Which, edit,
    scripts::{self, BUCKET_RESET, POLICY_PROXIES},
};

/// Keys that one SCAN looks at: about a millisecond of the server's time.
const SCAN_COUNT: usize = 1000;

impl RedisStore {
    pub(super) async fn list(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: Cursor,
    ) -> Result<Page, StoreError> {
        let (next, keys) = self.scan(domain, limit, cursor.0).await?;
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
            next: (next != 0).then_some(Cursor(next)),
        })
    }

    async fn scan(
        &self,
        domain: &Name,
        limit: Option<&Name>,
        cursor: u64,
    ) -> Result<(u64, Vec<String>), StoreError> {
        let mut scan = Pipeline::new();
        scan.cmd("SCAN").arg(cursor);
        scan.arg("MATCH")
            .arg(self.keys().bucket_glob(domain, limit));
        scan.arg("COUNT").arg(SCAN_COUNT);
        let reply = self.control(&scan).await?.pop().unwrap_or(Value::Nil);
        let (next, keys) = value::scan(reply)?;
        // Our keys are text; a foreign one that is not is none of ours.
        let text = |key| value::text(key).ok();
        let keys = value::items(keys)?.into_iter().filter_map(text);
        Ok((next, keys.collect()))
    }

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
        let call = |key| Call {
            keys: vec![key],
            args: Vec::<String>::new(),
        };
        let calls: Vec<_> = keys.iter().map(call).collect();
        let deadline = Deadline::within(self.options.control_timeout);
        let mut removed = 0;
        for reply in run::scripts(&self.control, &BUCKET_RESET, &calls, deadline).await? {
            removed += u64::try_from(value::integer(reply?)?).unwrap_or(0);
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
        let mut call = Call {
            keys: Vec::with_capacity(seen.len()),
            args: vec![PROXY_LIFE_MS.to_string()],
        };
        for (limit, proxies) in seen {
            call.keys.push(self.keys().proxies(domain, limit));
            call.args.push(proxies.len().to_string());
            call.args.extend(proxies.iter().cloned());
        }
        let deadline = Deadline::within(self.options.control_timeout);
        let mut replies = run::scripts(&self.control, &POLICY_PROXIES, &[call], deadline).await?;
        let counts = value::integers(replies.pop().ok_or_else(value::short)??)?;
        let counts = counts.into_iter().map(|n| u64::try_from(n).unwrap_or(0));
        Ok(seen.keys().cloned().zip(counts).collect())
    }

    pub(super) async fn now_ms(&self) -> Result<u64, StoreError> {
        let mut time = Pipeline::new();
        time.cmd("TIME");
        let reply = self.control(&time).await?.pop().unwrap_or(Value::Nil);
        let mut parts = value::texts(reply)?.into_iter();
        let mut next = || value::number(&parts.next().unwrap_or_default());
        let (seconds, micros) = (next()?, next()?);
        Ok(seconds.saturating_mul(1000).saturating_add(micros / 1000))
    }

    pub(super) async fn ping(&self) -> Result<Pong, StoreError> {
        let mut ping = Pipeline::new();
        ping.cmd("PING");
        // Once to have a connection, once to measure.
        self.control(&ping).await?;
        let asked = Instant::now();
        self.control(&ping).await?;
        let latency = asked.elapsed();
        let mut hello = Pipeline::new();
        hello.cmd("HELLO");
        let deadline = Deadline::within(self.options.control_timeout);
        let reply = self.control.run(&hello, deadline).await?.pop();
        let mut about = match reply {
            Some(Ok(reply)) => about(reply),
            // Not permitted, or a server older than HELLO: alive all the same.
            _ => BTreeMap::new(),
        };
        Ok(Pong {
            latency,
            server: about.remove("server").unwrap_or_else(|| "redis".to_owned()),
            version: about.remove("version"),
            role: about.remove("role"),
        })
    }

    pub(super) async fn scripts(&self) -> Result<Vec<ScriptStatus>, StoreError> {
        let mut exists = Pipeline::new();
        exists.cmd("SCRIPT").arg("EXISTS");
        for (_, script) in scripts::all() {
            exists.arg(&script.sha1);
        }
        let reply = self.control(&exists).await?.pop().unwrap_or(Value::Nil);
        let found = value::integers(reply)?;
        let status = scripts::all().into_iter().zip(found);
        Ok(status
            .map(|((name, script), found)| ScriptStatus {
                name,
                sha1: script.sha1.clone(),
                loaded: found == 1,
            })
            .collect())
    }

    pub(super) async fn load_scripts(&self) -> Result<(), StoreError> {
        let mut load = Pipeline::new();
        for (_, script) in scripts::all() {
            load.cmd("SCRIPT").arg("LOAD").arg(&script.source);
        }
        self.control(&load).await.map(drop)
    }
}

/// HELLO's fields that are plain texts or numbers.
fn about(reply: Value) -> BTreeMap<String, String> {
    let mut items = value::items(reply).unwrap_or_default().into_iter();
    let mut fields = BTreeMap::new();
    while let (Some(name), Some(value)) = (items.next(), items.next()) {
        if let (Ok(name), Ok(value)) = (value::text(name), value::text(value)) {
            fields.insert(name, value);
        }
    }
    fields
}
