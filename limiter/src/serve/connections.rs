//! The connections of one port: counts them and decides when each ends.
//!
//! A connection is unauthenticated until its first admitted request. The number of such connections is
//! small, and a new one replaces the oldest, so a client without a token can neither keep others out
//! nor use much memory. One periodic sweep checks all deadlines: no request sets a timer.

use std::{
    collections::BTreeMap,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::ConnectionBounds;
use crate::metrics::Metrics;

/// Bound: time until a connection has an admitted request. Beyond it, it is closed.
const FIRST_REQUEST: Duration = Duration::from_secs(10);

/// A younger unauthenticated connection is not replaced: its request is on the way.
const GRACE: Duration = Duration::from_millis(50);

/// Bound: time for which a client may read nothing of an answer. Beyond it, its connection is
/// closed.
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
    unauthenticated: BTreeMap<u64, Arc<Peer>>,
    admitted: BTreeMap<u64, Known>,
    /// How many of the admitted are [`AuthState::HealthChecker`].
    health_checkers: usize,
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
    health_checker: bool,
}

/// What to do with a new connection.
pub(super) enum Admission {
    Serve(Arc<Peer>),
    /// Try again in a moment: all unauthenticated connections are too young to be replaced.
    Later,
    Reject,
}

impl Connections {
    pub(super) fn new(bounds: ConnectionBounds, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            metrics,
            unsent: Arc::default(),
            table: Mutex::new(Table {
                last_id: 0,
                unauthenticated: BTreeMap::new(),
                admitted: BTreeMap::new(),
                health_checkers: 0,
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

    /// Makes room for a new connection, if need be at the cost of the oldest unauthenticated one.
    pub(super) fn open(self: &Arc<Self>, address: IpAddr) -> Admission {
        let mut table = self.table();
        let unauthenticated = table.unauthenticated.len();
        let all = unauthenticated.saturating_add(table.admitted.len());
        if unauthenticated >= self.bounds.max_unauthenticated || all >= self.bounds.max {
            let Some(oldest) = table.unauthenticated.first_entry() else {
                return Admission::Reject;
            };
            if oldest.get().opened.elapsed() < GRACE {
                return Admission::Later;
            }
            let oldest = oldest.remove();
            self.close(&oldest, "crowded");
        }
        table.last_id += 1;
        let id = table.last_id;
        let peer = Peer::new(id, address, Arc::downgrade(self));
        table.unauthenticated.insert(id, Arc::clone(&peer));
        Admission::Serve(peer)
    }

    /// Moves a connection to the admitted ones; `false` if too many health checkers are connected.
    pub(super) fn admit(&self, id: u64, state: AuthState) -> bool {
        let health_checker = state == AuthState::HealthChecker;
        let mut table = self.table();
        if health_checker && table.health_checkers >= self.bounds.max_health_checkers {
            return false;
        }
        if let Some(peer) = table.unauthenticated.remove(&id) {
            let known = Known {
                requests: peer.started.load(Ordering::Relaxed),
                peer,
                quiet_since: Instant::now(),
                health_checker,
            };
            table.admitted.insert(id, known);
            table.health_checkers += usize::from(health_checker);
        } else if let Some(known) = table.admitted.get_mut(&id) {
            let stays = known.health_checker && health_checker;
            let left = std::mem::replace(&mut known.health_checker, stays) && !stays;
            table.health_checkers -= usize::from(left);
        }
        true
    }

    /// A connection has ended.
    pub(super) fn closed(&self, id: u64) {
        let mut table = self.table();
        if table.unauthenticated.remove(&id).is_none()
            && let Some(known) = table.admitted.remove(&id)
        {
            table.health_checkers -= usize::from(known.health_checker);
        }
    }

    /// Ends connections that are past a deadline.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let mut table = self.table();
        let turned = self.turn_period(&mut table, now);
        let first_request = FIRST_REQUEST.min(self.bounds.idle);
        let closing = table.closing;
        for peer in table.unauthenticated.values() {
            if now.duration_since(peer.opened) >= first_request {
                self.close(peer, "silent");
            }
        }
        for known in table.admitted.values_mut() {
            match known.quiet_for(now) {
                Some(quiet) if quiet >= self.bounds.idle + LAST_BYTES => {
                    self.close(&known.peer, "silent");
                }
                Some(quiet) if quiet >= self.bounds.idle => {
                    known.peer.order(Order::Drain);
                }
                _ => {}
            }
        }
        for peer in table.all() {
            if let Some(period) = turned
                && let Some(answers) = peer.unsent.get(period)
                && answers.load(Ordering::Relaxed) > 0
            {
                self.close(peer, "unread");
            }
            let too_old = self
                .bounds
                .max_age
                .is_some_and(|age| is_older(peer, age, now));
            if too_old || closing.is_some_and(|since| is_over(peer, since, now)) {
                peer.order(Order::Drain);
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

    fn close(&self, peer: &Peer, why: &'static str) {
        if peer.order(Order::Close) {
            self.metrics.connections_cut.get([why.into()]).inc();
        }
    }

    /// The port has stopped accepting: connections end after their current requests.
    pub(super) fn drain(&self) {
        self.table().closing = Some(Instant::now());
        self.sweep();
    }

    /// Ends all connections now.
    pub(super) fn abort(&self) {
        for peer in self.table().all() {
            peer.order(Order::Close);
        }
    }
}

impl Table {
    fn all(&self) -> impl Iterator<Item = &Arc<Peer>> {
        let admitted = self.admitted.values().map(|known| &known.peer);
        self.unauthenticated.values().chain(admitted)
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

// --- One connection, as its requests and the sweep see it

/// What a connection is ordered to do; the later one is stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Order {
    /// End after the requests that it has.
    Drain = 1,
    /// End now.
    Close = 2,
}

/// Bound: streams of a connection that has shown no token. Beyond it, it is closed.
///
/// Responses that stay open are not among them: they have bounds of their own.
const STREAMS_MAX: usize = 64;

/// What the requests of a connection have shown so far; it only rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum AuthState {
    /// No admitted request.
    Unauthenticated = 0,
    /// A health check, which needs no token.
    HealthChecker = 1,
    /// An authorized request.
    Authenticated = 2,
}

/// A connection and what it holds.
pub(crate) struct Peer {
    pub(super) id: u64,
    /// The client's address.
    pub(crate) address: IpAddr,
    pub(super) opened: Instant,
    connections: Weak<Connections>,
    auth: AtomicU8,
    /// Requests so far.
    pub(super) started: AtomicU64,
    /// Requests without an answer.
    pub(super) running: AtomicUsize,
    /// Answers that were not sent whole, by the parity of the period in which they were made.
    pub(super) unsent: [AtomicUsize; 2],
    body_bytes: AtomicUsize,
    /// Responses that stay open until it ends.
    following: AtomicUsize,
    order: AtomicU8,
    changed: Notify,
}

impl Peer {
    pub(super) fn new(id: u64, address: IpAddr, connections: Weak<Connections>) -> Arc<Self> {
        Arc::new(Self {
            id,
            address,
            opened: Instant::now(),
            connections,
            auth: AtomicU8::new(AuthState::Unauthenticated as u8),
            started: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            unsent: [AtomicUsize::new(0), AtomicUsize::new(0)],
            body_bytes: AtomicUsize::new(0),
            following: AtomicUsize::new(0),
            order: AtomicU8::new(0),
            changed: Notify::new(),
        })
    }

    /// A connection of no port.
    #[cfg(test)]
    pub(crate) fn alone(id: u64) -> Arc<Self> {
        Self::new(id, std::net::Ipv4Addr::LOCALHOST.into(), Weak::new())
    }

    /// As if a request had shown this.
    #[cfg(test)]
    pub(super) fn shows(&self, state: AuthState) {
        self.auth.store(state as u8, Ordering::Relaxed);
    }

    /// Records what a request has shown: a connection with an admitted request is no longer replaced by
    /// new ones, unless too many of this state are connected.
    pub(crate) fn authenticated_as(&self, state: AuthState) {
        if self.auth.load(Ordering::Relaxed) < state as u8
            && let Some(connections) = self.connections.upgrade()
            && connections.admit(self.id, state)
        {
            self.auth.fetch_max(state as u8, Ordering::Relaxed);
        }
    }

    /// Whether it may send further requests.
    pub(super) fn is_admitted(&self) -> bool {
        self.auth.load(Ordering::Relaxed) > AuthState::Unauthenticated as u8
    }

    pub(crate) fn is_authenticated(&self) -> bool {
        self.auth.load(Ordering::Relaxed) == AuthState::Authenticated as u8
    }

    /// Called for each new request. Closes the connection if it holds more than [`STREAMS_MAX`], those of
    /// [`Self::follow`] aside, unless it is authenticated and all connections together hold few enough.
    pub(super) fn bound_streams(&self, unsent: &Unsent) {
        let answers = self.unsent.iter();
        let answers: usize = answers.map(|count| count.load(Ordering::Relaxed)).sum();
        let held = self.running.load(Ordering::Relaxed).saturating_add(answers);
        let held = held.saturating_sub(self.following.load(Ordering::Relaxed));
        if held <= STREAMS_MAX || self.is_authenticated() && !unsent.is_crowded() {
            return;
        }
        if let Some(connections) = self.connections.upgrade() {
            connections.close(self, "streams");
        }
    }

    /// Counts bytes of request bodies that this connection holds. Returns `false`, and counts
    /// nothing, if the sum would exceed `max`.
    pub(crate) fn hold_bytes(&self, bytes: usize, max: usize) -> bool {
        let held = self.body_bytes.fetch_add(bytes, Ordering::Relaxed);
        let fits = held.saturating_add(bytes) <= max;
        if !fits {
            self.release_bytes(bytes);
        }
        fits
    }

    /// Undoes [`Self::hold_bytes`].
    pub(crate) fn release_bytes(&self, bytes: usize) {
        self.body_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The permit for a response that stays open, if this connection has fewer than `max`.
    pub(crate) fn follow(self: &Arc<Self>, max: usize) -> Option<OpenResponse> {
        let before = self.following.fetch_add(1, Ordering::Relaxed);
        self.of_all(Unsent::end_stream);
        // The drop releases it, also when it is refused.
        let permit = OpenResponse(Arc::clone(self));
        (before < max).then_some(permit)
    }

    fn of_all(&self, count: fn(&Unsent)) {
        if let Some(connections) = self.connections.upgrade() {
            count(&connections.unsent);
        }
    }

    fn has_unsent(&self) -> bool {
        let mut unsent = self.unsent.iter();
        unsent.any(|answers| answers.load(Ordering::Relaxed) > 0)
    }

    /// Orders the connection to end; the stricter order wins. Returns whether the order changed.
    pub(super) fn order(&self, order: Order) -> bool {
        let new = self.order.fetch_max(order as u8, Ordering::AcqRel) < order as u8;
        if new {
            self.changed.notify_waiters();
        }
        new
    }

    /// Whether it is to end now.
    pub(super) fn is_to_close(&self) -> bool {
        self.order.load(Ordering::Relaxed) == Order::Close as u8
    }

    /// Waits for the order to end after the current requests.
    pub(crate) async fn ordered_to_drain(&self) {
        self.ordered(None).await;
    }

    /// Waits for an order stricter than `known`.
    pub(super) async fn ordered(&self, known: Option<Order>) -> Order {
        loop {
            // Made before the order is read: it gets every notification from here on.
            let changed = self.changed.notified();
            let order = self.order.load(Ordering::Acquire);
            if order == Order::Close as u8 {
                return Order::Close;
            }
            if order == Order::Drain as u8 && known.is_none() {
                return Order::Drain;
            }
            changed.await;
        }
    }
}

/// The permit of a response that stays open until its connection ends. Its request is running, and does not count
/// among the streams.
pub(crate) struct OpenResponse(Arc<Peer>);

impl Drop for OpenResponse {
    fn drop(&mut self) {
        self.0.of_all(Unsent::start_stream);
        self.0.following.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running request; dropped when it ends or its client disconnects.
pub(super) struct Running {
    pub(super) peer: Arc<Peer>,
    /// The answers of all connections that were not sent whole.
    pub(super) unsent: Arc<Unsent>,
}

impl Running {
    pub(super) fn start(peer: &Arc<Peer>, unsent: &Arc<Unsent>) -> Self {
        peer.started.fetch_add(1, Ordering::Relaxed);
        peer.running.fetch_add(1, Ordering::Relaxed);
        unsent.start_stream();
        Self {
            peer: Arc::clone(peer),
            unsent: Arc::clone(unsent),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.peer.running.fetch_sub(1, Ordering::Relaxed);
        self.unsent.end_stream();
    }
}

// --- Answers that clients have not taken whole, of all connections of a port

/// Bound: bytes of answers that clients have not read. Beyond it, connections that read nothing for
/// half a second are closed.
const UNSENT_MAX: usize = 16 << 20;

/// Bound: streams beyond which each connection has as few as one without a token. Beyond it, a connection with more is
/// closed.
///
/// They take about 60 MB.
const STREAMS_CROWDED: usize = 8 * 1024;

#[derive(Default)]
pub(super) struct Unsent {
    bytes: AtomicUsize,
    /// Requests without an answer and answers that were not sent whole, without those that stay open.
    streams: AtomicUsize,
    period: AtomicUsize,
}

impl Unsent {
    /// The parity of the period: 0 or 1.
    pub(super) fn period(&self) -> usize {
        self.period.load(Ordering::Relaxed)
    }

    /// Begins a period, and returns its parity.
    fn next_period(&self) -> usize {
        self.period.fetch_xor(1, Ordering::Relaxed) ^ 1
    }

    /// Whether so many bytes are unsent that periods must be short.
    fn is_large(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > UNSENT_MAX
    }

    /// Whether there are so many streams that each connection is limited to a few.
    fn is_crowded(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > STREAMS_CROWDED
    }

    fn start_stream(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    fn end_stream(&self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: usize) {
        self.start_stream();
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, bytes: usize) {
        self.end_stream();
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
