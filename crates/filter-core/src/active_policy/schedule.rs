//! Schedules polls: when to poll, how long the limiter may hold a poll, and when a poll has failed.

use crate::{random::Random, time::Now};

/// The time between polls that are answered at once, before jitter.
const POLL_EVERY_US: u64 = 200_000;
/// The least time between polls when answers name another revision. A limiter that is stale, or sends
/// wrong revisions, names another one in each answer, and a poll may return 10,000 limits.
const POLL_MIN_US: u64 = 50_000;
/// How long a limiter may hold a long poll, in milliseconds: a random time from this minimum to the
/// spread above it, so that a fleet does not poll in step.
///
/// An edit is in force everywhere within one second, because a limiter answers a long poll as soon as
/// the edit is published. The hold is short enough to time out and retry within that second if the
/// limiter hangs: a long poll times out after at most 800 ms ([`HELD_GRACE_MS`]) and is retried at
/// once, and if the retries are lost too, again 50 and 100 ms later ([`TIMEOUT_RETRY_MS`]). The other
/// workers load the snapshot with their next tick, 50 ms later, or with their next request if they are
/// idle. If a poller vanishes, another worker replaces it at most 850 ms after its last poll
/// ([`LEASE_US`]).
pub(crate) const HOLD_MIN_MS: u64 = 550;
pub(crate) const HOLD_SPREAD_MS: u64 = 150;
/// How much longer than its hold a long poll may take.
const HELD_GRACE_MS: u64 = 100;
/// Consecutive polls that must be answered before a long poll: if polls are lost, short ones fetch an
/// edit sooner.
pub(crate) const ANSWERED_BEFORE_HOLD: u8 = 8;
/// The length of the poller's lease, beyond the hold of its poll: how long a poller that vanished
/// blocks the others.
const LEASE_US: u64 = 150_000;
/// The least length of the lease: two polls that are answered at once.
const LEASE_MIN_US: u64 = 450_000;
/// The longest lease.
pub(crate) const LEASE_MAX_US: u64 = LEASE_US + (HOLD_MIN_MS + HOLD_SPREAD_MS) * 1000;
/// The timeout of a short poll, in milliseconds. No request waits for it, and it may return 10,000
/// limits.
const TIMEOUT_MS: u64 = 250;
/// The timeout after a long poll was lost. Each further failure doubles it, so that a slow limiter can
/// answer.
const TIMEOUT_RETRY_MS: u64 = 50;
const TIMEOUT_MAX_MS: u64 = 4_000;
/// How long the host waits after the poll has failed. Envoy prefers hosts with fewer active requests,
/// so the next poll is more likely to reach another limiter.
const LINGER_MS: u64 = 250;

/// The schedule of one worker's polls.
#[derive(Debug)]
pub(crate) struct PollSchedule {
    random: Random,
    next_us: u64,
    /// The earliest time of the next poll, if there is a newer revision.
    soonest_us: u64,
    /// When the poll in flight fails; `None`: none is in flight.
    overdue_us: Option<u64>,
    /// The hold of the last poll, in milliseconds.
    wait_ms: u64,
    /// Consecutive polls that were answered.
    answered_in_a_row: u8,
    /// The timeout of the next short poll.
    short_timeout_ms: u64,
}

impl PollSchedule {
    pub(crate) fn new(random: Random) -> Self {
        Self {
            random,
            next_us: 0,
            soonest_us: 0,
            overdue_us: None,
            wait_ms: 0,
            answered_in_a_row: 0,
            short_timeout_ms: TIMEOUT_MS,
        }
    }

    /// Whether it is time for a poll. If so, sets how long the limiter may hold it.
    pub(crate) fn is_due(&mut self, now: Now) -> bool {
        if self.overdue_us.is_some() || !now.reached(self.next_us) {
            return false;
        }
        let hold_ms = HOLD_MIN_MS + self.random.below(HOLD_SPREAD_MS);
        self.wait_ms = if self.answered_in_a_row < ANSWERED_BEFORE_HOLD {
            0
        } else {
            hold_ms
        };
        true
    }

    /// Records that the poll is sent.
    pub(crate) fn leaves(&mut self, now: Now) {
        let pause_us = self.random.jittered(POLL_EVERY_US);
        self.next_us = now.mono_us.saturating_add(pause_us);
        self.soonest_us = now.mono_us.saturating_add(POLL_MIN_US);
        self.overdue_us = Some(now.after_ms(self.timeout_ms() - LINGER_MS));
    }

    /// The length of the poller's lease, in microseconds.
    pub(crate) fn lease_us(&self) -> u64 {
        (self.wait_ms * 1000 + LEASE_US).max(LEASE_MIN_US)
    }

    /// How long the limiter may hold the poll, in milliseconds.
    pub(crate) fn wait_ms(&self) -> u64 {
        self.wait_ms
    }

    /// The timeout of the call, in milliseconds.
    pub(crate) fn timeout_ms(&self) -> u64 {
        LINGER_MS
            + match self.wait_ms {
                0 => self.short_timeout_ms,
                wait_ms => wait_ms + HELD_GRACE_MS,
            }
    }

    /// Whether the poll in flight has taken too long. Then it has failed, and the next is due.
    pub(crate) fn is_overdue(&mut self, now: Now) -> bool {
        let overdue = self.overdue_us.is_some_and(|at_us| now.reached(at_us));
        if overdue {
            self.next_us = 0;
        }
        overdue
    }

    /// When the poll in flight fails, or else when the next one is due.
    pub(crate) fn next_us(&self, others_until_us: u64) -> u64 {
        let next_us = self.next_us.max(others_until_us);
        self.overdue_us.unwrap_or(next_us)
    }

    /// There is a newer revision, with which a limiter should have answered the long poll.
    pub(crate) fn poll_soon(&mut self) {
        self.next_us = self.next_us.min(self.soonest_us);
        let wait_us = std::mem::take(&mut self.wait_ms) * 1000;
        self.overdue_us = self.overdue_us.map(|at_us| at_us.saturating_sub(wait_us));
    }

    pub(crate) fn answered(&mut self) {
        self.overdue_us = None;
        self.answered_in_a_row = self.answered_in_a_row.saturating_add(1);
        self.short_timeout_ms = TIMEOUT_MS;
    }

    pub(crate) fn failed(&mut self) {
        self.overdue_us = None;
        self.short_timeout_ms = if self.answered_in_a_row < ANSWERED_BEFORE_HOLD {
            (self.short_timeout_ms * 2).min(TIMEOUT_MAX_MS)
        } else {
            TIMEOUT_RETRY_MS
        };
        self.answered_in_a_row = 0;
    }
}
