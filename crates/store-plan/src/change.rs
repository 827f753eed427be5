//! Edits of a domain, and its history.

use policy::{Name, Override, Policy, Revision};

#[cfg(doc)]
use crate::{Operation, Overrides, RecordedSide};
use crate::{OverrideEdits, Stored};

/// Who edits, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// A person or a program.
    pub author: String,
    /// Shown with the history.
    pub reason: String,
}

/// One edit.
#[derive(Clone, Debug)]
pub struct Edit<'a> {
    /// The domain.
    pub domain: &'a Name,
    /// What the editor read. If the store holds something else by now, the edit is a conflict.
    pub base: &'a Stored,
    /// What to do.
    pub change: Change<'a>,
    /// Who and why.
    pub by: &'a Signature,
}

/// What an edit does.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// The domain's limits, with their overrides, become these (revision and generations in them
    /// do not matter). The base has to be read with [`Overrides::All`]; only differences are
    /// written, and only limits that differ get a new generation.
    Limits(&'a Policy),
    /// As [`Change::Limits`], for edits that leave every override as it is stored: those listed
    /// here are ignored, and the base can be read with [`Overrides::None`]. A limit with overrides
    /// may not be removed, and its `per` may not change.
    Fields(&'a Policy),
    /// As [`Change::Fields`], with changes to overrides. If a limit with overrides is removed,
    /// these have to be among the changes.
    Parts {
        /// The limits. Their overrides count only where an edit says that they are all.
        limits: &'a Policy,
        /// The changes to overrides.
        overrides: &'a OverrideEdits,
    },
    /// One bucket gets an override, or loses it. Costs the same however many overrides there are;
    /// the base can be read with [`Overrides::None`].
    Override {
        /// The limit.
        limit: &'a Name,
        /// The bucket.
        values: &'a [Option<Vec<u8>>],
        /// `None` removes it.
        to: Option<&'a Override>,
    },
    /// The domain's limits are deleted. Its revision numbers go on if it is written again. If the
    /// base was read with [`Overrides::None`], these are the overrides that are deleted with them.
    Delete(&'a OverrideEdits),
}

/// One edit that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// The revision that it made.
    pub revision: Revision,
    /// When, in milliseconds since the epoch, by the store's clock.
    pub at_ms: u64,
    /// The word of an [`Operation`].
    pub operation: String,
    /// Who and why.
    pub by: Signature,
    /// The limit that an `override`, a `reset` or a `credit` concerned.
    pub limit: Option<Name>,
    /// The state before, as JSON: a [`RecordedSide`] for an edit of limits, the old override for an
    /// edit of one. Empty if there was nothing, for a reset and a credit, and for an edit that is
    /// larger than the history keeps or whose overrides were too many to list.
    pub before: String,
    /// The same, after the edit; for a reset see [`HistoryEntry::reset_of`], for a credit
    /// [`HistoryEntry::credited`].
    pub after: String,
}
