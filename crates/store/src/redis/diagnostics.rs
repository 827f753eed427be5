//! The servers themselves, for operators.

use std::collections::BTreeMap;

use async_trait::async_trait;
use redis_link::{Cmd, Lane, Node, Request, Script, Servers, Value, value};
use tokio::time::Instant;

use super::{RedisStore, telemetry::time};
use crate::{
    Diagnostics, Health, PingReply, Rights, ScriptStatus, StoreError,
    scripts::{self, PERMISSIONS},
};

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
            let load = redis_link::cmd(("SCRIPT", "LOAD", &script.source));
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
pub(super) fn exist() -> Cmd {
    let digests = scripts::all().map(|(_, script)| script.sha1.as_str());
    redis_link::cmd(("SCRIPT", "EXISTS", &digests))
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

// ---- Asking servers about themselves.

/// Settings that `INFO` does not show.
const SETTINGS: [&str; 3] = ["save", "min-replicas-to-write", "maxmemory-policy"];

impl RedisStore {
    pub(super) async fn health_of(
        &self,
        address: String,
        node: &Node,
        rights: Option<Rights>,
    ) -> Result<Health, StoreError> {
        let asked = Instant::now();
        let now_ms = time(self.at(node, redis_link::cmd("TIME")).await?)?;
        let round_trip = asked.elapsed();
        Ok(Health {
            address,
            info: self.info(node).await?,
            settings: self.settings(node).await?,
            now_ms,
            round_trip,
            scripts: statuses(self.at(node, exist()).await?)?,
            rights,
        })
    }

    /// The answer of one server, whatever slots it has.
    async fn at(&self, node: &Node, command: Cmd) -> Result<Value, StoreError> {
        let request = Request::from(command);
        let deadline = self.control_deadline();
        let mut answers = node.run(Lane::Control, &[&request], deadline).await;
        answers.pop().ok_or_else(value::short)?
    }

    async fn info(&self, node: &Node) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        let Some(reply) = if_permitted(self.at(node, redis_link::cmd("INFO")).await)? else {
            return Ok(None);
        };
        let text = value::text(reply)?;
        let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
        let owned = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Some(owned.collect()))
    }

    async fn settings(&self, node: &Node) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        let mut settings = BTreeMap::new();
        for name in SETTINGS {
            let get = redis_link::cmd(("CONFIG", "GET", name));
            let Some(reply) = if_permitted(self.at(node, get).await)? else {
                return Ok(None);
            };
            settings.extend(value::pairs(reply)?);
        }
        Ok(Some(settings))
    }

    pub(super) async fn rights(&self) -> Result<Option<Rights>, StoreError> {
        let prefix = self.keys().prefix();
        let keys = [format!("{prefix}{{doctor}}")];
        let args = [self.keys().edits(), "not-ours".to_owned()];
        let call = [Request::eval(&PERMISSIONS, &keys, &args)];
        let deadline = self.control_deadline();
        let mut answers = self.servers.run(Lane::Control, &call, deadline).await;
        let answer = answers.pop().ok_or_else(value::short)?;
        let Some(reply) = if_permitted(answer)? else {
            return Ok(None);
        };
        let mut lists = value::items(reply)?.into_iter().map(value::texts);
        let mut next = || lists.next().unwrap_or_else(|| Ok(Vec::new()));
        Ok(Some(Rights {
            lacking: next()?,
            spare: next()?,
        }))
    }
}

/// The answer to a command that the user may lack the right for.
fn if_permitted(answer: Result<Value, StoreError>) -> Result<Option<Value>, StoreError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(StoreError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
