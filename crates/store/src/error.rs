//! Why a check was not decided or an edit not made.

use policy::{Name, Revision};

pub use redis_link::{Error as StoreError, Refusal};

/// Why one check got no decision. None of these charged anything, except where [`StoreError`]
/// says that it cannot be known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// See there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Of a check whose buckets are on several nodes: one failed, after others had charged what may
    /// not have been refunded.
    #[error(transparent)]
    PartiallyCharged(StoreError),
    /// The key of the limit's bucket holds something that no check has written.
    #[error("the bucket of limit {0} holds something else; a reset makes it unused")]
    CorruptBucket(Name),
    /// The bucket has been used with a newer edit of its limit: reload the policy, then ask again.
    #[error("the policy that was used for this check is older than the bucket")]
    Stale,
    /// `only` names a limit that the domain does not have.
    #[error("the domain has no limit named {0}")]
    UnknownLimit(Name),
    /// `require_match` was set and no limit matched.
    #[error("no limit matches this descriptor")]
    NoMatch,
    /// A bucket is named by one value for each of the limit's `per` entries.
    #[error("a bucket of {limit} has {expected} values, not {given}")]
    WrongBucket {
        /// The limit.
        limit: Name,
        /// How many there are in its `per`.
        expected: usize,
        /// How many were given.
        given: usize,
    },
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
    /// The limit to change is not there.
    #[error("the domain has no limit named {0}")]
    UnknownLimit(Name),
    /// The base was read without overrides, so it is not known which of them the edit drops.
    #[error("this edit has to be based on a record read with its overrides")]
    PartialBase,
    /// The bucket that the edit concerns could not be decided about.
    #[error(transparent)]
    Bucket(#[from] CheckError),
    /// The domain has no record.
    #[error("the domain has no limits to delete")]
    NothingToDelete,
    /// One more domain than limiters follow. Those that were deleted count: their revision numbers
    /// are never used again.
    #[error(
        "the store has {0} domains already, deleted ones included, and limiters follow no more"
    )]
    TooManyDomains(usize),
    /// The record would be larger than what limiters agree to load.
    #[error("the limits take {bytes} bytes, more than the {max} that a domain may")]
    TooLarge {
        /// Size of the record without overrides.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
}

fn show(revision: Option<&Revision>) -> String {
    match revision {
        Some(revision) => format!("revision {}", revision.number),
        None => "no revision (there is no record)".to_owned(),
    }
}
