//! Everything the module asks of Envoy, as functions that cannot panic.
//!
//! The SDK's own host calls unwrap statuses and UTF-8, so one odd header byte
//! would trap the worker's VM; and they have no way to give a reply its
//! response code details. This layer maps every status to a [`HostError`] and
//! deals in bytes. All of the project's `unsafe` is in here.

pub mod buffers;
pub mod callout;
pub mod clock;
pub mod environment;
pub mod headers;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod properties;
mod raw;
pub mod shared_data;
mod status;
pub mod stream;

pub use status::HostError;
