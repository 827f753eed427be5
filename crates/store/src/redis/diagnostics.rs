//! The servers themselves, for operators.

use std::collections::BTreeMap;

use async_trait::async_trait;
use redis_link::{Request, Script, Servers, Value, value};
use tokio::time::Instant;

use super::{RedisStore, telemetry::time};
use crate::{Diagnostics, Health, PingReply, ScriptStatus, StoreError, scripts};

#[async_trait]
impl Diagnostics for RedisStore {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn is_warm(&self) -> bool {
        self.servers.is_warm()
    }

    fn fault(&self) -> Option<StoreError> {
        self.servers.fault()
    }

    async fn now_ms(&self) -> Result<u64, StoreError> {
        time(self.control(redis_link::cmd("TIME")).await?)
    }

    async fn key_count(&self) -> Result<Option<u64>, StoreError> {
        let size = [Request::from(redis_link::cmd("DBSIZE"))];
        let nodes = match self.on_each(&size, false).await {
            Ok(nodes) => nodes,
            // Not permitted.
            Err(StoreError::Refused(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut count = 0_u64;
        for reply in nodes.into_iter().flatten() {
            let keys = u64::try_from(value::integer(reply)?).unwrap_or(0);
            count = count.saturating_add(keys);
        }
        Ok(Some(count))
    }

    async fn ping(&self) -> Result<PingReply, StoreError> {
        let ping = [Request::from(redis_link::cmd("PING"))];
        // The first call connects, the second is measured.
        self.on_each(&ping, true).await?;
        let asked = Instant::now();
        let nodes = self.on_each(&ping, false).await?.len();
        let latency = asked.elapsed();
        let hello = [Request::from(redis_link::cmd("HELLO"))];
        let deadline = self.control_deadline();
        let mut answers = self.servers.run_on_each(&hello, false, deadline).await?;
        let mut fields = match answers.pop().and_then(|mut node| node.pop()) {
            Some(Ok(reply)) => hello_fields(reply),
            // Not permitted, or the server is older than HELLO: it is alive all the same.
            _ => BTreeMap::new(),
        };
        Ok(PingReply {
            latency,
            nodes,
            server: fields
                .remove("server")
                .unwrap_or_else(|| "redis".to_owned()),
            version: fields.remove("version"),
            role: fields.remove("role"),
        })
    }

    async fn scripts(&self) -> Result<Vec<ScriptStatus>, StoreError> {
        let mut all: Option<Vec<ScriptStatus>> = None;
        for node in self.on_each(&[Request::from(exist())], true).await? {
            let found = statuses(node.into_iter().next().unwrap_or(Value::Nil))?;
            let all = all.get_or_insert_with(|| found.clone());
            for (status, found) in all.iter_mut().zip(found) {
                status.loaded &= found.loaded;
            }
        }
        Ok(all.unwrap_or_default())
    }

    async fn load_scripts(&self) -> Result<(), StoreError> {
        let load = |(_, script): (&str, &'static Script)| {
            let mut load = redis_link::cmd("SCRIPT");
            load.arg("LOAD").arg(&script.source);
            Request::from(load)
        };
        let loads: Vec<Request> = scripts::all().into_iter().map(load).collect();
        self.on_each(&loads, true).await.map(drop)
    }

    async fn health(&self) -> Result<Vec<Health>, StoreError> {
        // A user should have the same rights on every node.
        let rights = self.rights().await?;
        let cluster = match &self.servers {
            Servers::One(node) => {
                let address = self.address.clone();
                let health = self.health_of(address, node, rights);
                return Ok(vec![health.await?]);
            }
            Servers::Cluster(cluster) => cluster,
        };
        let masters = cluster.masters(true, self.control_deadline()).await?;
        let mut all = Vec::new();
        for (address, node) in masters.all() {
            let health = self.health_of(address, node, rights.clone());
            all.push(health.await?);
        }
        Ok(all)
    }
}

impl RedisStore {
    /// The answers of every server, each of which has to succeed.
    async fn on_each(
        &self,
        requests: &[Request],
        fresh: bool,
    ) -> Result<Vec<Vec<Value>>, StoreError> {
        let deadline = self.control_deadline();
        let nodes = self.servers.run_on_each(requests, fresh, deadline).await?;
        nodes
            .into_iter()
            .map(|node| node.into_iter().collect())
            .collect()
    }
}

/// Asks which scripts a server has.
pub(super) fn exist() -> redis_link::Cmd {
    let mut exist = redis_link::cmd("SCRIPT");
    exist.arg("EXISTS");
    for (_, script) in scripts::all() {
        exist.arg(&script.sha1);
    }
    exist
}

/// The answer to [`exist`].
pub(super) fn statuses(answer: Value) -> Result<Vec<ScriptStatus>, StoreError> {
    let found = value::integers(answer)?;
    let status = scripts::all().into_iter().zip(found);
    Ok(status
        .map(|((name, script), found)| ScriptStatus {
            name,
            sha1: script.sha1.clone(),
            loaded: found == 1,
        })
        .collect())
}

/// HELLO's fields that are plain texts or numbers.
fn hello_fields(reply: Value) -> BTreeMap<String, String> {
    let mut items = value::items(reply).unwrap_or_default().into_iter();
    let mut fields = BTreeMap::new();
    while let (Some(name), Some(value)) = (items.next(), items.next()) {
        if let (Ok(name), Ok(value)) = (value::text(name), value::text(value)) {
            fields.insert(name, value);
        }
    }
    fields
}
