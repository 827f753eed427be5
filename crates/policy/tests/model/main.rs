//! The model, by policies that are read from limits files.

#![expect(
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test may fail loudly"
)]

#[cfg(target_arch = "wasm32")]
#[macro_use]
extern crate wasm_test;

mod changes;
mod compiled;
mod descriptors;
mod exemptions;
mod pricing;
mod snapshot;
