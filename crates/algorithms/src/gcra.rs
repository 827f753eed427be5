//! Generic cell rate algorithm, in its virtual scheduling form.
//!
//! Source: ATM Forum Traffic Management 4.0 and ITU-T I.371, with T = P/N and
//! a tolerance such that C units fit at once.
//!
//! Guarantee: at most C + r·Δ units in any interval Δ, in the least memory;
//! equal to a token bucket as long as the rate is not edited and the clock
//! does not step back.
//!
//! The state is one theoretical arrival time (TAT), in whole milliseconds and
//! a fraction: as one number of 1/(N/g) ms it would pass 53 bits. An edit keeps
//! the debt as time. One number cannot be clamped, so a step back of the clock
//! by d costs d of availability, bounded by the rule that also serves a lowered
//! burst: a TAT later than now + C/r becomes now + C/r.

use crate::bucket::Bucket;
use crate::integers::scale_up;
use crate::quota::{Loaded, Quota};
use crate::{Numbers, ParameterError, Parameters, State, kinds};

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
}

/// A GCRA at one instant: its TAT lies `debt` parts after `now_ms`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GcraUsage {
    debt: u64,
    now_ms: u64,
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
}

impl Quota for Gcra {
    type State = GcraState;
    type Usage<'s> = GcraUsage;

    fn own(state: &State) -> Option<&GcraState> {
        match state {
            State::Gcra(state) => Some(state),
            _ => None,
        }
    }

    fn wrap(state: GcraState) -> State {
        State::Gcra(state)
    }

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
        self.bucket.numbers(kinds::GCRA)
    }

    fn load<'s>(&self, state: Option<&'s GcraState>, now_ms: u64) -> Loaded<'s, Self> {
        let distance = state.map_or(0, |state| self.distance(state, now_ms));
        let usage = GcraUsage {
            debt: distance.min(self.bucket.full()),
            now_ms,
        };
        let shifted = (distance > self.bucket.full()).then(|| self.save(usage));
        Loaded { usage, shifted }
    }

    fn room(&self, usage: &GcraUsage) -> Option<u64> {
        Some(self.bucket.room(usage.debt))
    }

    fn charge(&self, usage: &mut GcraUsage, units: u64) -> bool {
        let before = usage.debt;
        usage.debt = self.bucket.owing(before, units);
        usage.debt > before
    }

    fn take_back(&self, usage: &mut GcraUsage, charged_at_ms: u64, units: u64) {
        let undrained = self.bucket.undrained(units, charged_at_ms, usage.now_ms);
        usage.debt = usage.debt.saturating_sub(undrained);
    }

    fn wait_ms(&self, usage: &GcraUsage, cost: u64) -> u64 {
        self.bucket.wait_ms(usage.debt, cost)
    }

    fn reset_after_ms(&self, usage: &GcraUsage) -> u64 {
        self.bucket.drain_ms(usage.debt)
    }

    fn save(&self, usage: GcraUsage) -> GcraState {
        let parts_per_ms = self.bucket.parts_per_ms;
        GcraState {
            tat_ms: usage.now_ms + usage.debt / parts_per_ms,
            tat_parts: usage.debt % parts_per_ms,
            parts_per_ms,
        }
    }
}
