//! One connection, as its requests and the sweep over all connections see it.

use std::{
    net::IpAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use tokio::sync::Notify;

use super::{connections::Connections, unsent::Unsent};

/// What a connection is ordered to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// End after the requests that it has.
    End,
    /// End now.
    Cut,
}

const NONE: u8 = 0;
const END: u8 = 1;
const CUT: u8 = 2;

/// Requests without an answer and answers unsent that any connection may have.
const STREAMS_MAX: usize = 64;

/// What a connection has shown, once it is no newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// A health check, which needs no token.
    Guest,
    /// An authorized request.
    Client,
}

const NEWCOMER: u8 = 0;
const GUEST: u8 = 1;
const CLIENT: u8 = 2;

/// A connection and what it holds.
pub(crate) struct Peer {
    pub(super) id: u64,
    /// The client's address.
    pub(crate) address: IpAddr,
    pub(super) opened: Instant,
    connections: Weak<Connections>,
    standing: AtomicU8,
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
            standing: AtomicU8::new(NEWCOMER),
            started: AtomicU64::new(0),
            running: AtomicUsize::new(0),
            unsent: [AtomicUsize::new(0), AtomicUsize::new(0)],
            body_bytes: AtomicUsize::new(0),
            following: AtomicUsize::new(0),
            order: AtomicU8::new(NONE),
            changed: Notify::new(),
        })
    }

    /// Records an admitted request: newcomers no longer replace this connection, unless too many of
    /// this standing are connected.
    pub(crate) fn admit_as(&self, standing: Standing) {
        let wanted = match standing {
            Standing::Guest => GUEST,
            Standing::Client => CLIENT,
        };
        if self.standing.load(Ordering::Relaxed) < wanted
            && let Some(connections) = self.connections.upgrade()
            && connections.admit(self.id, standing)
        {
            self.standing.fetch_max(wanted, Ordering::Relaxed);
        }
    }

    /// Whether it may send further requests.
    pub(super) fn is_admitted(&self) -> bool {
        self.standing.load(Ordering::Relaxed) > NEWCOMER
    }

    /// Whether it has sent an authorized request.
    pub(crate) fn is_client(&self) -> bool {
        self.standing.load(Ordering::Relaxed) == CLIENT
    }

    /// Called for each new request. Cuts the connection if it holds more than [`STREAMS_MAX`],
    /// unless it is a client's and all connections together hold few enough.
    pub(super) fn bound_streams(&self, unsent: &Unsent) {
        let answers = self.unsent.iter();
        let answers: usize = answers.map(|count| count.load(Ordering::Relaxed)).sum();
        let held = self.running.load(Ordering::Relaxed).saturating_add(answers);
        if held <= STREAMS_MAX || self.is_client() && !unsent.is_crowded() {
            return;
        }
        if let Some(connections) = self.connections.upgrade() {
            connections.cut(self, "streams");
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

    /// A place for a response that stays open, if this connection has fewer than `max`.
    pub(crate) fn follow(self: &Arc<Self>, max: usize) -> Option<FollowPlace> {
        let before = self.following.fetch_add(1, Ordering::Relaxed);
        // The drop releases it, also when it is refused.
        let place = FollowPlace(Arc::clone(self));
        (before < max).then_some(place)
    }

    pub(super) fn has_unsent(&self) -> bool {
        let mut unsent = self.unsent.iter();
        unsent.any(|answers| answers.load(Ordering::Relaxed) > 0)
    }

    /// Orders the connection to end; the stricter order wins. Returns whether the order changed.
    pub(super) fn order(&self, order: Order) -> bool {
        let order = match order {
            Order::End => END,
            Order::Cut => CUT,
        };
        let new = self.order.fetch_max(order, Ordering::AcqRel) < order;
        if new {
            self.changed.notify_waiters();
        }
        new
    }

    /// Whether it is to end now.
    pub(super) fn is_cut(&self) -> bool {
        self.order.load(Ordering::Relaxed) == CUT
    }

    /// Waits for the order to end after the current requests.
    pub(crate) async fn ordered_to_end(&self) {
        self.ordered(None).await;
    }

    /// Waits for an order stricter than `known`.
    pub(super) async fn ordered(&self, known: Option<Order>) -> Order {
        loop {
            // Made before the order is read: it gets every notification from here on.
            let changed = self.changed.notified();
            match self.order.load(Ordering::Acquire) {
                CUT => return Order::Cut,
                END if known.is_none() => return Order::End,
                _ => changed.await,
            }
        }
    }
}

/// A response that stays open until its connection ends.
pub(crate) struct FollowPlace(Arc<Peer>);

impl Drop for FollowPlace {
    fn drop(&mut self) {
        self.0.following.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A running request; dropped when it ends or its client disconnects.
pub(super) struct Running {
    peer: Arc<Peer>,
    unsent: Arc<Unsent>,
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

    pub(super) fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// The answers of all connections that were not sent whole.
    pub(super) fn unsent(&self) -> &Arc<Unsent> {
        &self.unsent
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.peer.running.fetch_sub(1, Ordering::Relaxed);
        self.unsent.end_stream();
    }
}
