//! What the algorithms decide: examples, properties, models of them, and random histories. All are one program,
//! because each program of tests is linked of its own.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop with the reason"
)]

#[cfg(target_arch = "wasm32")]
#[macro_use]
extern crate wasm_test;

mod calendar_windows;
mod debts;
mod leases;
mod models;
mod parameters;
mod properties;
mod queue;
mod refund;
mod reservations;
mod support;
