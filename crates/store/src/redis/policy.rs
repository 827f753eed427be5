//! Records of limits in Redis.

use std::collections::BTreeMap;

use policy::{Name, Revision};
use redis::{Pipeline, Value};

use super::{
    RedisStore,
    link::Deadline,
    run::{self, Call},
    value,
};
use crate::{
    Edit, EditError, Head, HeadState, HistoryEntry, Overrides, Record, Signature, StoreError,
    Stored,
    edit::{self, Plan},
    record,
    scripts::POLICY_WRITE,
};

/// How often a record is read anew because it was written in the middle of it.
const READ_TRIES: usize = 5;
/// Fields that one step of reading overrides asks for: a reply of about 100 KB.
const SCAN_COUNT: usize = 1000;
/// Edits that the history keeps.
const HISTORY_MAX: usize = 1000;
/// What a record of this version calls its own format.
const FORMAT: &str = "1";

/// A record's own fields.
struct Fields {
    revision: Revision,
    deleted: bool,
    limits: String,
    generations: BTreeMap<String, u64>,
}

impl RedisStore {
    pub(super) async fn heads(&self) -> Result<Vec<Head>, StoreError> {
        let mut members = Pipeline::new();
        members.cmd("SMEMBERS").arg(self.keys().domains());
        let names = self.control(&members).await?.pop().unwrap_or(Value::Nil);
        let domains: Vec<Name> = value::texts(names)?
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        if domains.is_empty() {
            return Ok(Vec::new());
        }
        let mut heads = Pipeline::with_capacity(domains.len());
        for domain in &domains {
            heads.add_command(self.head_of(domain));
        }
        let states = self.control(&heads).await?;
        domains
            .into_iter()
            .zip(states)
            .map(|(domain, state)| {
                Ok(Head {
                    state: head_state(state)?,
                    domain,
                })
            })
            .collect()
    }

    pub(super) async fn read(
        &self,
        domain: &Name,
        overrides: Overrides,
    ) -> Result<Stored, StoreError> {
        for _ in 0..READ_TRIES {
            let mut all = Pipeline::new();
            all.cmd("HGETALL").arg(self.keys().policy(domain));
            let reply = self.control(&all).await?.pop().unwrap_or(Value::Nil);
            let Some(fields) = Fields::parse(reply)? else {
                return Ok(Stored::Absent);
            };
            if fields.deleted {
                return Ok(Stored::Deleted(fields.revision));
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
            return Ok(Stored::Live(Box::new(Record { policy, overrides })));
        }
        Err(StoreError::Corrupt(format!(
            "the limits of {domain} change faster than they can be read"
        )))
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
            let mut step = Pipeline::with_capacity(open.len() + 1);
            for (limit, cursor) in &open {
                let key = self.keys().overrides(domain, limit);
                step.cmd("HSCAN").arg(key).arg(*cursor);
                step.arg("COUNT").arg(SCAN_COUNT);
            }
            step.add_command(self.head_of(domain));
            let mut replies = self.control(&step).await?;
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

    pub(super) async fn write(&self, edit: &Edit<'_>) -> Result<Revision, EditError> {
        let plan = edit::plan(edit)?;
        // A SET of its own, because it lives in another slot. It may list a domain whose write
        // then fails; readers see that there is no record.
        let mut announce = Pipeline::new();
        announce
            .cmd("SADD")
            .arg(self.keys().domains())
            .arg(edit.domain.as_str());
        self.control(&announce).await?;
        self.write_plan(edit.domain, &edit::expected(edit.base), &plan, edit.by)
            .await
    }

    pub(super) async fn write_plan(
        &self,
        domain: &Name,
        expected: &edit::Expected,
        plan: &Plan,
        by: &Signature,
    ) -> Result<Revision, EditError> {
        let call = self.write_call(domain, expected, plan, by);
        let deadline = Deadline::within(self.options.control_timeout);
        let mut replies = run::scripts(&self.control, &POLICY_WRITE, &[call], deadline).await?;
        let reply = replies.pop().ok_or_else(value::short)?;
        let reply = reply.map_err(StoreError::from)?;
        outcome(reply, expected)
    }

    fn write_call(
        &self,
        domain: &Name,
        expected: &edit::Expected,
        plan: &Plan,
        by: &Signature,
    ) -> Call<String, String> {
        let mut keys = vec![self.keys().policy(domain), self.keys().history(domain)];
        let (number, digest) = expected.as_arguments();
        let mut args = vec![
            number,
            digest,
            plan.operation.to_owned(),
            by.author.clone(),
            by.reason.clone(),
            plan.before.clone(),
            plan.after.clone(),
            plan.limit
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            plan.limits.clone().unwrap_or_default(),
            self.keys().edits(),
            domain.to_string(),
            HISTORY_MAX.to_string(),
        ];
        for names in [&plan.raise, &plan.forget] {
            args.push(names.len().to_string());
            args.extend(names.iter().map(ToString::to_string));
        }
        for (limit, writes) in &plan.overrides {
            keys.push(self.keys().overrides(domain, limit));
            args.push(u8::from(writes.clear).to_string());
            args.push(writes.fields.len().to_string());
            for (field, json) in &writes.fields {
                args.push(field.clone());
                args.push(json.clone().unwrap_or_default());
            }
        }
        Call { keys, args }
    }

    pub(super) async fn history(
        &self,
        domain: &Name,
        max: usize,
    ) -> Result<Vec<HistoryEntry>, StoreError> {
        let mut last = Pipeline::new();
        last.cmd("XREVRANGE").arg(self.keys().history(domain));
        last.arg("+")
            .arg("-")
            .arg("COUNT")
            .arg(max.min(HISTORY_MAX));
        let entries = self.control(&last).await?.pop().unwrap_or(Value::Nil);
        value::items(entries)?
            .into_iter()
            .map(history_entry)
            .collect()
    }

    fn head_of(&self, domain: &Name) -> redis::Cmd {
        let mut head = redis::cmd("HMGET");
        head.arg(self.keys().policy(domain));
        head.arg(&["format", "revision", "digest", "deleted"]);
        head
    }
}

impl Fields {
    /// `None` where there is no record.
    fn parse(reply: Value) -> Result<Option<Self>, StoreError> {
        let mut fields = value::pairs(reply)?;
        if fields.is_empty() {
            return Ok(None);
        }
        check_format(fields.get("format").map(String::as_str))?;
        let generations = fields
            .iter()
            .filter_map(|(name, number)| Some((name.strip_prefix("g:")?, number)))
            .map(|(limit, number)| Ok((limit.to_owned(), value::number(number)?)))
            .collect::<Result<_, StoreError>>()?;
        Ok(Some(Self {
            revision: revision(fields.get("revision"), fields.get("digest"))?,
            deleted: fields.contains_key("deleted"),
            limits: fields.remove("limits").unwrap_or_default(),
            generations,
        }))
    }
}

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

/// The reply of `lua/policy_write.lua`.
fn outcome(reply: Value, expected: &edit::Expected) -> Result<Revision, EditError> {
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
        _ => Err(check_format(Some(&digest))
            .err()
            .unwrap_or_else(value::short)
            .into()),
    }
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
        let later = array(&[Some("2"), Some("7"), Some("ab"), None]);
        let error = head_state(later).unwrap_err();
        assert!(error.to_string().contains("format 2"), "{error}");
    }

    #[test]
    fn a_head_is_live_deleted_or_missing() {
        let revision = Revision {
            number: 7,
            digest: 0xab,
        };
        let live = array(&[Some("1"), Some("7"), Some("ab"), None]);
        assert_eq!(head_state(live), Ok(HeadState::Live(revision.clone())));
        let deleted = array(&[Some("1"), Some("7"), Some("ab"), Some("1")]);
        assert_eq!(head_state(deleted), Ok(HeadState::Deleted(revision)));
        let missing = array(&[None, None, None, None]);
        assert_eq!(head_state(missing), Ok(HeadState::Missing));
    }

    #[test]
    fn nonsense_is_an_error_never_a_panic() {
        for reply in [
            Value::Nil,
            Value::Int(1),
            array(&[Some("1"), Some("x"), Some("ab"), None]),
            array(&[Some("1"), Some("7"), Some("no hex"), None]),
        ] {
            assert!(
                !matches!(head_state(reply.clone()), Ok(HeadState::Live(_))),
                "{reply:?}"
            );
            assert!(outcome(reply, &edit::Expected::Any).is_err());
        }
    }
}
