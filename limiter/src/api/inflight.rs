//! How much is worked on at once.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use prometheus_client::metrics::gauge::Gauge;

/// A bound, with a gauge that shows how much of it is used.
pub(super) struct Inflight {
    max: usize,
    used: AtomicUsize,
    gauge: Gauge,
}

/// One place within the bound, given back when dropped.
pub(super) struct Place(Arc<Inflight>);

impl Inflight {
    pub(super) fn new(max: usize, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self {
            max,
            used: AtomicUsize::new(0),
            gauge,
        })
    }

    /// A place, if one is free.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Place> {
        if self.used.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.used.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        self.gauge.inc();
        Some(Place(Arc::clone(self)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
        self.0.gauge.dec();
    }
}
