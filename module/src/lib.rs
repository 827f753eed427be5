//! The filter as an Envoy dynamic module: passes requests to filter-core and carries out its steps.
//!
//! It decides what the wasm filter decides, by the same state machine, without a VM. `abi` has the
//! functions of Envoy's ABI and all `unsafe` code, `hooks` what they call, `worker` the state of one of
//! Envoy's workers, `limiter` the calls and streams, `http` requests and responses, `shared` what the
//! workers share, and `time` the clocks and ticks.
//!
//! Envoy calls the hooks of a request on its worker. A worker has nothing else: no timer, no call, no
//! end of a turn. So its state is behind a lock, which the main thread takes too: it makes the calls,
//! applies their answers, and ticks. A request that an answer decides continues on its own worker,
//! by an event of one paused request that serves all.

mod abi;
pub mod fault;
mod hooks;
mod http;
mod limiter;
mod metrics;
mod shared;
mod time;
mod worker;

pub use shared::SharedMap;
pub use time::{Due, LATE_US};
