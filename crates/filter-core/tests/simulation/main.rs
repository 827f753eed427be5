//! The filter in a simulated world. Each seed is a different, reproducible run.

#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a simulation may fail loudly; only unit tests are exempt by themselves"
)]

#[cfg(target_arch = "wasm32")]
#[macro_use]
extern crate wasm_test;

mod accounting;
mod break_even;
mod calendar_windows;
mod claims;
mod debts;
mod decisions;
mod demand;
mod edits;
mod faults;
mod invariants;
mod leases;
mod limiter;
mod long_polls;
mod outage;
mod penalties;
mod queues;
mod reports;
mod request_bodies;
mod requests_in_flight;
mod settled_costs;
mod slots_left_behind;
mod slots_under_faults;
mod streams;
mod turn_batching;
mod world;
