//! The policies in force, one per domain.
//!
//! One task polls the store: it compares the domains' revisions with those in force a few times a
//! second, and at once after a hint, and reads the domains that differ. A policy comes into force
//! whole or not at all. If a newer one is faulty, the last good one stays in force.

mod active;
mod load;
mod poll;
mod state;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use policy::{Name, Revision};
use store::{Store, StoreError};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};

use crate::metrics::Metrics;

pub(crate) use active::{Active, Snapshot};
pub(crate) use state::{Domain, Fault};

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
    poll: Mutex<Poll>,
    wanted: AtomicU64,
    wake: Notify,
    done: watch::Sender<u64>,
    changes: watch::Sender<u64>,
}

type Table = BTreeMap<Name, Domain>;

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
            poll: Mutex::default(),
            wanted: AtomicU64::new(0),
            wake: Notify::new(),
            done: watch::Sender::new(0),
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
            _ => self.absence(),
        }
    }

    fn absence(&self) -> Lookup {
        if self.is_filling() {
            return Lookup::NotLoaded(FILLING.to_owned());
        }
        let poll = self.poll();
        match (poll.answered, poll.error) {
            (Some(at), _) if at.elapsed() < POLL_VALIDITY && poll.crowded => {
                Lookup::NotLoaded(CROWDED.to_owned())
            }
            (Some(at), _) if at.elapsed() < POLL_VALIDITY => Lookup::Unknown,
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
        fault.is_none() && self.poll().is_sure()
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
        while !self.refreshed().await {
            sleep(REFRESH_RETRY).await;
        }
        self.is_filling.store(false, Ordering::Relaxed);
        self.notify_changes();
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

    /// Waits for one more poll of the store; returns whether it succeeded.
    pub(crate) async fn refreshed(&self) -> bool {
        let wanted = self.wanted.fetch_add(1, Ordering::Relaxed) + 1;
        self.wake.notify_one();
        let mut done = self.done.subscribe();
        // Cannot fail: the sender is borrowed from self.
        let _ = done.wait_for(|done| *done >= wanted).await;
        self.poll().error.is_none()
    }
}
