//! Slots and the ids of the requests that hold them.

use super::{TTL_MAX_MS, TTL_MIN_MS};
use crate::Slot;
use crate::integers::TIME_MAX_MS;

/// Bits of a stamp that are the holder's mark; the others are seconds since the epoch.
const MARK_BITS: u32 = 20;
/// Positions per number of [`Missing`].
const MISSING_BITS: usize = 50;

/// The id of a request at the limits on requests in flight. Its `secret` is drawn at random, below
/// 2^52, because whoever has the id can renew and free the slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotId {
    /// When the request came, in seconds since the epoch, and who holds the slot: see
    /// [`SlotId::new`].
    pub stamp: u64,
    /// Random.
    pub secret: u64,
}

/// The name of a slot: its id, and the ttl that its holder was given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InFlightSlot {
    /// The request's id.
    pub id: SlotId,
    /// How long the slot lives without being renewed, in milliseconds.
    pub ttl_ms: u64,
}

/// Which of the slots to renew are gone, by their position in the check, from 0. Positions from 100
/// on are not reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Missing {
    pub(super) low: u64,
    pub(super) high: u64,
}

impl SlotId {
    /// Holds slots of Envoy's rate limit service, whose requests have no ids.
    pub const SERVICE: u64 = 0;
    /// Holds slots of programs that call the limiter.
    pub const PROGRAM: u64 = 1;
    /// Marks of holders are below this.
    pub const MARKS: u64 = 1 << MARK_BITS;

    /// An id made at a time, in seconds since the epoch, by the holder with a mark.
    #[must_use]
    pub const fn new(at_s: u64, mark: u64, random: u64) -> Self {
        Self {
            stamp: ((at_s & 0xffff_ffff) << MARK_BITS) | (mark % Self::MARKS),
            secret: random & TIME_MAX_MS,
        }
    }

    /// The mark of a proxy by its name.
    #[must_use]
    pub fn mark_of(proxy: &str) -> u64 {
        let fnv = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let hash = proxy.bytes().fold(0xcbf2_9ce4_8422_2325, fnv);
        (hash ^ (hash >> 32)) % (Self::MARKS - 2) + 2
    }

    /// The id cut to numbers that a script can hold, whoever made it.
    #[must_use]
    pub const fn bounded(self) -> Self {
        Self {
            stamp: self.stamp & TIME_MAX_MS,
            secret: self.secret & TIME_MAX_MS,
        }
    }

    /// The mark of its holder.
    #[must_use]
    pub const fn mark(self) -> u64 {
        self.stamp % Self::MARKS
    }

    /// When it was made, in seconds since the epoch.
    #[must_use]
    pub const fn at_s(self) -> u64 {
        self.stamp >> MARK_BITS
    }
}

impl Slot {
    /// How long the slot of a request in flight lives without being renewed, in milliseconds. The slot
    /// of a queue has a time in this field, which is later than any such duration.
    #[must_use]
    pub fn ttl_ms(self) -> Option<u64> {
        Some(self.since_ms).filter(|ms| *ms <= TTL_MAX_MS)
    }
}

impl InFlightSlot {
    /// Whether a bucket may have such a slot.
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.id.stamp <= TIME_MAX_MS
            && self.id.secret <= TIME_MAX_MS
            && self.ttl_ms >= TTL_MIN_MS
            && self.ttl_ms <= TTL_MAX_MS
    }

    /// The text by which Redis orders slots that expire together.
    pub(super) fn text(self) -> String {
        let Self { id, ttl_ms } = self;
        format!("{}:{}:{ttl_ms}", id.stamp, id.secret)
    }
}

/// Slots of both kinds are named by four numbers.
impl From<InFlightSlot> for Slot {
    fn from(slot: InFlightSlot) -> Self {
        Self {
            start_ms: slot.id.stamp,
            parts: slot.id.secret,
            since_ms: slot.ttl_ms,
            turn: 0,
        }
    }
}

impl From<Slot> for InFlightSlot {
    fn from(name: Slot) -> Self {
        Self {
            id: SlotId {
                stamp: name.start_ms,
                secret: name.parts,
            },
            ttl_ms: name.since_ms,
        }
    }
}

impl Missing {
    /// From the two numbers that a reply has in the place of a slot's name.
    #[must_use]
    pub const fn of(low: u64, high: u64) -> Self {
        Self { low, high }
    }

    /// Whether the slot at a position is missing.
    #[must_use]
    pub const fn contains(self, position: usize) -> bool {
        if position < MISSING_BITS {
            self.low >> position & 1 == 1
        } else if position < 2 * MISSING_BITS {
            self.high >> (position - MISSING_BITS) & 1 == 1
        } else {
            false
        }
    }

    pub(super) const fn add(&mut self, position: usize) {
        if position < MISSING_BITS {
            self.low |= 1 << position;
        } else if position < 2 * MISSING_BITS {
            self.high |= 1 << (position - MISSING_BITS);
        }
    }
}
