//! When the next tick is to come.
//!
//! To wake a thread costs Envoy a multiple of what a tick then does, so there are as few as can
//! be. Held requests and units granted in advance say when they have to be looked after.
//!
//! An Envoy has a worker for each core and one more on its main thread, which never has a request;
//! most workers of most Envoys are idle. One that had no request for a while comes back when it
//! has to poll, or to see that another still does. What it would have found out meanwhile, its next
//! request finds out before it is decided.

use crate::{active_policy::PolicyState, host::Host, time::Now, worker::Worker};
/// Between ticks while requests come, at most, in milliseconds.
const BUSY_MS: u64 = 50;
/// Between ticks until the limits are known.
const STARTING_MS: u64 = 10;
/// Between ticks while requests are held, at least: how late one may go on.
pub(crate) const HOLDING_MS: u64 = 5;
/// Between ticks while there are units granted in advance, at least.
const LEASING_MS: u64 = 10;
/// How much later than they are due they are looked after: a request that asks for more before
/// then tells on the way what became of them.
const LOOK_LATE_US: u64 = 5_000;
/// Between ticks of a worker that rests, at most.
const RESTING_MS: u64 = 1_000;
/// After which time without requests a worker rests. What it remembered is old then.
const QUIET_US: u64 = 1_000_000;

/// What ticks a worker asked for.
#[derive(Debug)]
pub(crate) struct TickSchedule {
    every_ms: u64,
    /// When the next one comes.
    due_us: u64,
    /// Whether there was a request since the last.
    busy: bool,
    /// When there was none any more; `None`: there was nothing to do either, and it rests.
    quiet_since_us: Option<u64>,
}

impl Default for TickSchedule {
    fn default() -> Self {
        Self {
            every_ms: STARTING_MS,
            due_us: 0,
            busy: false,
            quiet_since_us: Some(0),
        }
    }
}

impl TickSchedule {
    /// Has the next tick come in so many milliseconds.
    fn start(&mut self, now: Now, ms: u64) {
        self.every_ms = ms;
        self.due_us = now.after_ms(ms);
    }

    /// Has it come at a moment, though in `least_ms` at the earliest, unless it comes before.
    #[inline(never)]
    pub(crate) fn by(&mut self, now: Now, at_us: u64, least_ms: u64) {
        let ms = now.millis_until(at_us).max(least_ms);
        if now.after_ms(ms) < self.due_us {
            self.start(now, ms);
        }
    }

    /// Has it come when units granted in advance have to be looked after.
    pub(crate) fn by_maintenance(&mut self, now: Now, at_us: u64) {
        self.by(now, at_us.saturating_add(LOOK_LATE_US), LEASING_MS);
    }
}

impl Worker {
    /// How often [`Worker::on_tick`] is to come, in milliseconds. When that changes, it counts from
    /// then.
    pub fn tick_ms(&self) -> u32 {
        u32::try_from(self.ticks.every_ms).unwrap_or(u32::MAX)
    }

    /// A request has come: finds out what ticks would have found out.
    pub(crate) fn resume(&mut self, host: &impl Host, now: Now) {
        if self.ticks.busy {
            return;
        }
        self.ticks.busy = true;
        if self.ticks.quiet_since_us.is_none() {
            self.load_snapshot(host);
            self.outage.breaker.is_open(host, now);
            self.tick_soon(now);
        }
    }

    /// Something is to be tried again.
    pub(crate) fn tick_soon(&mut self, now: Now) {
        self.ticks.by(now, 0, BUSY_MS);
    }

    /// A poll was answered. A worker that rests has nothing to do before its next poll or the
    /// answer to it, so that it needs no ticks as long as limiters answer.
    pub(crate) fn await_poll(&mut self, now: Now) {
        let rests = self.ticks.quiet_since_us.is_none() && !self.ticks.busy;
        if rests && self.counts.is_flushed() {
            self.ticks.due_us = u64::MAX;
        }
        self.ticks.by(now, self.policy.poller.next_us(), BUSY_MS);
    }

    /// At the end of a tick: when the next is to come.
    pub(crate) fn schedule(&mut self, host: &impl Host, now: Now) {
        let look_us = self.leases.next_maintenance_us();
        let most_ms = if matches!(self.policy.state, PolicyState::Unknown) {
            STARTING_MS
        } else if self.may_rest(now) && look_us == u64::MAX {
            self.rest(host, now)
        } else {
            BUSY_MS
        };
        self.ticks.start(now, most_ms);
        (self.ticks).by(now, self.requests.holds.next_us(), HOLDING_MS);
        self.ticks.by_maintenance(now, look_us);
    }

    /// Whether nothing but leases keeps it from resting.
    fn may_rest(&mut self, now: Now) -> bool {
        if std::mem::take(&mut self.ticks.busy) {
            self.ticks.quiet_since_us = Some(now.mono_us);
        }
        // One that rested does so as long as there is nothing to do.
        let quiet_since_us = *self.ticks.quiet_since_us.get_or_insert(0);
        now.mono_us.saturating_sub(quiet_since_us) >= QUIET_US
            && self.calls.is_idle()
            && self.reporter.is_idle()
            && self.calls.registry.report_sent().is_none()
            && self.counts.is_flushed()
            && self.requests.holds.next_us() == u64::MAX
            && self.requests.holds.is_settled()
    }

    /// How long there is nothing to do.
    fn rest(&mut self, host: &impl Host, now: Now) -> u64 {
        self.ticks.quiet_since_us = None;
        // It will not hear of the trouble in which it would write this down.
        self.cache.queue_all_writes();
        self.flush_cache(host, now);
        let until_us = self.policy.poller.next_us();
        now.millis_until(until_us).clamp(BUSY_MS, RESTING_MS)
    }
}
