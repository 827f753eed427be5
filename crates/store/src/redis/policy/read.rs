//! Reading records of limits.

use policy::{Name, Override, Policy, Revision};
use redis::Value;

use super::fields::{self, Fields, head_state};
use crate::{
    Head, HeadState, HistoryEntry, Keys, LimitOf, Overrides, Record, StoreError, Stored,
    edit::HISTORY_MAX,
    record,
    redis::{RedisStore, request::Outcome, value},
};

/// How often a record is read anew because it was written in the middle of it.
const READ_TRIES: usize = 5;
/// Fields that one step of reading overrides asks for: a reply of about 100 KB.
const SCAN_COUNT: usize = 1000;

impl RedisStore {
    pub(in crate::redis) async fn heads(&self) -> Result<Vec<Head>, StoreError> {
        let mut members = redis::cmd("SMEMBERS");
        members.arg(self.keys().domains());
        let names = self.control(members).await?;
        let domains: Vec<Name> = value::texts(names)?
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
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

    pub(in crate::redis) async fn read(
        &self,
        domain: &Name,
        overrides: Overrides,
    ) -> Result<Stored, StoreError> {
        for _ in 0..READ_TRIES {
            let mut all = redis::cmd("HGETALL");
            all.arg(self.keys().policy(domain));
            let reply = self.control(all).await?;
            let Some(fields) = Fields::parse(reply)? else {
                return Ok(Stored::Absent);
            };
            if fields.deleted {
                return Ok(Stored::Deleted(fields.revision));
            }
            if overrides == Overrides::All
                && let Some(policy) = self.catch_up(domain, &fields).await?
            {
                return Ok(self.live(policy, overrides));
            }
            let mut document = record::Document::parse(&fields.limits)?;
            if overrides == Overrides::All {
                let names = document.limit_names();
                match self
                    .read_overrides(domain, &names, &fields.revision)
                    .await?
                {
                    Some(found) => document.insert_overrides(found)?,
                    None => continue,
                }
            }
            let policy = document.into_policy(domain, fields.revision, &fields.generations)?;
            return Ok(self.live(policy, overrides));
        }
        Err(StoreError::Corrupt(format!(
            "the limits of {domain} change faster than they can be read"
        )))
    }

    pub(in crate::redis) async fn read_override(
        &self,
        of: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError> {
        let mut get = redis::cmd("HGET");
        get.arg(self.keys().overrides(of.domain, &of.limit.name));
        get.arg(Keys::override_field(values));
        let found = value::optional_text(self.control(get).await?)?;
        found
            .map(|json| record::read_override(of.limit, &json))
            .transpose()
    }

    pub(in crate::redis) async fn override_count(
        &self,
        of: &LimitOf<'_>,
    ) -> Result<u64, StoreError> {
        let key = self.keys().overrides(of.domain, &of.limit.name);
        let mut count = redis::cmd("HLEN");
        count.arg(key);
        let reply = self.control(count).await?;
        Ok(u64::try_from(value::integer(reply)?).unwrap_or(0))
    }

    fn live(&self, policy: Policy, overrides: Overrides) -> Stored {
        if overrides == Overrides::All {
            self.recent.keep(&policy);
        }
        Stored::Live(Box::new(Record { policy, overrides }))
    }

    /// The overrides of some limits as JSON; `None` if the record changed meanwhile.
    async fn read_overrides(
        &self,
        domain: &Name,
        limits: &[Name],
        revision: &Revision,
    ) -> Result<Option<Vec<(Name, String)>>, StoreError> {
        let mut found = Vec::new();
        let mut open: Vec<(&Name, u64)> = limits.iter().map(|name| (name, 0)).collect();
        while !open.is_empty() {
            let scan = |(limit, cursor): &(&Name, u64)| {
                let mut scan = redis::cmd("HSCAN");
                scan.arg(self.keys().overrides(domain, limit)).arg(*cursor);
                scan.arg("COUNT").arg(SCAN_COUNT);
                scan
            };
            let step = open.iter().map(scan).chain([self.head_of(domain)]);
            let mut replies = self.control_all(step).await?;
            let head = head_state(replies.pop().unwrap_or(Value::Nil))?;
            if head != HeadState::Live(revision.clone()) {
                return Ok(None);
            }
            let mut still_open = Vec::new();
            for ((limit, _), reply) in open.into_iter().zip(replies) {
                let (next, pairs) = value::scan(reply)?;
                let values = value::texts(pairs)?.into_iter().skip(1).step_by(2);
                found.extend(values.map(|json| (limit.clone(), json)));
                if next != 0 {
                    still_open.push((limit, next));
                }
            }
            open = still_open;
        }
        Ok(Some(found))
    }

    pub(in crate::redis) async fn history(
        &self,
        domain: &Name,
        max: usize,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        let mut last = redis::cmd("XREVRANGE");
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

    fn head_of(&self, domain: &Name) -> redis::Cmd {
        let mut head = redis::cmd("HMGET");
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
