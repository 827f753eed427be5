//! The checks of one request, from the queue to their results.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use protocol::{Answer, Check};
use store::CheckError;
use tokio::{sync::oneshot, time::Instant};

use crate::domains::Active;

/// The result of each check, in order.
pub(crate) type Decisions = Vec<Result<Answer, CheckError>>;

/// The results of a request's checks.
pub(crate) struct Outcome {
    /// One for each check.
    pub(crate) decisions: Decisions,
    /// The checks to be repeated under a newer policy, each with its index.
    pub(crate) stale: Vec<(usize, Check)>,
}

/// The checks of one request.
pub(super) struct Entry {
    pub(super) policy: Arc<Active>,
    pub(super) force: bool,
    pub(super) checks: Vec<Check>,
    /// What the checks cost the store, in checks of one token bucket.
    pub(super) weight: usize,
    pub(super) deadline: Instant,
    /// The proxy that sent them, if one did.
    pub(super) proxy: Option<Arc<str>>,
    /// Set by the lane that sends them or the request that gives up, whichever is first.
    pub(super) settled: Arc<AtomicBool>,
    pub(super) reply: oneshot::Sender<Outcome>,
}

impl Entry {
    /// Whether a client still waits. If so, claims the entry, so that the client can no longer give
    /// up without a charge. Otherwise nothing is sent or charged.
    pub(super) fn is_wanted(&self, now: Instant) -> bool {
        now < self.deadline && !self.reply.is_closed() && settle(&self.settled)
    }
}

/// Claims the entry; `true` for the first caller.
pub(super) fn settle(settled: &AtomicBool) -> bool {
    !settled.swap(true, Ordering::AcqRel)
}
