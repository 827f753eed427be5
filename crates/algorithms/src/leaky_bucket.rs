//! Leaky bucket, as a meter or as a queue.
//!
//! Source: J. Turner, "New directions in communications", 1986 (meter);
//! A. Tanenbaum, "Computer Networks", traffic shaping (queue).
//!
//! Guarantee of the meter: a token bucket's decisions, always. Of the queue:
//! admitted requests start at `now + delay`, cost/r apart, in the order of the
//! checks except that a slot freed by its request goes to the next one that fits
//! into it (`slots.rs`), and none is held longer than `max_delay`. The capacity
//! counts the arriving request.

use crate::bucket::Bucket;
use crate::integers::PRODUCT_MAX;
use crate::lease::{Lease, LeaseAsk, Settlement};
use crate::quota::{Debt, Loaded, Quota};
use crate::slots::{QueueSlots, Slots};
use crate::token_bucket::{TokenBucket, TokenBucketState, TokenBucketUsage};
use crate::{Numbers, ParameterError, Parameters, Slot, SlotAct, SlotOp, State, kinds};

/// A leaky bucket's numbers. The level is a token bucket's debt, and is stored as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeakyBucket {
    meter: TokenBucket,
    /// The longest delay of a queue; a meter has none.
    pub max_delay_ms: Option<u64>,
}

/// The state of a queue. A meter's state is a token bucket's, and each continues the other's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// The level: where the last slot ends.
    pub level: TokenBucketState,
    /// Its slots.
    pub slots: QueueSlots,
}

/// A leaky bucket at one instant.
#[derive(Clone, Debug)]
pub(crate) struct LeakyUsage {
    meter: TokenBucketUsage,
    /// A queue's freed time, and how its slots are named.
    slots: Option<Slots>,
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

    /// A queue's longest delay, and its slots; `None` for a meter.
    fn queue<'u>(&self, usage: &'u LeakyUsage) -> Option<(u64, &'u Slots)> {
        Some((self.max_delay_ms?, usage.slots.as_ref()?))
    }

    /// How long the level takes to drain beyond the longest delay.
    fn overdue_ms(&self, usage: &LeakyUsage) -> u64 {
        let level_ms = self.bucket().drain_ms(usage.meter.level.debt);
        self.max_delay_ms
            .map_or(0, |max_ms| level_ms.saturating_sub(max_ms))
    }

    /// The slots of a queue whose level was read as `meter`.
    fn slots(&self, state: Option<&State>, meter: &Loaded<'_, TokenBucket>) -> Slots {
        let (bucket, usage) = (self.bucket(), &meter.usage);
        let stored = match state {
            Some(State::Queue(stored)) => Some(stored),
            _ => None,
        };
        let leased = usage.level.outstanding() > 0;
        let named = usage.ahead_ms == 0 && !leased;
        if let Some(QueueState { level, slots }) = stored.filter(|_| !leased)
            && meter.shifted.is_none()
            && slots.parts_per_ms == bucket.parts_per_ms
            && level.parts_per_unit == bucket.parts_per_unit
            && level.debt <= bucket.full()
        {
            if usage.ahead_ms > 0 {
                return Slots::ahead(slots, usage.level.now_ms);
            }
            let elapsed_ms = usage.level.now_ms - level.at_ms;
            let passed = elapsed_ms.saturating_mul(bucket.parts_per_ms);
            return Slots::continued(slots, passed);
        }
        Slots::new_epoch(
            stored.map(|stored| &stored.slots),
            usage.level.now_ms,
            named,
        )
    }
}

impl Quota for LeakyBucket {
    type State = State;
    type Usage<'s> = LeakyUsage;

    fn own(state: &State) -> Option<&State> {
        TokenBucket::own(state).map(|_| state)
    }

    fn wrap(state: State) -> State {
        state
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

    /// A queue's units are slots in time, which cannot be granted in advance.
    fn lease_max_ms(&self) -> Option<u64> {
        let meter = self.max_delay_ms.is_none();
        meter.then(|| self.bucket().lease_max_ms())
    }

    fn load<'s>(&self, state: Option<&'s State>, now_ms: u64, ttl_ms: u64) -> Loaded<'s, Self> {
        let level = state.and_then(TokenBucket::own);
        let meter = match level.filter(|_| self.max_delay_ms.is_some()) {
            Some(level) => self.meter.load_queue(level, now_ms, ttl_ms),
            None => self.meter.load(level, now_ms, ttl_ms),
        };
        let slots = self.max_delay_ms.map(|_| self.slots(state, &meter));
        let shifted = meter.shifted.map(|level| match &slots {
            Some(slots) if level.leases.is_none() => {
                let slots = QueueSlots {
                    parts_per_ms: 0,
                    ..slots.clone().stored(self.bucket())
                };
                State::Queue(QueueState { level, slots })
            }
            _ => TokenBucket::wrap(level),
        });
        let usage = LeakyUsage {
            meter: meter.usage,
            slots,
        };
        Loaded { usage, shifted }
    }

    /// In a queue, the larger of what fits behind the last slot and into freed time. Nothing fits
    /// behind it while the next request would be held too long.
    fn room(&self, usage: &LeakyUsage) -> Option<u64> {
        let queue = self.queue(usage);
        let freed = queue.and_then(|(max_ms, slots)| slots.room(self.bucket(), max_ms));
        let behind = self
            .meter
            .room(&usage.meter)
            .filter(|_| self.overdue_ms(usage) == 0);
        behind.max(freed)
    }

    fn charge(&self, usage: &mut LeakyUsage, units: u64) -> bool {
        if let Some(slots) = usage.slots.as_mut().filter(|_| units > 0) {
            slots.will_be_stored();
        }
        self.meter.charge(&mut usage.meter, units)
    }

    fn overcharge(&self, usage: &mut LeakyUsage, units: u64) -> bool {
        match self.max_delay_ms {
            None => self.meter.overcharge(&mut usage.meter, units),
            Some(_) => self.charge(usage, units),
        }
    }

    fn debt(&self, usage: &LeakyUsage) -> Option<Debt> {
        self.meter.debt(&usage.meter)
    }

    fn forgive(&self, usage: &mut LeakyUsage, parts: u64) {
        self.meter.forgive(&mut usage.meter, parts);
    }

    fn settle(&self, usage: &mut LeakyUsage, settlements: &[Settlement]) -> bool {
        self.meter.settle(&mut usage.meter, settlements)
    }

    fn grant(&self, usage: &mut LeakyUsage, ask: &LeaseAsk<'_>) -> Option<Lease> {
        match self.max_delay_ms {
            None => self.meter.grant(&mut usage.meter, ask),
            Some(_) => None,
        }
    }

    fn leased(&self, usage: &LeakyUsage) -> u64 {
        self.meter.leased(&usage.meter)
    }

    fn credit(&self, usage: &mut LeakyUsage, units: u64) {
        self.edited(usage);
        self.meter.credit(&mut usage.meter, units);
    }

    fn refund(&self, usage: &mut LeakyUsage, charged_at_ms: u64, units: u64) -> bool {
        // A queue refunds by freeing the slot by its name.
        let meter = self.max_delay_ms.is_none();
        meter && (self.meter).refund(&mut usage.meter, charged_at_ms, units)
    }

    fn wait_ms(&self, usage: &LeakyUsage, cost: u64) -> u64 {
        let (bucket, fits) = (self.bucket(), self.bucket().target(cost));
        let in_time = self.max_delay_ms.map_or(fits, |max_ms| {
            fits.min(max_ms.saturating_mul(bucket.parts_per_ms))
        });
        let behind_ms = usage.meter.level.wait_ms(bucket, in_time);
        let queue = self.queue(usage);
        let freed_ms = queue.and_then(|(max_ms, slots)| slots.wait_ms(bucket, cost, max_ms));
        usage.meter.ahead_ms + freed_ms.map_or(behind_ms, |freed_ms| freed_ms.min(behind_ms))
    }

    fn reset_after_ms(&self, usage: &LeakyUsage) -> u64 {
        self.meter.reset_after_ms(&usage.meter)
    }

    /// Counts by the bucket's clock, so that spacing holds after a small step back of the caller's.
    fn delay_ms(&self, usage: &LeakyUsage, cost: u64) -> u64 {
        let bucket = self.bucket();
        self.queue(usage).map_or(0, |(max_ms, slots)| {
            let start = slots.start(bucket, cost, max_ms);
            bucket.drain_ms(start.unwrap_or(usage.meter.level.debt))
        })
    }

    fn take(&self, usage: &mut LeakyUsage, cost: u64) -> Option<Slot> {
        let (bucket, behind) = (self.bucket(), usage.meter.level.debt);
        let Some((max_ms, slots)) = self.max_delay_ms.zip(usage.slots.as_mut()) else {
            self.charge(usage, cost);
            return None;
        };
        let freed = slots.take(bucket, cost, max_ms);
        let now_ms = usage.meter.level.now_ms;
        let slot = slots.name(bucket, now_ms, freed.unwrap_or(behind), cost);
        if freed.is_none() {
            self.charge(usage, cost);
        }
        slot
    }

    fn free(&self, usage: &mut LeakyUsage, ops: &[SlotOp]) -> bool {
        let level = &mut usage.meter.level;
        let Some(slots) = &mut usage.slots else {
            return false;
        };
        let mut any = false;
        for op in ops {
            // A start in a queue is neither renewed nor entered again.
            let SlotAct::Free(units) = op.act else {
                continue;
            };
            let freed = slots.free(self.bucket(), level.now_ms, level.debt, (op.slot, units));
            if let Some(debt) = freed {
                level.debt = debt;
                any = true;
            }
        }
        any
    }

    fn refund_slot(&self, usage: &mut LeakyUsage, slot: Slot, units: u64) -> bool {
        let level = &mut usage.meter.level;
        let Some(slots) = &mut usage.slots else {
            return false;
        };
        let debt = slots.refund(self.bucket(), level.now_ms, level.debt, (slot, units));
        level.debt = debt.unwrap_or(level.debt);
        debt.is_some()
    }

    fn edited(&self, usage: &mut LeakyUsage) {
        if let Some(slots) = &mut usage.slots {
            slots.forget(usage.meter.level.now_ms);
        }
    }

    fn save(&self, usage: LeakyUsage) -> State {
        let level = self.meter.save(usage.meter);
        match usage.slots {
            Some(slots) if level.leases.is_none() => State::Queue(QueueState {
                level,
                slots: slots.stored(self.bucket()),
            }),
            _ => TokenBucket::wrap(level),
        }
    }
}
