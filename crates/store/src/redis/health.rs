//! Asking a server about itself.

use std::collections::BTreeMap;

use redis::{Pipeline, Value};
use tokio::time::Instant;

use super::{RedisStore, value};
use crate::{Health, Rights, StoreError, scripts::PERMISSIONS};

/// Settings that `INFO` does not show.
const SETTINGS: [&str; 3] = ["save", "min-replicas-to-write", "maxmemory-policy"];

impl RedisStore {
    pub(super) async fn health(&self) -> Result<Vec<Health>, StoreError> {
        let asked = Instant::now();
        let now_ms = self.now_ms().await?;
        let asked_in = asked.elapsed();
        Ok(vec![Health {
            address: self.address.clone(),
            info: self.info().await?,
            settings: self.settings().await?,
            now_ms,
            asked_in,
            scripts: self.scripts().await?,
            rights: self.rights().await?,
        }])
    }

    /// The answer to a command that the user may lack the right for.
    async fn if_permitted(&self, command: &Pipeline) -> Result<Option<Value>, StoreError> {
        match self.control(command).await {
            Ok(mut answers) => Ok(answers.pop()),
            Err(StoreError::Refused(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn info(&self) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        let mut info = Pipeline::new();
        info.cmd("INFO");
        let Some(reply) = self.if_permitted(&info).await? else {
            return Ok(None);
        };
        let text = value::text(reply)?;
        let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
        let owned = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Ok(Some(owned.collect()))
    }

    async fn settings(&self) -> Result<Option<BTreeMap<String, String>>, StoreError> {
        let mut settings = BTreeMap::new();
        for name in SETTINGS {
            let mut get = Pipeline::new();
            get.cmd("CONFIG").arg("GET").arg(name);
            let Some(reply) = self.if_permitted(&get).await? else {
                return Ok(None);
            };
            settings.extend(value::pairs(reply)?);
        }
        Ok(Some(settings))
    }

    async fn rights(&self) -> Result<Option<Rights>, StoreError> {
        let prefix = self.keys().prefix();
        let mut ask = Pipeline::new();
        ask.cmd("EVAL").arg(&PERMISSIONS.source).arg(1);
        ask.arg(format!("{prefix}{{doctor}}"));
        ask.arg(self.keys().edits()).arg("not-ours");
        let Some(reply) = self.if_permitted(&ask).await? else {
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
