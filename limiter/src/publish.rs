//! Puts limits from outside (files, a management server) into the store.
//!
//! There are three rules. A limits file fills a domain that has no record, once. Where the store is this
//! process's memory, nobody else edits it, and the files are imposed on it. Otherwise operators edit the
//! same store, and a limiter replaces the limits of a domain only if nobody else has edited them since a
//! limiter wrote them. Bucket overrides, pauses, resets and credits do not count as such edits: they stay.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use limits_file::ToNode as _;
use policy::{Limit, Name, Policy, Revision};
use store::{
    Change, Edit, EditError, HistoryEntry, Operation, OverrideEdits, Overrides, RecordedSide,
    Signature, Store, StoreError, Stored,
};

/// The author of such edits.
const AUTHOR: &str = "limiter";

/// How many of a domain's last edits are searched first for the last change of its limits: mostly it is one
/// of a few, and all edits that are kept may take 16 MiB.
const FEW: usize = 20;

/// How often an edit is tried if it conflicts with another replica's.
const ATTEMPTS: usize = 5;

/// Why limits from outside are not in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PublishError {
    /// Somebody else edited the limits in the store.
    #[error(
        "the limits of {domain} in the store were {who}, so those of {from} are not in force; \
         `rlctl convert` and `rlctl apply --prune` put them in force, and from then on the limiter \
         follows {from} again"
    )]
    Edited {
        domain: Name,
        who: String,
        from: &'static str,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Edit(#[from] EditError),
}

impl PublishError {
    /// Whether the store failed, rather than refused this domain: a record that this version cannot
    /// read says nothing about others.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            Self::Store(error) | Self::Edit(EditError::Store(error)) => {
                !matches!(error, StoreError::Corrupt(_))
            }
            Self::Edit(_) | Self::Edited { .. } => false,
        }
    }

    /// The error to report of several: an outage goes first, since all is tried again after it.
    fn and(outcome: Result<(), Self>, error: Self) -> Result<(), Self> {
        match outcome {
            Err(first) if first.is_outage() || !error.is_outage() => Err(first),
            _ => Err(error),
        }
    }
}

/// Writes limits from one source, and remembers what it wrote.
pub(crate) struct Publisher {
    store: Arc<dyn Store>,
    /// The name of the source in messages.
    source: &'static str,
    /// The reason of its edits in the history.
    reason: String,
    /// The domains that it wrote, each with the [`digest`] of its limits; `None`: an earlier process
    /// wrote them. A copy of 10,000 limits would take ten megabytes.
    written: HashMap<Name, Option<u64>>,
    /// Whether it still has to find the domains that an earlier process of this source wrote.
    inherits: bool,
}

impl Publisher {
    pub(crate) fn new(store: Arc<dyn Store>, source: &'static str) -> Self {
        Self {
            store,
            source,
            reason: source.to_owned(),
            written: HashMap::new(),
            inherits: false,
        }
    }

    /// For one of several places of the same kind. Deletes what an earlier process wrote from this
    /// place and the place no longer has.
    pub(crate) fn for_place(store: Arc<dyn Store>, source: &'static str, place: &str) -> Self {
        Self {
            reason: format!("{source} {place}"),
            inherits: true,
            ..Self::new(store, source)
        }
    }

    /// Makes the store hold exactly these policies.
    pub(crate) async fn impose(&self, policies: &[Policy]) -> Result<(), EditError> {
        for head in self.store.heads().await? {
            if policies.iter().any(|policy| policy.domain == head.domain) {
                continue;
            }
            let base = self.store.read(&head.domain, Overrides::All).await?;
            if matches!(base, Stored::Live(_)) {
                let none = OverrideEdits::new();
                self.write(&head.domain, &base, Change::Delete(&none))
                    .await?;
            }
        }
        for policy in policies {
            let base = self.store.read(&policy.domain, Overrides::All).await?;
            let same = base
                .policy()
                .is_some_and(|held| held.to_node() == policy.to_node());
            if !same {
                self.write(&policy.domain, &base, Change::Limits(policy))
                    .await?;
            }
        }
        Ok(())
    }

    /// Fills a domain that has no record; returns whether it had none.
    pub(crate) async fn fill(&self, policy: &Policy) -> Result<bool, EditError> {
        let base = self.store.read(&policy.domain, Overrides::None).await?;
        if !matches!(base, Stored::Absent) {
            return Ok(false);
        }
        let change = Change::Limits(policy);
        match self.write(&policy.domain, &base, change).await {
            Ok(_) => Ok(true),
            // Another replica was faster.
            Err(EditError::Conflict { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn write(
        &self,
        domain: &Name,
        base: &Stored,
        change: Change<'_>,
    ) -> Result<Revision, EditError> {
        let by = Signature {
            author: AUTHOR.to_owned(),
            reason: self.reason.clone(),
        };
        let edit = Edit {
            domain,
            base,
            change,
            by: &by,
        };
        self.store.write(&edit).await
    }

    /// Finds the domains that this source last wrote before this process started.
    async fn inherit(&mut self) -> Result<(), StoreError> {
        if !self.inherits {
            return Ok(());
        }
        for head in self.store.heads().await? {
            let last = self.last_edit(&head.domain).await?;
            if last.is_some_and(|entry| entry.by.author == AUTHOR && entry.by.reason == self.reason)
            {
                self.written.entry(head.domain).or_insert(None);
            }
        }
        self.inherits = false;
        Ok(())
    }

    /// The last edit of a domain's limits, among all that the history keeps.
    async fn last_edit(&self, domain: &Name) -> Result<Option<HistoryEntry>, StoreError> {
        let mut found = None;
        for max in [FEW, usize::MAX] {
            let history = self.store.history(domain, max).await?;
            let all = history.len() < max;
            found = history.into_iter().find(edits_limits);
            if found.is_some() || all {
                break;
            }
        }
        Ok(found)
    }

    /// Puts these limits in force, and deletes domains that it wrote before and that are no longer
    /// among them. Tries every domain, and returns the first error, or an outage. The policies get what
    /// operators set on them in the store: a copy of 10,000 limits would take ten megabytes.
    pub(crate) async fn publish(&mut self, policies: &mut [Policy]) -> Result<(), PublishError> {
        let mut outcome = self.inherit().await.map_err(PublishError::from);
        let gone: Vec<Name> = { self.written.keys() }
            .filter(|name| policies.iter().all(|policy| policy.domain != **name))
            .cloned()
            .collect();
        for domain in gone {
            let mut empty = Policy::empty(domain.clone());
            match self.one(&mut empty, true).await {
                Ok(()) => {
                    self.written.remove(&domain);
                }
                // Somebody else owns these limits now, so this source stops tracking them.
                Err(PublishError::Edited { who, .. }) => {
                    tracing::warn!(%domain, "the domain is not in {} any more and stays: its limits were {who}", self.source);
                    self.written.remove(&domain);
                }
                Err(error) => outcome = PublishError::and(outcome, error),
            }
        }
        for policy in policies {
            match self.one(policy, false).await {
                Ok(()) => {
                    let digest = digest(policy);
                    self.written.insert(policy.domain.clone(), Some(digest));
                }
                Err(error) => outcome = PublishError::and(outcome, error),
            }
        }
        outcome
    }

    async fn one(&self, wanted: &mut Policy, delete: bool) -> Result<(), PublishError> {
        let mut attempts = 1..=ATTEMPTS;
        loop {
            let last = attempts.next().is_none();
            match self.attempt(wanted, delete).await {
                Err(PublishError::Edit(EditError::Conflict { .. })) if !last => {}
                outcome => return outcome,
            }
        }
    }

    async fn attempt(&self, wanted: &mut Policy, delete: bool) -> Result<(), PublishError> {
        let base = self.store.read(&wanted.domain, Overrides::All).await?;
        let same = match base.policy() {
            Some(held) => {
                keep_live(wanted, held);
                !delete && same(held, wanted)
            }
            None => delete,
        };
        if same {
            return Ok(());
        }
        let domain = &wanted.domain;
        self.check_owner(domain, &base).await?;
        let none = OverrideEdits::new();
        let change = if delete {
            Change::Delete(&none)
        } else {
            Change::Limits(wanted)
        };
        let revision = self.write(domain, &base, change).await?;
        tracing::info!(%domain, revision = revision.number, source = self.source, "limits written");
        Ok(())
    }

    /// Checks that a limiter may replace these limits.
    async fn check_owner(&self, domain: &Name, base: &Stored) -> Result<(), PublishError> {
        if matches!(base, Stored::Absent) {
            return Ok(());
        }
        let ours = self.written.get(domain).copied().flatten();
        if ours.is_some() && ours == base.policy().map(digest) {
            return Ok(());
        }
        let last = self.last_edit(domain).await?;
        match last {
            // Of any place: a domain may move from one place to another.
            Some(entry) if entry.by.author == AUTHOR && is_of(&entry.by.reason, self.source) => {
                Ok(())
            }
            last => Err(PublishError::Edited {
                domain: domain.clone(),
                who: last.map_or("not written by a limiter".to_owned(), |entry| {
                    format!(
                        "edited by {} (revision {})",
                        entry.by.author, entry.revision.number
                    )
                }),
                from: self.source,
            }),
        }
    }
}

/// Whether two policies read the same, whatever their revisions. Limit by limit: the documents of 10,000
/// take some tens of megabytes.
fn same(a: &Policy, b: &Policy) -> bool {
    let mut limits = a.limits.iter().zip(&b.limits);
    a.domain == b.domain
        && a.paused == b.paused
        && a.exempt == b.exempt
        && a.limits.len() == b.limits.len()
        && limits.all(|(a, b)| a.to_node() == b.to_node())
}

/// A digest of a domain's limits without what operators set on them, which [`keep_live`] keeps.
fn digest(policy: &Policy) -> u64 {
    digest_of(&policy.limits)
}

fn digest_of(limits: &[Limit]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for limit in limits {
        let mut node = limits_file::node_without_overrides(limit);
        node.unset("paused");
        serde_json::to_string(&node).ok().hash(&mut hasher);
    }
    hasher.finish()
}

/// Whether an edit changed more than what operators set on limits: of those, an edit has the same [`digest`]
/// before and after. What was too large to record, or this version cannot read, may have.
fn edits_limits(entry: &HistoryEntry) -> bool {
    let digest = |side| RecordedSide::read(side).map(|side| digest_of(&side.limits));
    match entry.kind() {
        Some(Operation::Override | Operation::Reset | Operation::Credit) => false,
        Some(Operation::Fields | Operation::Edit) => {
            let before = digest(&entry.before);
            before.is_none() || before != digest(&entry.after)
        }
        Some(Operation::Delete) | None => true,
    }
}

/// Whether an edit was made from a source, whatever the place.
fn is_of(reason: &str, source: &str) -> bool {
    let rest = reason.strip_prefix(source);
    rest.is_some_and(|place| place.is_empty() || place.starts_with(' '))
}

/// Gives the wanted limits the store's exemptions, and the overrides and pauses that operators set on limits
/// of the same name.
fn keep_live(wanted: &mut Policy, held: &Policy) {
    wanted.paused = held.paused;
    wanted.exempt.clone_from(&held.exempt);
    let by_name: HashMap<&Name, _> = held
        .limits
        .iter()
        .map(|limit| (&limit.name, limit))
        .collect();
    for limit in &mut wanted.limits {
        if let Some(live) = by_name
            .get(&limit.name)
            .filter(|live| live.per == limit.per)
        {
            limit.paused = live.paused;
            limit.overrides.clone_from(&live.overrides);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_errors_an_outage_is_returned() {
        let corrupt = || PublishError::Store(StoreError::Corrupt("format 2".to_owned()));
        let away = || PublishError::Store(StoreError::Unreachable("away".to_owned()));
        let is_outage = |errors: [PublishError; 2]| {
            let outcome = errors.into_iter().fold(Ok(()), PublishError::and);
            outcome.is_err_and(|error| error.is_outage())
        };
        assert!(is_outage([corrupt(), away()]));
        assert!(is_outage([away(), corrupt()]));
        assert!(!is_outage([corrupt(), corrupt()]));
    }
}
