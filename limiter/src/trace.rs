//! Traces of checks, if the limiter is built with the feature `otel`; otherwise every call returns its work
//! unchanged.

#[cfg(feature = "otel")]
mod otel;
#[cfg(feature = "otel")]
use otel as built;

pub use built::{TraceError, Traces};
pub(crate) use built::{decided, of_check, of_store, set_request};

#[cfg(not(feature = "otel"))]
mod built {
    use std::convert::Infallible;

    use hyper::HeaderMap;
    use policy::Name;

    use crate::batch::Decisions;

    /// Never constructed: tracing that is not built in cannot fail.
    pub type TraceError = Infallible;

    /// A stand-in for the exporter.
    #[derive(Debug)]
    pub struct Traces;

    impl Traces {
        /// Starts nothing.
        ///
        /// # Errors
        /// None.
        pub fn start() -> Result<Self, TraceError> {
            Ok(Self)
        }

        /// Ends nothing.
        pub fn end(self) {}
    }

    pub(crate) fn of_check<F: Future>(_: &HeaderMap, work: F) -> F {
        work
    }

    pub(crate) fn of_store<F: Future>(work: F) -> F {
        work
    }

    pub(crate) fn set_request(_: &Name, _: usize) {}

    pub(crate) fn decided(_: &Decisions) {}
}
