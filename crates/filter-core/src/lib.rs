//! The decision at the proxy, as a state machine.
//!
//! Requests, answers of the limiter and the passage of time go into a
//! [`Worker`], one for each of Envoy's; [`Step`]s come out: this request goes
//! on, that one is answered, make this call. Nothing in here does I/O or reads
//! a clock. What the workers of a process share goes through [`Host`], Envoy's
//! shared data, so the whole of it runs against a simulated one
//! (`tests/simulation/`): several workers, lost and late calls, a clock that
//! jumps, and a seed that replays a run.
//!
//! The way of a request: `descriptor` extracts what the policy needs,
//! `worker::decide` matches it, takes units that were granted in advance
//! (`lease`), looks up denials (`table`), takes from buckets that live here
//! (`local`) and leaves the rest to a check, which travels with others
//! (`batcher`) at the end of the host's turn (`worker::departure`), unless the limiter is known to be
//! away (`breaker`).
//! `worker::answer` or `worker::failure` decide, `client` says so.

mod active_policy;
mod cache;
mod call;
mod codec;
mod host;
mod identity;
mod lease;
mod local_bucket;
mod log_line;
mod metrics;
mod outage;
mod random;
mod report;
mod request;
mod response;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
mod time;
mod worker;

pub use call::CallId;
pub use filter_config::{
    Config, DenyBody, DenyConfig, Direction, Format, LimiterConfig, Prefixes, Source, Styles,
};
pub use host::{CasMismatch, Host, Version, Versioned};
pub use metrics::Metrics;
pub use policy::printable;
pub use request::{NoProperty, Request};
pub use response::{HeaderList, LocalReply, ResponseHeaders};
pub use time::Now;
pub use worker::{Call, CallAnswer, Edits, Level, Refusal, Step, StreamId, Worker};
