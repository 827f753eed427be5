//! The connections of one port: counts them and decides when each ends.
//!
//! A newcomer is a connection without an admitted request so far. Their number is small, and a new
//! one replaces the oldest, so a client without a token can neither keep others out nor use much
//! memory. One periodic sweep checks all deadlines: no request sets a timer.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::{Duration, Instant},
};

use super::{
    ConnectionBounds,
    peer::{Order, Peer, Standing},
    unsent::Unsent,
};
use crate::metrics::Metrics;

/// How long a newcomer may take until its first admitted request, TLS handshake included.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// A younger newcomer is not replaced: its request is on the way.
const GRACE: Duration = Duration::from_millis(50);

/// An answer that was not taken whole within one to two such periods ends its connection.
const UNSENT_PERIOD: Duration = Duration::from_secs(5);

/// How long a connection may take to end, after the order to end and the answers to its requests.
const LAST_BYTES: Duration = Duration::from_secs(5);

/// How long a connection accepted during shutdown may take to send its request.
const LAST_REQUEST: Duration = Duration::from_millis(250);

/// The connections of one port.
pub(super) struct Connections {
    bounds: ConnectionBounds,
    metrics: Arc<Metrics>,
    pub(super) unsent: Arc<Unsent>,
    table: Mutex<Table>,
}

struct Table {
    last_id: u64,
    /// By age.
    newcomers: BTreeMap<u64, Arc<Peer>>,
    admitted: BTreeMap<u64, Known>,
    /// How many of the admitted are [`Standing::Guest`].
    guests: usize,
    /// When the service stopped accepting.
    closing: Option<Instant>,
    /// When the present period of unsent answers began.
    period_since: Instant,
}

/// An admitted connection, and what the last sweep saw of it.
struct Known {
    peer: Arc<Peer>,
    requests: u64,
    /// When it last became idle.
    quiet_since: Instant,
    guest: bool,
}

/// What to do with a new connection.
pub(super) enum Room {
    /// Serve it.
    For(Arc<Peer>),
    /// Try again in a moment: all newcomers are too young to be replaced.
    Soon,
    /// Reject it.
    None,
}

impl Connections {
    pub(super) fn new(bounds: ConnectionBounds, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            metrics,
            unsent: Arc::default(),
            table: Mutex::new(Table {
                last_id: 0,
                newcomers: BTreeMap::new(),
                admitted: BTreeMap::new(),
                guests: 0,
                closing: None,
                period_since: Instant::now(),
            }),
        })
    }

    /// How often [`Self::sweep`] is due.
    pub(super) fn sweep_every(&self) -> Duration {
        let age = self.bounds.max_age.unwrap_or(self.bounds.idle);
        let shortest = self.bounds.idle.min(age) / 4;
        shortest.clamp(Duration::from_millis(10), Duration::from_millis(250))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // A panic while the lock is held leaves the table usable.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a new connection, if need be at the cost of the oldest newcomer.
    pub(super) fn open(self: &Arc<Self>, address: IpAddr) -> Room {
        let mut table = self.table();
        let newcomers = table.newcomers.len();
        let all = newcomers.saturating_add(table.admitted.len());
        if newcomers >= self.bounds.max_newcomers || all >= self.bounds.max {
            let Some(oldest) = table.newcomers.first_entry() else {
                return Room::None;
            };
            if oldest.get().opened.elapsed() < GRACE {
                return Room::Soon;
            }
            let oldest = oldest.remove();
            self.cut(&oldest, "crowded");
        }
        table.last_id += 1;
        let id = table.last_id;
        let peer = Peer::new(id, address, Arc::downgrade(self));
        table.newcomers.insert(id, Arc::clone(&peer));
        Room::For(peer)
    }

    /// Moves a connection from newcomers to admitted ones; `false` if too many guests are
    /// connected.
    pub(super) fn admit(&self, id: u64, standing: Standing) -> bool {
        let guest = standing == Standing::Guest;
        let mut table = self.table();
        if guest && table.guests >= self.bounds.max_guests {
            return false;
        }
        if let Some(peer) = table.newcomers.remove(&id) {
            let known = Known {
                requests: peer.started.load(Ordering::Relaxed),
                peer,
                quiet_since: Instant::now(),
                guest,
            };
            table.admitted.insert(id, known);
            table.guests += usize::from(guest);
        } else if let Some(known) = table.admitted.get_mut(&id) {
            let stays = known.guest && guest;
            let left = std::mem::replace(&mut known.guest, stays) && !stays;
            table.guests -= usize::from(left);
        }
        true
    }

    /// A connection has ended.
    pub(super) fn closed(&self, id: u64) {
        let mut table = self.table();
        if table.newcomers.remove(&id).is_none()
            && let Some(known) = table.admitted.remove(&id)
        {
            table.guests -= usize::from(known.guest);
        }
    }

    /// Ends connections that are past a deadline.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let mut table = self.table();
        let turned = self.turn_period(&mut table, now);
        let first_request = FIRST_REQUEST.min(self.bounds.idle);
        let closing = table.closing;
        for peer in table.newcomers.values() {
            if now.duration_since(peer.opened) >= first_request {
                self.cut(peer, "silent");
            }
        }
        for known in table.admitted.values_mut() {
            match known.quiet_for(now) {
                Some(quiet) if quiet >= self.bounds.idle + LAST_BYTES => {
                    self.cut(&known.peer, "silent");
                }
                Some(quiet) if quiet >= self.bounds.idle => {
                    known.peer.order(Order::End);
                }
                _ => {}
            }
        }
        for peer in table.all() {
            if let Some(period) = turned
                && let Some(answers) = peer.unsent.get(period)
                && answers.load(Ordering::Relaxed) > 0
            {
                self.cut(peer, "unread");
            }
            let too_old = self
                .bounds
                .max_age
                .is_some_and(|age| is_older(peer, age, now));
            if too_old || closing.is_some_and(|since| is_over(peer, since, now)) {
                peer.order(Order::End);
            }
        }
    }

    /// Begins a new period of unsent answers when one is due. Returns the slot of the period before
    /// the last: answers still counted there are overdue, and the new period reuses it.
    fn turn_period(&self, table: &mut Table, now: Instant) -> Option<usize> {
        let crowded = self.unsent.is_large();
        if !crowded && now.duration_since(table.period_since) < UNSENT_PERIOD.min(self.bounds.idle)
        {
            return None;
        }
        table.period_since = now;
        Some(self.unsent.next_period())
    }

    pub(super) fn cut(&self, peer: &Peer, why: &'static str) {
        if peer.order(Order::Cut) {
            self.metrics.cut(why);
        }
    }

    /// The port has stopped accepting: connections end after their current requests.
    pub(super) fn close(&self) {
        self.table().closing = Some(Instant::now());
        self.sweep();
    }

    /// Ends all connections now.
    pub(super) fn abort(&self) {
        for peer in self.table().all() {
            peer.order(Order::Cut);
        }
    }
}

impl Table {
    fn all(&self) -> impl Iterator<Item = &Arc<Peer>> {
        let admitted = self.admitted.values().map(|known| &known.peer);
        self.newcomers.values().chain(admitted)
    }
}

impl Known {
    /// How long it has been idle; `None` while it is busy.
    fn quiet_for(&mut self, now: Instant) -> Option<Duration> {
        let requests = self.peer.started.load(Ordering::Relaxed);
        let busy = self.peer.running.load(Ordering::Relaxed) > 0 || self.peer.has_unsent();
        if busy || requests != self.requests {
            self.requests = requests;
            self.quiet_since = now;
            return None;
        }
        Some(now.duration_since(self.quiet_since))
    }
}

/// Whether a connection has reached its maximum age.
fn is_older(peer: &Peer, age: Duration, now: Instant) -> bool {
    // Connections end up to a tenth earlier, depending on their id, so that they do not all end at
    // once.
    let part = u32::try_from(peer.id % 16).unwrap_or(0);
    now.duration_since(peer.opened) >= age.saturating_sub(age / 160 * part)
}

/// Whether a connection ends now that the port closes. One accepted moments ago may stay: its first
/// request may be on the way.
fn is_over(peer: &Peer, closing: Instant, now: Instant) -> bool {
    let since = closing.max(peer.opened);
    peer.started.load(Ordering::Relaxed) > 0 || now.duration_since(since) >= LAST_REQUEST
}
