//! The shape every algorithm has.

use crate::lease::{Lease, LeaseAsk, Settlement};
use crate::{Freed, Numbers, QueueSlot, State};

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
    fn horizon_ms(&self) -> u64 {
        self.window_ms()
    }
    /// The numbers as the Lua twin takes them.
    fn numbers(&self) -> Numbers;

    /// The longest ttl that a lease may have, in milliseconds; `None`: units of this one cannot
    /// be leased.
    fn lease_max_ms(&self) -> Option<u64> {
        None
    }

    /// Reads a state at an instant; absent means unused. `ttl_ms` is the limit's for leases, 0
    /// if it has none.
    fn load<'s>(
        &self,
        state: Option<&'s Self::State>,
        now_ms: u64,
        ttl_ms: u64,
    ) -> Loaded<'s, Self>;
    /// The largest cost that fits; `None` where not even 0 does.
    fn room(&self, usage: &Self::Usage<'_>) -> Option<u64>;
    /// Adds units, at most up to the limit; says whether any of them fitted.
    fn charge(&self, usage: &mut Self::Usage<'_>, units: u64) -> bool;
    /// As [`Quota::charge`], beyond the limit where such a count can be stored.
    fn overcharge(&self, usage: &mut Self::Usage<'_>, units: u64) -> bool {
        self.charge(usage, units)
    }
    /// As [`Quota::charge`], of units that were admitted elsewhere, in a calendar window of that label.
    fn admitted(&self, usage: &mut Self::Usage<'_>, units: u64, _serial: Option<u64>) -> bool {
        self.charge(usage, units)
    }
    /// Settles grants; returns whether that changed anything.
    fn settle(&self, _usage: &mut Self::Usage<'_>, _settlements: &[Settlement]) -> bool {
        false
    }
    /// Takes units for requests to come, as many as are wanted and may be given.
    fn grant(&self, _usage: &mut Self::Usage<'_>, _ask: &LeaseAsk<'_>) -> Option<Lease> {
        None
    }
    /// Units granted that may still be used, where they are counted apart.
    fn leased(&self, _usage: &Self::Usage<'_>) -> u64 {
        0
    }
    /// Takes units off what is used, but none that may still be used elsewhere.
    fn credit(&self, usage: &mut Self::Usage<'_>, units: u64);
    /// Undoes a charge made at `charged_at_ms`, as far as time has not undone it; says whether
    /// there was anything to undo.
    fn refund(&self, usage: &mut Self::Usage<'_>, charged_at_ms: u64, units: u64) -> bool {
        self.uncount(usage, charged_at_ms, units) > 0
    }
    /// Of a bucket, what it owes; windows have counts, which [`Quota::uncount`] lowers.
    fn debt(&self, _usage: &Self::Usage<'_>) -> Option<Debt> {
        None
    }
    /// Of a bucket, removes parts that it owes.
    fn forgive(&self, _usage: &mut Self::Usage<'_>, _parts: u64) {}
    /// Of a window, takes units off the count of that time, as far as it has them and they may not be
    /// used elsewhere; how many.
    fn uncount(&self, _usage: &mut Self::Usage<'_>, _at_ms: u64, _units: u64) -> u64 {
        0
    }
    /// From the caller's instant until a cost that does not fit would.
    fn wait_ms(&self, usage: &Self::Usage<'_>, cost: u64) -> u64;
    /// From the caller's instant until nothing is used.
    fn reset_after_ms(&self, usage: &Self::Usage<'_>) -> u64;
    /// How long a request of this cost, admitted now, is held.
    fn delay_ms(&self, _usage: &Self::Usage<'_>, _cost: u64) -> u64 {
        0
    }
    /// Adds a cost that fits; the slot of its request, where there are such.
    fn take(&self, usage: &mut Self::Usage<'_>, cost: u64) -> Option<QueueSlot> {
        self.charge(usage, cost);
        None
    }
    /// Frees slots; says whether any of them was one.
    fn free(&self, _usage: &mut Self::Usage<'_>, _freed: &[Freed]) -> bool {
        false
    }
    /// The slots that were to be renewed and are gone, in the place of a slot.
    fn missing(&self, _usage: &Self::Usage<'_>) -> Option<QueueSlot> {
        None
    }
    /// The state was written by another edit of the limit.
    fn edited(&self, _usage: &mut Self::Usage<'_>) {}
    /// The state to store for a usage that was added to.
    fn save(&self, usage: Self::Usage<'_>) -> Self::State;
}

/// The items of [`Quota`] that say which [`State`] is the algorithm's.
macro_rules! state_of {
    ($variant:ident, $state:ty) => {
        type State = $state;

        fn own(state: &crate::State) -> Option<&$state> {
            match state {
                crate::State::$variant(state) => Some(state),
                _ => None,
            }
        }

        fn wrap(state: $state) -> crate::State {
            crate::State::$variant(state)
        }
    };
}
pub(crate) use state_of;

/// A state as read at one instant.
pub(crate) struct Loaded<'s, Q: Quota + ?Sized> {
    pub usage: Q::Usage<'s>,
    /// The state with its times moved back to the caller's, after the clock stepped back by
    /// more than the horizon; to be stored whatever the decision.
    pub shifted: Option<Q::State>,
}

/// A bucket's debt, for the least of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debt {
    /// In parts.
    pub parts: u64,
    /// Parts of a unit.
    pub per_unit: u64,
    /// It was cut to a capacity that was lowered.
    pub cut: bool,
}
