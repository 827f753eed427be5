//! Why nothing could be planned, or a record not be read.

use policy::Name;

/// Why a check names no buckets. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckPlanError {
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

/// Why an edit cannot be made. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EditPlanError {
    /// The limit to change is not there.
    #[error("the domain has no limit named {0}")]
    UnknownLimit(Name),
    /// The base was read without overrides, so it is not known which of them the edit drops.
    #[error("this edit has to be based on a record read with its overrides")]
    PartialBase,
    /// The domain has no record.
    #[error("the domain has no limits to delete")]
    NothingToDelete,
    /// The domain would have more overrides than limiters agree to load.
    #[error("the domain would have {count} overrides, more than the {max} that it may")]
    TooManyOverrides {
        /// How many.
        count: usize,
        /// The most.
        max: usize,
    },
    /// The record would be larger than what limiters agree to load.
    #[error("the limits take {bytes} bytes, more than the {max} that a domain may")]
    TooLarge {
        /// Size of the record without overrides.
        bytes: usize,
        /// The largest size.
        max: usize,
    },
}

/// Something stored that is not what this version writes, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidRecord(pub String);
