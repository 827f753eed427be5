//! Everything the module asks of Envoy, as functions that cannot panic.
//!
//! Envoy and the module speak proxy-wasm's ABI 0.2.1, without the SDK for Rust.
//! The SDK unwraps statuses and UTF-8, so that one odd header byte traps the
//! worker's VM; it drops the answer of a call whose request has gone; its
//! replies have no response code details; and it exports every callback there
//! is, so that Envoy enters the VM twice as often for a request (bodies, logs)
//! and the module is 10 % larger. What is needed of the ABI is in here and in
//! `exports`, and so is all of the project's `unsafe`.

pub mod buffers;
pub mod callout;
pub mod clock;
pub mod environment;
pub mod headers;
pub mod log;
mod memory;
pub mod metrics;
pub mod properties;
mod raw;
pub mod shared_data;
pub mod shared_queue;
mod status;
pub mod stream;

pub use status::HostError;
