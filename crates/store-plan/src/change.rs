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
    /// What the editor saw. If it is not what is there any more, the edit is a conflict.
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
    /// here are not looked at, and the base can be read with [`Overrides::None`]. No limit may go,
    /// and no `per` may change, where it has overrides.
    Fields(&'a Policy),
    /// As [`Change::Fields`], and these overrides change. Where a limit goes that has some, they
    /// have to be among them.
    Parts {
        /// The limits. Overrides are looked at only where an edit says that they are all.
        limits: &'a Policy,
        /// What becomes of overrides.
        overrides: &'a OverrideEdits,
    },
    /// One bucket gets other numbers, or its own again. Costs the same however many overrides
    /// there are; the base can be read with [`Overrides::None`].
    Override {
        /// The limit.
        limit: &'a Name,
        /// The bucket.
        values: &'a [Option<Vec<u8>>],
        /// `None` removes it.
        to: Option<&'a Override>,
    },
    /// The domain has no limits any more. Its revision numbers go on if it is written again. Of a
    /// base read with [`Overrides::None`], these are the overrides that go with them.
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
    /// As JSON, of an edit of limits a [`RecordedSide`], of an override what it was. Empty where nothing
    /// was there, of a reset and a credit, and of an edit that is larger than the history keeps or whose
    /// overrides were too many to list.
    pub before: String,
    /// The same as it became; of a reset [`HistoryEntry::reset_of`], of a credit
    /// [`HistoryEntry::credited`].
    pub after: String,
}
