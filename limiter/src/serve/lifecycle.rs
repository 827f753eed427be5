//! The phases of a shutdown.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::watch;

/// How far the shutdown has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is served.
    Serve,
    /// Everything is served, but `/readyz` fails and every HTTP/1.1 answer closes its connection,
    /// so that clients move to another limiter without losing a request.
    Leave,
    /// Nothing new is accepted; connections end after the requests they have.
    Close,
    /// Connections end now.
    Abort,
}

/// The phase, which every connection can wait for.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    phase: watch::Sender<Phase>,
    // An atomic, because every answer reads it and a lock would be expensive.
    leaving: AtomicBool,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Serve),
            leaving: AtomicBool::new(false),
        }
    }

    /// Advances to `phase`; phases never go back.
    pub(crate) fn enter(&self, phase: Phase) {
        self.leaving.store(phase >= Phase::Leave, Ordering::Relaxed);
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
    }

    /// Whether the service is on its way out.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Waits until `phase`, or a later one.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        // Cannot fail: the sender is borrowed from self.
        let _ = phases.wait_for(|now| *now >= phase).await;
    }
}
