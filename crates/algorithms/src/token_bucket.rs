//! Token bucket.
//!
//! Source: J. Turner, "New directions in communications", IEEE Communications
//! Magazine 24(10), 1986; as a meter, RFC 2697.
//!
//! Guarantee: at most C + r·Δ units in any interval Δ.
//!
//! What is stored is the debt at the last admission, never "tokens left":
//! absent means unused, and an edit of the limit needs no migration.

use crate::bucket::Bucket;
use crate::quota::{Loaded, Quota};
use crate::{Numbers, ParameterError, Parameters, State, kinds};

/// A token bucket's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenBucket {
    pub bucket: Bucket,
}

/// What a token or leaky bucket remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucketState {
    /// Parts owed at `at_ms`.
    pub debt: u64,
    /// When the last admission was, in milliseconds.
    pub at_ms: u64,
    /// The parts of one unit when this was written.
    pub parts_per_unit: u64,
}

/// A token bucket at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucketUsage {
    /// Parts owed at `now_ms`.
    pub debt: u64,
    /// The caller's time or the state's, whichever is later.
    pub now_ms: u64,
    /// How much later than the caller's time that is.
    pub ahead_ms: u64,
}

impl TokenBucket {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        Ok(Self {
            bucket: Bucket::new(parameters)?,
        })
    }
}

impl Quota for TokenBucket {
    type State = TokenBucketState;
    type Usage<'s> = TokenBucketUsage;

    fn own(state: &State) -> Option<&TokenBucketState> {
        match state {
            State::TokenBucket(state) => Some(state),
            _ => None,
        }
    }

    fn wrap(state: TokenBucketState) -> State {
        State::TokenBucket(state)
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
        self.bucket.numbers(kinds::TOKEN_BUCKET)
    }

    fn load<'s>(&self, state: Option<&'s TokenBucketState>, now_ms: u64) -> Loaded<'s, Self> {
        let Some(state) = state else {
            let usage = TokenBucketUsage {
                debt: 0,
                now_ms,
                ahead_ms: 0,
            };
            return Loaded {
                usage,
                shifted: None,
            };
        };
        let shifted = state.at_ms.saturating_sub(now_ms) > self.bucket.horizon_ms();
        let at_ms = if shifted { now_ms } else { state.at_ms };
        let clamped_ms = now_ms.max(at_ms);
        let owed = self.bucket.adopt(state.debt, state.parts_per_unit);
        let usage = TokenBucketUsage {
            debt: self.bucket.drained(owed, clamped_ms - at_ms),
            now_ms: clamped_ms,
            ahead_ms: clamped_ms - now_ms,
        };
        Loaded {
            usage,
            shifted: shifted.then_some(TokenBucketState { at_ms, ..*state }),
        }
    }

    fn room(&self, usage: &TokenBucketUsage) -> Option<u64> {
        Some(self.bucket.room(usage.debt))
    }

    fn charge(&self, usage: &mut TokenBucketUsage, units: u64) -> bool {
        let before = usage.debt;
        usage.debt = self.bucket.owing(before, units);
        usage.debt > before
    }

    fn take_back(&self, usage: &mut TokenBucketUsage, charged_at_ms: u64, units: u64) {
        let undrained = self.bucket.undrained(units, charged_at_ms, usage.now_ms);
        usage.debt = usage.debt.saturating_sub(undrained);
    }

    fn wait_ms(&self, usage: &TokenBucketUsage, cost: u64) -> u64 {
        usage.ahead_ms + self.bucket.wait_ms(usage.debt, cost)
    }

    fn reset_after_ms(&self, usage: &TokenBucketUsage) -> u64 {
        match usage.debt {
            0 => 0,
            debt => usage.ahead_ms + self.bucket.drain_ms(debt),
        }
    }

    fn save(&self, usage: TokenBucketUsage) -> TokenBucketState {
        TokenBucketState {
            debt: usage.debt,
            at_ms: usage.now_ms,
            parts_per_unit: self.bucket.parts_per_unit,
        }
    }
}
