//! Records of limits in Redis.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use async_trait::async_trait;
use policy::{Edits, Limit, Name, OVERRIDES_MAX, Override, OverrideChange, Policy, Revision};
use redis_link::{Cmd, Outcome, Request, Value, value};
use tokio::{sync::watch, time::sleep};

use crate::{
    DOMAINS_MAX, Edit, EditError, EditPlanError, Head, HeadState, HistoryEntry, Keys, LimitOf,
    Origin, OverrideCursor, OverridePage, Overrides, Policies, Record, Signature, StoreError,
    Stored, corrupt,
    plan::{
        edit::{self, Expected, HISTORY_MAX, How, Plan},
        record::{self, CATCH_UP_MAX, Changed, Generations},
    },
    redis::RedisStore,
    scripts::POLICY_WRITE,
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
        let heads = domains.iter().flat_map(|domain| {
            let length = redis_link::cmd(("HLEN", self.keys().limits(domain)));
            [self.head_of(domain), length]
        });
        let mut replies = self.control_each(heads).await.into_iter();
        let mut heads = Vec::with_capacity(domains.len());
        let mut missing = Vec::new();
        for domain in domains {
            let (head, length) = (replies.next(), replies.next());
            let head = head.ok_or_else(value::short)?;
            let count = match &head {
                Ok(Value::Array(fields)) => count_of(fields),
                _ => 0,
            };
            let mut state = readable(head)?;
            if state == HeadState::Missing {
                missing.push(domain.clone());
            }
            // An edit may have come between the two commands: the whole record settles it.
            if count > 0
                && matches!(length, Some(Ok(Value::Int(0))))
                && matches!(state, HeadState::Live(_))
                && matches!(
                    self.read(&domain, Overrides::None).await,
                    Ok(Stored::Absent)
                )
            {
                state = HeadState::Missing;
            }
            heads.push(Head { domain, state });
        }
        let never = self.never_written(missing).await;
        heads.retain(|head| !never.contains(&head.domain));
        Ok(heads)
    }

    fn watch_edits(&self) -> watch::Receiver<u64> {
        // A caller that watches edits will soon send checks, which should not have to wait for a connection.
        self.servers.start();
        self.edits.watch()
    }

    async fn read(&self, domain: &Name, overrides: Overrides) -> Result<Stored, StoreError> {
        for _ in 0..READ_TRIES {
            let all = redis_link::cmd(("HGETALL", self.keys().policy(domain)));
            let first = [all, self.limits_step(domain, 0), self.head_of(domain)];
            let [record, page, head] = self.control_array(first).await?;
            let Some(fields) = Fields::parse(record)? else {
                return Ok(Stored::Absent);
            };
            if fields.deleted {
                return Ok(Stored::Deleted(fields.revision));
            }
            let (revision, snapshot_bytes) = (fields.revision.clone(), fields.snapshot_bytes);
            let limits = self.read_limits(domain, &revision, (page, head)).await?;
            let Some(limits) = limits else {
                continue;
            };
            if limits.is_empty() && fields.count > 0 {
                // They were evicted: the rest of the record is none.
                return Ok(Stored::Absent);
            }
            let mut policy = fields.into_policy(domain, limits)?;
            if overrides == Overrides::All && !self.read_overrides(&mut policy, &revision).await? {
                continue;
            }
            return Ok(Stored::Live(Box::new(Record {
                policy,
                overrides,
                snapshot_bytes,
                is_part: false,
            })));
        }
        Err(StoreError::Corrupt(format!(
            "the limits of {domain} change faster than they can be read"
        )))
    }

    async fn read_part(&self, domain: &Name, limits: &[&Name]) -> Result<Stored, StoreError> {
        let whole = || self.read(domain, Overrides::None);
        let replies = self.control_all([self.long_head_of(domain)]).await?;
        let head = replies.into_iter().next().ok_or_else(value::short)?;
        let Some(head) = LongHead::parse(domain, head)? else {
            return whole().await;
        };
        // Without it, the edit has to count them all.
        let Some(snapshot_bytes) = head.snapshot_bytes else {
            return whole().await;
        };
        let names = Changed {
            limits: limits.iter().copied().cloned().collect(),
            ..Changed::default()
        };
        let base = (head.base, head.limit_count);
        let Some(found) = self.read_changed(head.policy, base, names).await? else {
            return whole().await;
        };
        let limits: Option<Vec<Limit>> = found.limits.into_iter().map(|(_, limit)| limit).collect();
        let Some(limits) = limits else {
            return whole().await;
        };
        let mut policy = found.domain;
        policy.limits = limits;
        Ok(Stored::Live(Box::new(Record {
            policy,
            overrides: Overrides::None,
            snapshot_bytes: Some(snapshot_bytes),
            is_part: true,
        })))
    }

    async fn changes_since(
        &self,
        domain: &Name,
        known: &Revision,
    ) -> Result<Option<Edits>, StoreError> {
        let range = redis_link::cmd((
            "ZRANGEBYSCORE",
            self.keys().changes(domain),
            known.number,
            "+inf",
            "WITHSCORES",
            "LIMIT",
            0,
            CATCH_UP_MAX + 1,
        ));
        let range = [self.long_head_of(domain), range];
        let [head, members] = self.control_array(range).await?;
        let Some(head) = LongHead::parse(domain, head)? else {
            return Ok(None);
        };
        let members = scored(members)?;
        let members = members.iter().map(|(member, at)| (member.as_str(), *at));
        let Some(changed) = Changed::read(members, known, &head.policy.revision) else {
            return Ok(None);
        };
        let base = (head.base, head.limit_count);
        self.read_changed(head.policy, base, changed).await
    }

    async fn read_override(
        &self,
        of: &LimitOf<'_>,
        values: &[Option<Vec<u8>>],
    ) -> Result<Option<Override>, StoreError> {
        let get = redis_link::cmd((
            "HGET",
            self.keys().overrides(of.domain, &of.limit.name),
            Keys::override_field(values),
        ));
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
        let counts = limits
            .iter()
            .map(|limit| redis_link::cmd(("HLEN", self.keys().overrides(domain, limit))));
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
            texts: texts.collect(),
            next: (next != 0).then_some(OverrideCursor(next)),
        })
    }

    async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError> {
        let mut plan = edit::plan(edit)?;
        if matches!(edit.base, Stored::Absent) {
            self.has_room_for(edit.domain).await?;
            self.clear_lost_overrides(edit.domain, &mut plan).await?;
        }
        self.write_settled(edit, &plan).await
    }

    async fn history(&self, domain: &Name, max: usize) -> Result<Vec<HistoryEntry>, StoreError> {
        let last = self.last_edits(domain, max.min(HISTORY_MAX));
        let entries = self.control(last).await?;
        value::items(entries)?
            .into_iter()
            .map(history_entry)
            .collect()
    }

    async fn applied(&self, domain: &Name, origin: Origin) -> Result<Option<String>, StoreError> {
        let get = redis_link::cmd(("GET", self.keys().applied(domain, origin)));
        value::optional_text(self.control(get).await?)
    }

    async fn record_applied(
        &self,
        domain: &Name,
        origin: Origin,
        record: &str,
    ) -> Result<(), StoreError> {
        let set = redis_link::cmd(("SET", self.keys().applied(domain, origin), record));
        self.control(set).await.map(drop)
    }
}

/// The fields that every poll reads.
const HEAD: [&str; 5] = ["format", "revision", "digest", "deleted", "count"];

impl RedisStore {
    /// The domains that were ever written. Skips members that are no domain names.
    pub(super) async fn listed(&self) -> Result<Vec<Name>, StoreError> {
        let members = redis_link::cmd(("SMEMBERS", self.keys().domains()));
        let members = value::items(self.control(members).await?)?;
        let name = |member| Name::domain(&value::text(member).ok()?).ok();
        Ok(members.into_iter().filter_map(name).collect())
    }

    /// Those of these domains without a record that are listed by a first write which was refused, or is not
    /// made yet: they have no history.
    async fn never_written(&self, domains: Vec<Name>) -> HashSet<Name> {
        // `XLEN` is no right of limiters. A stream is refused as no hash, and where there is none there is 0.
        let lengths = domains
            .iter()
            .map(|domain| redis_link::cmd(("HLEN", self.keys().history(domain))));
        let lengths = match domains.as_slice() {
            [] => Vec::new(),
            _ => self.control_each(lengths).await,
        };
        let of = domains.into_iter().zip(lengths);
        of.filter_map(|(domain, length)| matches!(length, Ok(Value::Int(0))).then_some(domain))
            .collect()
    }

    pub(super) fn head_of(&self, domain: &Name) -> Cmd {
        redis_link::cmd(("HMGET", self.keys().policy(domain), &HEAD))
    }

    /// The newest edits in a domain's history.
    fn last_edits(&self, domain: &Name, max: usize) -> Cmd {
        redis_link::cmd((
            "XREVRANGE",
            self.keys().history(domain),
            "+",
            "-",
            "COUNT",
            max,
        ))
    }

    /// As [`Self::head_of`], with what [`LongHead::parse`] reads.
    fn long_head_of(&self, domain: &Name) -> Cmd {
        let mut head = self.head_of(domain);
        head.arg("domain").arg("g").arg("snapshot_bytes");
        head
    }
}

/// What a record says besides its limits.
struct LongHead {
    /// The domain's own fields and its revision.
    policy: Policy,
    /// The last edit that changed all limits; 0: none.
    base: u64,
    limit_count: usize,
    snapshot_bytes: Option<u64>,
}

impl LongHead {
    /// `None`: it is not live.
    fn parse(domain: &Name, reply: Value) -> Result<Option<Self>, StoreError> {
        let mut head = value::items(reply)?;
        let mut rest = head.split_off(HEAD.len().min(head.len())).into_iter();
        let mut next = || value::optional_text(rest.next().ok_or_else(value::short)?);
        let (own, base, bytes) = (next()?, next()?, next()?);
        let limit_count = count_of(&head);
        let state = head_state(Value::Array(head))?;
        let (HeadState::Live(revision), Some(own)) = (state, own) else {
            return Ok(None);
        };
        let own = record::read_domain(domain, &own).map_err(corrupt)?;
        let number = |text: Option<String>| text.map(|text| value::number(&text)).transpose();
        Ok(Some(Self {
            policy: Policy { revision, ..own },
            base: number(base)?.unwrap_or(0),
            limit_count,
            snapshot_bytes: number(bytes)?,
        }))
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

// ---- Writing records of limits.

/// Fields that one step of staging writes: a millisecond or two of the server's time.
const STAGE_STEP: usize = 500;
/// Bytes after which a step ends.
const STAGE_STEP_BYTES: usize = 1 << 20;
/// When a staged write without its edit expires, in milliseconds.
const STAGE_LIFE_MS: u64 = 600_000;

impl RedisStore {
    /// Two new domains at the same time may both be the last.
    async fn has_room_for(&self, domain: &Name) -> Result<(), EditError> {
        let listed = self.listed().await?;
        if listed.len() < DOMAINS_MAX || listed.contains(domain) {
            return Ok(());
        }
        Err(EditError::TooManyDomains(listed.len()))
    }

    /// Makes the plan of a record's first limits delete the overrides that a lost record left to limits of
    /// these names. Few have any: to delete those of 10,000 limits unseen holds up checks.
    async fn clear_lost_overrides(&self, domain: &Name, plan: &mut Plan) -> Result<(), StoreError> {
        let texts = std::mem::take(&mut plan.limits.texts);
        let names: Vec<&Name> = texts.iter().map(|(name, _)| name).collect();
        for names in names.chunks(COUNTS_PER_STEP) {
            let counts = self.override_counts(domain, names).await?;
            for (name, _) in names.iter().zip(counts).filter(|(_, count)| *count > 0) {
                plan.clear_overrides(name);
            }
        }
        plan.limits.texts = texts;
        Ok(())
    }

    pub(in crate::redis) async fn write_plan(
        &self,
        domain: &Name,
        expected: &Expected,
        plan: &Plan,
        by: &Signature,
    ) -> Result<Revision, EditError> {
        let staged = self.stage(domain, plan).await?;
        let (keys, args) = plan.script_call(self.keys(), domain, expected, staged, by);
        let reply = self
            .control_script(&Request::call(&POLICY_WRITE, &keys, &args))
            .await?;
        outcome(reply, expected)
    }

    /// Writes limits and overrides that are too many for one script call under keys that no reader uses;
    /// returns the keys, in order.
    async fn stage(&self, domain: &Name, plan: &Plan) -> Result<Vec<String>, StoreError> {
        let mut keys = Vec::new();
        if plan.limits.stage {
            let texts = plan.limits.texts.iter();
            let texts = texts.map(|(name, text)| (name.as_str(), text.as_str()));
            let texts: Vec<_> = texts.collect();
            keys.push(self.stage_hash(domain, &texts).await?);
        }
        for (_, writes) in &plan.overrides {
            if writes.how == How::Stage {
                let fields = writes.fields.iter();
                let fields = fields
                    .map(|(field, json)| (field.as_str(), json.as_deref().unwrap_or_default()));
                let fields: Vec<_> = fields.collect();
                keys.push(self.stage_hash(domain, &fields).await?);
            }
        }
        Ok(keys)
    }

    /// Writes a hash that expires, in steps that hold up no check for long; returns its key.
    async fn stage_hash(
        &self,
        domain: &Name,
        mut fields: &[(&str, &str)],
    ) -> Result<String, StoreError> {
        let key = self.keys().staged(domain, fastrand::u64(..));
        while !fields.is_empty() {
            let mut set = redis_link::cmd(("HSET", &key));
            let (mut count, mut bytes) = (0, 0);
            for (field, value) in fields.iter().take(STAGE_STEP) {
                set.arg(field).arg(value);
                count += 1;
                bytes += value.len();
                if bytes > STAGE_STEP_BYTES {
                    break;
                }
            }
            let expire = redis_link::cmd(("PEXPIRE", &key, STAGE_LIFE_MS));
            self.control_all([set, expire]).await?;
            fields = fields.split_at(count).1;
        }
        Ok(key)
    }
}

/// The reply of `lua/policy_write.lua`.
fn outcome(reply: Value, expected: &Expected) -> Result<Revision, EditError> {
    let mut fields = value::items(reply)?.into_iter();
    let mut next = || fields.next().ok_or_else(value::short);
    let (status, number) = (value::integer(next()?)?, value::integer(next()?)?);
    let digest = value::text(next()?)?;
    let deleted = value::integer(next()?)? != 0;
    let found = || revision(Some(&number.to_string()), Some(&digest));
    match status {
        1 => Ok(found()?),
        0 => Err(EditError::Conflict {
            expected: expected.revision(),
            found: match (number, deleted) {
                (0, _) | (_, true) => None,
                _ => Some(found()?),
            },
        }),
        4 => Err(EditPlanError::TooManyOverrides {
            count: usize::try_from(number).unwrap_or(usize::MAX),
            max: OVERRIDES_MAX,
        }
        .into()),
        5 => Err(EditPlanError::TooLarge {
            bytes: usize::try_from(number).unwrap_or(usize::MAX),
            max: limits_file::DOCUMENT_MAX,
        }
        .into()),
        3 => Err(StoreError::Corrupt(
            "of what was being written, some is gone, perhaps after a failover; try again"
                .to_owned(),
        )
        .into()),
        _ => Err(check_format(Some(&digest))
            .err()
            .unwrap_or_else(value::short)
            .into()),
    }
}

// ---- A write whose reply was lost: the history shows whether it was made.
//
// The script compares the revision before it writes, so a write that was not made can be sent
// again: however often it arrives, it is made once.

/// How often the history is read, and the write sent again, before the caller gets an error.
const TRIES: usize = 3;
/// Pause before each of them: a connection that broke is dialled again.
const PAUSE: Duration = Duration::from_millis(50);

impl RedisStore {
    /// Makes an edit; if the reply is lost, finds out whether it was made.
    async fn write_settled(&self, edit: &Edit<'_>, plan: &Plan) -> Result<Revision, EditError> {
        let expected = edit::expected(edit.base);
        let before = match edit.base {
            Stored::Absent => self.newest(edit.domain).await?,
            Stored::Deleted(revision) => revision.number,
            Stored::Live(record) => record.policy.revision.number,
        };
        let mut result = self.announce_and_write(edit, plan).await;
        let mut lost = false;
        for _ in 0..TRIES {
            lost |= is_lost(&result);
            // After a lost reply, a conflict may be with the very write whose reply was lost.
            let unsettled =
                is_lost(&result) || lost && matches!(result, Err(EditError::Conflict { .. }));
            if !unsettled {
                return result;
            }
            sleep(PAUSE).await;
            match self.made_after(edit.domain, before).await {
                Ok(Some(entry)) if is_the_same(&entry, edit, plan) => return Ok(entry.revision),
                Ok(Some(entry)) => {
                    return Err(EditError::Conflict {
                        expected: expected.revision(),
                        found: Some(entry.revision),
                    });
                }
                Ok(None) if is_lost(&result) => {
                    result = self.announce_and_write(edit, plan).await;
                }
                Ok(None) => return result,
                Err(_) => {}
            }
        }
        result
    }

    async fn announce_and_write(
        &self,
        edit: &Edit<'_>,
        plan: &Plan,
    ) -> Result<Revision, EditError> {
        // A SET of its own, because it lives in another slot. It may list a domain whose write
        // then fails; readers see that there is no record.
        let announce = redis_link::cmd(("SADD", self.keys().domains(), edit.domain.as_str()));
        self.control(announce).await?;
        self.write_plan(edit.domain, &edit::expected(edit.base), plan, edit.by)
            .await
    }

    /// The revision from which the script goes on where a record is lost: its own, if only its limits are
    /// gone, or that of the last edit.
    async fn newest(&self, domain: &Name) -> Result<u64, StoreError> {
        let [head, entries] = self
            .control_array([self.head_of(domain), self.last_edits(domain, 1)])
            .await?;
        let entry = value::items(entries)?
            .pop()
            .map(history_entry)
            .transpose()?;
        Ok(number_of(head)?.max(entry.map_or(0, |entry| entry.revision.number)))
    }

    /// The edit that was made on top of revision `before`, if one was.
    async fn made_after(
        &self,
        domain: &Name,
        before: u64,
    ) -> Result<Option<HistoryEntry>, StoreError> {
        let next = format!("{}-0", before.saturating_add(1));
        let entry = redis_link::cmd(("XRANGE", self.keys().history(domain), &next, &next));
        let [head, entries] = self.control_array([self.head_of(domain), entry]).await?;
        let now = number_of(head)?;
        let entry = value::items(entries)?.pop().filter(|_| now > before);
        entry.map(history_entry).transpose()
    }
}

/// The revision number by the answer to HMGET of [`HEAD`]; 0: there is no record.
fn number_of(head: Value) -> Result<u64, StoreError> {
    Ok(match head_state(head)? {
        HeadState::Live(revision) | HeadState::Deleted(revision) => revision.number,
        HeadState::Missing | HeadState::Unreadable(_) => 0,
    })
}

/// Whether the write may or may not have been made.
fn is_lost(result: &Result<Revision, EditError>) -> bool {
    matches!(
        result,
        Err(EditError::Store(
            StoreError::Timeout(_) | StoreError::Broken(_)
        ))
    )
}

fn is_the_same(entry: &HistoryEntry, edit: &Edit<'_>, plan: &Plan) -> bool {
    entry.by == *edit.by
        && entry.kind() == Some(plan.operation)
        && entry.after == plan.after
        && entry.limit == plan.limit
}

// ---- The fields of a record and of its history, as Redis answers them.

/// The value of `format` in a record of this version.
const FORMAT: &str = "2";

/// A record's own fields.
struct Fields {
    revision: Revision,
    deleted: bool,
    /// The domain's own fields, as JSON.
    domain: String,
    /// How many limits there have to be in their hash.
    count: usize,
    /// The last edit that changed all limits, 0 if none is known.
    base: u64,
    generations: BTreeMap<String, Generations>,
    /// See [`Record::snapshot_bytes`].
    snapshot_bytes: Option<u64>,
}

impl Fields {
    /// `None` where there is no record.
    fn parse(reply: Value) -> Result<Option<Self>, StoreError> {
        let mut fields = value::pairs(reply)?;
        if fields.is_empty() {
            return Ok(None);
        }
        check_format(fields.get("format").map(String::as_str))?;
        let mut generations = BTreeMap::<String, Generations>::new();
        for (field, text) in &fields {
            let Some((kind @ ("g" | "r" | "b"), limit)) = field.split_once(':') else {
                continue;
            };
            let of = generations.entry(limit.to_owned()).or_default();
            match kind {
                "g" => of.own = Some(value::number(text)?),
                "r" => of.reset = Some(value::number(text)?),
                _ => of.buckets = Some(text.clone()),
            }
        }
        let number = |field: &str| fields.get(field).map_or(Ok(0), |n| value::number(n));
        let base = number("g")?;
        let count = usize::try_from(number("count")?).unwrap_or(usize::MAX);
        let bytes = fields.get("snapshot_bytes");
        let snapshot_bytes = bytes.map(|bytes| value::number(bytes)).transpose()?;
        let revision = revision(fields.get("revision"), fields.get("digest"))?;
        Ok(Some(Self {
            revision,
            deleted: fields.contains_key("deleted"),
            domain: fields.remove("domain").unwrap_or_default(),
            count,
            base,
            generations,
            snapshot_bytes,
        }))
    }

    /// The limits, validated, without overrides.
    fn into_policy(self, domain: &Name, mut limits: Vec<Limit>) -> Result<Policy, StoreError> {
        let mut policy = record::read_domain(domain, &self.domain).map_err(corrupt)?;
        if self.count > 0 && limits.len() != self.count {
            let (found, count) = (limits.len(), self.count);
            return Err(StoreError::Corrupt(format!(
                "the store has {found} of the {count} limits of {domain}"
            )));
        }
        for limit in &mut limits {
            let of = self.generations.get(limit.name.as_str());
            let none = Generations::default();
            of.unwrap_or(&none).set(limit, self.base, &self.revision);
        }
        policy.revision = self.revision;
        record::with_limits(policy, limits).map_err(corrupt)
    }
}

/// How many limits there have to be, by the answer to HMGET of [`HEAD`]; 0 if it does not say.
fn count_of(fields: &[Value]) -> usize {
    let count = fields.last().cloned().map(value::optional_text);
    let count = count.and_then(|text| text.ok().flatten());
    let count: Option<u64> = count.and_then(|text| value::number(&text).ok());
    count.map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

/// The answer to HMGET of [`HEAD`].
fn head_state(reply: Value) -> Result<HeadState, StoreError> {
    let mut fields = value::items(reply)?.into_iter().map(value::optional_text);
    let mut next = || fields.next().unwrap_or(Ok(None));
    let (format, number, digest, deleted) = (next()?, next()?, next()?, next()?);
    if number.is_none() {
        return Ok(HeadState::Missing);
    }
    check_format(format.as_deref())?;
    let revision = revision(number.as_ref(), digest.as_ref())?;
    Ok(match deleted {
        Some(_) => HeadState::Deleted(revision),
        None => HeadState::Live(revision),
    })
}

fn check_format(format: Option<&str>) -> Result<(), StoreError> {
    match format {
        Some(FORMAT) => Ok(()),
        Some(other) => Err(StoreError::Corrupt(format!(
            "a record of format {other}; this version reads format {FORMAT}"
        ))),
        None => Err(StoreError::Corrupt("a record without a format".to_owned())),
    }
}

fn revision(number: Option<&String>, digest: Option<&String>) -> Result<Revision, StoreError> {
    let corrupt = || StoreError::Corrupt("a record without a revision".to_owned());
    let digest = digest.ok_or_else(corrupt)?;
    Ok(Revision {
        number: value::number(number.ok_or_else(corrupt)?)?,
        digest: u64::from_str_radix(digest, 16).map_err(|_| corrupt())?,
    })
}

fn history_entry(entry: Value) -> Result<HistoryEntry, StoreError> {
    let mut parts = value::items(entry)?.into_iter();
    let mut next = || parts.next().ok_or_else(value::short);
    let id = value::text(next()?)?;
    let mut fields = value::pairs(next()?)?;
    let mut take = |name: &str| fields.remove(name).unwrap_or_default();
    let number = id.split('-').next().unwrap_or_default().to_owned();
    Ok(HistoryEntry {
        revision: revision(Some(&number), Some(&take("digest")))?,
        at_ms: value::number(&take("at"))?,
        operation: take("op"),
        by: Signature {
            author: take("who"),
            reason: take("why"),
        },
        limit: take("limit").parse().ok(),
        before: take("before"),
        after: take("after"),
    })
}

// ---- Reading limits page by page, and what changed.

/// Members with their scores, as ZRANGEBYSCORE returns them.
fn scored(reply: Value) -> Result<Vec<(String, u64)>, StoreError> {
    let mut texts = value::texts(reply)?.into_iter();
    let mut members = Vec::with_capacity(texts.len() / 2);
    while let Some(member) = texts.next() {
        let score = texts.next().ok_or_else(value::short)?;
        members.push((member, value::number(&score)?));
    }
    Ok(members)
}

impl RedisStore {
    /// Reads the limits from their first page on, which was read before the head; `None` if the record
    /// changed meanwhile. A page is dropped as soon as it is read.
    async fn read_limits(
        &self,
        domain: &Name,
        revision: &Revision,
        first: (Value, Value),
    ) -> Result<Option<Vec<Limit>>, StoreError> {
        let (mut limits, mut seen) = (Vec::new(), HashSet::new());
        let (mut page, mut head) = first;
        loop {
            if head_state(head)? != HeadState::Live(revision.clone()) {
                return Ok(None);
            }
            let (next, pairs) = value::scan(page)?;
            for text in value::texts(pairs)?.iter().skip(1).step_by(2) {
                let limit = record::read_limit(text).map_err(corrupt)?;
                // HSCAN returns some fields twice if the hash has just shrunk.
                if seen.insert(limit.name.clone()) {
                    limits.push(limit);
                }
            }
            if next == 0 {
                return Ok(Some(limits));
            }
            let step = [self.limits_step(domain, next), self.head_of(domain)];
            [page, head] = self.control_array(step).await?;
        }
    }

    fn limits_step(&self, domain: &Name, cursor: u64) -> Cmd {
        redis_link::cmd((
            "HSCAN",
            self.keys().limits(domain),
            cursor,
            "COUNT",
            SCAN_COUNT,
        ))
    }

    /// Reads what changed; `None` if the record changed once more meanwhile. `policy` has the domain's own
    /// fields.
    async fn read_changed(
        &self,
        policy: Policy,
        (base, limit_count): (u64, usize),
        changed: Changed,
    ) -> Result<Option<Edits>, StoreError> {
        let revision = policy.revision.clone();
        let commands = self.commands_for(&policy.domain, &changed);
        let head = [self.head_of(&policy.domain)];
        let replies = self.control_all(commands.into_iter().chain(head)).await?;
        let mut replies = replies.into_iter();
        let mut next = || value::items(replies.next().ok_or_else(value::short)?);
        let limits = match changed.limits.as_slice() {
            [] => Vec::new(),
            _ => changed_limits(changed.limits, next()?, next()?, (base, &revision))?,
        };
        let mut overrides = Vec::new();
        for (name, fields) in changed.overrides {
            let texts = next()?;
            let limit = limits.iter().find(|(other, _)| *other == name);
            // The overrides of a limit that went are gone with it.
            if let Some((_, Some(limit))) = limit {
                let Some(found) = changed_overrides(limit, fields, texts)? else {
                    return Ok(None);
                };
                overrides.extend(found);
            }
        }
        if head_state(Value::Array(next()?))? != HeadState::Live(revision) {
            return Ok(None);
        }
        Ok(Some(Edits {
            domain: policy,
            base,
            limit_count,
            limits,
            cleared: changed.cleared,
            overrides,
        }))
    }

    /// What reads limits, their generations, and overrides of each limit.
    fn commands_for(&self, domain: &Name, changed: &Changed) -> Vec<Cmd> {
        fn get(key: String, fields: impl Iterator<Item = String>) -> Cmd {
            redis_link::cmd(("HMGET", key, fields.collect::<Vec<_>>()))
        }
        let names = || changed.limits.iter();
        let mut commands = Vec::new();
        if !changed.limits.is_empty() {
            let texts = get(self.keys().limits(domain), names().map(Name::to_string));
            let fields = |name| ["g", "r", "b"].map(|kind| format!("{kind}:{name}"));
            let numbers = names().flat_map(fields);
            commands.extend([texts, get(self.keys().policy(domain), numbers)]);
        }
        let overrides = changed.overrides.iter();
        let overrides = overrides.map(|(limit, fields)| {
            let key = self.keys().overrides(domain, limit);
            get(key, fields.iter().cloned())
        });
        commands.extend(overrides);
        commands
    }
}

/// Limits by their texts, and by three fields of each: its own last edit, its latest reset, and edits of buckets.
fn changed_limits(
    names: Vec<Name>,
    texts: Vec<Value>,
    numbers: Vec<Value>,
    (base, revision): (u64, &Revision),
) -> Result<Vec<(Name, Option<Limit>)>, StoreError> {
    let mut numbers = numbers.into_iter().map(value::optional_text);
    let mut next = || numbers.next().ok_or_else(value::short)?;
    let number = |text: Option<String>| text.map(|text| value::number(&text)).transpose();
    let mut limits = Vec::with_capacity(names.len());
    for (name, text) in names.into_iter().zip(texts) {
        let generations = Generations {
            own: number(next()?)?,
            reset: number(next()?)?,
            buckets: next()?,
        };
        let limit = value::optional_text(text)?;
        let limit = limit.map(|text| record::read_limit(&text)).transpose();
        let mut limit = limit.map_err(corrupt)?;
        if let Some(limit) = &mut limit {
            generations.set(limit, base, revision);
        }
        limits.push((name, limit));
    }
    Ok(limits)
}

/// Overrides of a limit by their fields; `None` if it is not certain which bucket one was for.
fn changed_overrides(
    limit: &Limit,
    fields: Vec<String>,
    texts: Vec<Value>,
) -> Result<Option<Vec<OverrideChange>>, StoreError> {
    let mut changes = Vec::with_capacity(fields.len());
    for (field, text) in fields.into_iter().zip(texts) {
        let to = value::optional_text(text)?;
        let to = to.map(|json| record::read_override(limit, &json));
        let to = to.transpose().map_err(corrupt)?;
        let values = match &to {
            Some(to) => Some(to.values.clone()),
            // Nothing says what a digest stands for.
            None => Keys::override_values(&field),
        };
        let Some(values) = values.filter(|values| values.len() == limit.per.len()) else {
            return Ok(None);
        };
        let limit = limit.name.clone();
        changes.push(OverrideChange { limit, values, to });
    }
    Ok(Some(changes))
}

// ---- Reading overrides: one, some, or how many there are.

/// Fields that one step of reading overrides asks for: a reply of about 100 KB.
const SCAN_COUNT: usize = 1000;

/// Limits whose overrides one step counts: checks wait for less than a millisecond.
const COUNTS_PER_STEP: usize = 1000;

/// Limits whose overrides one step reads: some megabytes at most.
const LIMITS_PER_STEP: usize = 64;

impl RedisStore {
    /// Reads the overrides of all limits into them, page by page; false if the record changed
    /// meanwhile. A page is dropped as soon as it is read: of 100,000 overrides, the texts and their
    /// syntax trees would take several times as much as what is kept.
    async fn read_overrides(
        &self,
        policy: &mut Policy,
        revision: &Revision,
    ) -> Result<bool, StoreError> {
        // A list that grows by itself takes up to three times as much in the end.
        let names: Vec<&Name> = policy.limits.iter().map(|limit| &limit.name).collect();
        let mut counts = Vec::with_capacity(names.len());
        for names in names.chunks(COUNTS_PER_STEP) {
            counts.extend(self.override_counts(&policy.domain, names).await?);
        }
        // Few limits have overrides: to look into 10,000 empty hashes takes tens of milliseconds of
        // the server's time.
        let mut open: Vec<(usize, u64)> = Vec::new();
        for ((at, limit), count) in policy.limits.iter_mut().enumerate().zip(counts) {
            let count = usize::try_from(count).unwrap_or(OVERRIDES_MAX);
            limit.overrides.reserve_exact(count.min(OVERRIDES_MAX));
            open.extend((count > 0).then_some((at, 0)));
        }
        let mut read = 0;
        // Also without overrides: an edit may have deleted them after the record was read.
        loop {
            let rest = open.split_off(open.len().min(LIMITS_PER_STEP));
            let limits = open.iter().filter_map(|(at, cursor)| {
                let limit = policy.limits.get(*at)?;
                Some(self.step(&policy.domain, &limit.name, *cursor))
            });
            let step = limits.chain([self.head_of(&policy.domain)]);
            let mut replies = self.control_all(step).await?;
            let head = head_state(replies.pop().unwrap_or(Value::Nil))?;
            if head != HeadState::Live(revision.clone()) {
                return Ok(false);
            }
            let mut still_open = Vec::new();
            for ((at, _), reply) in open.into_iter().zip(replies) {
                let (next, pairs) = value::scan(reply)?;
                let limit = policy.limits.get_mut(at).ok_or_else(value::short)?;
                for json in value::texts(pairs)?.iter().skip(1).step_by(2) {
                    let found = record::read_override(limit, json).map_err(corrupt)?;
                    limit.overrides.push(found);
                    read += 1;
                }
                // Some are returned twice, and an earlier version wrote more.
                if read > 2 * OVERRIDES_MAX {
                    let what = "more overrides than a domain may have".to_owned();
                    return Err(StoreError::Corrupt(what));
                }
                if next != 0 {
                    still_open.push((at, next));
                }
            }
            still_open.extend(rest);
            open = still_open;
            if open.is_empty() {
                break;
            }
        }
        for limit in &mut policy.limits {
            // HSCAN returns some fields twice if the hash has just shrunk.
            let overrides = &mut limit.overrides;
            overrides.sort_unstable_by(|a, b| a.values.cmp(&b.values));
            overrides.dedup_by(|a, b| a.values == b.values);
        }
        Ok(true)
    }

    fn step(&self, domain: &Name, limit: &Name, cursor: u64) -> Cmd {
        redis_link::cmd((
            "HSCAN",
            self.keys().overrides(domain, limit),
            cursor,
            "COUNT",
            SCAN_COUNT,
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(fields: &[Option<&str>]) -> Value {
        let bulk = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let item = |field: Option<&str>| field.map_or(Value::Nil, bulk);
        Value::Array(fields.iter().copied().map(item).collect())
    }

    #[test]
    fn a_record_of_a_later_format_is_refused_not_guessed_at() {
        let later = array(&[Some("3"), Some("7"), Some("ab"), None]);
        let error = head_state(later).unwrap_err();
        assert!(error.to_string().contains("format 3"), "{error}");
    }

    #[test]
    fn a_head_is_live_deleted_or_missing() {
        let revision = Revision {
            number: 7,
            digest: 0xab,
        };
        let live = array(&[Some("2"), Some("7"), Some("ab"), None]);
        assert_eq!(head_state(live), Ok(HeadState::Live(revision.clone())));
        let deleted = array(&[Some("2"), Some("7"), Some("ab"), Some("1")]);
        assert_eq!(head_state(deleted), Ok(HeadState::Deleted(revision)));
        let missing = array(&[None, None, None, None]);
        assert_eq!(head_state(missing), Ok(HeadState::Missing));
    }

    #[test]
    fn nonsense_is_an_error_never_a_panic() {
        for reply in [
            Value::Nil,
            Value::Int(1),
            array(&[Some("2"), Some("x"), Some("ab"), None]),
            array(&[Some("2"), Some("7"), Some("no hex"), None]),
        ] {
            assert!(
                !matches!(head_state(reply.clone()), Ok(HeadState::Live(_))),
                "{reply:?}"
            );
        }
    }
}
