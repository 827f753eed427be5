//! The host calls that the SDK cannot make for this filter; it makes all others.
//!
//! Its functions panic on statuses they do not expect, which ends the VM of a worker, and hold a
//! status in an enum, where an unlisted number is undefined behaviour. That is harmless only for
//! calls to which Envoy answers what the SDK expects. Each call here says why it is here. All of
//! the filter's `unsafe` is here too.

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
