//! The decision at the proxy, as a state machine without I/O.
//!
//! Requests, answers of the limiter and ticks go into a [`Worker`], one for each of Envoy's workers. It
//! returns [`Step`]s for the host: continue a request, deny one, make a call. The crate does no I/O and
//! reads no clock. The workers of a process share data through [`Host`], Envoy's shared data. So all of
//! it runs in a simulation (`tests/simulation/`) with several workers, faults, a clock that jumps, and
//! a seed that replays a run.
//!
//! The path of a request: `request::descriptor` extracts the entries that the policy needs, and
//! `request::decide` matches the limits (`active_policy`), takes leased units (`lease`), repeats
//! denials that still hold (`cache`) and charges the buckets of this proxy (`local_bucket`). For the
//! other limits it queues a check, which `call` sends in a batch at the end of the host's turn, unless
//! the circuit breaker is open (`outage`). `call::answer` or `outage` decides, `Worker::admit` in
//! `request::decide` carries out the decision, and `response` writes it for the client.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod active_policy;
mod cache;
mod call;
mod cost;
mod host;
mod lease;
mod local_bucket;
mod metrics;
mod outage;
mod report;
mod request;
mod response;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
mod worker;

pub use call::{CallId, MAX_MESSAGE};
pub use cost::{Body, BodyNeed, Metering, Response};
pub use filter_config::{
    Config, DenyBody, DenyConfig, Direction, Format, LimiterConfig, Prefixes, Source, Styles,
    is_sidecar,
};
pub use host::{CasMismatch, Clock, Host, Now, Version, Versioned, usable_token};
pub use metrics::Metrics;
pub use policy::{OnFailure, printable};
pub use request::{ByStream, NoProperty, Request};
pub use response::{HeaderList, LocalReply, ResponseHeaders};
pub use worker::{
    Call, CallAnswer, Callback, DEGRADED, Edits, Level, Refusal, RequestHeaders, ResponseNeeds,
    Step, StreamId, StreamStep, Worker, is_grpc,
};
