//! What can go wrong between us and the store, sorted by what the caller does about it.

use std::{fmt, time::Duration};

use policy::{Name, Revision};

/// The store gave no answer, or not one that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No connection. Nothing was sent.
    #[error("the store is unreachable: {0}")]
    Unreachable(String),
    /// No answer in time. What was sent may or may not have run, so it is never sent again.
    #[error("the store did not answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The connection broke while an answer was awaited: as uncertain as a timeout.
    #[error("the connection to the store broke: {0}")]
    Broken(String),
    /// The store wants other credentials.
    #[error("the store refused our credentials: {0}")]
    Auth(String),
    /// The store answered with an error: it did nothing, or as good as nothing; see
    /// [`StoreError::is_harmless`].
    #[error("{0}")]
    Refused(Refusal),
    /// An answer or a record that this version cannot read.
    #[error("unexpected data in the store: {0}")]
    Corrupt(String),
    /// This deployment of the store cannot do that.
    #[error("{0}")]
    Unsupported(String),
}

impl StoreError {
    /// Whether it is certain that nothing was charged: nothing was sent, or what was sent was
    /// refused before it began.
    pub fn is_harmless(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Auth(_) | Self::Unsupported(_) => true,
            Self::Refused(refusal) => refusal.is_of_the_server(),
            Self::Timeout(_) | Self::Broken(_) | Self::Corrupt(_) => false,
        }
    }
}

/// An error answer, with the code that Redis and Valkey put first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// `READONLY`, `OOM`, `NOPERM`, `LOADING`, `BUSY`, ...; `ERR` when there is no better one.
    pub code: String,
    /// The rest of the line.
    pub message: String,
}

/// Codes by which a server says that it takes no writes, or no scripts, for now.
const SERVER_STATES: [&str; 8] = [
    "READONLY",
    "OOM",
    "LOADING",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "CLUSTERDOWN",
];

impl Refusal {
    /// Whether it is the server that takes no script, or no write, at all. Other errors can end a
    /// script after its first checks were charged: an ACL that permits the commands of one
    /// algorithm and not those of another.
    fn is_of_the_server(&self) -> bool {
        let elsewhere = ["MOVED", "ASK", "CROSSSLOT", "TRYAGAIN", "NOSCRIPT"];
        let code = self.code.as_str();
        SERVER_STATES.contains(&code) || elsewhere.contains(&code)
    }

    /// Whether the server says of itself, or of the user, what will be true of the next check too.
    pub(crate) fn is_a_state(&self) -> bool {
        let code = self.code.as_str();
        SERVER_STATES.contains(&code) || ["NOPERM", "NOAUTH"].contains(&code)
    }

    /// Whether a primary that was deposed says so.
    pub(crate) fn may_be_a_demotion(&self) -> bool {
        matches!(self.code.as_str(), "READONLY" | "NOREPLICAS" | "MASTERDOWN")
    }

    /// What a person can do about it, where the code tells.
    pub fn hint(&self) -> Option<&'static str> {
        Some(match self.code.as_str() {
            "READONLY" => "this node is a replica; point the URL at the primary",
            "OOM" => "the store is out of memory (maxmemory reached); free some or raise it",
            "NOPERM" => "the ACL user lacks a permission that the limiter needs",
            "MASTERDOWN" => {
                "this node is a replica without its primary; point the URL at the primary"
            }
            "WRONGTYPE" => "a key of ours holds something else; `rlctl doctor` looks for it",
            "LOADING" => "the store is still loading its data; try again in a moment",
            "BUSY" => "another script has been running for too long on the store",
            "MISCONF" => "the store cannot persist and refuses writes; see its log",
            "CLUSTERDOWN" => "the cluster has slots without a node",
            "MOVED" | "ASK" | "CROSSSLOT" => {
                "this node belongs to a cluster: use redis-cluster:// for it"
            }
            "TRYAGAIN" => "its keys are on their way to another node; try again in a moment",
            "NOREPLICAS" => "too few replicas are in sync (min-replicas-to-write)",
            _ => return None,
        })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store refused: {} {}", self.code, self.message)?;
        match self.hint() {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

/// Why one check got no decision. None of these charged anything, except where [`StoreError`]
/// says that it cannot be known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// See there.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Of a check whose buckets are on several nodes: one failed, after others had charged what may
    /// not have been taken back.
    #[error(transparent)]
    Partly(StoreError),
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
