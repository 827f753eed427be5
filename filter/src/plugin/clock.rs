//! The time of an event, from the host's two clocks.

use std::{cell::Cell, time::UNIX_EPOCH};

use filter_core::Now;
use proxy_wasm::hostcalls;

use crate::host::clock;

/// How far the wall clock is ahead of the monotonic one, in milliseconds, as of the last tick.
#[derive(Debug)]
pub struct Clock(Cell<u64>);

impl Clock {
    pub fn new() -> Self {
        Self(Cell::new(epoch_ms()))
    }

    /// Adjusts to a wall clock that was set.
    pub fn adjust(&self) {
        self.0.set(epoch_ms());
    }

    pub fn now(&self) -> Now {
        let mono_us = clock::monotonic_ns().unwrap_or(0) / 1000;
        Now {
            mono_us,
            wall_ms: self.0.get().saturating_add(mono_us / 1000),
        }
    }
}

/// Milliseconds from the start of the monotonic clock back to the epoch.
fn epoch_ms() -> u64 {
    let wall = hostcalls::get_current_time().unwrap_or(UNIX_EPOCH);
    let wall_ms = wall
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_millis());
    let mono_ms = clock::monotonic_ns().unwrap_or(0) / 1_000_000;
    let wall_ms = u64::try_from(wall_ms.unwrap_or(0)).unwrap_or(0);
    wall_ms.saturating_sub(mono_ms)
}
