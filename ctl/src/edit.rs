//! What every edit has in common: author, reason, dry run, retries and the report.

mod args;
mod report;

use policy::{Name, Revision};
use store::{Change, Edit, EditError, Overrides, Stored};

use crate::{
    changes::{self, LimitChange},
    error::Error,
    printer::Pending,
    session::{Session, conflict},
};

pub use args::EditArgs;
pub use report::EditReport;

/// One edit, ready to be shown and made.
#[derive(Debug)]
pub struct Prepared<'a> {
    /// The domain.
    pub domain: &'a Name,
    /// The record that the edit is based on.
    pub base: &'a Stored,
    /// What the edit writes.
    pub change: Change<'a>,
    /// The effect on each limit.
    pub changes: Vec<LimitChange>,
}

/// Attempts to write an edit on top of concurrent edits of something else.
const TRIES: usize = 10;

impl Session<'_> {
    /// Makes an edit, unless it changes nothing or is a dry run.
    pub async fn edit(&self, edit: Prepared<'_>, args: &EditArgs) -> Result<EditReport, EditError> {
        let before = revision_of(edit.base).map(|revision| revision.number);
        let mut after = before;
        let domain_changes = match edit.change {
            Change::Limits(after) | Change::Fields(after) | Change::Parts { limits: after, .. } => {
                changes::of_domain(edit.base.policy(), after)
            }
            Change::Override { .. } | Change::Delete(_) => Vec::new(),
        };
        let any = !domain_changes.is_empty()
            || changes::any(&edit.changes)
            || matches!(edit.change, Change::Delete(_));
        self.warn_if_irreversible(&edit.changes);
        if any && !args.dry_run {
            self.printer.set_pending(Some(Pending::Edit));
            let edit = Edit {
                domain: edit.domain,
                base: edit.base,
                change: edit.change,
                by: &args.signature(),
            };
            after = Some(self.store.write(&edit).await?.number);
            self.printer.set_pending(None);
        }
        Ok(EditReport {
            domain: edit.domain.to_string(),
            previous_revision: before,
            revision: after,
            dry_run: args.dry_run,
            domain_changes,
            changes: edit.changes,
        })
    }

    /// Warns of deletions that the history does not record: rollback cannot restore them.
    fn warn_if_irreversible(&self, changes: &[LimitChange]) {
        let count: u64 = changes
            .iter()
            .map(|change| change.overrides_unrecorded)
            .sum();
        if count > 0 {
            self.printer.warn(format_args!(
                "{count} overrides are deleted, more than the history records: rollback cannot restore \
                 them, a file of `rlctl export` can"
            ));
        }
    }

    /// Makes an edit of a domain that was read as `base`, without overrides. If another edit was
    /// written since, reads the domain again and retries. It is a conflict only if the other edit
    /// changed what this edit is `about`.
    pub async fn edit_with_retry<T: Clone + PartialEq>(
        &self,
        domain: &Name,
        mut base: Stored,
        about: impl AsyncFn(&Stored) -> Result<T, Error>,
        attempt: impl AsyncFn(&Stored, &T) -> Result<Result<EditReport, EditError>, Error>,
    ) -> Result<EditReport, Error> {
        let mut first_seen = None;
        for _ in 0..TRIES {
            let seen = about(&base).await?;
            let first = first_seen.get_or_insert_with(|| seen.clone());
            if *first != seen {
                break;
            }
            match attempt(&base, &seen).await? {
                Ok(report) => return Ok(report),
                Err(EditError::Conflict { .. }) => {
                    base = self.read(domain, Overrides::None).await?;
                }
                Err(error) => return Err(self.edit_failed(&error)),
            }
        }
        Err(conflict())
    }
}

/// The revision of a record, if the record exists.
pub fn revision_of(stored: &Stored) -> Option<&Revision> {
    stored.policy().map(|policy| &policy.revision)
}

#[cfg(test)]
mod tests;
