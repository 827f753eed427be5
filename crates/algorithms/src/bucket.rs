//! The numbers that token bucket, leaky bucket and GCRA share.
//!
//! A rate N/P in lowest terms is (N/g)/(P/g). Debt is counted in *parts*: a
//! unit has P/g of them and N/g drain per millisecond, so that whole
//! milliseconds always drain whole parts. The same number read as time is a
//! GCRA's distance to its theoretical arrival time, in 1/(N/g) milliseconds.
//!
//! `lua/lib/bucket.lua` is the twin.

use crate::integers::{PRODUCT_MAX, gcd, scale_up};
use crate::{Numbers, ParameterError, Parameters};

/// The most parts that a bucket owes: as many as the largest capacity, and still exact in a state
/// beside a time and a generation.
pub(crate) const OWED_MAX: u64 = 1 << 51;

/// Bound: debt of a bucket, in capacities. Beyond it, the rest is not charged.
///
/// One report must not deny a bucket for longer than it takes to refill so many times.
pub const DEBT_MAX_CAPACITIES: u64 = 100;

/// Capacity and drain of one bucket, validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Bucket {
    /// C, in units.
    pub capacity: u64,
    /// p, the parts of one unit.
    pub parts_per_unit: u64,
    /// The parts that drain each millisecond.
    pub parts_per_ms: u64,
}

impl Bucket {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let rate = parameters.rate;
        if rate.units == 0 {
            return Err(ParameterError::NoRefill);
        }
        if rate.units > PRODUCT_MAX {
            return Err(ParameterError::RateTooLarge {
                largest: PRODUCT_MAX,
            });
        }
        let divisor = gcd(rate.units, rate.period_ms);
        let parts_per_unit = rate.period_ms / divisor;
        let capacity = parameters.burst.unwrap_or(rate.units);
        let largest = PRODUCT_MAX / parts_per_unit;
        if capacity > largest {
            return Err(ParameterError::BurstTooLarge { largest });
        }
        Ok(Self {
            capacity,
            parts_per_unit,
            parts_per_ms: rate.units / divisor,
        })
    }

    /// The numbers as the Lua twin takes them, for the algorithm `kind`.
    pub const fn numbers(&self, kind: u8) -> Numbers {
        Numbers {
            kind,
            limit: self.capacity,
            x: self.parts_per_unit,
            y: self.parts_per_ms,
            z: 0,
        }
    }

    /// The debt of a used-up bucket, in parts.
    pub const fn full(&self) -> u64 {
        self.capacity * self.parts_per_unit
    }

    /// The largest step back of the clock that does not count as a clock fault.
    pub const fn horizon_ms(&self) -> u64 {
        self.full() / self.parts_per_ms
    }

    /// As [`Self::horizon_ms`], with `over` parts owed beyond the capacity.
    pub const fn horizon_over_ms(&self, over: u64) -> u64 {
        (self.full() + over) / self.parts_per_ms
    }

    /// Converts parts owed beyond the capacity from those of another rate, rounded up.
    pub fn adopt_over(&self, over: u64, parts_per_unit: u64) -> u64 {
        let (units, rest) = (over / parts_per_unit, over % parts_per_unit);
        let parts = units.saturating_mul(self.parts_per_unit);
        let rest = scale_up(rest, self.parts_per_unit, parts_per_unit);
        parts.saturating_add(rest).min(OWED_MAX)
    }

    /// How long a used-up bucket takes to be unused.
    pub const fn window_ms(&self) -> u64 {
        self.drain_ms(self.full())
    }

    /// How long `parts` take to drain, rounded up.
    pub const fn drain_ms(&self, parts: u64) -> u64 {
        parts.div_ceil(self.parts_per_ms)
    }

    /// What is left of `debt` after `elapsed_ms`.
    pub const fn drained(&self, debt: u64, elapsed_ms: u64) -> u64 {
        debt.saturating_sub(elapsed_ms.saturating_mul(self.parts_per_ms))
    }

    /// What is left at `now_ms` of a charge made at `charged_at_ms`, in parts; nothing if the
    /// clock stepped back in between.
    pub const fn undrained(&self, units: u64, charged_at_ms: u64, now_ms: u64) -> u64 {
        match now_ms.checked_sub(charged_at_ms) {
            Some(elapsed_ms) if units <= self.capacity => {
                self.drained(units * self.parts_per_unit, elapsed_ms)
            }
            _ => 0,
        }
    }

    /// Converts a debt from the parts of another rate, rounded up, to at most the capacity.
    pub fn adopt(&self, debt: u64, parts_per_unit: u64) -> u64 {
        let (units, rest) = (debt / parts_per_unit, debt % parts_per_unit);
        if units >= self.capacity {
            return self.full();
        }
        let parts = units * self.parts_per_unit;
        (parts + scale_up(rest, self.parts_per_unit, parts_per_unit)).min(self.full())
    }

    /// The debt after `units` more, at most the capacity.
    pub fn owing(&self, debt: u64, units: u64) -> u64 {
        (debt + units.min(self.capacity) * self.parts_per_unit).min(self.full())
    }

    /// Units as parts. Leases may exceed a capacity that was lowered after their grant; they then
    /// count as so many parts that nothing is left.
    pub fn owed(&self, units: u64) -> u64 {
        units.saturating_mul(self.parts_per_unit).min(OWED_MAX)
    }

    /// The most that the bucket owes after units were charged beyond the capacity.
    pub fn debt_max(&self) -> u64 {
        self.full()
            .saturating_mul(DEBT_MAX_CAPACITIES)
            .min(OWED_MAX)
    }

    /// The largest debt at which a cost within the capacity fits.
    pub const fn target(&self, cost: u64) -> u64 {
        self.full() - cost * self.parts_per_unit
    }

    /// The longest ttl of a lease: a quarter of the time in which the bucket fills.
    pub const fn lease_max_ms(&self) -> u64 {
        self.full() / self.parts_per_ms / 4
    }
}
