//! Generic cell rate algorithm, in its virtual scheduling form.
//!
//! Source: ATM Forum Traffic Management 4.0 and ITU-T I.371, with T = P/N and
//! a tolerance such that C units fit at once.
//!
//! Guarantee: at most C + r·Δ units in any interval Δ, in the least memory;
//! equal to a token bucket as long as the rate is not edited and the clock
//! does not step back.
//!
//! The state is one theoretical arrival time (TAT), in whole milliseconds and a fraction: as one
//! number of 1/(N/g) ms it would pass 53 bits. An edit keeps the debt as time. One number cannot be
//! clamped, so a step back of the clock by d costs d of availability, bounded by the rule that also
//! serves a lowered burst: a TAT later than now + C/r becomes now + C/r. What was charged beyond
//! the capacity is therefore stored separately, with its time: neither rule forgives it.
//!
//! `lua/lib/gcra.lua` is the twin.

use crate::bucket::{Bucket, OWED_MAX};
use crate::integers::scale_up;
use crate::lease::{Lease, LeaseRequest, Leases, Level, Settlement};
use crate::quota::{Loaded, Quota, state_of};
use crate::{Numbers, ParameterError, Parameters};

/// A GCRA's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Gcra {
    pub bucket: Bucket,
}

/// The theoretical arrival time: when the bucket is unused again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GcraState {
    /// Whole milliseconds.
    pub tat_ms: u64,
    /// The rest, in 1/`parts_per_ms` milliseconds.
    pub tat_parts: u64,
    /// The unit of `tat_parts`, as of when this was written.
    pub parts_per_ms: u64,
    /// Units leased out; `None`: none.
    pub leases: Option<Leases>,
    /// With leases or `over`, the latest time at which this was written, in milliseconds; else 0. A
    /// far step back of the clock moves the leases along, and a TAT alone does not distinguish it
    /// from a lowered burst.
    pub at_ms: u64,
    /// The part of the debt at `at_ms` that was charged beyond the capacity, in 1/`parts_per_ms`
    /// milliseconds. It drains first.
    pub over: u64,
}

/// A GCRA at one instant: its TAT lies `debt` parts after `now_ms`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GcraUsage {
    level: Level,
    /// The state's `at_ms`, or `now_ms` if that is later.
    at_ms: u64,
    /// Parts of the debt that were charged beyond the capacity.
    over: u64,
}

impl Gcra {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        Ok(Self {
            bucket: Bucket::new(parameters)?,
        })
    }

    /// Parts from `now_ms` to the TAT, which may be more than the capacity.
    fn distance(&self, state: &GcraState, now_ms: u64) -> u64 {
        let Some(ahead_ms) = state.tat_ms.checked_sub(now_ms) else {
            return 0;
        };
        let parts = scale_up(
            state.tat_parts,
            self.bucket.parts_per_ms,
            state.parts_per_ms,
        );
        ahead_ms
            .saturating_mul(self.bucket.parts_per_ms)
            .saturating_add(parts)
    }

    /// What is left of the debt beyond the capacity, converted from the stored parts to those of this rate.
    fn over(&self, state: &GcraState, now_ms: u64) -> u64 {
        let (per_ms, unit) = (self.bucket.parts_per_ms, state.parts_per_ms);
        let whole = (state.over / unit).saturating_mul(per_ms);
        let over = whole.saturating_add(scale_up(state.over % unit, per_ms, unit));
        let elapsed_ms = now_ms.saturating_sub(state.at_ms);
        self.bucket.drained(over.min(OWED_MAX), elapsed_ms)
    }

    /// The state that owes `debt` parts at `now_ms`, without leases.
    const fn at(&self, now_ms: u64, debt: u64) -> GcraState {
        let parts_per_ms = self.bucket.parts_per_ms;
        GcraState {
            tat_ms: now_ms + debt / parts_per_ms,
            tat_parts: debt % parts_per_ms,
            parts_per_ms,
            leases: None,
            at_ms: 0,
            over: 0,
        }
    }
}

impl Quota for Gcra {
    type Usage<'s> = GcraUsage;

    state_of!(Gcra, GcraState);

    fn limit(&self) -> u64 {
        self.bucket.capacity
    }

    fn window_ms(&self) -> u64 {
        self.bucket.window_ms()
    }

    fn horizon_ms(&self) -> u64 {
        self.bucket.horizon_ms()
    }

    fn numbers(&self) -> Numbers {
        self.bucket.numbers(Numbers::GCRA)
    }

    fn lease_max_ms(&self) -> Option<u64> {
        Some(self.bucket.lease_max_ms())
    }

    fn load<'s>(&self, state: Option<&'s GcraState>, now_ms: u64, ttl_ms: u64) -> Loaded<'s, Self> {
        let distance = state.map_or(0, |state| self.distance(state, now_ms));
        let over = state.map_or(0, |state| self.over(state, now_ms));
        let over = over.min(distance);
        let within = (distance - over).min(self.bucket.full());
        let debt = (within + over).min(OWED_MAX);
        let (mut leases, mut at_ms) = state.map_or((None, 0), |state| (state.leases, state.at_ms));
        let ahead_ms = at_ms.saturating_sub(now_ms);
        if ahead_ms > self.bucket.horizon_ms() {
            leases = leases.map(|leases| leases.moved_back(ahead_ms));
            at_ms = now_ms;
        }
        at_ms = at_ms.max(now_ms);
        let shifted = (distance - over > self.bucket.full()).then(|| GcraState {
            leases,
            at_ms: dated(at_ms, leases, over),
            over,
            ..self.at(now_ms, debt)
        });
        let usage = GcraUsage {
            level: Level::new(&self.bucket, debt, leases, now_ms, ttl_ms),
            at_ms,
            over,
        };
        Loaded { usage, shifted }
    }

    fn room(&self, usage: &GcraUsage) -> Option<u64> {
        usage.level.room(&self.bucket)
    }

    fn charge(&self, usage: &mut GcraUsage, units: u64) -> bool {
        usage.level.charge(&self.bucket, units)
    }

    fn overcharge(&self, usage: &mut GcraUsage, units: u64) -> bool {
        usage.level.overcharge(&self.bucket, units, &mut usage.over)
    }

    fn settle(&self, usage: &mut GcraUsage, settlements: &[Settlement]) -> bool {
        usage.level.settle(&self.bucket, settlements)
    }

    fn grant(&self, usage: &mut GcraUsage, request: &LeaseRequest<'_>) -> Option<Lease> {
        usage.level.grant(&self.bucket, request)
    }

    fn leased(&self, usage: &GcraUsage) -> u64 {
        usage.level.outstanding()
    }

    fn refund(&self, usage: &mut GcraUsage, charged_at_ms: u64, units: u64) -> bool {
        usage.level.refund(&self.bucket, charged_at_ms, units)
    }

    fn credit(&self, usage: &mut GcraUsage, units: u64) {
        usage.level.forgive(&self.bucket, self.bucket.owed(units));
    }

    fn wait_ms(&self, usage: &GcraUsage, cost: u64) -> u64 {
        usage.level.wait_ms(&self.bucket, self.bucket.target(cost))
    }

    fn reset_after_ms(&self, usage: &GcraUsage) -> u64 {
        usage.level.wait_ms(&self.bucket, 0)
    }

    fn save(&self, usage: GcraUsage) -> GcraState {
        let level = usage.level;
        let over = usage.over.min(level.debt);
        GcraState {
            leases: level.leases,
            at_ms: dated(usage.at_ms, level.leases, over),
            over,
            ..self.at(level.now_ms, level.debt)
        }
    }
}

/// The `at_ms` of a state: 0 without leases and `over`.
const fn dated(at_ms: u64, leases: Option<Leases>, over: u64) -> u64 {
    if leases.is_some() || over > 0 {
        at_ms
    } else {
        0
    }
}
