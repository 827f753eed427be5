//! Asking servers about themselves.

use std::collections::BTreeMap;

use redis_link::{Cmd, Lane, Node, Request, Value, value};
use tokio::time::Instant;

use super::{RedisStore, telemetry};
use crate::{Health, Rights, StoreError, scripts::PERMISSIONS};

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
        let now_ms = telemetry::time(self.at(node, redis_link::cmd("TIME")).await?)?;
        let round_trip = asked.elapsed();
        Ok(Health {
            address,
            info: self.info(node).await?,
            settings: self.settings(node).await?,
            now_ms,
            round_trip,
            scripts: super::diagnostics::statuses(
                self.at(node, super::diagnostics::exist()).await?,
            )?,
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
            let mut get = redis_link::cmd("CONFIG");
            get.arg("GET").arg(name);
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
