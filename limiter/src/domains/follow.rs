//! Following the store.

use std::{
    collections::{BTreeMap, HashSet},
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::{Either, select};
use policy::{Name, Policy, Revision};
use store::{Head, HeadState, Overrides, StoreError, Stored};
use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep},
};

use super::{Active, Domain, Domains, Poll, Table};

/// The pause between two polls, jittered so that replicas do not ask in step.
const POLL_MS: std::ops::RangeInclusive<u64> = 150..=240;

/// Hints that come in a row cost one poll.
const HINTS_GATHER: Duration = Duration::from_millis(5);

/// A store that takes longer for its revisions may have been edited long ago.
const LATE: Duration = Duration::from_millis(250);

/// Domains kept at once. More than that in one store is a mistake, or not ours.
const DOMAINS_MAX: usize = 4096;

impl Domains {
    /// Follows the store for ever.
    pub(crate) async fn follow(&self) {
        let mut hints = self.store.hints();
        loop {
            let wanted = self.wanted.load(Ordering::Relaxed);
            self.poll_store().await;
            self.done.send_replace(wanted);
            let pause = Duration::from_millis(fastrand::u64(POLL_MS));
            tokio::select! {
                () = sleep(pause) => {}
                () = self.wake.notified() => {}
                () = hint(&mut hints) => sleep(HINTS_GATHER).await,
            }
        }
    }

    async fn poll_store(&self) {
        let polling = pin!(self.poll_once());
        if let Either::Right(((), polling)) = select(polling, pin!(sleep(LATE))).await {
            self.lock_poll().late = true;
            self.tell_news();
            polling.await;
        }
    }

    async fn poll_once(&self) {
        let heads = match self.store.heads().await {
            Ok(heads) => heads,
            Err(error) => return self.polled(Err(error)),
        };
        let known = self.table.load_full();
        self.unread.store(false, Ordering::Relaxed);
        let mut next = Table::new();
        let mut listed = HashSet::new();
        let mut deleted = BTreeMap::new();
        for head in heads.into_iter().take(DOMAINS_MAX) {
            if let HeadState::Deleted(revision) = &head.state {
                deleted.insert(head.domain.clone(), revision.clone());
            }
            let before = known.get(&head.domain).cloned().unwrap_or_default();
            let domain = self.next(&head, before).await;
            next.extend(domain.map(|domain| (head.domain.clone(), domain)));
            listed.insert(head.domain);
        }
        next.extend(vanished_domains(&known, &listed));
        let changed = !same_revisions(&known, &next) || **self.deleted.load() != deleted;
        self.swap(&known, next);
        self.deleted.store(Arc::new(deleted));
        self.polled(Ok(()));
        if changed || self.unread.load(Ordering::Relaxed) {
            self.tell_news();
        }
    }

    fn tell_news(&self) {
        self.news.send_modify(|news| *news = news.wrapping_add(1));
    }

    fn polled(&self, outcome: Result<(), StoreError>) {
        let mut poll = self.lock_poll();
        match outcome {
            Ok(()) => {
                if poll.error.is_some() {
                    tracing::info!("the store answers again");
                }
                *poll = Poll {
                    answered: Some(Instant::now()),
                    error: None,
                    late: self.unread.load(Ordering::Relaxed),
                };
            }
            Err(error) => {
                if poll.error.as_ref() != Some(&error) {
                    tracing::warn!(%error, "cannot ask the store for its limits");
                }
                poll.error = Some(error);
                poll.late = false;
                drop(poll);
                self.tell_news();
            }
        }
    }

    /// The domain after a poll; `None`: it is definitely absent.
    async fn next(&self, head: &Head, before: Domain) -> Option<Domain> {
        let name = &head.domain;
        match &head.state {
            HeadState::Deleted(_) => None,
            HeadState::Missing => Some(before.faulty(vanished(), None)),
            HeadState::Unreadable(message) => Some(before.faulty(message.clone(), None)),
            HeadState::Live(revision) => {
                if before.is_at(revision) {
                    return Some(before.mended());
                }
                if before.was_tried(revision) {
                    return Some(before);
                }
                self.load(name, revision, before).await
            }
        }
    }

    async fn load(&self, name: &Name, revision: &Revision, before: Domain) -> Option<Domain> {
        if let Some(active) = self.catch_up(name, &before).await {
            return Some(Domain::sound(active));
        }
        match self.store.read(name, Overrides::All).await {
            Ok(Stored::Live(record)) => match self.compile(record.policy).await {
                Ok(active) => Some(Domain::sound(active)),
                Err(message) => Some(before.faulty(message, Some(revision))),
            },
            Ok(Stored::Deleted(_)) => None,
            Ok(Stored::Absent) => Some(before.faulty(vanished(), None)),
            Err(StoreError::Corrupt(message)) => Some(before.faulty(message, Some(revision))),
            // The store's trouble, not the record's: the next poll tries again.
            Err(error) => {
                tracing::warn!(domain = %name, %error, "cannot read the limits");
                self.unread.store(true, Ordering::Relaxed);
                Some(before)
            }
        }
    }

    /// The limits in force with what changed since, at the cost of that; `None`: whatever is in
    /// the way shows when they are read whole.
    async fn catch_up(&self, name: &Name, before: &Domain) -> Option<Active> {
        let known = Arc::clone(before.active.as_ref()?);
        let since = self
            .store
            .changes_since(name, known.compiled.revision())
            .await;
        let since = since.ok().flatten()?;
        let metrics = Arc::clone(&self.metrics);
        let caught_up = spawn_blocking(move || known.caught_up(since, &metrics));
        caught_up.await.ok().flatten()?.ok()
    }

    /// Compiling 100,000 overrides takes a while, in which checks go on.
    async fn compile(&self, policy: Policy) -> Result<Active, String> {
        let metrics = Arc::clone(&self.metrics);
        spawn_blocking(move || Active::new(policy, &metrics))
            .await
            .unwrap_or_else(|_| Err("compiling the limits failed; please report this".to_owned()))
    }

    fn swap(&self, known: &Table, next: Table) {
        for (name, domain) in &next {
            let before = known.get(name);
            domain.report(name, before);
            self.metrics.fault(name, domain.fault.is_some());
        }
        for (name, before) in known {
            let after = next.get(name);
            let kept: HashSet<&Name> = limits(after).collect();
            let gone = limits(Some(before)).filter(|limit| !kept.contains(limit));
            self.metrics.forget_limits(name, gone);
            if after.is_none() {
                tracing::info!(domain = %name, "the domain was deleted");
                self.metrics.forget_domain(name);
            }
        }
        self.table.store(Arc::new(next));
    }
}

/// Domains that are not listed any more, though nobody deleted them: they were lost.
fn vanished_domains(known: &Table, listed: &HashSet<Name>) -> Vec<(Name, Domain)> {
    let gone = |(name, before): (&Name, &Domain)| {
        let lost = before.active.is_some() && !listed.contains(name);
        lost.then(|| (name.clone(), before.clone().faulty(vanished(), None)))
    };
    known.iter().filter_map(gone).collect()
}

/// Whether lookups find the same in both.
fn same_revisions(known: &Table, next: &Table) -> bool {
    fn revisions(table: &Table) -> impl Iterator<Item = (&Name, Option<&Revision>)> {
        table.iter().map(|(name, domain)| (name, domain.revision()))
    }
    revisions(known).eq(revisions(next))
}

/// The limits of a domain that are in force.
fn limits(domain: Option<&Domain>) -> impl Iterator<Item = &Name> {
    let active = domain.and_then(|domain| domain.active.as_ref());
    let limits = active.map_or(&[][..], |active| active.compiled.limits());
    limits.iter().map(|limit| &limit.name)
}

async fn hint(hints: &mut watch::Receiver<u64>) {
    if hints.changed().await.is_err() {
        // The store is on its way out; the poll goes on.
        std::future::pending::<()>().await;
    }
}

fn vanished() -> String {
    "the record is gone from the store, though nobody deleted it; the last limits stay in force"
        .to_owned()
}
