//! The fields of a record and of its history, as Redis answers them.

use std::collections::BTreeMap;

use policy::{Name, Policy, Revision};
use redis_link::{Value, value};
use store_plan::{HeadState, HistoryEntry, Signature, record};

use crate::{StoreError, error::corrupt};

/// The value of `format` in a record of this version.
const FORMAT: &str = "1";

/// A record's own fields.
pub(super) struct Fields {
    pub(super) revision: Revision,
    pub(super) deleted: bool,
    limits: String,
    /// The last edit that changed all limits.
    base: u64,
    generations: BTreeMap<String, u64>,
    /// The generations of the latest resets.
    resets: BTreeMap<String, u64>,
}

impl Fields {
    /// `None` where there is no record.
    pub(super) fn parse(reply: Value) -> Result<Option<Self>, StoreError> {
        let mut fields = value::pairs(reply)?;
        if fields.is_empty() {
            return Ok(None);
        }
        check_format(fields.get("format").map(String::as_str))?;
        let by_limit = |prefix: &str| {
            let of = fields.iter();
            of.filter_map(|(name, number)| Some((name.strip_prefix(prefix)?, number)))
                .map(|(limit, number)| Ok((limit.to_owned(), value::number(number)?)))
                .collect::<Result<BTreeMap<_, _>, StoreError>>()
        };
        let (generations, resets) = (by_limit("g:")?, by_limit("r:")?);
        let base = fields
            .get("g")
            .map(|base| value::number(base))
            .transpose()?;
        Ok(Some(Self {
            revision: revision(fields.get("revision"), fields.get("digest"))?,
            deleted: fields.contains_key("deleted"),
            limits: fields.remove("limits").unwrap_or_default(),
            base: base.unwrap_or(0),
            generations,
            resets,
        }))
    }

    /// The limits, validated, without overrides.
    pub(super) fn into_policy(self, domain: &Name) -> Result<Policy, StoreError> {
        record::Document::parse(&self.limits)
            .and_then(|document| {
                document.into_policy(
                    domain,
                    self.revision,
                    (self.base, &self.generations),
                    &self.resets,
                )
            })
            .map_err(corrupt)
    }
}

/// The answer to HMGET of format, revision, digest, deleted.
pub(super) fn head_state(reply: Value) -> Result<HeadState, StoreError> {
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

pub(super) fn check_format(format: Option<&str>) -> Result<(), StoreError> {
    match format {
        Some(FORMAT) => Ok(()),
        Some(other) => Err(StoreError::Corrupt(format!(
            "a record of format {other}; this version reads format {FORMAT}"
        ))),
        None => Err(StoreError::Corrupt("a record without a format".to_owned())),
    }
}

pub(super) fn revision(
    number: Option<&String>,
    digest: Option<&String>,
) -> Result<Revision, StoreError> {
    let corrupt = || StoreError::Corrupt("a record without a revision".to_owned());
    let digest = digest.ok_or_else(corrupt)?;
    Ok(Revision {
        number: value::number(number.ok_or_else(corrupt)?)?,
        digest: u64::from_str_radix(digest, 16).map_err(|_| corrupt())?,
    })
}

pub(super) fn history_entry(entry: Value) -> Result<HistoryEntry, StoreError> {
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
        }
    }
}
