//! Loading the limits that changed in the store.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
};

use super::{Active, Domain, Domains, Table};
use crate::aside::{alone, compute};
use policy::{Name, Policy, Revision};
use store::{DOMAINS_MAX, Head, HeadState, Overrides, StoreError, Stored};

/// The result of one poll.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) table: Table,
    /// The deleted domains, and the edits that deleted them.
    pub(super) deleted: BTreeMap<Name, Revision>,
    /// Whether the store did not return limits that it lists.
    pub(super) unread: bool,
    /// Whether the store lists more domains than are loaded.
    pub(super) crowded: bool,
}

impl Domains {
    /// Loads the domains whose revision differs from the one in force.
    pub(super) async fn load_changed(&self, mut heads: Vec<Head>, known: &Table) -> Loaded {
        let mut found = Loaded {
            crowded: heads.len() > DOMAINS_MAX,
            ..Loaded::default()
        };
        if found.crowded {
            // Keep those in force; of the others, every limiter loads the same ones.
            heads.sort_by(|a, b| {
                let order = |head: &Head| !known.contains_key(&head.domain);
                (order(a), &a.domain).cmp(&(order(b), &b.domain))
            });
        }
        let mut listed = HashSet::new();
        for head in heads.into_iter().take(DOMAINS_MAX) {
            if let HeadState::Deleted(revision) = &head.state {
                found.deleted.insert(head.domain.clone(), revision.clone());
            }
            let before = || known.get(&head.domain).cloned().unwrap_or_default();
            let domain = match self.next(&head, before()).await {
                Ok(domain) => domain,
                // The store failed, not the record: the next poll tries again.
                Err(error) => {
                    tracing::warn!(domain = %head.domain, %error, "cannot read the limits");
                    found.unread = true;
                    Some(before())
                }
            };
            let domain = domain.map(|domain| (head.domain.clone(), domain));
            found.table.extend(domain);
            listed.insert(head.domain);
        }
        found.table.extend(vanished_domains(known, &listed));
        found
    }

    /// The domain after a poll; `None`: it does not exist. Fails if the store did not return the
    /// limits.
    async fn next(&self, head: &Head, before: Domain) -> Result<Option<Domain>, StoreError> {
        let name = &head.domain;
        Ok(match &head.state {
            HeadState::Deleted(_) => None,
            HeadState::Missing => Some(before.faulty(vanished(), None)),
            HeadState::Unreadable(message) => Some(before.faulty(message.clone(), None)),
            HeadState::Live(revision) => {
                if before.is_at(revision) {
                    Some(before.mended())
                } else if before.was_tried(revision) {
                    Some(before)
                } else {
                    self.load(name, revision, before).await?
                }
            }
        })
    }

    async fn load(
        &self,
        name: &Name,
        revision: &Revision,
        before: Domain,
    ) -> Result<Option<Domain>, StoreError> {
        let _alone = alone().await;
        if let Some(active) = self.catch_up(name, &before).await {
            return Ok(Some(Domain::sound(active)));
        }
        Ok(match self.store.read(name, Overrides::All).await {
            Ok(Stored::Live(record)) => match self.compile(record.policy).await {
                Ok(active) => Some(Domain::sound(active)),
                Err(message) => Some(before.faulty(message, Some(revision))),
            },
            Ok(Stored::Deleted(_)) => None,
            Ok(Stored::Absent) => Some(before.faulty(vanished(), None)),
            Err(StoreError::Corrupt(message)) => Some(before.faulty(message, Some(revision))),
            Err(error) => return Err(error),
        })
    }

    /// Applies only the edits since the revision in force, to save reading everything. Returns
    /// `None` on any problem: reading the limits whole reports it.
    async fn catch_up(&self, name: &Name, before: &Domain) -> Option<Active> {
        let known = Arc::clone(before.active.as_ref()?);
        let since = self
            .store
            .changes_since(name, known.compiled.revision())
            .await;
        let since = since.ok().flatten()?;
        let metrics = Arc::clone(&self.metrics);
        let caught_up = compute(move || known.caught_up(since, &metrics));
        caught_up.await.flatten()?.ok()
    }

    /// Compiles on another thread: 100,000 overrides take a while, and checks must not wait.
    async fn compile(&self, policy: Policy) -> Result<Active, String> {
        let metrics = Arc::clone(&self.metrics);
        compute(move || Active::new(policy, &metrics))
            .await
            .unwrap_or_else(|| Err("compiling the limits failed; please report this".to_owned()))
    }
}

/// Domains that are no longer listed although nobody deleted them: the store lost them.
fn vanished_domains(known: &Table, listed: &HashSet<Name>) -> Vec<(Name, Domain)> {
    let gone = |(name, before): (&Name, &Domain)| {
        let lost = before.active.is_some() && !listed.contains(name);
        lost.then(|| (name.clone(), before.clone().faulty(vanished(), None)))
    };
    known.iter().filter_map(gone).collect()
}

fn vanished() -> String {
    "the record is gone from the store, though nobody deleted it; the last limits stay in force"
        .to_owned()
}
