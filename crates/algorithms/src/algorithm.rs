//! Any algorithm, chosen by a limit's parameters.

mod ask;
#[macro_use]
mod engine;
mod local;
mod state;

pub use ask::{Ask, Debits};
use engine::{Engine, Engines};
pub use state::State;

use crate::calendar_window::CalendarWindow;
use crate::check::Stored;
use crate::integers::TIME_MAX_MS;
use crate::lease::{LEASE_TTL_MAX_MS, LEASE_TTL_MIN_MS};
use crate::quota::Quota;
use crate::token_bucket::TokenBucket;
use crate::{
    Charged, Edges, Kind, Numbers, Outcome, ParameterError, Parameters, ReserveAsk, SlotId,
};

/// An algorithm with validated numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Algorithm {
    parameters: Parameters,
    engine: Engine,
}

/// A cost tested against one limit, and not charged yet.
///
/// A check charges all of its limits or none, so whether this one is [charged](Self::charge) or
/// [left](Self::leave) depends on the others.
pub struct Evaluation<'a>(Engines<'a>);

impl Algorithm {
    /// Validates parameters.
    ///
    /// # Errors
    /// The first invalid parameter, with the nearest valid value.
    pub fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
        parameters.belong_together()?;
        Ok(Self {
            parameters: *parameters,
            engine: Engine::new(parameters)?,
        })
    }

    /// The parameters that it was made from.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Which algorithm.
    pub const fn kind(&self) -> Kind {
        self.parameters.kind
    }

    /// The quota in units: the capacity C, or the N of a window.
    pub fn limit(&self) -> u64 {
        each!(Engine, &self.engine, quota => quota.limit())
    }

    /// The time in which a used-up quota refills completely, in milliseconds, rounded up.
    pub fn window_ms(&self) -> u64 {
        each!(Engine, &self.engine, quota => quota.window_ms())
    }

    /// The largest step back of the clock, in milliseconds, that the bucket waits out. After a
    /// larger one its stored times are moved back with the clock.
    pub fn horizon_ms(&self) -> u64 {
        each!(Engine, &self.engine, quota => quota.horizon_ms())
    }

    /// The longest ttl that a lease of this limit may have, in milliseconds: a quarter of the time
    /// in which a bucket fills, or of a window (or sub-window). `None` where units cannot be
    /// leased: in a queue and in a log, and where even the longest would be too short.
    pub fn lease_max_ms(&self) -> Option<u64> {
        let longest = each!(Engine, &self.engine, quota => quota.lease_max_ms());
        let bounded = longest.map(|ms| ms.min(LEASE_TTL_MAX_MS));
        bounded.filter(|ms| *ms >= LEASE_TTL_MIN_MS)
    }

    /// Credits units: they count as if they had not been used, except that leased units stay
    /// outstanding. Windows and logs credit the newest units first, because those would count
    /// longest. `ttl_ms` is the limit's lease time, 0 if it has none.
    #[must_use]
    pub fn credit(&self, state: &State, now_ms: u64, ttl_ms: u64, units: u64) -> State {
        let now_ms = now_ms.min(TIME_MAX_MS);
        self.engine.credit(state, None, (now_ms, ttl_ms), units).0
    }

    /// As [`Self::credit`], by a limit of this generation. If its responses state their cost, the
    /// bucket's reservations stay open: whatever else writes the state without them voids them.
    #[must_use]
    pub fn credit_stored(
        &self,
        stored: &Stored,
        generation: u64,
        (now_ms, ttl_ms): (u64, u64),
        units: u64,
        settles: bool,
    ) -> Stored {
        let ask = ReserveAsk {
            stored: stored.reservations.as_deref(),
            seen: stored.generation,
            ..ReserveAsk::default()
        };
        let times = (now_ms.min(TIME_MAX_MS), ttl_ms);
        let reserved = ask.stored.filter(|_| settles).map(|_| &ask);
        let (state, read) = self.engine.credit(&stored.state, reserved, times, units);
        let mut reservations = read.map(Box::new);
        match &mut reservations {
            Some(read) => read.generation = generation,
            None => reservations.clone_from(&stored.reservations),
        }
        Stored {
            generation,
            state,
            reservations,
        }
    }

    /// Refunds a charge after another limit denied the request: removes the part that still counts.
    /// Call it at most once for each charge. A bucket refunds what has not drained since, but no
    /// leased units; a window only what it still counts; a queue the part of the slot that is still
    /// to come. Nothing is refunded after the clock stepped back. So a bucket never has more left
    /// than without the charge.
    #[must_use]
    pub fn refund(&self, state: &State, now_ms: u64, charge: &Charged) -> State {
        let now_ms = now_ms.min(TIME_MAX_MS);
        if now_ms < charge.at_ms {
            return state.clone();
        }
        let changed = self.engine.refund(state, now_ms, charge);
        changed.unwrap_or_else(|| state.clone())
    }

    /// The same algorithm; a queue delays no request longer than `max_delay_ms`.
    #[must_use]
    pub fn within_delay(mut self, max_delay_ms: u64) -> Self {
        if let (Some(max_ms), Engine::LeakyBucket(queue)) =
            (&mut self.parameters.max_delay_ms, &mut self.engine)
        {
            *max_ms = max_delay_ms.min(*max_ms);
            queue.max_delay_ms = Some(*max_ms);
        }
        self
    }

    /// The same limit, able to owe more than its capacity. A GCRA becomes the equivalent token
    /// bucket, because an arrival time alone does not show how much is owed beyond the capacity.
    #[must_use]
    pub const fn owing_beyond(mut self) -> Self {
        if let Engine::Gcra(gcra) = self.engine {
            self.parameters.kind = Kind::TokenBucket;
            self.engine = Engine::TokenBucket(TokenBucket {
                bucket: gcra.bucket,
            });
        }
        self
    }

    /// The same algorithm; calendar windows have these edges.
    #[must_use]
    pub const fn with_edges(mut self, edges: Edges) -> Self {
        if let Engine::CalendarWindow(window) = &mut self.engine {
            window.edges = edges;
        }
        self
    }

    /// Whether a charged request gets a slot, which it may free.
    pub const fn gives_slots(&self) -> bool {
        self.parameters.max_delay_ms.is_some() || matches!(self.parameters.kind, Kind::Concurrency)
    }

    /// The same algorithm; a limit on requests in flight gives its slot to this id.
    #[must_use]
    pub const fn for_request(mut self, id: SlotId) -> Self {
        if let Engine::Concurrency(slots) = &mut self.engine {
            slots.id = id.bounded();
        }
        self
    }

    /// The edges of calendar windows: their starts, and the end of the last.
    pub const fn edges(&self) -> Option<&Edges> {
        match &self.engine {
            Engine::CalendarWindow(window) => Some(&window.edges),
            _ => None,
        }
    }

    /// Whether a store may decide at this time: the known edges of calendar windows cover it.
    pub fn covers(&self, now_ms: u64) -> bool {
        self.edges().is_none_or(|edges| edges.cover(now_ms))
    }

    /// The calendar window of a time.
    pub fn calendar_window(&self, now_ms: u64) -> Option<crate::CalendarWindow> {
        let edges = self.edges()?;
        Some(edges.at(now_ms, self.parameters.rate.period_ms))
    }

    /// How long a state is kept after it is unused, in milliseconds: by another caller's edges, a
    /// calendar window that ended here may still be the current one.
    pub const fn linger_ms(&self) -> u64 {
        match &self.engine {
            Engine::CalendarWindow(_) => CalendarWindow::linger_ms(),
            _ => 0,
        }
    }

    /// The numbers as the Lua twin takes them.
    pub fn numbers(&self) -> Numbers {
        each!(Engine, &self.engine, quota => quota.numbers())
    }

    /// Tests `cost` units at `now_ms`.
    pub fn evaluate<'a>(
        &'a self,
        state: Option<&'a State>,
        now_ms: u64,
        cost: u64,
    ) -> Evaluation<'a> {
        self.evaluate_with_debit(state, now_ms, cost, 0)
    }

    /// As [`Algorithm::evaluate`], after adding `debit` units: see [`Ask::debit`].
    pub fn evaluate_with_debit<'a>(
        &'a self,
        state: Option<&'a State>,
        now_ms: u64,
        cost: u64,
        debit: u64,
    ) -> Evaluation<'a> {
        let ask = Ask {
            cost,
            debit,
            ..Ask::default()
        };
        self.evaluate_ask(state, now_ms, ask)
    }

    /// Settles, frees, debits and tests the cost, in this order.
    pub fn evaluate_ask<'a>(
        &'a self,
        state: Option<&'a State>,
        now_ms: u64,
        ask: Ask<'a>,
    ) -> Evaluation<'a> {
        let now_ms = now_ms.min(TIME_MAX_MS);
        Evaluation(self.engine.evaluate(state, now_ms, ask))
    }
}

impl Evaluation<'_> {
    /// Whether the cost fits this limit.
    pub const fn fits(&self) -> bool {
        each!(Engines, &self.0, evaluated => evaluated.fits())
    }

    /// Charges the cost and grants the lease units wanted, if the cost fits.
    pub fn charge(self) -> Outcome {
        each!(Engines, self.0, evaluated => evaluated.charge())
    }

    /// Charges nothing: another limit denied the check, or it was a peek.
    pub fn leave(self) -> Outcome {
        each!(Engines, self.0, evaluated => evaluated.leave())
    }
}
