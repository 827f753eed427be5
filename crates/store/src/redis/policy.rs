//! Records of limits in Redis.

mod fields;
mod lost_write;
mod overrides;
mod write;

use async_trait::async_trait;
use policy::{Name, Override, Revision};
use redis_link::{Outcome, value};
use store_plan::{
    ChangesSince, EDITS_MAX, Edit, Head, HeadState, HistoryEntry, InvalidOverride, Keys, Overrides,
    Record, Stored,
    edit::{self, HISTORY_MAX},
    edits_between, record,
};
use tokio::sync::watch;

use self::fields::{Fields, head_state};
use crate::{
    EditError, LimitOf, OverrideCursor, OverridePage, Policies, StoreError, error::corrupt,
    redis::RedisStore,
};

/// How often to read a record again that was written during the read.
const READ_TRIES: usize = 5;

#[async_trait]
impl Policies for RedisStore {
    async fn heads(&self) -> Result<Vec<Head>, StoreError> {
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

    fn watch_edits(&self) -> watch::Receiver<u64> {
        // A caller that watches edits will soon send checks, which should not have to wait for a connection.
        self.servers.start();
        self.edits.watch()
    }

    async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, StoreError> {
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
            let revision = fields.revision.clone();
            let mut policy = fields.into_policy(domain)?;
            if overrides == Overrides::All && !self.read_overrides(&mut policy, &revision).await? {
                continue;
            }
            return Ok(Stored::Live(Box::new(Record { policy, overrides })));
        }
        Err(StoreError::Corrupt(format!(
            "the limits of {domain} change faster than they can be read"
        )))
    }

    async fn changes_since(
        &self,
        domain: &Name,
        known: &Revision,
    ) -> Result<Option<ChangesSince>, StoreError> {
        let mut all = redis_link::cmd("HGETALL");
        all.arg(self.keys().policy(domain));
        let mut range = redis_link::cmd("XRANGE");
        range.arg(self.keys().history(domain));
        range.arg(format!("{}-0", known.number)).arg("+");
        range.arg("COUNT").arg(EDITS_MAX + 2);
        let replies = self.control_all([all, range]).await?;
        let Ok([record, edits]) = <[_; 2]>::try_from(replies) else {
            return Err(value::short());
        };
        let Some(now) = Fields::parse(record)?.filter(|fields| !fields.deleted) else {
            return Ok(None);
        };
        let entries = value::items(edits)?.into_iter().map(fields::history_entry);
        let entries: Vec<HistoryEntry> = entries.collect::<Result<_, _>>()?;
        let Some(edits) = edits_between(&entries, known, &now.revision) else {
            return Ok(None);
        };
        Ok(ChangesSince::new(now.into_policy(domain)?, edits))
    }

    async fn read_override(
        &self,
        of: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError> {
        let mut get = redis_link::cmd("HGET");
        get.arg(self.keys().overrides(of.domain, &of.limit.name));
        get.arg(Keys::override_field(values));
        let found = value::optional_text(self.control(get).await?)?;
        found
            .map(|json| record::read_override(of.limit, &json).map_err(corrupt))
            .transpose()
    }

    async fn override_counts(
        &self,
        domain: &Name,
        limits: &[&Name],
    ) -> Result<Vec<u64>, StoreError> {
        if limits.is_empty() {
            return Ok(Vec::new());
        }
        let counts = limits.iter().map(|limit| {
            let mut count = redis_link::cmd("HLEN");
            count.arg(self.keys().overrides(domain, limit));
            count
        });
        let count = |reply| Ok(u64::try_from(value::integer(reply)?).unwrap_or(0));
        let replies = self.control_all(counts).await?;
        replies.into_iter().map(count).collect()
    }

    async fn scan_overrides(
        &self,
        of: &LimitOf<'_>,
        cursor: OverrideCursor,
    ) -> Result<OverridePage, StoreError> {
        let reply = self
            .control(self.step(of.domain, &of.limit.name, cursor.0))
            .await?;
        let (next, pairs) = value::scan(reply)?;
        let texts = value::texts(pairs)?.into_iter().skip(1).step_by(2);
        Ok(OverridePage {
            overrides: texts
                .map(|json| InvalidOverride::read(of.limit, json))
                .collect(),
            next: (next != 0).then_some(OverrideCursor(next)),
        })
    }

    async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError> {
        let plan = edit::plan(edit)?;
        if matches!(edit.base, Stored::Absent) {
            self.has_room_for(edit.domain).await?;
        }
        self.write_settled(edit, &plan).await
    }

    async fn history(&self, domain: &Name, max: usize) -> Result<Vec<HistoryEntry>, StoreError> {
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

    async fn applied(&self, domain: &Name) -> Result<Option<String>, StoreError> {
        let mut get = redis_link::cmd("GET");
        get.arg(self.keys().applied(domain));
        value::optional_text(self.control(get).await?)
    }

    async fn record_applied(&self, domain: &Name, record: &str) -> Result<(), StoreError> {
        let mut set = redis_link::cmd("SET");
        set.arg(self.keys().applied(domain)).arg(record);
        self.control(set).await.map(drop)
    }
}

impl RedisStore {
    /// The domains that were ever written. Skips members that are no domain names.
    pub(super) async fn listed(&self) -> Result<Vec<Name>, StoreError> {
        let mut members = redis_link::cmd("SMEMBERS");
        members.arg(self.keys().domains());
        let members = value::items(self.control(members).await?)?;
        let name = |member| Name::domain(&value::text(member).ok()?).ok();
        Ok(members.into_iter().filter_map(name).collect())
    }

    pub(super) fn head_of(&self, domain: &Name) -> redis_link::Cmd {
        let mut head = redis_link::cmd("HMGET");
        head.arg(self.keys().policy(domain));
        head.arg(&["format", "revision", "digest", "deleted"]);
        head
    }
}

/// The state of one domain's head: only a fault of the server is an error.
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
