//! Bounds on concurrent work.

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

/// A part of the bound, released when dropped.
pub(super) struct Place {
    of: Arc<Inflight>,
    size: usize,
}

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
        self.enter_with(1)
    }

    /// The bound.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// How much is used, in the units of the bound.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A place of this size, if there is room for it.
    pub(super) fn enter_with(self: &Arc<Self>, size: usize) -> Option<Place> {
        let used = self.used.fetch_add(size, Ordering::Relaxed);
        if used.saturating_add(size) > self.max {
            self.used.fetch_sub(size, Ordering::Relaxed);
            return None;
        }
        self.gauge.inc_by(signed(size));
        Some(Place {
            of: Arc::clone(self),
            size,
        })
    }
}

impl Place {
    /// In the units of the bound.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Makes it larger by so much, if there is room.
    pub(super) fn grow(&mut self, more: usize) -> Option<()> {
        // `part` is emptied, so its drop releases nothing.
        let mut part = self.of.enter_with(more)?;
        self.size += std::mem::take(&mut part.size);
        Some(())
    }

    /// Makes it smaller by so much.
    pub(super) fn shrink(&mut self, less: usize) {
        let less = less.min(self.size);
        self.size -= less;
        drop(Self {
            of: Arc::clone(&self.of),
            size: less,
        });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.size, Ordering::Relaxed);
        self.of.gauge.dec_by(signed(self.size));
    }
}

fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}
