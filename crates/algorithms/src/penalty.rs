//! Penalties: a bucket that was denied too often is denied altogether for a time.
//!
//! The twin of `lua/lib/penalty.lua`. A fixed window counts the denials of a bucket; it starts at the first
//! of them. The denial that completes the count begins the penalty; denials during it do not count.
//!
//! A penalty may grow: one that begins before twice the last one's length has passed since its end lasts
//! `grow` times as long. The record keeps the last length and end for that time.

use crate::{Decision, RetryAfter, check::PenaltyRequest, integers::TIME_MAX_MS};

/// When a bucket is penalized, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Penalty {
    /// Denials that begin it; at least 1.
    pub after: u64,
    /// The time within which they count, from the first of them, in milliseconds.
    pub within_ms: u64,
    /// How long it lasts, in milliseconds; the first one, if it grows.
    pub for_ms: u64,
    /// How many times as long as the last one it lasts, if it begins soon after that; 1: it does not grow.
    pub grow: u64,
    /// The longest that it grows to, in milliseconds.
    pub max_ms: u64,
}

/// What is stored of a bucket's denials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denials {
    /// When the first denial that counts was, or if none does, when the latest penalty began, in
    /// milliseconds since the epoch.
    pub since_ms: u64,
    /// How many.
    pub count: u64,
    /// The end of the latest penalty, in milliseconds since the epoch; 0: there was none.
    pub until_ms: u64,
    /// How long that was to last, in milliseconds.
    pub length_ms: u64,
}

/// The penalty of a bucket after a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PenaltyStatus {
    /// Milliseconds until it ends; 0: there is none, and the bucket decides.
    pub left_ms: u64,
    /// Denials that count towards the next one.
    pub denials: u64,
    /// How long the next one lasts if it begins now, in milliseconds.
    pub next_ms: u64,
    /// Milliseconds until one that begins lasts only as long as the first, where penalties grow; 0: it does now.
    /// During a penalty that is its rest and twice its length.
    pub anew_ms: u64,
    /// Whether this check began it.
    pub begun: bool,
    /// Whether its state could not be read, so that the check was decided without it.
    pub unread: bool,
}

/// A bucket's denials while one check is decided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    penalty: Penalty,
    now_ms: u64,
    denials: Denials,
    counts: bool,
    begun: bool,
    changed: bool,
}

impl Count {
    /// The denials as they stand now, with those that are reported.
    pub(crate) fn new(request: &PenaltyRequest, stored: Option<&Denials>, now_ms: u64) -> Self {
        let (penalty, now_ms) = (request.penalty, now_ms.min(TIME_MAX_MS));
        let mut denials = stored.copied().unwrap_or_default();
        // The clock stepped back. The times are stored as they are read here: cut again at each reading,
        // they would move along with the clock until it had caught up with them.
        let stepped_back = denials.since_ms > now_ms;
        denials.since_ms = denials.since_ms.min(now_ms);
        // A shorter `for`, or `max`, counts from the start of the penalty. After a clock stepped back, no
        // penalty is longer than one that begins now.
        let longest_ms = penalty.longest_ms();
        denials.length_ms = denials.length_ms.min(longest_ms);
        let length_ms = denials.length_ms.max(penalty.for_ms);
        let latest_ms = denials.since_ms.saturating_add(length_ms);
        denials.until_ms = denials.until_ms.min(latest_ms);
        if now_ms - denials.since_ms >= penalty.within_ms {
            denials.count = 0;
        }
        let mut count = Self {
            penalty,
            now_ms,
            denials,
            counts: request.counts,
            begun: false,
            changed: stepped_back,
        };
        count.add(request.reported);
        count
    }

    /// Whether a penalty denies the check.
    pub(crate) fn holds(&self) -> bool {
        self.denials.until_ms > self.now_ms
    }

    /// Counts the denial of the check itself. A cost that never passes is none.
    pub(crate) fn add_own(&mut self, decision: &Decision) {
        if self.counts && decision.retry_after != RetryAfter::Never {
            self.add(u64::from(!decision.allowed));
        }
    }

    /// Counts denials, unless there is a penalty already.
    pub(crate) fn add(&mut self, denials: u64) {
        if denials == 0 || self.holds() {
            return;
        }
        if self.denials.count == 0 {
            self.denials.since_ms = self.now_ms;
        }
        self.denials.count = self.denials.count.saturating_add(denials);
        if self.denials.count >= self.penalty.after {
            self.denials.length_ms = self.next_ms();
            self.denials.count = 0;
            self.denials.since_ms = self.now_ms;
            self.denials.until_ms = self.now_ms.saturating_add(self.denials.length_ms);
            self.begun = true;
        }
        self.changed = true;
    }

    /// How long a penalty lasts that begins now.
    fn next_ms(&self) -> u64 {
        let (penalty, last) = (&self.penalty, &self.denials);
        let grown_ms = if self.now_ms < last.remembered_until_ms() {
            last.length_ms.saturating_mul(penalty.grow)
        } else {
            0
        };
        grown_ms.max(penalty.for_ms).min(penalty.longest_ms())
    }

    /// Denies what the bucket decided while there is a penalty.
    pub(crate) fn apply(&self, decision: &mut Decision) {
        let left_ms = self.status().left_ms;
        if left_ms == 0 {
            return;
        }
        decision.allowed = false;
        decision.remaining = 0;
        decision.delay_ms = 0;
        decision.retry_after = decision.retry_after.later(RetryAfter::Millis(left_ms));
        decision.reset_after_ms = decision.reset_after_ms.max(left_ms);
    }

    pub(crate) fn status(&self) -> PenaltyStatus {
        PenaltyStatus {
            left_ms: self.denials.until_ms.saturating_sub(self.now_ms),
            denials: self.denials.count,
            next_ms: self.next_ms(),
            anew_ms: match self.penalty.grow {
                0 | 1 => 0,
                _ => { self.denials.remembered_until_ms() }.saturating_sub(self.now_ms),
            },
            begun: self.begun,
            unread: false,
        }
    }

    /// The denials to store; `None`: nothing changed.
    pub(crate) fn write(&self) -> Option<Denials> {
        self.changed.then_some(self.denials)
    }
}

impl Denials {
    /// Until when a new penalty is longer than the latest, in milliseconds since the epoch.
    fn remembered_until_ms(&self) -> u64 {
        self.until_ms
            .saturating_add(self.length_ms.saturating_mul(2))
    }
}

impl Penalty {
    /// A penalty that does not grow.
    pub const fn new(after: u64, within_ms: u64, for_ms: u64) -> Self {
        Self {
            after,
            within_ms,
            for_ms,
            grow: 1,
            max_ms: for_ms,
        }
    }

    /// The longest that it lasts, in milliseconds.
    pub fn longest_ms(&self) -> u64 {
        match self.grow {
            0 | 1 => self.for_ms,
            _ => self.max_ms.max(self.for_ms),
        }
    }

    /// When the stored denials no longer matter, in milliseconds since the epoch.
    pub fn forgotten_at_ms(&self, denials: &Denials) -> u64 {
        let counted = match denials.count {
            0 => 0,
            _ => denials.since_ms.saturating_add(self.within_ms),
        };
        let ended_ms = match self.grow {
            0 | 1 => denials.until_ms,
            _ => denials.remembered_until_ms(),
        };
        counted.max(ended_ms)
    }
}
