//! The limiter service: checks over HTTP, decided in Redis, Valkey or memory.

mod admin;
mod api;
mod as_ratelimit;
mod aside;
mod batch;
mod domains;
mod flags;
mod fleet;
mod limits_files;
mod log;
mod metrics;
mod publish;
mod rls_config;
mod run;
mod serve;
mod telemetry;
mod tls;
mod tokens;
mod trace;
mod watched_files;
mod xds;

use std::time::Duration;

pub use as_ratelimit::AsRatelimit;
pub use flags::{Flags, LogFormat, Settings};
pub use limits_files::LimitsError;
pub use log::start as start_log;
pub use run::{Portless, RunError, run};
pub use serve::{ListenError, Listeners};
pub use tls::{TlsError, TlsFiles};
pub use tokens::TokenError;
pub use trace::{TraceError, Traces};
pub use xds::XdsServer;

/// How often files are looked at for changes.
const FILE_POLL: Duration = Duration::from_secs(1);
