//! A write whose reply was lost: the history shows whether it was made.
//!
//! The script compares the revision before it writes, so a write that was not made can be sent
//! again: however often it arrives, it is made once.

use std::time::Duration;

use policy::{Name, Revision};
use redis_link::value;
use store_plan::{
    Edit, HeadState, HistoryEntry, Stored,
    edit::{self, Plan},
};
use tokio::time::sleep;

use super::fields::{self, head_state};
use crate::{EditError, StoreError, redis::RedisStore};

/// How often the history is read, and the write sent again, before the caller gets an error.
const TRIES: usize = 3;
/// Pause before each of them: a connection that broke is dialled again.
const PAUSE: Duration = Duration::from_millis(50);

impl RedisStore {
    /// Makes an edit; if the reply is lost, finds out whether it was made.
    pub(super) async fn write_settled(
        &self,
        edit: &Edit<'_>,
        plan: &Plan,
    ) -> Result<Revision, EditError> {
        let expected = edit::expected(edit.base);
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
            match self.made_after(edit.domain, edit.base).await {
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
        let mut announce = redis_link::cmd("SADD");
        announce
            .arg(self.keys().domains())
            .arg(edit.domain.as_str());
        self.control(announce).await?;
        self.write_plan(edit.domain, &edit::expected(edit.base), plan, edit.by)
            .await
    }

    /// The edit that was made on top of `base`, if one was.
    async fn made_after(
        &self,
        domain: &Name,
        base: &Stored,
    ) -> Result<Option<HistoryEntry>, StoreError> {
        let before = match base {
            Stored::Absent => 0,
            Stored::Deleted(revision) => revision.number,
            Stored::Live(record) => record.policy.revision.number,
        };
        let next = format!("{}-0", before.saturating_add(1));
        let mut entry = redis_link::cmd("XRANGE");
        entry.arg(self.keys().history(domain)).arg(&next).arg(&next);
        let replies = self.control_all([self.head_of(domain), entry]).await?;
        let Ok([head, entries]) = <[_; 2]>::try_from(replies) else {
            return Err(value::short());
        };
        let now = match head_state(head)? {
            HeadState::Live(revision) | HeadState::Deleted(revision) => revision.number,
            HeadState::Missing | HeadState::Unreadable(_) => 0,
        };
        let entry = value::items(entries)?.pop().filter(|_| now > before);
        entry.map(fields::history_entry).transpose()
    }
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
