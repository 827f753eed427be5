//! What is stored of a domain.

use policy::{Name, Policy, Revision};

/// A domain and the revision it is at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The domain.
    pub domain: Name,
    /// What is there.
    pub state: HeadState,
}

/// What a domain's record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeadState {
    /// Limits, perhaps none.
    Live(Revision),
    /// Deleted on purpose, by the edit of this revision.
    Deleted(Revision),
    /// Listed, but the record is not there: it was lost, or is being written this moment.
    Missing,
    /// There, but not a record that this version can read, and why. Other domains are not affected.
    Unreadable(String),
}

/// A domain's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Never written, or lost.
    Absent,
    /// Deleted on purpose, by the edit of this revision.
    Deleted(Revision),
    /// There.
    Live(Box<Record>),
}

/// The limits of a domain, and how much of them was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The limits, with their revision and generations.
    pub policy: Policy,
    /// Whether the overrides are among them.
    pub overrides: Overrides,
}

impl Stored {
    /// The limits, if there is a live record.
    pub fn policy(&self) -> Option<&Policy> {
        match self {
            Self::Live(record) => Some(&record.policy),
            Self::Absent | Self::Deleted(_) => None,
        }
    }
}

/// Whether reading a record also reads the overrides, of which there may be very many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overrides {
    /// Read.
    All,
    /// Left out; the limits then list none.
    None,
}
