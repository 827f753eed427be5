//! The trait that every algorithm implements.

use crate::{
    AdaptiveState, Slot, SlotOp, State,
    lease::{Lease, LeaseRequest, Settlement},
};

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
    /// Wraps the state as one of any algorithm.
    fn wrap(state: Self::State) -> State;

    /// The largest cost that can ever pass; of an adaptive limit the most slots.
    fn limit(&self) -> u64;
    /// The time in which a used-up quota refills completely, rounded up.
    fn window_ms(&self) -> u64;
    /// The largest step back of the clock that does not count as a clock fault.
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
    /// Adds units, at most up to the limit; returns whether any of them fitted.
    fn charge(&self, usage: &mut Self::Usage<'_>, units: u64) -> bool;
    /// As [`Quota::charge`], beyond the limit where such a count can be stored.
    fn overcharge(&self, usage: &mut Self::Usage<'_>, units: u64) -> bool {
        self.charge(usage, units)
    }
    /// As [`Quota::charge`], for units that were admitted elsewhere, in the calendar window with this label.
    fn admitted(&self, usage: &mut Self::Usage<'_>, units: u64, _serial: Option<u64>) -> bool {
        self.charge(usage, units)
    }
    /// Settles grants; returns whether that changed anything.
    fn settle(&self, _usage: &mut Self::Usage<'_>, _settlements: &[Settlement]) -> bool {
        false
    }
    /// Grants lease units: as many as are wanted and may be granted.
    fn grant(&self, _usage: &mut Self::Usage<'_>, _request: &LeaseRequest<'_>) -> Option<Lease> {
        None
    }
    /// Outstanding lease units, where they are counted separately.
    fn leased(&self, _usage: &Self::Usage<'_>) -> u64 {
        0
    }
    /// Credits units, but none that are outstanding.
    fn credit(&self, usage: &mut Self::Usage<'_>, units: u64);
    /// Undoes a charge made at `charged_at_ms`, as far as it still counts; returns whether any of
    /// it did.
    fn refund(&self, usage: &mut Self::Usage<'_>, charged_at_ms: u64, units: u64) -> bool {
        self.uncount(usage, charged_at_ms, units) > 0
    }
    /// A bucket's debt; windows have counts instead, which [`Quota::uncount`] lowers.
    fn debt(&self, _usage: &Self::Usage<'_>) -> Option<Debt> {
        None
    }
    /// Removes parts of a bucket's debt.
    fn forgive(&self, _usage: &mut Self::Usage<'_>, _parts: u64) {}
    /// Removes units from a window's count of that time, but none that are outstanding; returns how
    /// many.
    fn uncount(&self, _usage: &mut Self::Usage<'_>, _at_ms: u64, _units: u64) -> u64 {
        0
    }
    /// The time from the caller's instant until a cost that does not fit now will.
    fn wait_ms(&self, usage: &Self::Usage<'_>, cost: u64) -> u64;
    /// The time from the caller's instant until nothing is used.
    fn reset_after_ms(&self, usage: &Self::Usage<'_>) -> u64;
    /// How long a request of this cost, admitted now, is held.
    fn delay_ms(&self, _usage: &Self::Usage<'_>, _cost: u64) -> u64 {
        0
    }
    /// Charges a cost that fits; returns the slot of its request, if the algorithm has slots.
    fn take(&self, usage: &mut Self::Usage<'_>, cost: u64) -> Option<Slot> {
        self.charge(usage, cost);
        None
    }
    /// Frees slots; returns whether that changed anything.
    fn free(&self, _usage: &mut Self::Usage<'_>, _ops: &[SlotOp]) -> bool {
        false
    }
    /// Undoes a charge that took a slot, for a request that was denied elsewhere; returns whether
    /// that changed anything.
    fn refund_slot(&self, usage: &mut Self::Usage<'_>, slot: Slot, units: u64) -> bool {
        self.free(usage, &[SlotOp::free(slot, units)])
    }
    /// The slots that were to be renewed and are gone, as a reply has them in the place of a slot.
    fn missing(&self, _usage: &Self::Usage<'_>) -> Option<Slot> {
        None
    }
    /// The limit of an adaptive bucket, in thousandths of a slot, and how it was found.
    fn adaptive(&self, _usage: &Self::Usage<'_>) -> (Option<u64>, Option<Box<AdaptiveState>>) {
        (None, None)
    }
    /// Called when another generation of the limit wrote the state.
    fn edited(&self, _usage: &mut Self::Usage<'_>) {}
    /// The state to store for a usage that was added to.
    fn save(&self, usage: Self::Usage<'_>) -> Self::State;
}

/// The items of [`Quota`] that name the algorithm's variant of [`State`].
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

/// A bucket's debt, of which reservations track the least.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debt {
    /// In parts.
    pub parts: u64,
    /// Parts of a unit.
    pub per_unit: u64,
    /// Whether it was cut to a capacity that was lowered.
    pub cut: bool,
}

/// An algorithm with its numbers; what `x`, `y` and `z` are depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Numbers {
    /// Which algorithm and variant, from 1.
    pub kind: u8,
    /// The quota in units.
    pub limit: u64,
    /// Buckets: parts of a unit. Windows: the length in milliseconds; calendar windows: the unit.
    /// Slots: their ttl, in milliseconds.
    pub x: u64,
    /// Buckets: parts that drain each millisecond. Sub-windows: how many in a window. Calendar
    /// windows: the label of the first whose edges are known. Slots: the stamp of the request's id.
    pub y: u64,
    /// Queues: the longest delay, in milliseconds. Calendar windows: the start of that window.
    /// Slots: the secret of the request's id.
    pub z: u64,
}

/// The codes of [`Numbers::kind`].
impl Numbers {
    /// Also a leaky bucket as a meter, which is the same.
    pub(crate) const TOKEN_BUCKET: u8 = 1;
    pub(crate) const GCRA: u8 = 2;
    pub(crate) const LEAKY_BUCKET_QUEUE: u8 = 3;
    /// Also of a GCRA.
    pub(crate) const TOKEN_BUCKET_QUEUE: u8 = 10;
    pub(crate) const FIXED_WINDOW_EPOCH: u8 = 4;
    pub(crate) const FIXED_WINDOW_FIRST_REQUEST: u8 = 5;
    pub(crate) const SLIDING_WINDOW_LOG: u8 = 6;
    pub(crate) const SLIDING_WINDOW_BUCKETS_STRICT: u8 = 7;
    pub(crate) const SLIDING_WINDOW_BUCKETS_LOOSE: u8 = 8;
    pub(crate) const SLIDING_WINDOW: u8 = 9;
    /// Followed by the ends of the windows: see [`crate::Algorithm::edges`].
    pub(crate) const CALENDAR_WINDOW: u8 = 11;
    pub(crate) const CONCURRENCY: u8 = 12;
}
