//! Traces of checks, where the limiter is built with the feature `otel`; else the calls are nothing.

#[cfg_attr(feature = "otel", path = "trace/otel.rs")]
#[cfg_attr(not(feature = "otel"), path = "trace/off.rs")]
mod built;

pub use built::{TraceError, Traces};
pub(crate) use built::{decided, of_check, of_store, set_request};
