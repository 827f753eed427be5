//! When to poll, how long a poll may be held, and when it is given up.

use crate::{random::Random, time::Now};

/// Between polls that are answered at once, before jitter.
const POLL_EVERY_US: u64 = 200_000;
/// Between polls that an answer hurries: one limiter that is behind, or makes up revisions, tells of
/// another with every answer, and a poll may bring ten thousand limits.
const HURRIED_EVERY_US: u64 = 50_000;
/// How long a limiter is asked to hold a poll to which it has nothing new, in milliseconds, at
/// least; and how much longer at most, by chance, so that a fleet does not ask in step.
///
/// An edit is promised to be in force everywhere within a second, and a poll that is held is its
/// way: the limiter answers as soon as it hears of it, and holds polls only while it would. That
/// leaves a limiter that falls silent with a poll in its hands. Such a poll is given up after at
/// most 800 ms ([`HELD_GRACE_MS`]), and repeated at once; should that be lost too, again 50 and
/// 100 ms later ([`PATIENCE_RETRY_MS`]). The other workers see what it brings with their next tick
/// 50 ms later, or with their next request where they rest. A poller that vanished is replaced
/// 850 ms after its last poll at most ([`LEASE_US`]).
pub(crate) const HOLD_MIN_MS: u64 = 550;
pub(crate) const HOLD_SPREAD_MS: u64 = 150;
/// How much longer the answer to a poll that is held may take.
const HELD_GRACE_MS: u64 = 100;
/// Polls that were answered in a row before one is to be held: where some are lost, more of them
/// bring an edit sooner.
pub(crate) const CALM_POLLS: u8 = 8;
/// How long a worker that vanished keeps others from polling, beyond the time that its poll is
/// held.
const LEASE_US: u64 = 150_000;
/// How long the others are kept from polling at least: two polls that are answered at once.
const LEASE_MIN_US: u64 = 450_000;
/// No lease is longer.
pub(crate) const LEASE_MAX_US: u64 = LEASE_US + (HOLD_MIN_MS + HOLD_SPREAD_MS) * 1000;
/// How long a poll that is not held may take, in milliseconds: nobody waits for it, and it may
/// bring ten thousand limits.
const PATIENCE_MS: u64 = 250;
/// The same after one that was held and lost. Every further failure doubles it, so that a slow
/// limiter is followed too.
const PATIENCE_RETRY_MS: u64 = 50;
const PATIENCE_MAX_MS: u64 = 4_000;
/// How much longer the host waits for an answer than it is of use. Envoy prefers limiters with
/// fewer calls on them: the poll that comes next rather goes to another.
const LINGER_MS: u64 = 250;

/// One worker's polls in time.
#[derive(Debug)]
pub(crate) struct PollSchedule {
    random: Random,
    next_us: u64,
    /// How soon the next poll may be, if there is something new.
    soonest_us: u64,
    /// When the poll in flight is given up.
    overdue_us: Option<u64>,
    /// How long the last poll may be held, in milliseconds.
    wait_ms: u64,
    /// Polls that were answered in a row, as far as they count.
    answered_in_a_row: u8,
    /// How long a poll that is not held may take.
    patience_ms: u64,
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
            patience_ms: PATIENCE_MS,
        }
    }

    /// Whether it is time for a poll. Then it is decided how long it may be held.
    pub(crate) fn is_due(&mut self, now: Now) -> bool {
        if self.overdue_us.is_some() || !now.reached(self.next_us) {
            return false;
        }
        let hold_ms = HOLD_MIN_MS + self.random.below(HOLD_SPREAD_MS);
        self.wait_ms = if self.answered_in_a_row < CALM_POLLS {
            0
        } else {
            hold_ms
        };
        true
    }

    /// The poll that is due leaves.
    pub(crate) fn leaves(&mut self, now: Now) {
        let pause_us = self.random.jittered(POLL_EVERY_US);
        self.next_us = now.mono_us.saturating_add(pause_us);
        self.soonest_us = now.mono_us.saturating_add(HURRIED_EVERY_US);
        self.overdue_us = Some(now.after_ms(self.timeout_ms() - LINGER_MS));
    }

    /// How long others are not to poll beside it, in microseconds.
    pub(crate) fn lease_us(&self) -> u64 {
        (self.wait_ms * 1000 + LEASE_US).max(LEASE_MIN_US)
    }

    /// How long the limiter may hold it, in milliseconds.
    pub(crate) fn wait_ms(&self) -> u64 {
        self.wait_ms
    }

    /// How long the host is to wait for its answer, in milliseconds.
    pub(crate) fn timeout_ms(&self) -> u64 {
        LINGER_MS
            + match self.wait_ms {
                0 => self.patience_ms,
                wait_ms => wait_ms + HELD_GRACE_MS,
            }
    }

    /// Whether the poll in flight is waited for in vain. Then it has failed, and the next is due.
    pub(crate) fn is_overdue(&mut self, now: Now) -> bool {
        let overdue = self.overdue_us.is_some_and(|at_us| now.reached(at_us));
        if overdue {
            self.next_us = 0;
        }
        overdue
    }

    /// When the poll in flight is given up, or else the next one is due.
    pub(crate) fn next_us(&self, others_until_us: u64) -> u64 {
        let next_us = self.next_us.max(others_until_us);
        self.overdue_us.unwrap_or(next_us)
    }

    /// There is something new, of which a limiter that holds a poll should have heard.
    pub(crate) fn poll_soon(&mut self) {
        self.next_us = self.next_us.min(self.soonest_us);
        let wait_us = std::mem::take(&mut self.wait_ms) * 1000;
        self.overdue_us = self.overdue_us.map(|at_us| at_us.saturating_sub(wait_us));
    }

    pub(crate) fn answered(&mut self) {
        self.overdue_us = None;
        self.answered_in_a_row = self.answered_in_a_row.saturating_add(1);
        self.patience_ms = PATIENCE_MS;
    }

    pub(crate) fn failed(&mut self) {
        self.overdue_us = None;
        self.patience_ms = if self.answered_in_a_row < CALM_POLLS {
            (self.patience_ms * 2).min(PATIENCE_MAX_MS)
        } else {
            PATIENCE_RETRY_MS
        };
        self.answered_in_a_row = 0;
    }
}
