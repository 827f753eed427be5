//! Polling the store.

use std::{
    collections::HashSet,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::{Either, select};
use policy::{Name, Revision};
use store::StoreError;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{Domain, Domains, Poll, Table, load::Loaded};

/// The pause between two polls, jittered so that replicas do not poll in step.
const POLL_MS: std::ops::RangeInclusive<u64> = 150..=240;

/// Hints within this time cause one poll.
const HINTS_GATHER: Duration = Duration::from_millis(5);

/// After a longer wait for the revisions, this limiter's limits may be outdated.
const LATE: Duration = Duration::from_millis(250);

impl Domains {
    /// Polls the store for ever.
    pub(crate) async fn poll_forever(&self) {
        let mut hints = self.store.watch_edits();
        loop {
            let wanted = self.wanted.load(Ordering::Relaxed);
            let loading = self.poll_store().await;
            self.done.send_replace(wanted);
            // Limits that change without end take at most half of this thread's time.
            sleep(loading).await;
            let pause = Duration::from_millis(fastrand::u64(POLL_MS));
            tokio::select! {
                () = sleep(pause) => {}
                () = self.wake.notified() => {}
                () = hint(&mut hints) => sleep(HINTS_GATHER).await,
            }
        }
    }

    /// Returns how long it took to load what has changed.
    async fn poll_store(&self) -> Duration {
        let polling = pin!(self.poll_once());
        match select(polling, pin!(sleep(LATE))).await {
            Either::Left((loading, _)) => loading,
            Either::Right(((), polling)) => {
                self.lock_poll().late = true;
                self.notify_changes();
                polling.await
            }
        }
    }

    async fn poll_once(&self) -> Duration {
        let heads = match self.store.heads().await {
            Ok(heads) => heads,
            Err(error) => {
                self.failed(error);
                return Duration::ZERO;
            }
        };
        let began = Instant::now();
        let known = self.table.load_full();
        let Loaded {
            table,
            deleted,
            unread,
            crowded,
        } = self.load_changed(heads, &known).await;
        let changed = !same_revisions(&known, &table) || **self.deleted.load() != deleted;
        self.report_lost_edits(&known, &table);
        self.swap(&known, table);
        self.deleted.store(Arc::new(deleted));
        self.answered(unread, crowded);
        if changed || unread {
            self.notify_changes();
        }
        if unread {
            return Duration::ZERO;
        }
        began.elapsed()
    }

    /// Reports edits that the store acknowledged and lost: without a loss, revisions only grow.
    fn report_lost_edits(&self, known: &Table, next: &Table) {
        let deleted = self.deleted.load();
        for (name, domain) in next {
            let before = known.get(name).and_then(Domain::revision);
            let before = before.or_else(|| deleted.get(name));
            let (Some(before), Some(now)) = (before, domain.revision()) else {
                continue;
            };
            if now.number < before.number || (now.number == before.number && now != before) {
                self.metrics.lost_edits(name);
                tracing::warn!(
                    domain = %name, before = before.number, now = now.number,
                    "the store lost edits: a failover or a restored backup took it back; compare \
                     `rlctl history` with what was applied"
                );
            }
        }
    }

    pub(super) fn notify_changes(&self) {
        self.changes
            .send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Records a successful poll; `unread`: some limits were not returned; `crowded`: the store
    /// lists more domains than are loaded.
    fn answered(&self, unread: bool, crowded: bool) {
        let mut poll = self.lock_poll();
        if crowded && !poll.crowded {
            tracing::error!("{}", super::CROWDED);
        }
        if poll.error.is_some() {
            tracing::info!("the store answers again");
        }
        *poll = Poll {
            answered: Some(Instant::now()),
            error: None,
            late: unread,
            crowded,
        };
    }

    fn failed(&self, error: StoreError) {
        let mut poll = self.lock_poll();
        if poll.error.as_ref() != Some(&error) {
            tracing::warn!(%error, "cannot read the limits from the store; the last ones stay in force");
        }
        poll.error = Some(error);
        poll.late = false;
        drop(poll);
        self.notify_changes();
    }

    fn swap(&self, known: &Table, next: Table) {
        for (name, domain) in &next {
            let before = known.get(name);
            domain.report(name, before);
            let fault = domain.fault.as_ref();
            let reported = fault.is_some_and(|fault| fault.reported);
            self.metrics.fault(name, reported);
        }
        for (name, before) in known {
            let after = next.get(name);
            if after.is_some_and(|after| after.has_the_limits_of(before)) {
                continue;
            }
            let kept: HashSet<&Name> = limits(after).collect();
            let gone = limits(Some(before)).filter(|limit| !kept.contains(limit));
            self.metrics.forget_limits(name, gone);
            let kept: HashSet<&Name> = exemptions(after).collect();
            let gone = exemptions(Some(before)).filter(|exemption| !kept.contains(exemption));
            self.metrics.forget_exemptions(name, gone);
            if after.is_none() {
                tracing::info!(domain = %name, "the domain was deleted");
                self.metrics.forget_domain(name);
            }
        }
        self.table.store(Arc::new(next));
    }
}

/// Whether lookups return the same revisions from both tables.
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

/// The exemptions of a domain that are in force.
fn exemptions(domain: Option<&Domain>) -> impl Iterator<Item = &Name> {
    let active = domain.and_then(|domain| domain.active.as_ref());
    let exempt = active.map_or(&[][..], |active| active.compiled.exemptions());
    exempt.iter().map(|exemption| &exemption.name)
}

async fn hint(hints: &mut watch::Receiver<u64>) {
    if hints.changed().await.is_err() {
        // The store is shutting down; polling continues without hints.
        std::future::pending::<()>().await;
    }
}
