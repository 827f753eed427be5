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

/// The name of an admitted request's slot in a queue. Only [`Freed`] reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct QueueSlot {
    /// Its start by the bucket's clock, in whole milliseconds, rounded down.
    pub start_ms: u64,
    /// What was rounded off, in parts.
    pub parts: u64,
    /// Since when the bucket has accepted such names.
    pub since_ms: u64,
    /// How often this time was freed and given to another request before.
    pub turn: u64,
}

/// A slot that its request does not need, because the request ended before the slot started.
/// Freeing a slot again changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Freed {
    /// Which.
    pub slot: QueueSlot,
    /// What its request was charged.
    pub units: u64,
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
    pub slot: Option<QueueSlot>,
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
    pub slot: Option<QueueSlot>,
}
