//! Reading records of limits.

use policy::Name;
use redis_link::{Outcome, value};

use super::fields::{self, Fields, head_state};
use crate::{
    Head, HeadState, HistoryEntry, Overrides, Record, StoreError, Stored, edit::HISTORY_MAX,
    record, redis::RedisStore,
};

/// How often a record is read anew because it was written in the middle of it.
const READ_TRIES: usize = 5;

impl RedisStore {
    pub(in crate::redis) async fn heads(&self) -> Result<Vec<Head>, StoreError> {
        let domains = self.listed().await?;
        if domains.is_empty() {
            return Ok(Vec::new());
        }
        let heads = domains.iter().map(|domain| self.head_of(domain));
        let states = self.control_each(heads).await;
        domains
            .into_iter()
            .zip(states)
            .map(|(domain, state)| {
                let state = readable(state)?;
                Ok(Head { domain, state })
            })
            .collect()
    }

    /// The domains that were ever written. Members that name none are not ours.
    pub(super) async fn listed(&self) -> Result<Vec<Name>, StoreError> {
        let mut members = redis_link::cmd("SMEMBERS");
        members.arg(self.keys().domains());
        let members = value::items(self.control(members).await?)?;
        let name = |member| value::text(member).ok()?.parse().ok();
        Ok(members.into_iter().filter_map(name).collect())
    }

    pub(in crate::redis) async fn read(
        &self,
        domain: &Name,
        overrides: Overrides,
    ) -> Result<Stored, StoreError> {
        for _ in 0..READ_TRIES {
            let mut all = redis_link::cmd("HGETALL");
            all.arg(self.keys().policy(domain));
            let reply = self.control(all).await?;
            let Some(fields) = Fields::parse(reply)? else {
                return Ok(Stored::Absent);
            };
            if fields.deleted {
                return Ok(Stored::Deleted(fields.revision));
            }
            let document = record::Document::parse(&fields.limits)?;
            let revision = fields.revision.clone();
            let mut policy = document.into_policy(domain, fields.revision, &fields.generations)?;
            if overrides == Overrides::All && !self.read_overrides(&mut policy, &revision).await? {
                continue;
            }
            return Ok(Stored::Live(Box::new(Record { policy, overrides })));
        }
        Err(StoreError::Corrupt(format!(
            "the limits of {domain} change faster than they can be read"
        )))
    }

    pub(in crate::redis) async fn history(
        &self,
        domain: &Name,
        max: usize,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        let mut last = redis_link::cmd("XREVRANGE");
        last.arg(self.keys().history(domain));
        last.arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(max.min(HISTORY_MAX));
        let entries = self.control(last).await?;
        value::items(entries)?
            .into_iter()
            .map(fields::history_entry)
            .collect()
    }

    pub(super) fn head_of(&self, domain: &Name) -> redis_link::Cmd {
        let mut head = redis_link::cmd("HMGET");
        head.arg(self.keys().policy(domain));
        head.arg(&["format", "revision", "digest", "deleted"]);
        head
    }
}

/// What one domain's head says, whatever became of it: only what is wrong with the server is an
/// error.
fn readable(reply: Outcome) -> Result<HeadState, StoreError> {
    let state = match reply {
        Ok(value) => head_state(value),
        Err(StoreError::Refused(refusal)) if refusal.code == "WRONGTYPE" => {
            return Ok(HeadState::Unreadable(
                "the key of its record holds something else".to_owned(),
            ));
        }
        Err(error) => Err(error),
    };
    match state {
        Err(StoreError::Corrupt(message)) => Ok(HeadState::Unreadable(message)),
        state => state,
    }
}
