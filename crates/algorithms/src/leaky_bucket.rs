//! Leaky bucket, as a meter or as a queue.
//!
//! Source: J. Turner, "New directions in communications", 1986 (meter);
//! A. Tanenbaum, "Computer Networks", traffic shaping (queue).
//!
//! Guarantee of the meter: a token bucket's decisions, always. Of the queue:
//! admitted requests start at `now + delay`, in the order of the checks, cost/r
//! apart, and none is held longer than `max_delay`. The capacity counts the
//! arriving request.

use crate::bucket::Bucket;
use crate::integers::PRODUCT_MAX;
use crate::lease::{Lease, LeaseAsk, Settlement};
use crate::quota::{Loaded, Quota};
use crate::token_bucket::{TokenBucket, TokenBucketState, TokenBucketUsage};
use crate::{Numbers, ParameterError, Parameters, State, kinds};

/// A leaky bucket's numbers. The level is a token bucket's debt, and is stored as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeakyBucket {
    meter: TokenBucket,
    /// Of a queue; a meter has none.
    max_delay_ms: Option<u64>,
}

impl LeakyBucket {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        if parameters
            .max_delay_ms
            .is_some_and(|delay| delay > PRODUCT_MAX)
        {
            return Err(ParameterError::DelayTooLong {
                largest_ms: PRODUCT_MAX,
            });
        }
        let meter = TokenBucket::new(parameters)?;
        Ok(Self {
            meter,
            max_delay_ms: parameters.max_delay_ms,
        })
    }

    const fn bucket(&self) -> &Bucket {
        &self.meter.bucket
    }

    fn delay_of(&self, usage: &TokenBucketUsage) -> u64 {
        self.bucket().drain_ms(usage.level.debt)
    }

    /// How long the level takes to drain beyond the longest delay.
    fn overdue_ms(&self, usage: &TokenBucketUsage) -> u64 {
        self.max_delay_ms
            .map_or(0, |max_ms| self.delay_of(usage).saturating_sub(max_ms))
    }
}

impl Quota for LeakyBucket {
    type State = TokenBucketState;
    type Usage<'s> = TokenBucketUsage;

    fn own(state: &State) -> Option<&TokenBucketState> {
        TokenBucket::own(state)
    }

    fn wrap(state: TokenBucketState) -> State {
        TokenBucket::wrap(state)
    }

    fn limit(&self) -> u64 {
        self.meter.limit()
    }

    fn window_ms(&self) -> u64 {
        self.meter.window_ms()
    }

    fn horizon_ms(&self) -> u64 {
        self.meter.horizon_ms()
    }

    fn numbers(&self) -> Numbers {
        match self.max_delay_ms {
            None => self.meter.numbers(),
            Some(z) => Numbers {
                z,
                ..self.bucket().numbers(kinds::LEAKY_BUCKET_QUEUE)
            },
        }
    }

    /// A queue has given its units turns, which nobody can take in advance.
    fn lease_max_ms(&self) -> Option<u64> {
        let meter = self.max_delay_ms.is_none();
        meter.then(|| self.bucket().lease_max_ms())
    }

    fn load<'s>(
        &self,
        state: Option<&'s TokenBucketState>,
        now_ms: u64,
        ttl_ms: u64,
    ) -> Loaded<'s, Self> {
        let Loaded { usage, shifted } = self.meter.load(state, now_ms, ttl_ms);
        Loaded { usage, shifted }
    }

    /// None while the next request would be held too long.
    fn room(&self, usage: &TokenBucketUsage) -> Option<u64> {
        self.meter
            .room(usage)
            .filter(|_| self.overdue_ms(usage) == 0)
    }

    fn charge(&self, usage: &mut TokenBucketUsage, units: u64) -> bool {
        self.meter.charge(usage, units)
    }

    fn settle(&self, usage: &mut TokenBucketUsage, settlements: &[Settlement]) -> bool {
        self.meter.settle(usage, settlements)
    }

    fn grant(&self, usage: &mut TokenBucketUsage, ask: &LeaseAsk<'_>) -> Option<Lease> {
        match self.max_delay_ms {
            None => self.meter.grant(usage, ask),
            Some(_) => None,
        }
    }

    fn leased(&self, usage: &TokenBucketUsage) -> u64 {
        self.meter.leased(usage)
    }

    fn credit(&self, usage: &mut TokenBucketUsage, units: u64) {
        self.meter.credit(usage, units);
    }

    fn take_back(&self, usage: &mut TokenBucketUsage, charged_at_ms: u64, units: u64) -> bool {
        // Of a queue nothing: others have been given the turns after it.
        self.max_delay_ms.is_none() && self.meter.take_back(usage, charged_at_ms, units)
    }

    fn wait_ms(&self, usage: &TokenBucketUsage, cost: u64) -> u64 {
        let (bucket, fits) = (self.bucket(), self.bucket().target(cost));
        let in_time = self.max_delay_ms.map_or(fits, |max_ms| {
            fits.min(max_ms.saturating_mul(bucket.parts_per_ms))
        });
        usage.ahead_ms + usage.level.wait_ms(bucket, in_time)
    }

    fn reset_after_ms(&self, usage: &TokenBucketUsage) -> u64 {
        self.meter.reset_after_ms(usage)
    }

    /// Counted on the bucket's clock: after a small step back of the caller's, spacing holds.
    fn delay_ms(&self, usage: &TokenBucketUsage) -> u64 {
        self.max_delay_ms.map_or(0, |_| self.delay_of(usage))
    }

    fn save(&self, usage: TokenBucketUsage) -> TokenBucketState {
        self.meter.save(usage)
    }
}
