//! Leaky bucket, as a meter or as a queue; token bucket and GCRA as a queue.
//!
//! Source: J. Turner, "New directions in communications", 1986 (meter);
//! A. Tanenbaum, "Computer Networks", traffic shaping (queue).
//!
//! Guarantee of the meter: a token bucket's decisions, always. Of the queue:
//! admitted requests start at `now + delay`, cost/r apart, in the order of the
//! checks except that a slot freed by its request goes to the next one that fits
//! into it, and none is held longer than `max_delay`. The capacity counts the
//! arriving request.
//!
//! Of a token bucket or a GCRA the capacity C passes at once, and only what comes
//! beyond it is held: until the bucket would admit it, so that at most C + r·Δ
//! units start in any interval Δ. A request of one unit starts at
//! max(now, T − (C − 1)/r) with T the end of the last slot, as in nginx's
//! `limit_req` with `delay=C−1`.
//!
//! `lua/lib/leaky_bucket.lua` is the twin.

use crate::{
    Kind, Numbers, ParameterError, Parameters, Slot, SlotAct, SlotOp, State,
    bucket::Bucket,
    integers::PRODUCT_MAX,
    lease::{Lease, LeaseRequest, Settlement},
    quota::{Debt, Loaded, Quota},
    token_bucket::{TokenBucket, TokenBucketState, TokenBucketUsage},
};

/// Bound: intervals of a queue whose freed slots are stored. Beyond it, the latest are lost.
const FREE_MAX: usize = 8;
/// Bound: freed slots of a queue that were given again. Beyond it, some names free nothing any
/// more.
///
/// With more, the earliest two are joined.
const TURNS_MAX: usize = 256;
/// No name has a later turn.
const TURN_MAX: u64 = 1 << 50;

/// A leaky bucket's numbers. The level is a token bucket's debt, and is stored as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeakyBucket {
    meter: TokenBucket,
    /// The longest delay of a queue; a meter has none.
    pub max_delay_ms: Option<u64>,
    /// Whether the capacity of a queue passes at once, and only its longest delay bounds what it holds.
    passes_bursts: bool,
}

/// How the slots of a queue become delays.
#[derive(Clone, Copy, Debug)]
struct Spacing {
    bucket: Bucket,
    max_delay_ms: u64,
    passes_bursts: bool,
}

/// The state of a queue. A meter's state is a token bucket's, and each continues the other's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueState {
    /// The level: where the last slot ends.
    pub level: TokenBucketState,
    /// Its slots.
    pub slots: QueueSlots,
}

/// A stretch of a queue's time, in parts after the bucket's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// Its first part.
    pub start: u64,
    /// The part after its last; more than the first.
    pub end: u64,
}

/// Time that was freed: names of this turn and of earlier ones free nothing in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Turn {
    /// The time.
    pub span: Span,
    /// The latest turn in which it was freed.
    pub turn: u64,
}

/// The state of a queue beside its level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueSlots {
    /// The parts that drained each millisecond when this was written; 0: no slot was named since.
    pub parts_per_ms: u64,
    /// The epoch of the names that it accepts: those given since then, without an edit, a reset or
    /// a step back of the clock in between. In milliseconds, never 0 and never the same twice.
    pub since_ms: u64,
    /// Freed time that no request has got since, in order, with a gap between any two intervals.
    pub free: Vec<Span>,
    /// Time that was freed at least once and has not passed, in order.
    pub turns: Vec<Turn>,
}

/// The slots of a queue at one instant: the time that each admitted request has to itself, and its
/// release.
///
/// The level of a queue is the end of its last slot, and a request starts where its slot does, or its
/// lead before that ([`Spacing::lead`]). A slot that is freed before it starts is given
/// to the next request that fits into it, so that starts stay `cost/r` apart; time that has passed
/// is lost, and a slot whose start has passed frees nothing, because its request may have started.
/// A request frees a slot by its name, once: a request that gets the same time later has another
/// *turn* of it.
#[derive(Clone, Debug)]
struct Slots {
    since_ms: u64,
    free: Vec<Span>,
    /// Freed time that counts again once the caller's clock has reached the bucket's, unless
    /// something is stored before.
    later: Vec<Span>,
    turns: Vec<Turn>,
    /// Whether they continue the stored ones.
    intact: bool,
    /// Whether slots can be named: not while the bucket is ahead of the caller's clock, nor while
    /// units of it are leased.
    named: bool,
}

/// A leaky bucket at one instant.
#[derive(Clone, Debug)]
pub(crate) struct LeakyUsage {
    meter: TokenBucketUsage,
    /// A queue's freed time, and how its slots are named.
    slots: Option<Slots>,
}

impl Spacing {
    /// How long before its slot a request starts, in parts: the sooner, the more of the capacity it leaves.
    const fn lead(&self, cost: u64) -> u64 {
        if self.passes_bursts {
            self.bucket.capacity.saturating_sub(cost) * self.bucket.parts_per_unit
        } else {
            0
        }
    }

    /// How long a request of this cost is held, whose slot begins so many parts after the bucket's time.
    const fn delay_ms(&self, start: u64, cost: u64) -> u64 {
        self.bucket.drain_ms(start.saturating_sub(self.lead(cost)))
    }

    /// What drains within the longest delay, in parts.
    const fn held_max(&self) -> u64 {
        self.max_delay_ms.saturating_mul(self.bucket.parts_per_ms)
    }

    /// The largest level of a queue that passes bursts.
    const fn level_max(&self) -> u64 {
        self.bucket.full().saturating_add(self.held_max())
    }

    /// The largest cost whose slot may begin there; `None`: not even 0.
    fn room(&self, start: u64) -> Option<u64> {
        let bucket = &self.bucket;
        let end = if self.passes_bursts {
            self.level_max()
        } else {
            (start <= self.held_max()).then_some(bucket.full())?
        };
        let units = end.checked_sub(start)? / bucket.parts_per_unit;
        Some(units.min(bucket.capacity))
    }

    /// The largest level at which a cost within the capacity fits.
    fn target(&self, cost: u64) -> u64 {
        let (fits, held_max) = (self.bucket.target(cost), self.held_max());
        if self.passes_bursts {
            fits.saturating_add(held_max)
        } else {
            fits.min(held_max)
        }
    }
}

impl LeakyBucket {
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        let meter = TokenBucket::new(parameters)?;
        let passes_bursts = parameters.kind != Kind::LeakyBucket;
        let bucket = &meter.bucket;
        // The level of a queue that passes bursts grows by what drains within the longest delay.
        let largest_ms = if passes_bursts {
            (PRODUCT_MAX - bucket.full()) / bucket.parts_per_ms
        } else {
            PRODUCT_MAX
        };
        if parameters.max_delay_ms.is_some_and(|ms| ms > largest_ms) {
            return Err(ParameterError::DelayTooLong { largest_ms });
        }
        Ok(Self {
            meter,
            max_delay_ms: parameters.max_delay_ms,
            passes_bursts,
        })
    }

    const fn bucket(&self) -> &Bucket {
        &self.meter.bucket
    }

    /// How a queue's slots become delays; `None` for a meter.
    fn spacing(&self) -> Option<Spacing> {
        Some(Spacing {
            bucket: self.meter.bucket,
            max_delay_ms: self.max_delay_ms?,
            passes_bursts: self.passes_bursts,
        })
    }

    /// That, and a queue's slots; `None` for a meter.
    fn queue<'u>(&self, usage: &'u LeakyUsage) -> Option<(Spacing, &'u Slots)> {
        Some((self.spacing()?, usage.slots.as_ref()?))
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
            && (self.passes_bursts || level.debt <= bucket.full())
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
        let held_ms = self.max_delay_ms.filter(|_| self.passes_bursts);
        self.meter.horizon_ms() + held_ms.unwrap_or(0)
    }

    fn numbers(&self) -> Numbers {
        match self.max_delay_ms {
            None => self.meter.numbers(),
            Some(z) => Numbers {
                z,
                ..self.bucket().numbers(if self.passes_bursts {
                    Numbers::TOKEN_BUCKET_QUEUE
                } else {
                    Numbers::LEAKY_BUCKET_QUEUE
                })
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
        let Some((spacing, slots)) = self.queue(usage) else {
            return self.meter.room(&usage.meter);
        };
        spacing
            .room(usage.meter.level.debt)
            .max(slots.room(&spacing))
    }

    fn charge(&self, usage: &mut LeakyUsage, units: u64) -> bool {
        if let Some(slots) = usage.slots.as_mut().filter(|_| units > 0) {
            slots.will_be_stored();
        }
        match self.spacing().filter(|spacing| spacing.passes_bursts) {
            None => self.meter.charge(&mut usage.meter, units),
            Some(spacing) => {
                let level = &mut usage.meter.level;
                let owing = level.debt.saturating_add(spacing.bucket.owed(units));
                let before = level.debt;
                // Not at most the capacity, or debits would vanish while anything is held.
                level.debt = before.max(owing.min(spacing.level_max()));
                level.debt > before
            }
        }
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

    fn grant(&self, usage: &mut LeakyUsage, request: &LeaseRequest<'_>) -> Option<Lease> {
        match self.max_delay_ms {
            None => self.meter.grant(&mut usage.meter, request),
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
        let Some((spacing, slots)) = self.queue(usage) else {
            return self.meter.wait_ms(&usage.meter, cost);
        };
        let level = &usage.meter.level;
        let behind_ms = level.wait_ms(self.bucket(), spacing.target(cost));
        let freed_ms = slots.wait_ms(&spacing, cost);
        usage.meter.ahead_ms + freed_ms.map_or(behind_ms, |freed_ms| freed_ms.min(behind_ms))
    }

    fn reset_after_ms(&self, usage: &LeakyUsage) -> u64 {
        self.meter.reset_after_ms(&usage.meter)
    }

    /// Counts by the bucket's clock, so that spacing holds after a small step back of the caller's.
    fn delay_ms(&self, usage: &LeakyUsage, cost: u64) -> u64 {
        self.queue(usage).map_or(0, |(spacing, slots)| {
            let start = slots.start(&spacing, cost);
            spacing.delay_ms(start.unwrap_or(usage.meter.level.debt), cost)
        })
    }

    fn take(&self, usage: &mut LeakyUsage, cost: u64) -> Option<Slot> {
        let bucket = self.bucket();
        let Some((spacing, slots)) = self.spacing().zip(usage.slots.as_mut()) else {
            self.charge(usage, cost);
            return None;
        };
        let level = &mut usage.meter.level;
        let freed = slots.take(&spacing, cost);
        let slot = slots.name(bucket, level.now_ms, freed.unwrap_or(level.debt), cost);
        if freed.is_none() {
            slots.will_be_stored();
            // Not `charge`, which stops at the capacity: it fits behind the last slot.
            level.debt += cost * bucket.parts_per_unit;
        }
        slot
    }

    fn free(&self, usage: &mut LeakyUsage, ops: &[SlotOp]) -> bool {
        let level = &mut usage.meter.level;
        let Some((spacing, slots)) = self.spacing().zip(usage.slots.as_mut()) else {
            return false;
        };
        let mut any = false;
        for op in ops {
            // A start in a queue is neither renewed nor entered again.
            let SlotAct::Free(units) = op.act else {
                continue;
            };
            let freed = slots.free(&spacing, level.now_ms, level.debt, (op.slot, units));
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

impl Span {
    /// The rest of it after so many parts have passed.
    fn after(self, passed: u64) -> Option<Self> {
        let (start, end) = (
            self.start.saturating_sub(passed),
            self.end.saturating_sub(passed),
        );
        (end > start).then_some(Self { start, end })
    }

    const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

impl Slots {
    /// The slots that were stored so many parts ago.
    pub fn continued(stored: &QueueSlots, passed: u64) -> Self {
        let free = stored.free.iter().filter_map(|span| span.after(passed));
        let turns = stored.turns.iter().filter_map(|of| {
            let span = of.span.after(passed)?;
            Some(Turn { span, ..*of })
        });
        Self {
            since_ms: stored.since_ms,
            free: free.collect(),
            later: Vec::new(),
            turns: turns.collect(),
            intact: true,
            named: true,
        }
    }

    /// No freed time, and a new epoch of names.
    pub fn new_epoch(stored: Option<&QueueSlots>, now_ms: u64, named: bool) -> Self {
        let accepted = stored.map_or(0, |stored| {
            stored.since_ms + u64::from(stored.parts_per_ms > 0)
        });
        Self {
            since_ms: accepted.max(now_ms).max(1),
            free: Vec::new(),
            later: Vec::new(),
            turns: Vec::new(),
            intact: false,
            named,
        }
    }

    /// As [`Slots::new_epoch`], for a bucket that is ahead of the caller's clock.
    pub fn ahead(stored: &QueueSlots, now_ms: u64) -> Self {
        Self {
            later: stored.free.clone(),
            ..Self::new_epoch(Some(stored), now_ms, false)
        }
    }

    /// Called when the level will be stored, and the slots with it.
    pub fn will_be_stored(&mut self) {
        self.later.clear();
    }

    /// The state to store.
    pub fn stored(self, bucket: &Bucket) -> QueueSlots {
        QueueSlots {
            parts_per_ms: if self.named { bucket.parts_per_ms } else { 0 },
            since_ms: self.since_ms,
            free: self.free,
            turns: self.turns,
        }
    }

    /// Called when the limit's numbers or its level changed: freed time is lost, and a new epoch of
    /// names begins.
    pub fn forget(&mut self, now_ms: u64) {
        self.later.clear();
        if self.intact {
            self.since_ms = (self.since_ms + 1).max(now_ms);
            self.free.clear();
            self.turns.clear();
            self.intact = false;
        }
    }

    /// The largest cost that fits into freed time and is not held too long there.
    pub fn room(&self, spacing: &Spacing) -> Option<u64> {
        let fitting = self.free.iter().filter_map(|span| {
            let whole = (span.end - span.start) / spacing.bucket.parts_per_unit;
            Some(spacing.room(span.start)?.min(whole))
        });
        fitting.max()
    }

    /// The earliest freed time that holds a cost whole and not too long.
    fn holding(&self, spacing: &Spacing, cost: u64) -> Option<usize> {
        let length = cost.checked_mul(spacing.bucket.parts_per_unit)?;
        self.free.iter().position(|span| {
            let holds = span.end - span.start >= length;
            holds && spacing.delay_ms(span.start, cost) <= spacing.max_delay_ms
        })
    }

    /// Where the slot of a cost that fits would begin; `None`: after the last one.
    pub fn start(&self, spacing: &Spacing, cost: u64) -> Option<u64> {
        let at = self.holding(spacing, cost)?;
        self.free.get(at).map(|span| span.start)
    }

    /// Takes freed time for a cost; returns where it starts. `None`: none holds the cost.
    pub fn take(&mut self, spacing: &Spacing, cost: u64) -> Option<u64> {
        let at = self.holding(spacing, cost)?;
        let span = self.free.get_mut(at)?;
        let start = span.start;
        span.start += cost * spacing.bucket.parts_per_unit;
        if span.start >= span.end {
            self.free.remove(at);
        }
        Some(start)
    }

    /// The name of the slot that starts so many parts after the bucket's time.
    pub fn name(&self, bucket: &Bucket, now_ms: u64, start: u64, cost: u64) -> Option<Slot> {
        let end = start + cost * bucket.parts_per_unit;
        let span = Span { start, end };
        let before = self.turns.iter().filter(|of| of.span.overlaps(span));
        let turn = before.map(|of| of.turn + 1).max().unwrap_or(0);
        self.named.then_some(Slot {
            start_ms: now_ms + start / bucket.parts_per_ms,
            parts: start % bucket.parts_per_ms,
            since_ms: self.since_ms,
            turn,
        })
    }

    /// From the bucket's time until freed time would hold a cost that does not fit now.
    pub fn wait_ms(&self, spacing: &Spacing, cost: u64) -> Option<u64> {
        let length = cost.checked_mul(spacing.bucket.parts_per_unit)?;
        let waits = self.free.iter().chain(&self.later).filter_map(|span| {
            let delay_ms = spacing.delay_ms(span.start, cost);
            let wait_ms = delay_ms.saturating_sub(spacing.max_delay_ms);
            let passed = wait_ms.saturating_mul(spacing.bucket.parts_per_ms);
            let start = span.start.max(passed);
            (span.end.saturating_sub(start) >= length).then_some(wait_ms)
        });
        waits.min()
    }

    /// Frees a slot of a bucket with this level; returns the level afterwards. `None`: the name
    /// frees nothing, or its start has passed.
    pub fn free(
        &mut self,
        spacing: &Spacing,
        now_ms: u64,
        level: u64,
        (slot, units): (Slot, u64),
    ) -> Option<u64> {
        let bucket = &spacing.bucket;
        let span = span_of(bucket, now_ms, level, (&slot, units))?;
        if span.start <= spacing.lead(units) {
            // Its request has started: another start in its time would be one above the rate.
            return None;
        }
        self.refund(bucket, now_ms, level, (slot, units))
    }

    /// As [`Self::free`], for a request that was denied elsewhere and never starts: also frees the
    /// rest of a slot whose start has passed.
    pub fn refund(
        &mut self,
        bucket: &Bucket,
        now_ms: u64,
        level: u64,
        (slot, units): (Slot, u64),
    ) -> Option<u64> {
        let span = span_of(bucket, now_ms, level, (&slot, units))?;
        let given_again = |of: &Turn| of.turn >= slot.turn && of.span.overlaps(span);
        if !self.named
            || slot.since_ms != self.since_ms
            || slot.turn >= TURN_MAX
            || span.end > level
            || self.turns.iter().any(given_again)
        {
            return None;
        }
        self.record(span, slot.turn);
        insert(&mut self.free, span);
        let last = self.free.pop_if(|last| last.end >= level);
        self.free.truncate(FREE_MAX);
        Some(last.map_or(level, |last| last.start))
    }

    /// Records that a name of this turn freed some time.
    fn record(&mut self, span: Span, turn: u64) {
        let mut turns = Vec::with_capacity(self.turns.len() + 2);
        for of in self.turns.drain(..) {
            let Span { start, end } = of.span;
            let before = Span {
                start,
                end: end.min(span.start),
            };
            let after = Span {
                start: start.max(span.end),
                end,
            };
            let rest = [before, after].into_iter();
            let rest = rest.filter(|rest| rest.start < rest.end);
            turns.extend(rest.map(|span| Turn { span, ..of }));
        }
        let at = turns.partition_point(|of| of.span.end <= span.start);
        turns.insert(at, Turn { span, turn });
        turns.dedup_by(|next, of| {
            let joins = next.span.start == of.span.end && next.turn == of.turn;
            if joins {
                of.span.end = next.span.end;
            }
            joins
        });
        while let [first, second, ..] = *turns.as_slice()
            && turns.len() > TURNS_MAX
        {
            turns.remove(0);
            if let Some(joined) = turns.first_mut() {
                joined.span.start = first.span.start;
                joined.turn = first.turn.max(second.turn);
            }
        }
        self.turns = turns;
    }
}

/// The part of a slot that has not passed; `None`: nothing.
fn span_of(bucket: &Bucket, now_ms: u64, level: u64, (slot, units): (&Slot, u64)) -> Option<Span> {
    if units > bucket.capacity || slot.parts >= bucket.parts_per_ms {
        return None;
    }
    let length = units * bucket.parts_per_unit;
    let (start, end) = if slot.start_ms >= now_ms {
        let ahead_ms = slot.start_ms - now_ms;
        if ahead_ms > bucket.full().max(level) / bucket.parts_per_ms {
            return None;
        }
        let start = ahead_ms * bucket.parts_per_ms + slot.parts;
        (start, start + length)
    } else {
        (
            0,
            bucket.drained(length + slot.parts, now_ms - slot.start_ms),
        )
    };
    (end > start).then_some(Span { start, end })
}

/// Adds a span to others, joined with those that it touches.
fn insert(spans: &mut Vec<Span>, mut span: Span) {
    spans.retain(|other| {
        let touches = other.start <= span.end && span.start <= other.end;
        if touches {
            span.start = span.start.min(other.start);
            span.end = span.end.max(other.end);
        }
        !touches
    });
    let at = spans.partition_point(|other| other.start < span.start);
    spans.insert(at, span);
}
