//! The policies in force, one per domain.
//!
//! One task polls the store: it compares the domains' revisions with those in force a few times
//! a second, at once after a hint, and reads what differs. A policy comes into force whole or not
//! at all; whatever is wrong with a newer one, the last good one stays.

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

/// The domains, and the task that keeps them.
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

/// What the last polls said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poll {
    /// When the store last returned the revisions.
    pub(crate) answered: Option<Instant>,
    /// Why it did not since.
    pub(crate) error: Option<StoreError>,
    /// Whether the store may have more than was read: it takes long to answer the poll under way, or
    /// did not return limits that it lists.
    late: bool,
    /// Whether the store lists more domains than are loaded: one that is not found may be among them.
    crowded: bool,
}

/// The message then.
const CROWDED: &str = "the store lists more domains than a limiter follows (4096); those beyond have no limits in force";

impl Poll {
    /// Whether the limits here are current: the store answered the last poll in full, and is not slow
    /// with the next.
    pub(crate) fn is_sure(&self) -> bool {
        self.answered.is_some() && self.error.is_none() && !self.late
    }
}

/// What there is to decide by in a domain.
#[derive(Debug)]
pub(crate) enum Lookup {
    /// This.
    Active(Arc<Active>),
    /// The store has no such domain.
    Unknown,
    /// It cannot be said; the reason is for people.
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

    /// What is in force in a domain.
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

    /// The edit that deleted a domain, if one did: otherwise its record may have been lost.
    pub(crate) fn deleted(&self, domain: &str) -> Option<u64> {
        let deleted = self.deleted.load();
        deleted.get(domain).map(|revision| revision.number)
    }

    /// Whether what is in force is what the store has: it answered, and its record could be used.
    pub(crate) fn is_sure_of(&self, domain: &str) -> bool {
        let table = self.table.load();
        let fault = table.get(domain).and_then(|domain| domain.fault.as_ref());
        fault.is_none() && self.poll().is_sure()
    }

    /// Changes whenever a lookup may find something else than before.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// The store is going to be filled from the limits files: until [`Domains::filled`], a domain
    /// that it lacks may be among them.
    pub(crate) fn begin_filling(&self) {
        self.is_filling.store(true, Ordering::Relaxed);
    }

    /// The store holds the domains of the limits files: returns once they are in force.
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

    /// What the last polls said.
    pub(crate) fn poll(&self) -> Poll {
        self.lock_poll().clone()
    }

    fn lock_poll(&self) -> MutexGuard<'_, Poll> {
        self.poll.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the store was polled once more; returns whether it answered.
    pub(crate) async fn refreshed(&self) -> bool {
        let wanted = self.wanted.fetch_add(1, Ordering::Relaxed) + 1;
        self.wake.notify_one();
        let mut done = self.done.subscribe();
        // Cannot fail: the sender is borrowed from self.
        let _ = done.wait_for(|done| *done >= wanted).await;
        self.poll().error.is_none()
    }
}
