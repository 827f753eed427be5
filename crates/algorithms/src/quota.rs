//! The shape every algorithm has, and the decision made from it.
//!
//! `lua/check.lua` makes the same decision from functions of the same names.

use crate::{Decision, Numbers, Outcome, RetryAfter, State};

/// One algorithm with its numbers.
///
/// `State` is what is stored; `Usage` is that state read at one instant with
/// the current numbers. A cost given to [`Quota::wait_ms`] is within
/// [`Quota::limit`].
pub(crate) trait Quota {
    type State;
    type Usage<'s>;

    /// This algorithm's state, if it is one; another's counts as absent.
    fn own(state: &State) -> Option<&Self::State>;
    /// The state as one of any algorithm.
    fn wrap(state: Self::State) -> State;

    /// The largest cost that can ever pass.
    fn limit(&self) -> u64;
    /// The time in which a used-up quota comes back whole, rounded up.
    fn window_ms(&self) -> u64;
    /// The largest step back of the clock that is not taken for a wrong clock.
    fn horizon_ms(&self) -> u64;
    /// The numbers as the Lua twin takes them.
    fn numbers(&self) -> Numbers;

    /// Reads a state at an instant; absent means unused.
    fn load<'s>(&self, state: Option<&'s Self::State>, now_ms: u64) -> Loaded<'s, Self>;
    /// The largest cost that fits; `None` where not even 0 does.
    fn room(&self, usage: &Self::Usage<'_>) -> Option<u64>;
    /// Adds units, at most up to the limit; says whether any of them fitted.
    fn charge(&self, usage: &mut Self::Usage<'_>, units: u64) -> bool;
    /// Undoes a charge made at `charged_at_ms`, as far as time has not undone it. An algorithm
    /// without a state of a fixed size, and a queue, undoes nothing.
    fn take_back(&self, _usage: &mut Self::Usage<'_>, _charged_at_ms: u64, _units: u64) {}
    /// From the caller's instant until a cost that does not fit would.
    fn wait_ms(&self, usage: &Self::Usage<'_>, cost: u64) -> u64;
    /// From the caller's instant until nothing is used.
    fn reset_after_ms(&self, usage: &Self::Usage<'_>) -> u64;
    /// How long a request admitted now is held.
    fn delay_ms(&self, _usage: &Self::Usage<'_>) -> u64 {
        0
    }
    /// The state to store for a usage that was added to.
    fn save(&self, usage: Self::Usage<'_>) -> Self::State;
}

/// A state as read at one instant.
pub(crate) struct Loaded<'s, Q: Quota + ?Sized> {
    pub usage: Q::Usage<'s>,
    /// The state with its times moved back to the caller's, after the clock stepped back by
    /// more than the horizon; to be stored whatever the decision.
    pub shifted: Option<Q::State>,
}

/// A cost tested against one limit, to be finished either way.
pub(crate) struct Evaluated<'a, Q: Quota> {
    quota: &'a Q,
    loaded: Loaded<'a, Q>,
    cost: u64,
    debited: bool,
    fits: bool,
}

impl<'a, Q: Quota> Evaluated<'a, Q> {
    pub fn new(quota: &'a Q, state: Option<&'a State>, now_ms: u64, cost: u64, debit: u64) -> Self {
        let mut loaded = quota.load(state.and_then(Q::own), now_ms);
        let debited = debit > 0 && quota.charge(&mut loaded.usage, debit);
        let room = quota.room(&loaded.usage);
        let fits = cost <= quota.limit() && room.is_some_and(|room| cost <= room);
        Self {
            quota,
            loaded,
            cost,
            debited,
            fits,
        }
    }

    pub const fn fits(&self) -> bool {
        self.fits
    }

    /// Takes the cost, if it fits and is not 0.
    pub fn charge(self) -> Outcome {
        if !self.fits || self.cost == 0 {
            return self.leave();
        }
        let mut usage = self.loaded.usage;
        let delay_ms = self.quota.delay_ms(&usage);
        self.quota.charge(&mut usage, self.cost);
        let decision = Decision {
            allowed: true,
            remaining: self.quota.room(&usage).unwrap_or(0),
            retry_after: RetryAfter::Now,
            reset_after_ms: self.quota.reset_after_ms(&usage),
            delay_ms,
        };
        let write = Some(Q::wrap(self.quota.save(usage)));
        Outcome {
            decision,
            charged: self.cost,
            debited: self.debited,
            write,
        }
    }

    /// Takes nothing.
    pub fn leave(self) -> Outcome {
        let usage = self.loaded.usage;
        let retry_after = if self.fits {
            RetryAfter::Now
        } else if self.cost > self.quota.limit() {
            RetryAfter::Never
        } else {
            RetryAfter::Millis(self.quota.wait_ms(&usage, self.cost).max(1))
        };
        let decision = Decision {
            allowed: self.fits,
            remaining: self.quota.room(&usage).unwrap_or(0),
            retry_after,
            reset_after_ms: self.quota.reset_after_ms(&usage),
            delay_ms: if self.fits {
                self.quota.delay_ms(&usage)
            } else {
                0
            },
        };
        let write = if self.debited {
            Some(self.quota.save(usage))
        } else {
            self.loaded.shifted
        };
        Outcome {
            decision,
            charged: 0,
            debited: self.debited,
            write: write.map(Q::wrap),
        }
    }
}
