//! Traces of checks, if the limiter is built with the feature `otel`; otherwise these calls do
//! nothing.

#[cfg_attr(feature = "otel", path = "trace/otel.rs")]
#[cfg_attr(not(feature = "otel"), path = "trace/off.rs")]
mod built;

pub use built::{TraceError, Traces};
pub(crate) use built::{decided, of_check, of_store, set_request};
