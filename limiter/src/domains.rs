//! The policies in force, one per domain.
//!
//! One task follows the store: it compares the domains' revisions with those in force a few times
//! a second, at once after a hint, and reads what differs. A policy comes into force whole or not
//! at all; whatever is wrong with a newer one, the last good one stays.

mod active;
mod follow;
mod look;
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

pub(crate) use active::Active;
pub(crate) use state::{Domain, Fault};

/// How long what a poll said counts as knowledge. Beyond it, a domain that is not known is not
/// known to be absent either.
const KNOWLEDGE: Duration = Duration::from_secs(10);

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
    news: watch::Sender<u64>,
}

type Table = BTreeMap<Name, Domain>;

/// What the last polls said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Poll {
    /// When the store last told the revisions.
    pub(crate) answered: Option<Instant>,
    /// Why it did not since.
    pub(crate) error: Option<StoreError>,
    /// Whether it may know more than was read: it is taking long to answer the poll under way, or
    /// did not give out limits that it has.
    late: bool,
    /// Whether the store lists more domains than are followed: one that is not known may be among
    /// them.
    crowded: bool,
}

/// What is said then.
const CROWDED: &str = "the store lists more domains than a limiter follows (4096); those beyond have no limits in force";

impl Poll {
    /// Whether an edit would be known here by now: the store answered the last poll in full, and is
    /// not slow with the next.
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
            news: watch::Sender::new(0),
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
            (Some(at), _) if at.elapsed() < KNOWLEDGE && poll.crowded => {
                Lookup::NotLoaded(CROWDED.to_owned())
            }
            (Some(at), _) if at.elapsed() < KNOWLEDGE => Lookup::Unknown,
            (_, Some(error)) => Lookup::NotLoaded(error.to_string()),
            (_, None) => Lookup::NotLoaded("the limits are still being loaded".to_owned()),
        }
    }

    /// The edit that deleted a domain, if one did: only then is its absence more than a record
    /// that nobody has seen.
    pub(crate) fn deleted(&self, domain: &str) -> Option<u64> {
        let deleted = self.deleted.load();
        deleted.get(domain).map(|revision| revision.number)
    }

    /// Whether this is as much as the store has: it could be asked, and its record be used.
    pub(crate) fn is_sure_of(&self, domain: &str) -> bool {
        let table = self.table.load();
        let fault = table.get(domain).and_then(|domain| domain.fault.as_ref());
        fault.is_none() && self.poll().is_sure()
    }

    /// Tells whenever a lookup may say something else than before.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// The store is going to be filled from the limits files: until [`Domains::filled`], a domain
    /// that it lacks is not known to be absent.
    pub(crate) fn begin_filling(&self) {
        self.is_filling.store(true, Ordering::Relaxed);
    }

    /// The store holds the domains of the limits files: returns once they are in force.
    pub(crate) async fn filled(&self) {
        while !self.refreshed().await {
            sleep(REFRESH_RETRY).await;
        }
        self.is_filling.store(false, Ordering::Relaxed);
        self.tell_news();
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

    /// Waits until the store was asked once more, from now on; tells whether it answered.
    pub(crate) async fn refreshed(&self) -> bool {
        let wanted = self.wanted.fetch_add(1, Ordering::Relaxed) + 1;
        self.wake.notify_one();
        let mut done = self.done.subscribe();
        // Cannot fail: the sender is borrowed from self.
        let _ = done.wait_for(|done| *done >= wanted).await;
        self.poll().error.is_none()
    }
}
