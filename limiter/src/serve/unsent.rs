//! Answers that clients have not taken, of all connections of a port.

use std::sync::atomic::{AtomicUsize, Ordering};

/// With more bytes of answers unsent than this, clients have one sweep to take theirs.
const UNSENT_MAX: usize = 16 << 20;

/// With more streams than this on all connections, each connection may have only a few. They take
/// about 60 MB.
const STREAMS_CROWDED: usize = 8 * 1024;

/// Answers that were not sent whole, of all connections.
#[derive(Default)]
pub(super) struct Unsent {
    bytes: AtomicUsize,
    /// Requests without an answer and answers that were not sent whole.
    streams: AtomicUsize,
    period: AtomicUsize,
}

impl Unsent {
    /// The parity of the period: 0 or 1.
    pub(super) fn period(&self) -> usize {
        self.period.load(Ordering::Relaxed)
    }

    /// Begins a period, and returns its parity.
    pub(super) fn next_period(&self) -> usize {
        self.period.fetch_xor(1, Ordering::Relaxed) ^ 1
    }

    /// Whether so many bytes are unsent that periods must be short.
    pub(super) fn is_large(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > UNSENT_MAX
    }

    /// Whether there are so many streams that each connection is limited to a few.
    pub(super) fn is_crowded(&self) -> bool {
        self.streams.load(Ordering::Relaxed) > STREAMS_CROWDED
    }

    pub(super) fn start_stream(&self) {
        self.streams.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_stream(&self) {
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
