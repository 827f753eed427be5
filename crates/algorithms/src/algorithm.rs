//! Any algorithm, chosen by a limit's parameters: what a check asks of one, and what it stores.
//!
//! `lua/lib/algorithms.lua` is the twin.

use crate::{
    Charged, Decision, Edges, Kind, Numbers, Outcome, ParameterError, Parameters, Reservations,
    ReserveRequest, Slot, SlotId, SlotOp,
    adaptive::ADAPTIVE_LINGER_MS,
    calendar_window::{CalendarFixedWindow, CalendarWindow, CalendarWindowState},
    check::Stored,
    concurrency::{Concurrency, ConcurrencyState},
    decision::Evaluated,
    fixed_window::{FixedWindow, FixedWindowState},
    gcra::{Gcra, GcraState},
    integers::TIME_MAX_MS,
    leaky_bucket::{LeakyBucket, QueueState},
    lease::{LEASE_TTL_MAX_MS, LEASE_TTL_MIN_MS, LeaseRequest},
    quota::{Loaded, Quota},
    sliding_window::{SlidingWindow, SlidingWindowState},
    sliding_window_buckets::{SlidingWindowBuckets, SlidingWindowBucketsState},
    sliding_window_log::{SlidingWindowLog, SlidingWindowLogState},
    token_bucket::{TokenBucket, TokenBucketState},
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

/// How [`BucketRequest::debit`] is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Debits {
    /// Units admitted without the limiter: added up to the limit, never beyond it.
    #[default]
    Admitted,
    /// Units reported after use: added whole, beyond the limit up to 2^51 parts of a bucket or 2^51
    /// units (of a log fewer than a million). A queue has nothing left then.
    Reported,
    /// Units refunded, as by [`Algorithm::credit`](crate::Algorithm::credit). Only for checks
    /// that charge nothing else.
    Refunded,
}

/// A check of one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketRequest<'a> {
    /// Units that the request costs; 0 charges nothing.
    pub cost: u64,
    /// Units that were used, or given back, without a decision. They are applied first, and stored
    /// whether the evaluation charges or leaves.
    pub debit: u64,
    /// How the debit is applied.
    pub debits: Debits,
    /// The label of the calendar window in which they were admitted; `None`: the current one.
    pub debit_serial: Option<u64>,
    /// A query for leased units, and settlements of earlier ones.
    pub lease: LeaseRequest<'a>,
    /// Operations on slots. Applied first, whether the evaluation charges or leaves.
    pub free: &'a [SlotOp],
    /// For a limit whose responses state their cost: reservations and settlements.
    pub reserve: Option<&'a ReserveRequest>,
    /// For such a limit: what is stored.
    pub stored: Option<&'a Stored>,
    /// Whether another generation of the limit wrote the state.
    pub edited: bool,
}

/// What is stored of a bucket. Absent means a completely unused quota, and so does the state of
/// another algorithm: an edit of `algorithm` starts the bucket afresh.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum State {
    /// Of a token bucket or a leaky bucket: each continues the other's state.
    TokenBucket(TokenBucketState),
    /// Of a queue.
    Queue(QueueState),
    /// Of a GCRA.
    Gcra(GcraState),
    /// Of a fixed window.
    FixedWindow(FixedWindowState),
    /// Of a fixed window of the calendar.
    CalendarWindow(CalendarWindowState),
    /// Of a sliding window log.
    SlidingWindowLog(SlidingWindowLogState),
    /// Of a sliding window of sub-windows.
    SlidingWindowBuckets(SlidingWindowBucketsState),
    /// Of a sliding window of two counts.
    SlidingWindow(SlidingWindowState),
    /// Of a limit on requests in flight.
    Concurrency(ConcurrencyState),
}

/// Declares the algorithms once: their numbers, their evaluations, and how to reach either. The
/// last one has no kind of its own: a fixed window uses it if its rate names a calendar unit.
macro_rules! engines {
    ($($named:ident),+; $calendar:ident) => {
        impl Engine {
            fn new(parameters: &Parameters) -> Result<Self, ParameterError> {
                if parameters.rate.calendar.is_some() {
                    return $calendar::new(parameters).map(Self::$calendar);
                }
                if parameters.max_delay_ms.is_some() {
                    return LeakyBucket::new(parameters).map(Self::LeakyBucket);
                }
                Ok(match parameters.kind {
                    $(Kind::$named => Self::$named($named::new(parameters)?)),+
                })
            }
        }

        engines!($($named),+, $calendar);
    };
    ($($kind:ident),+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        enum Engine {
            $($kind($kind)),+
        }

        enum Engines<'a> {
            $($kind(Evaluated<'a, $kind>)),+
        }

        impl Engine {
            fn refund(&self, state: &State, now_ms: u64, charge: &Charged) -> Option<State> {
                match self {
                    $(Self::$kind(quota) => refund(quota, state, now_ms, charge)),+
                }
            }

            /// The state after a credit, and the reservations that belong to it.
            fn credit(
                &self,
                state: &State,
                reserved: Option<&Stored>,
                (now_ms, ttl_ms): (u64, u64),
                units: u64,
            ) -> (State, Option<Reservations>) {
                match self {
                    $(Self::$kind(quota) => {
                        let mut loaded = quota.load($kind::own(state), now_ms, ttl_ms);
                        let read = reserved.map(|_| Reservations::read(quota, &loaded, reserved));
                        quota.credit(&mut loaded.usage, units);
                        ($kind::wrap(quota.save(loaded.usage)), read)
                    }),+
                }
            }

            fn evaluate<'a>(
                &'a self,
                state: Option<&'a State>,
                now_ms: u64,
                request: BucketRequest<'a>,
            ) -> Engines<'a> {
                match self {
                    $(Self::$kind(quota) => {
                        Engines::$kind(Evaluated::new(quota, state, now_ms, request))
                    }),+
                }
            }
        }

        /// The same expression for each algorithm.
        macro_rules! each {
            ($enum:ident, $value:expr, $inner:pat => $body:expr) => {
                match $value {
                    $($enum::$kind($inner) => $body),+
                }
            };
        }
    };
}

engines!(
    TokenBucket,
    Gcra,
    LeakyBucket,
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowBuckets,
    SlidingWindow,
    Concurrency;
    CalendarFixedWindow
);

/// The state without a charge; `None`: unchanged.
fn refund<Q: Quota>(quota: &Q, state: &State, now_ms: u64, charge: &Charged) -> Option<State> {
    let own = Q::own(state)?;
    let Loaded { mut usage, shifted } = quota.load(Some(own), now_ms, charge.lease_ttl_ms);
    let taken = shifted.is_none()
        && match charge.slot {
            Some(slot) => quota.refund_slot(&mut usage, slot, charge.units),
            None => quota.refund(&mut usage, charge.at_ms, charge.units),
        };
    taken.then(|| Q::wrap(quota.save(usage)))
}

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

    /// The quota in units: the capacity C, or the N of a window; of an adaptive limit the most slots.
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
        let times = (now_ms.min(TIME_MAX_MS), ttl_ms);
        let reserved = (settles && stored.reservations.is_some()).then_some(stored);
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
        if let Engine::CalendarFixedWindow(window) = &mut self.engine {
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
            Engine::CalendarFixedWindow(window) => Some(&window.edges),
            _ => None,
        }
    }

    /// Whether a store may decide at this time: the known edges of calendar windows cover it.
    pub fn covers(&self, now_ms: u64) -> bool {
        self.edges().is_none_or(|edges| edges.cover(now_ms))
    }

    /// The calendar window of a time.
    pub fn calendar_window(&self, now_ms: u64) -> Option<CalendarWindow> {
        let edges = self.edges()?;
        Some(edges.at(now_ms, self.parameters.rate.period_ms))
    }

    /// How long a state is kept after it is unused, in milliseconds: by another caller's edges, a
    /// calendar window that ended here may still be the current one; and an adaptive limit is found slowly.
    pub const fn linger_ms(&self) -> u64 {
        match &self.engine {
            Engine::Concurrency(_) if self.parameters.adaptive.is_some() => ADAPTIVE_LINGER_MS,
            Engine::CalendarFixedWindow(_) => CalendarFixedWindow::linger_ms(),
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

    /// As [`Algorithm::evaluate`], after adding `debit` units: see [`BucketRequest::debit`].
    pub fn evaluate_with_debit<'a>(
        &'a self,
        state: Option<&'a State>,
        now_ms: u64,
        cost: u64,
        debit: u64,
    ) -> Evaluation<'a> {
        let request = BucketRequest {
            cost,
            debit,
            ..BucketRequest::default()
        };
        self.evaluate_request(state, now_ms, request)
    }

    /// Settles, frees, debits and tests the cost, in this order.
    pub fn evaluate_request<'a>(
        &'a self,
        state: Option<&'a State>,
        now_ms: u64,
        request: BucketRequest<'a>,
    ) -> Evaluation<'a> {
        let now_ms = now_ms.min(TIME_MAX_MS);
        Evaluation(self.engine.evaluate(state, now_ms, request))
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

impl State {
    /// What remains of a bucket after a reset: leased units stay outstanding until they expire, in
    /// a window until it ends, unless they are settled. `None`: nothing.
    #[must_use]
    pub fn reset(&self) -> Option<Self> {
        match self {
            Self::TokenBucket(state) => {
                let leases = state.leases?;
                Some(Self::TokenBucket(TokenBucketState {
                    debt: 0,
                    over: 0,
                    leases: Some(leases),
                    ..*state
                }))
            }
            Self::Gcra(state) => {
                let leases = state.leases?;
                Some(Self::Gcra(GcraState {
                    tat_ms: state.at_ms,
                    tat_parts: 0,
                    over: 0,
                    leases: Some(leases),
                    ..*state
                }))
            }
            Self::FixedWindow(state) => {
                let granted = state.granted?.after_reset()?;
                Some(Self::FixedWindow(FixedWindowState {
                    used: granted.current,
                    granted: Some(granted),
                    ..*state
                }))
            }
            Self::CalendarWindow(state) => {
                let granted = state.granted?.after_reset()?;
                Some(Self::CalendarWindow(CalendarWindowState {
                    used: granted.current,
                    granted: Some(granted),
                    ..*state
                }))
            }
            Self::SlidingWindow(state) => {
                let granted = state.granted?.after_reset()?;
                Some(Self::SlidingWindow(SlidingWindowState {
                    current: granted.current,
                    previous: 0,
                    granted: Some(granted),
                    ..*state
                }))
            }
            Self::SlidingWindowBuckets(state) => state.reset().map(Self::SlidingWindowBuckets),
            Self::SlidingWindowLog(_) | Self::Queue(_) | Self::Concurrency(_) => None,
        }
    }
}

/// The same expression for whichever algorithm it is; `None` for those whose state has no
/// [fixed size](State::to_bytes): a proxy does not decide these by itself.
macro_rules! of_fixed_size {
    ($algorithm:expr, $quota:ident => $body:expr) => {
        Some(match &$algorithm.engine {
            Engine::TokenBucket($quota) => $body,
            Engine::Gcra($quota) => $body,
            Engine::LeakyBucket($quota) => $body,
            Engine::FixedWindow($quota) => $body,
            Engine::CalendarFixedWindow($quota) => $body,
            Engine::SlidingWindow($quota) => $body,
            Engine::SlidingWindowLog(_)
            | Engine::SlidingWindowBuckets(_)
            | Engine::Concurrency(_) => return None,
        })
    };
}

/// Buckets that a proxy decides locally: one at a time, with a state of fixed size and without
/// leases. The decisions are those of [`Algorithm::evaluate`], [`Algorithm::evaluate_with_debit`] and
/// [`Algorithm::refund`]. A program that makes no other decisions contains no code for logs,
/// sub-windows and leases.
impl Algorithm {
    /// Tests `cost` units at `now_ms`, after adding `debit` units as far as they fit, and takes them if they fit
    /// and `charge` says so: the decision, the slot that a queue gave, and the state to store. `None` where the
    /// state has no fixed size.
    pub fn decide_local(
        &self,
        state: Option<&State>,
        now_ms: u64,
        (cost, debit): (u64, u64),
        charge: bool,
    ) -> Option<(Decision, Option<Slot>, Option<State>)> {
        let now_ms = now_ms.min(TIME_MAX_MS);
        of_fixed_size!(self, quota => {
            Evaluated::local(quota, state, now_ms, cost, debit).decide_local(charge)
        })
    }

    /// As [`Algorithm::refund`]. `None` where the state has no fixed size.
    #[must_use]
    pub fn refund_local(&self, state: &State, now_ms: u64, charge: &Charged) -> Option<State> {
        let now_ms = now_ms.min(TIME_MAX_MS);
        if now_ms < charge.at_ms {
            return Some(state.clone());
        }
        let changed = of_fixed_size!(self, quota => refund(quota, state, now_ms, charge))?;
        Some(changed.unwrap_or_else(|| state.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Parameters};

    fn algorithm(kind: Kind) -> Algorithm {
        Algorithm::new(&Parameters {
            sub_windows: (kind == Kind::SlidingWindowBuckets).then_some(10),
            max_delay_ms: (kind == Kind::LeakyBucket).then_some(500),
            ..Parameters::new(kind, 10, 1000)
        })
        .unwrap()
    }

    fn as_local(outcome: Outcome) -> (Decision, Option<Slot>, Option<State>) {
        let verdict = outcome.verdict;
        (verdict.decision, verdict.slot, outcome.write)
    }

    #[test]
    fn a_proxy_decides_as_a_limiter_does() {
        for kind in [
            Kind::TokenBucket,
            Kind::Gcra,
            Kind::LeakyBucket,
            Kind::FixedWindow,
            Kind::SlidingWindow,
        ] {
            let algorithm = algorithm(kind);
            let mut state: Option<State> = None;
            for step in 0..400_u64 {
                // Times that step back now and then, costs from 0 to more than fits.
                let now_ms = 5_000 + step * 37 - (step % 7) * 50;
                let (cost, debit) = (step % 12, step % 5);
                let old = state.as_ref();
                let asked = algorithm.evaluate_with_debit(old, now_ms, cost, debit);
                let local = algorithm.decide_local(old, now_ms, (cost, debit), false);
                assert_eq!(local, Some(as_local(asked.leave())), "{kind:?} {step}");
                let charged = algorithm.evaluate(old, now_ms, cost).charge();
                let local = algorithm.decide_local(old, now_ms, (cost, 0), true);
                assert_eq!(local, Some(as_local(charged.clone())), "{kind:?} {step}");
                let units = charged.verdict.charged;
                state = charged.write.or(state);
                if let (Some(now), 0) = (&state, step % 3) {
                    let charge = Charged {
                        at_ms: now_ms,
                        units,
                        lease_ttl_ms: 0,
                        slot: charged.verdict.slot,
                    };
                    let back = algorithm.refund(now, now_ms + 20, &charge);
                    let local = algorithm.refund_local(now, now_ms + 20, &charge);
                    assert_eq!(local.as_ref(), Some(&back), "{kind:?} {step}");
                    state = local;
                }
            }
        }
    }

    #[test]
    fn states_without_a_fixed_size_are_not_decided_locally() {
        for kind in [Kind::SlidingWindowLog, Kind::SlidingWindowBuckets] {
            for charge in [true, false] {
                assert_eq!(algorithm(kind).decide_local(None, 1, (1, 0), charge), None);
            }
        }
    }
}
