//! Schedules the ticks.
//!
//! Waking a thread costs Envoy several times as much as the tick itself, so ticks are as few as
//! possible. Held requests and leases schedule the ticks that they need.
//!
//! An Envoy has a worker for each core and one more on its main thread, which never receives a request;
//! most workers of most Envoys are idle. An idle worker ticks only to poll, or to check that another
//! worker does. It catches up when its next request arrives, before it decides that request.

use crate::{
    active_policy::PolicyState, call::TIMEOUT_LATE_MS, host::Host, time::Now, worker::Worker,
};

/// The longest time between ticks while requests arrive, in milliseconds.
const BUSY_MS: u64 = 50;
/// The time between ticks until a policy is loaded.
const STARTING_MS: u64 = 10;
/// The least time between ticks while requests are held: a held request continues at most this late.
pub(crate) const HOLDING_MS: u64 = 5;
/// The least time between ticks while there are leases.
const LEASING_MS: u64 = 10;
/// The most that lease maintenance may be late: a query for more units may come first and carry the
/// settlements.
const LOOK_LATE_US: u64 = 5_000;
/// The longest time between ticks of an idle worker.
const RESTING_MS: u64 = 1_000;
/// After this time without requests a worker is idle. Its caches are stale by then.
const QUIET_US: u64 = 1_000_000;

/// The next tick that a worker requested.
#[derive(Debug)]
pub(crate) struct TickSchedule {
    every_ms: u64,
    /// When the next one is due.
    due_us: u64,
    /// Whether a request arrived since the last tick.
    busy: bool,
    /// When requests stopped; `None`: the worker is idle.
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
    /// Sets the next tick, so many milliseconds from now.
    fn start(&mut self, now: Now, ms: u64) {
        self.every_ms = ms;
        self.due_us = now.after_ms(ms);
    }

    /// Slots or units were released outside of a callback of the root: the next tick comes soon.
    pub(crate) fn hurry(&mut self) {
        self.every_ms = self.every_ms.min(BUSY_MS);
    }

    /// Moves the next tick forward to a moment, at least `least_ms` from now. Never moves it back.
    #[inline(never)]
    pub(crate) fn by(&mut self, now: Now, at_us: u64, least_ms: u64) {
        let ms = now.millis_until(at_us).max(least_ms);
        if now.after_ms(ms) < self.due_us {
            self.start(now, ms);
        }
    }

    /// Moves the next tick forward to the maintenance of a lease.
    pub(crate) fn by_maintenance(&mut self, now: Now, at_us: u64) {
        self.by(now, at_us.saturating_add(LOOK_LATE_US), LEASING_MS);
    }
}

impl Worker {
    /// The period of [`Worker::on_tick`], in milliseconds. When it changes, it starts anew.
    pub fn tick_ms(&self) -> u32 {
        u32::try_from(self.ticks.every_ms).unwrap_or(u32::MAX)
    }

    /// A request arrived: an idle worker catches up.
    pub(crate) fn resume(&mut self, host: &impl Host, now: Now) {
        if self.ticks.busy {
            return;
        }
        self.ticks.busy = true;
        if self.ticks.quiet_since_us.is_none() {
            self.load_snapshot(host, now);
            self.outage.breaker.is_open(host, now);
            self.tick_soon(now);
        }
    }

    /// Ticks soon, to retry something.
    pub(crate) fn tick_soon(&mut self, now: Now) {
        self.ticks.by(now, 0, BUSY_MS);
    }

    /// A poll was answered. An idle worker has nothing to do before its next poll, so it needs no
    /// ticks as long as limiters answer.
    pub(crate) fn await_poll(&mut self, now: Now) {
        let rests = self.ticks.quiet_since_us.is_none()
            && !self.ticks.busy
            && self.requests.in_flight.is_idle()
            && self.requests.metered.is_idle();
        if rests && self.counts.is_flushed() {
            self.ticks.due_us = u64::MAX;
        }
        self.ticks.by(now, self.policy.poller.next_us(), BUSY_MS);
    }

    /// Sets the next tick, at the end of one.
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
        if !self.resumptions.is_empty() {
            // The host does not report the ends of turns, or there is a large crowd.
            self.ticks.by(now, 0, HOLDING_MS);
        }
        (self.ticks).by(now, self.requests.holds.next_us(), HOLDING_MS);
        (self.ticks).by(now, self.requests.in_flight.next_us(), HOLDING_MS);
        (self.ticks).by(now, self.requests.bodies.next_us(), HOLDING_MS);
        (self.ticks).by(now, self.calls.registry.next_deadline_us(), TIMEOUT_LATE_MS);
        self.ticks.by_maintenance(now, look_us);
    }

    /// Whether nothing but leases keeps the worker from becoming idle.
    fn may_rest(&mut self, now: Now) -> bool {
        if std::mem::take(&mut self.ticks.busy) {
            self.ticks.quiet_since_us = Some(now.mono_us);
        }
        // An idle worker stays idle as long as there is nothing to do.
        let quiet_since_us = *self.ticks.quiet_since_us.get_or_insert(0);
        now.mono_us.saturating_sub(quiet_since_us) >= QUIET_US
            && self.calls.is_idle()
            && self.reporter.is_idle()
            && self.denials.is_empty()
            && self.calls.registry.report_sent().is_none()
            && self.counts.is_flushed()
            && self.requests.holds.next_us() == u64::MAX
            && self.requests.holds.is_settled()
            && self.requests.in_flight.is_idle()
            && self.requests.metered.is_idle()
    }

    /// Becomes idle. Returns the time until the next tick, in milliseconds.
    fn rest(&mut self, host: &impl Host, now: Now) -> u64 {
        self.ticks.quiet_since_us = None;
        // An idle worker would miss the failure after which it writes these.
        self.cache.queue_all_writes();
        self.flush_cache(host, now);
        let until_us = self.policy.poller.next_us();
        now.millis_until(until_us).clamp(BUSY_MS, RESTING_MS)
    }
}
