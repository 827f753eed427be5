//! The decision of one limit on one check.

use crate::{Lease, Reservations, Reserved, State};

/// When the same cost would be admitted, if no other request arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RetryAfter {
    /// It was admitted.
    Now,
    /// After this many milliseconds, at least 1 and not one more than needed.
    Millis(u64),
    /// The cost is above what the limit can ever hold.
    Never,
}

impl RetryAfter {
    /// The later of two: never is later than any time.
    #[must_use]
    pub fn later(self, other: Self) -> Self {
        match (self, other) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Millis(a), Self::Millis(b)) => Self::Millis(a.max(b)),
            (Self::Now, later) | (later, Self::Now) => later,
        }
    }

    /// Milliseconds, 0 for now; `None` for never.
    pub const fn millis(self) -> Option<u64> {
        match self {
            Self::Now => Some(0),
            Self::Millis(ms) => Some(ms),
            Self::Never => None,
        }
    }
}

/// The answer of one limit to one check. Times count from the caller's `now_ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Decision {
    /// Whether `cost` fits: `used + cost <= limit`.
    pub allowed: bool,
    /// The largest cost, in units, that would be admitted at this instant after this decision.
    pub remaining: u64,
    /// When the same cost would be admitted.
    pub retry_after: RetryAfter,
    /// Milliseconds until the bucket is completely unused, if nothing else comes.
    pub reset_after_ms: u64,
    /// Milliseconds an admitted request is held before it starts (queues only, else 0).
    pub delay_ms: u64,
}

/// The name of an admitted request's slot in a queue, or of a request in flight
/// ([`InFlightSlot`](crate::InFlightSlot)). Only its bucket interprets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Its start by the bucket's clock, in whole milliseconds, rounded down.
    pub start_ms: u64,
    /// What was rounded off, in parts.
    pub parts: u64,
    /// Since when the bucket has accepted such names.
    pub since_ms: u64,
    /// How often this time was freed and given to another request before.
    pub turn: u64,
}

/// An operation on a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotOp {
    /// Which.
    pub slot: Slot,
    /// What to do with it.
    pub act: SlotAct,
}

/// What to do with a slot. Only slots of requests in flight are renewed and entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotAct {
    /// Its request, which was charged this many units, does not need it. Freeing a slot again changes
    /// nothing.
    Free(u64),
    /// It lives another ttl; if it is gone, it is [missing](crate::Missing).
    Renew,
    /// It is missing, and its request still runs: it is held again, above the limit if need be.
    Enter,
}

impl SlotOp {
    /// Frees the slot of a request that was charged this many units.
    pub const fn free(slot: Slot, units: u64) -> Self {
        Self {
            slot,
            act: SlotAct::Free(units),
        }
    }
}

/// A decision and the state to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The answer.
    pub decision: Decision,
    /// Units taken by the check's cost; a debit is not counted here.
    pub charged: u64,
    /// The lease units granted.
    pub lease: Option<Lease>,
    /// The slot of an admitted request, where a queue can name it.
    pub slot: Option<Slot>,
    /// Outstanding lease units, this grant included. Windows do not count them separately.
    pub leased: u64,
    /// What was reserved and settled.
    pub reserved: Reserved,
    /// The reservations to store with the state; `None`: unchanged.
    pub reservations: Option<Box<Reservations>>,
    /// Whether more than the cost was stored: a debit, a grant, a settlement, or a freed slot.
    pub changed: bool,
    /// The state to store; `None`: unchanged.
    pub write: Option<State>,
}

/// A charge that may have to be refunded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Charged {
    /// When, in milliseconds: the caller's time of that evaluation.
    pub at_ms: u64,
    /// How much.
    pub units: u64,
    /// The limit's ttl for leases, in milliseconds; 0 if it has none.
    pub lease_ttl_ms: u64,
    /// The slot, for a queue.
    pub slot: Option<Slot>,
}
