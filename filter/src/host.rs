//! The host calls that the SDK cannot make for this filter; it makes all others.
//!
//! The SDK's functions panic on statuses they do not expect, which ends the VM of a worker, and hold a
//! status in an enum, where an unlisted number is undefined behaviour. That is harmless only for calls
//! that Envoy answers with statuses the SDK expects. Each call here has a comment that says why the
//! filter makes it itself. All of the filter's `unsafe` code is here too.

pub mod body;
pub mod clock;
pub mod environment;
pub mod grpc_stream;
pub mod headers;
mod memory;
pub mod property;
mod raw;
mod status;
pub mod stream;

pub use status::HostError;
