//! The policies in force, one per domain.
//!
//! One task polls the store: it compares the domains' revisions with those in force a few times a
//! second, and at once after a hint, and reads the domains that differ. A policy comes into force
//! whole or not at all. If a newer one is faulty, the last good one stays in force. What takes long to
//! load, a large domain or a new one, is loaded between polls, so that edits of others do not wait.

mod active;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ops::Bound,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use futures_util::future::{BoxFuture, Either, OptionFuture, select};
use policy::{Name, Policy, Revision};
use store::{DOMAINS_MAX, Head, HeadState, Overrides, Store, StoreError, Stored};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use crate::{
    aside::{alone, blocking, compute},
    metrics::Metrics,
};
pub(crate) use active::{Active, Snapshot};

/// How long the result of a poll is valid: later, a domain that is not found may exist.
const POLL_VALIDITY: Duration = Duration::from_secs(10);

/// The pause between two tries to read what was just written.
const REFRESH_RETRY: Duration = Duration::from_millis(200);

/// Why a domain may be missing while the store is filled from the limits files.
pub(crate) const FILLING: &str = "the limits files are not in the store yet";

/// The domains and the state of the task that polls them.
pub(crate) struct Domains {
    store: Arc<dyn Store>,
    metrics: Arc<Metrics>,
    table: ArcSwap<Table>,
    deleted: ArcSwap<BTreeMap<Name, Revision>>,
    /// Whether the store is still to be filled from the limits files.
    is_filling: AtomicBool,
    /// Domains of limits files that the store refuses, and why.
    unfilled: ArcSwap<BTreeMap<Name, String>>,
    poll: Mutex<Poll>,
    wanted: AtomicU64,
    wake: Notify,
    done: watch::Sender<Done>,
    changes: watch::Sender<u64>,
}

type Table = BTreeMap<Name, Domain>;

/// What the polls so far brought.
#[derive(Clone, Debug, Default)]
struct Done {
    /// What was wanted when the last of them began.
    wanted: u64,
    /// Domains whose limits in the store are still to be loaded.
    behind: Arc<BTreeSet<Name>>,
}

/// The results of the last polls.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poll {
    /// When the store last returned the revisions.
    pub(crate) answered: Option<Instant>,
    /// Why later polls failed.
    pub(crate) error: Option<StoreError>,
    /// Whether the store may have more than was read: it is slow to answer the current poll, or did
    /// not return limits that it lists.
    late: bool,
    /// Whether the store lists more domains than are loaded: one that is not found may be among them.
    crowded: bool,
    /// When the log last said that limits which are listed cannot be read.
    warned: Option<Instant>,
}

/// The message for checks in such domains.
const CROWDED: &str = "the store lists more domains than a limiter follows (4096); those beyond have no limits in force";

impl Poll {
    /// Whether the limits here are current: the store answered the last poll in full, and is not slow
    /// with the next.
    pub(crate) fn is_sure(&self) -> bool {
        self.answered.is_some() && self.error.is_none() && !self.late
    }
}

/// The result of looking up a domain.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// The policy in force.
    Active(Arc<Active>),
    /// The store has no such domain.
    Unknown,
    /// Unknown whether it exists; the reason is a text for operators.
    NotLoaded(String),
}

impl Domains {
    pub(crate) fn new(store: Arc<dyn Store>, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            metrics,
            table: ArcSwap::default(),
            deleted: ArcSwap::default(),
            is_filling: AtomicBool::new(false),
            unfilled: ArcSwap::default(),
            poll: Mutex::default(),
            wanted: AtomicU64::new(0),
            wake: Notify::new(),
            done: watch::Sender::new(Done::default()),
            changes: watch::Sender::new(0),
        }
    }

    /// Looks up the policy in force in a domain.
    pub(crate) fn find(&self, domain: &str) -> Lookup {
        match self.table.load().get(domain) {
            Some(Domain {
                active: Some(active),
                ..
            }) => Lookup::Active(Arc::clone(active)),
            Some(Domain {
                fault: Some(fault), ..
            }) => Lookup::NotLoaded(fault.message.clone()),
            _ => self.absence(domain),
        }
    }

    fn absence(&self, domain: &str) -> Lookup {
        if self.is_filling() {
            return Lookup::NotLoaded(FILLING.to_owned());
        }
        let poll = self.poll();
        match (poll.answered, poll.error) {
            (Some(at), _) if at.elapsed() < POLL_VALIDITY && poll.crowded => {
                Lookup::NotLoaded(CROWDED.to_owned())
            }
            (Some(at), _) if at.elapsed() < POLL_VALIDITY && !self.is_behind(domain) => {
                Lookup::Unknown
            }
            (_, Some(error)) => Lookup::NotLoaded(error.to_string()),
            (_, None) => Lookup::NotLoaded("the limits are still being loaded".to_owned()),
        }
    }

    /// The revision of the edit that deleted the domain; `None` if none did: its record may be
    /// lost.
    pub(crate) fn deleted(&self, domain: &str) -> Option<u64> {
        let deleted = self.deleted.load();
        deleted.get(domain).map(|revision| revision.number)
    }

    /// Whether the policy in force equals the store's: the last poll succeeded, and the record is
    /// usable.
    pub(crate) fn is_sure_of(&self, domain: &str) -> bool {
        let table = self.table.load();
        let fault = table.get(domain).and_then(|domain| domain.fault.as_ref());
        fault.is_none() && self.poll().is_sure() && !self.is_behind(domain)
    }

    /// Whether the store has limits of the domain that are still to be loaded.
    fn is_behind(&self, domain: &str) -> bool {
        self.done.borrow().behind.contains(domain)
    }

    /// Changes whenever a lookup may return something new.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Marks that the limits files are still to be stored: until [`Domains::filled`], a missing
    /// domain may be one of theirs.
    pub(crate) fn begin_filling(&self) {
        self.is_filling.store(true, Ordering::Relaxed);
    }

    /// Call once the domains of the limits files are stored; returns when they are in force.
    pub(crate) async fn filled(&self) {
        while !self.refreshed(None).await {
            sleep(REFRESH_RETRY).await;
        }
        self.is_filling.store(false, Ordering::Relaxed);
        self.notify_changes();
    }

    /// Sets which domains of limits files the store refuses. From the next poll on they are faulty, not
    /// unknown: proxies would drop the limits of an unknown domain.
    pub(crate) fn set_unfilled(&self, unfilled: BTreeMap<Name, String>) {
        self.unfilled.store(Arc::new(unfilled));
        self.wake.notify_one();
    }

    /// Whether the store is still to be filled from the limits files.
    pub(crate) fn is_filling(&self) -> bool {
        self.is_filling.load(Ordering::Relaxed)
    }

    /// Every domain, for reports.
    pub(crate) fn all(&self) -> Arc<Table> {
        self.table.load_full()
    }

    /// The results of the last polls.
    pub(crate) fn poll(&self) -> Poll {
        self.lock_poll().clone()
    }

    fn lock_poll(&self) -> MutexGuard<'_, Poll> {
        self.poll.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for one more poll of the store, and until this domain's limits, or those of all, are loaded;
    /// returns whether the poll succeeded.
    pub(crate) async fn refreshed(&self, domain: Option<&Name>) -> bool {
        let wanted = self.wanted.fetch_add(1, Ordering::Relaxed) + 1;
        self.wake.notify_one();
        let mut done = self.done.subscribe();
        let is_behind = |behind: &BTreeSet<Name>| {
            domain.map_or(!behind.is_empty(), |domain| behind.contains(domain))
        };
        // Cannot fail: the sender is borrowed from self.
        let _ = done
            .wait_for(|done| done.wanted >= wanted && !is_behind(&done.behind))
            .await;
        self.poll().error.is_none()
    }
}

// --- The state of one domain, and what is logged when it changes

/// An unusable record is read again after this long: it may have been half written, or the read may
/// have failed.
const RECORD_RETRY: Duration = Duration::from_secs(2);

/// A domain as the last poll left it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domain {
    /// The policy in force; `None`: never loaded.
    pub(crate) active: Option<Arc<Active>>,
    /// Why the policy in force differs from the store's record.
    pub(crate) fault: Option<Fault>,
}

/// What is wrong with a domain's record.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// A text for operators.
    pub(crate) message: String,
    /// When it was first seen.
    pub(crate) since: Instant,
    /// The revision of the unusable record, if there is a record.
    record: Option<Revision>,
    /// When it was tried last.
    tried: Instant,
    /// Whether operators hear of it. A new domain is listed a moment before its record is written, and
    /// that is no fault.
    pub(crate) reported: bool,
}

impl Domain {
    /// A domain with this in force, and nothing wrong.
    fn sound(active: Active) -> Self {
        Self {
            active: Some(Arc::new(active)),
            fault: None,
        }
    }

    /// The same domain without its fault.
    fn mended(self) -> Self {
        Self {
            fault: None,
            ..self
        }
    }

    /// The same domain with a fault; `record` is the revision that cannot be used, if there is a
    /// record at all.
    fn faulty(self, message: String, record: Option<&Revision>) -> Self {
        let now = Instant::now();
        let since = match self.fault {
            Some(before) if before.message == message => before.since,
            _ => now,
        };
        let is_new = self.active.is_none() && record.is_none();
        let reported = !is_new || now.duration_since(since) >= RECORD_RETRY;
        Self {
            active: self.active,
            fault: Some(Fault {
                message,
                since,
                record: record.cloned(),
                tried: now,
                reported,
            }),
        }
    }

    /// The revision in force.
    fn revision(&self) -> Option<&Revision> {
        let active = self.active.as_ref()?;
        Some(active.compiled.revision())
    }

    /// Whether there are, or may be, so many limits that to load them takes long.
    fn is_large(&self) -> bool {
        const MANY: usize = 1000;
        let active = self.active.as_ref();
        active.is_none_or(|active| active.compiled.limits().len() > MANY)
    }

    /// Whether this revision is in force.
    fn is_at(&self, revision: &Revision) -> bool {
        self.revision() == Some(revision)
    }

    /// Whether this revision was read recently and cannot be used.
    fn was_tried(&self, revision: &Revision) -> bool {
        self.fault.as_ref().is_some_and(|fault| {
            fault.record.as_ref() == Some(revision) && fault.tried.elapsed() < RECORD_RETRY
        })
    }

    /// Logs what is new since `before`.
    fn report(&self, name: &Name, before: Option<&Self>) {
        if self.revision() != before.and_then(Self::revision)
            && let Some(active) = &self.active
        {
            tracing::info!(
                domain = %name,
                revision = active.compiled.revision().number,
                limits = active.compiled.limits().len(),
                "limits in force"
            );
            let limits = active.compiled.limits().iter().map(AsRef::as_ref);
            if let Some(problem) = limits_file::unread_number(&limits) {
                tracing::warn!(domain = %name, %problem, "filters do not read all numbers of a body");
            }
        }
        let message = |domain: &Self| {
            let fault = domain.fault.as_ref().filter(|fault| fault.reported);
            fault.map(|fault| fault.message.clone())
        };
        match (message(self), before.and_then(message)) {
            (Some(now), before) if before.as_ref() != Some(&now) => {
                tracing::error!(domain = %name, fault = now, "the stored limits cannot be used");
            }
            (None, Some(_)) => tracing::info!(domain = %name, "the stored limits are good again"),
            _ => {}
        }
    }
}

// --- Polling the store

/// The pause between two polls, jittered so that replicas do not poll in step.
const POLL_MS: std::ops::RangeInclusive<u64> = 150..=240;

/// Hints within this time cause one poll.
const HINTS_GATHER: Duration = Duration::from_millis(5);

/// How often the log repeats that limits cannot be read.
const WARNED_AGAIN: Duration = Duration::from_secs(30);

/// After a longer wait for the revisions, this limiter's limits may be outdated.
const LATE: Duration = Duration::from_millis(250);

/// The domains that take long to load, which happens one after the other.
#[derive(Default)]
struct Slow<'d> {
    behind: BTreeMap<Name, Revision>,
    loading: Option<(Name, BoxFuture<'d, Taken>)>,
    /// The last that was loaded: one that changes without end does not come before the others.
    last: Option<Name>,
    /// Limits that change without end take at most half of this thread's time: no load begins before.
    next: Option<Instant>,
}

/// A domain that was loaded, or `None` if it does not exist, and how long that took.
type Taken = (Result<Option<Domain>, StoreError>, Duration);

impl Domains {
    /// Polls the store for ever.
    pub(crate) async fn poll_forever(&self) {
        let mut hints = self.store.watch_edits();
        let mut slow = Slow::default();
        loop {
            let wanted = self.wanted.load(Ordering::Relaxed);
            let loading = self.poll_store(&mut slow).await;
            self.report_done(Some(wanted), &slow);
            // As of those that take long: limits that change without end take at most half of this thread's time.
            sleep(loading).await;
            let mut pause = pin!(sleep(Duration::from_millis(fastrand::u64(POLL_MS))));
            loop {
                self.begin_loading(&mut slow);
                let loaded = OptionFuture::from(slow.loading.as_mut().map(|(_, load)| load));
                tokio::select! {
                    () = &mut pause => break,
                    () = self.wake.notified() => break,
                    () = hint(&mut hints) => {
                        sleep(HINTS_GATHER).await;
                        break;
                    }
                    Some(taken) = loaded => self.loaded(&mut slow, taken),
                }
            }
        }
    }

    fn report_done(&self, wanted: Option<u64>, slow: &Slow<'_>) {
        self.done.send_modify(|done| {
            done.wanted = wanted.unwrap_or(done.wanted);
            if !done.behind.iter().eq(slow.behind.keys()) {
                done.behind = Arc::new(slow.behind.keys().cloned().collect());
            }
        });
    }

    fn begin_loading<'d>(&'d self, slow: &mut Slow<'d>) {
        if slow.loading.is_some() || slow.next.is_some_and(|next| Instant::now() < next) {
            return;
        }
        let after = slow.last.take().map_or(Bound::Unbounded, Bound::Excluded);
        let mut next = slow.behind.range((after, Bound::Unbounded));
        let Some((name, revision)) = next.next().or_else(|| slow.behind.first_key_value()) else {
            return;
        };
        let (name, revision) = (name.clone(), revision.clone());
        let of = name.clone();
        let load = async move {
            let before = self.table.load().get(&of).cloned().unwrap_or_default();
            let alone = alone().await;
            let began = Instant::now();
            let loaded = self.read(&of, &revision, before).await;
            drop(alone);
            (loaded, began.elapsed())
        };
        slow.loading = Some((name, Box::pin(load)));
    }

    /// Puts a domain in force that took long to load.
    fn loaded(&self, slow: &mut Slow<'_>, (loaded, took): Taken) {
        let Some((name, _)) = slow.loading.take() else {
            return;
        };
        slow.next = Some(Instant::now() + took);
        match loaded {
            Ok(domain) => {
                let known = self.table.load_full();
                let mut table = Table::clone(&known);
                match domain {
                    Some(domain) => table.insert(name.clone(), domain),
                    None => table.remove(&name),
                };
                self.report_lost_edits(&known, &table);
                self.swap(&known, table);
            }
            // The store failed, not the record: the next poll lists it again.
            Err(error) => {
                self.unread(&name, &error, 1);
                self.lock_poll().late = true;
            }
        }
        slow.behind.remove(&name);
        slow.last = Some(name);
        self.report_done(None, slow);
        self.notify_changes();
    }

    /// Returns how long it took to load what has changed.
    async fn poll_store(&self, slow: &mut Slow<'_>) -> Duration {
        let polling = pin!(self.poll_once(slow));
        match select(polling, pin!(sleep(LATE))).await {
            Either::Left((loading, _)) => loading,
            Either::Right(((), polling)) => {
                self.lock_poll().late = true;
                self.notify_changes();
                polling.await
            }
        }
    }

    async fn poll_once(&self, slow: &mut Slow<'_>) -> Duration {
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
            behind,
        } = self.load_changed(heads, &known).await;
        // One that was deleted meanwhile, or can be read by its edits again, is not loaded.
        slow.loading.take_if(|(name, _)| !behind.contains_key(name));
        slow.behind = behind;
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

    fn notify_changes(&self) {
        self.changes
            .send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Records a successful poll; `unread`: some limits were not returned; `crowded`: the store
    /// lists more domains than are loaded.
    fn answered(&self, unread: bool, crowded: bool) {
        let mut poll = self.lock_poll();
        if crowded && !poll.crowded {
            tracing::error!("{}", CROWDED);
        }
        if poll.error.is_some() {
            tracing::info!("the store answers again");
        }
        *poll = Poll {
            answered: Some(Instant::now()),
            error: None,
            late: unread,
            crowded,
            warned: poll.warned.filter(|_| unread || poll.late),
        };
    }

    /// Logs that domains cannot be read, of which this is the first: a poll that fails so comes several times a
    /// second, and where a node of a Cluster is down, it fails for many.
    fn unread(&self, domain: &Name, error: &StoreError, domains: usize) {
        let mut poll = self.lock_poll();
        if poll.warned.is_none_or(|at| at.elapsed() >= WARNED_AGAIN) {
            poll.warned = Some(Instant::now());
            tracing::warn!(%domain, %error, domains, "cannot read the limits");
        }
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
        for name in known.keys().filter(|name| !next.contains_key(*name)) {
            tracing::info!(domain = %name, "the domain was deleted");
            self.metrics.forget_domain(name);
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

async fn hint(hints: &mut watch::Receiver<u64>) {
    if hints.changed().await.is_err() {
        // The store is shutting down; polling continues without hints.
        std::future::pending::<()>().await;
    }
}

// --- Loading the limits that changed in the store

/// A domain after a poll.
enum Next {
    /// `None`: it does not exist.
    Is(Option<Domain>),
    /// It is at this revision, which is still to be loaded.
    Behind(Revision),
}

/// The result of one poll.
#[derive(Default)]
struct Loaded {
    table: Table,
    /// The deleted domains, and the edits that deleted them.
    deleted: BTreeMap<Name, Revision>,
    /// Whether the store did not return limits that it lists.
    unread: bool,
    /// Whether the store lists more domains than are loaded.
    crowded: bool,
    /// Domains that take long to load, and the revisions that are listed.
    behind: BTreeMap<Name, Revision>,
}

impl Domains {
    /// Loads the domains whose revision differs from the one in force.
    async fn load_changed(&self, mut heads: Vec<Head>, known: &Table) -> Loaded {
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
        heads.truncate(DOMAINS_MAX);
        let mut listed = HashSet::new();
        let (mut unread, mut first) = (0, None);
        for head in heads {
            if let HeadState::Deleted(revision) = &head.state {
                found.deleted.insert(head.domain.clone(), revision.clone());
            }
            let before = || known.get(&head.domain).cloned().unwrap_or_default();
            let domain = match self.next(&head, before()).await {
                Ok(Next::Is(domain)) => domain,
                Ok(Next::Behind(revision)) => {
                    found.behind.insert(head.domain.clone(), revision);
                    known.get(&head.domain).cloned()
                }
                // The store failed, not the record: the next poll tries again.
                Err(error) => {
                    unread += 1;
                    first.get_or_insert_with(|| (head.domain.clone(), error));
                    Some(before())
                }
            };
            let domain = domain.map(|domain| (head.domain.clone(), domain));
            found.table.extend(domain);
            listed.insert(head.domain);
        }
        found.unread = first.is_some();
        if let Some((domain, error)) = first {
            self.unread(&domain, &error, unread);
        }
        found.table.extend(vanished_domains(known, &listed));
        for (name, why) in &**self.unfilled.load() {
            let before = || known.get(name).cloned().unwrap_or_default();
            let faulty = || before().faulty(why.clone(), None);
            found.table.entry(name.clone()).or_insert_with(faulty);
        }
        found
    }

    /// The domain after a poll. Fails if the store did not return the limits.
    async fn next(&self, head: &Head, before: Domain) -> Result<Next, StoreError> {
        let name = &head.domain;
        Ok(Next::Is(match &head.state {
            HeadState::Deleted(_) => None,
            HeadState::Missing => Some(before.faulty(vanished(), None)),
            HeadState::Unreadable(message) => Some(before.faulty(message.clone(), None)),
            HeadState::Live(revision) => {
                if before.is_at(revision) {
                    Some(before.mended())
                } else if before.was_tried(revision) {
                    Some(before)
                } else if let Some(active) = self.catch_up(name, &before).await {
                    Some(Domain::sound(active))
                } else if before.is_large() && self.poll().answered.is_some() {
                    return Ok(Next::Behind(revision.clone()));
                } else {
                    // Of the first poll all is loaded at once: there is nothing in force that could wait for it.
                    let _alone = if before.is_large() {
                        alone().await
                    } else {
                        None
                    };
                    self.read(name, revision, before).await?
                }
            }
        }))
    }

    /// Reads a domain whole.
    async fn read(
        &self,
        name: &Name,
        revision: &Revision,
        before: Domain,
    ) -> Result<Option<Domain>, StoreError> {
        Ok(match self.store.read(name, Overrides::All).await {
            Ok(Stored::Live(record)) => match self.compile(record.policy, &before).await {
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
    /// While there are no limits at all, checks wait for just that.
    async fn compile(&self, policy: Policy, before: &Domain) -> Result<Active, String> {
        let metrics = Arc::clone(&self.metrics);
        let known = before.active.clone();
        let compiled = move || Active::new(policy, &metrics, known.as_deref());
        let compiled = match before.active {
            Some(_) => compute(compiled).await,
            None => blocking(compiled).await,
        };
        compiled
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

#[cfg(test)]
mod tests;
