//! Pure rate-limit decisions: exact integers in, exact integers out.
//!
//! No I/O, no clock, no floating point and no dependency: time is an argument,
//! in whole milliseconds. Every algorithm has a twin in `lua/lib/` that gives
//! the same integers on every input.
//!
//! [`Algorithm::new`] validates a limit's numbers, [`Algorithm::evaluate`] tests
//! a cost against one bucket, and [`check::check`] tests one request against
//! several buckets at once.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod adaptive;
mod algorithm;
mod bucket;
mod bytes;
mod calendar_window;
pub mod check;
mod concurrency;
mod decision;
mod fixed_window;
mod gcra;
mod integers;
mod leaky_bucket;
mod lease;
mod parameters;
mod penalty;
mod quota;
mod reservations;
mod sliding_window;
mod sliding_window_buckets;
mod sliding_window_log;
mod token_bucket;
mod window;

pub use adaptive::{ADAPTIVE_LINGER_MS, Adaptive, AdaptiveError, AdaptiveState, Pace};
pub use algorithm::{Algorithm, BucketRequest, Debits, Evaluation, State};
pub use bucket::DEBT_MAX_CAPACITIES;
pub use bytes::{STATE_BYTES, STATE_BYTES_MAX};
pub use calendar_window::{
    CalendarUnit, CalendarWindow, CalendarWindowState, Edges, UTC, WINDOWS_KNOWN, WeekStart,
};
pub use concurrency::{ConcurrencyState, InFlightSlot, Missing, SlotId};
pub use decision::{Charged, Decision, LimitVerdict, Outcome, RetryAfter, Slot, SlotAct, SlotOp};
pub use fixed_window::FixedWindowState;
pub use gcra::GcraState;
pub use leaky_bucket::{QueueSlots, QueueState, Span, Turn};
pub use lease::{
    LEASE_TTL_MAX_MS, LEASE_TTL_MIN_MS, Lease, LeaseRequest, Leases, PROXY_MARKS, Settlement,
};
pub use parameters::{Align, Kind, ParameterError, Parameters, Rate};
pub use penalty::{Denials, Penalty, PenaltyStatus};
pub use quota::Numbers;
pub use reservations::{
    CostSettlement, RESERVATIONS_MAX, Reservation, Reservations, ReserveRequest, Reserved,
    SETTLE_WITHIN_MS,
};
pub use sliding_window::SlidingWindowState;
pub use sliding_window_buckets::SlidingWindowBucketsState;
pub use sliding_window_log::SlidingWindowLogState;
pub use token_bucket::TokenBucketState;
pub use window::Granted;
