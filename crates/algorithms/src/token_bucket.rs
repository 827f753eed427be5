//! Token bucket.
//!
//! Source: J. Turner, "New directions in communications", IEEE Communications
//! Magazine 24(10), 1986; as a meter, RFC 2697.
//!
//! Guarantee: at most C + r·Δ units in any interval Δ.
//!
//! What is stored is the debt at the last admission, never "tokens left":
//! absent means unused, and an edit of the limit needs no migration.
//!
//! `lua/lib/token_bucket.lua` is the twin.

use crate::bucket::{Bucket, OWED_MAX};
use crate::lease::{Lease, LeaseRequest, Leases, Level, Settlement};
use crate::quota::{Debt, Loaded, Quota};
use crate::{Numbers, ParameterError, Parameters, State};

/// A token bucket's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenBucket {
    pub bucket: Bucket,
}

/// What is stored of a token or leaky bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucketState {
    /// Parts owed at `at_ms`.
    pub debt: u64,
    /// When the last admission was, in milliseconds.
    pub at_ms: u64,
    /// The parts of one unit when this was written.
    pub parts_per_unit: u64,
    /// Units leased out; `None`: none.
    pub leases: Option<Leases>,
    /// The parts of the debt that were charged beyond the capacity. They drain first, and lowering
    /// the capacity forgives none of them. Of a queue 0.
    pub over: u64,
}

/// A token bucket at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenBucketUsage {
    /// At the caller's time or the state's, whichever is later.
    pub level: Level,
    /// How much later than the caller's time that is.
    pub ahead_ms: u64,
    /// Parts of the debt that were charged beyond the capacity.
    over: u64,
    /// Whether the debt was cut to a capacity that was lowered.
    cut: bool,
}

impl TokenBucket {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        Ok(Self {
            bucket: Bucket::new(parameters)?,
        })
    }

    /// Reads a state that owes `debt` parts of this bucket, `over` of them beyond its capacity.
    fn read<'s>(
        &self,
        state: &TokenBucketState,
        (debt, over): (u64, u64),
        now_ms: u64,
        ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let ahead_ms = state.at_ms.saturating_sub(now_ms);
        let horizon_ms = self.bucket.horizon_over_ms(over);
        let horizon_ms = horizon_ms.max(debt / self.bucket.parts_per_ms);
        let shifted = (ahead_ms > horizon_ms).then(|| TokenBucketState {
            at_ms: now_ms,
            leases: state.leases.map(|leases| leases.moved_back(ahead_ms)),
            ..*state
        });
        let state = shifted.as_ref().unwrap_or(state);
        let clamped_ms = now_ms.max(state.at_ms);
        let elapsed_ms = clamped_ms - state.at_ms;
        let debt = self.bucket.drained(debt.min(OWED_MAX), elapsed_ms);
        let usage = TokenBucketUsage {
            level: Level::new(&self.bucket, debt, state.leases, clamped_ms, ttl_ms),
            ahead_ms: clamped_ms - now_ms,
            over: self.bucket.drained(over, elapsed_ms).min(debt),
            cut: false,
        };
        Loaded { usage, shifted }
    }

    /// As [`Quota::load`], for the level of a queue. Nothing of it is cut to a capacity that was
    /// lowered, because the requests that it holds start nevertheless.
    pub fn load_queue<'s>(
        &self,
        state: &TokenBucketState,
        now_ms: u64,
        ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        // A queue owes nothing beyond the capacity that it had.
        let state = TokenBucketState {
            debt: state.debt.saturating_sub(state.over),
            over: 0,
            ..*state
        };
        let level = self.bucket.adopt_over(state.debt, state.parts_per_unit);
        self.read(&state, (level, 0), now_ms, ttl_ms)
    }
}

impl Quota for TokenBucket {
    type State = TokenBucketState;
    type Usage<'s> = TokenBucketUsage;

    fn own(state: &State) -> Option<&TokenBucketState> {
        match state {
            State::TokenBucket(state) => Some(state),
            State::Queue(state) => Some(&state.level),
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
        self.bucket.numbers(Numbers::TOKEN_BUCKET)
    }

    fn lease_max_ms(&self) -> Option<u64> {
        Some(self.bucket.lease_max_ms())
    }

    fn load<'s>(
        &self,
        state: Option<&'s TokenBucketState>,
        now_ms: u64,
        ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let Some(state) = state else {
            let usage = TokenBucketUsage {
                level: Level::new(&self.bucket, 0, None, now_ms, ttl_ms),
                ahead_ms: 0,
                over: 0,
                cut: false,
            };
            return Loaded {
                usage,
                shifted: None,
            };
        };
        let over = self.bucket.adopt_over(state.over, state.parts_per_unit);
        let level = state.debt.saturating_sub(state.over);
        let owed = self.bucket.adopt(level, state.parts_per_unit) + over;
        let mut loaded = self.read(state, (owed, over), now_ms, ttl_ms);
        let unit = self.bucket.parts_per_unit;
        loaded.usage.cut = level > self.bucket.full() && state.parts_per_unit == unit;
        loaded
    }

    fn room(&self, usage: &TokenBucketUsage) -> Option<u64> {
        usage.level.room(&self.bucket)
    }

    fn charge(&self, usage: &mut TokenBucketUsage, units: u64) -> bool {
        usage.level.charge(&self.bucket, units)
    }

    fn overcharge(&self, usage: &mut TokenBucketUsage, units: u64) -> bool {
        usage.level.overcharge(&self.bucket, units, &mut usage.over)
    }

    fn debt(&self, usage: &TokenBucketUsage) -> Option<Debt> {
        Some(Debt {
            parts: usage.level.debt,
            per_unit: self.bucket.parts_per_unit,
            cut: usage.cut,
        })
    }

    fn forgive(&self, usage: &mut TokenBucketUsage, parts: u64) {
        usage.level.forgive(&self.bucket, parts);
    }

    fn settle(&self, usage: &mut TokenBucketUsage, settlements: &[Settlement]) -> bool {
        usage.level.settle(&self.bucket, settlements)
    }

    fn grant(&self, usage: &mut TokenBucketUsage, request: &LeaseRequest<'_>) -> Option<Lease> {
        usage.level.grant(&self.bucket, request)
    }

    fn leased(&self, usage: &TokenBucketUsage) -> u64 {
        usage.level.outstanding()
    }

    fn refund(&self, usage: &mut TokenBucketUsage, charged_at_ms: u64, units: u64) -> bool {
        usage.level.refund(&self.bucket, charged_at_ms, units)
    }

    fn credit(&self, usage: &mut TokenBucketUsage, units: u64) {
        usage.level.forgive(&self.bucket, self.bucket.owed(units));
    }

    fn wait_ms(&self, usage: &TokenBucketUsage, cost: u64) -> u64 {
        usage.ahead_ms + usage.level.wait_ms(&self.bucket, self.bucket.target(cost))
    }

    fn reset_after_ms(&self, usage: &TokenBucketUsage) -> u64 {
        match usage.level.debt {
            0 => 0,
            _ => usage.ahead_ms + usage.level.wait_ms(&self.bucket, 0),
        }
    }

    fn save(&self, usage: TokenBucketUsage) -> TokenBucketState {
        TokenBucketState {
            debt: usage.level.debt,
            at_ms: usage.level.now_ms,
            parts_per_unit: self.bucket.parts_per_unit,
            leases: usage.level.leases,
            over: usage.over.min(usage.level.debt),
        }
    }
}
