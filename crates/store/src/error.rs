//! Why a check was not decided or an edit not made.

use policy::{Name, Revision};
use store_plan::{CheckPlanError, EditPlanError, InvalidRecord};

pub use redis_link::{Error as StoreError, Refusal};

/// Why one check got no decision. None of these charged anything, except where [`StoreError`]
/// says that it cannot be known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// See there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// One node failed after other nodes had charged the check; those charges may not have been
    /// refunded.
    #[error(transparent)]
    PartiallyCharged(StoreError),
    /// The key of the limit's bucket holds something that no check has written.
    #[error("the bucket of limit {0} holds something else; a reset makes it unused")]
    CorruptBucket(Name),
    /// The bucket has been used with a newer edit of its limit: reload the policy, then send the check again.
    #[error("the policy that was used for this check is older than the bucket")]
    Stale,
    /// The check names no buckets.
    #[error(transparent)]
    Plan(#[from] CheckPlanError),
}

/// Why an edit was not made. Nothing was written, except where [`StoreError`] says that it
/// cannot be known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// See there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Somebody else wrote in the meantime (or the record appeared, or went).
    #[error("the domain is now at {}, not at {}", show(found.as_ref()), show(expected.as_ref()))]
    Conflict {
        /// What the edit was based on; `None`: no record.
        expected: Option<Revision>,
        /// What is there; `None`: no record.
        found: Option<Revision>,
    },
    /// The edit does not fit its base, or is too large.
    #[error(transparent)]
    Plan(#[from] EditPlanError),
    /// The check of the edit's bucket failed.
    #[error(transparent)]
    Bucket(#[from] CheckError),
    /// The edit adds one more domain than limiters follow. Deleted domains count, because their
    /// revision numbers are never reused.
    #[error(
        "the store has {0} domains already, deleted ones included, and limiters follow no more"
    )]
    TooManyDomains(usize),
}

/// A record that this version cannot read.
pub(crate) fn corrupt(error: InvalidRecord) -> StoreError {
    StoreError::Corrupt(error.0)
}

impl From<CheckPlanError> for EditError {
    fn from(error: CheckPlanError) -> Self {
        Self::Bucket(error.into())
    }
}

fn show(revision: Option<&Revision>) -> String {
    match revision {
        Some(revision) => format!("revision {}", revision.number),
        None => "no revision (there is no record)".to_owned(),
    }
}
