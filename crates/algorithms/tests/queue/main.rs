//! Slots of a queue that are released.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop with the reason"
)]

#[cfg(target_arch = "wasm32")]
#[macro_use]
extern crate wasm_test;

mod bucket;
mod delays;
mod edits;
mod intervals;
mod model;
mod names;
mod turns;
