//! Pure rate-limit decisions: exact integers in, exact integers out.
//!
//! No I/O, no clock, no floating point and no dependency: time is an argument,
//! in whole milliseconds. Every algorithm has a twin in `lua/lib/` that gives
//! the same integers on every input.

mod decision;
mod parameters;

pub use decision::{Decision, RetryAfter};
pub use parameters::{Align, Kind, Parameters, Rate};
