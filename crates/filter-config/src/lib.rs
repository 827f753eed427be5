//! The filter's configuration, as Envoy passes it.
//!
//! `docs/filter.md` is the manual. Unknown fields are errors, and everything
//! wrong with a configuration is said at once. A crate of its own, because a
//! configuration is read once: the module has it built for size alone.

#[cfg(all(test, target_arch = "wasm32"))]
#[macro_use]
extern crate wasm_test;

mod client;
mod descriptors;
mod read;
mod source;
#[cfg(test)]
mod tests;

use documents::{Choice, Form, Name, Problems, Report};
use policy::{OnFailure, Policy};

pub use client::{DenyBody, DenyConfig, Styles};
pub use source::{Format, IfSeveral, Prefixes, Source};

/// A configuration, known to be good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whose limits apply.
    pub domain: Name,
    /// Where checks go.
    pub limiter: LimiterConfig,
    /// Which listeners' requests are checked.
    pub direction: Direction,
    /// Where entries come from, the built-in ones included.
    pub sources: Vec<(Name, Source)>,
    /// What happens without a limiter, while no limit says so itself.
    pub failure_mode: OnFailure,
    /// How denials look.
    pub deny: DenyConfig,
    /// Which headers responses carry.
    pub styles: Styles,
    /// Share of requests that are checked, in percent.
    pub enabled_percent: u8,
    /// Requests held at once in queues, for each worker; beyond it they are denied.
    pub hold_max: usize,
    /// The longest body of a request that is read, in bytes, where that says what is reserved;
    /// `None`: none is read.
    pub request_body_max: Option<u64>,
    /// Buckets in the shared table.
    pub buckets: u32,
    /// Limits until the first snapshot arrives.
    pub limits: Option<Policy>,
}

/// How the limiter is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterConfig {
    /// The cluster.
    pub cluster: String,
    /// The host named in calls.
    pub authority: String,
    /// How long a call may take, in milliseconds.
    pub timeout_ms: u64,
    /// The environment variable that holds the token, if the limiter requires one.
    pub token_env: Option<String>,
    /// Whether checks go by a stream where the limiter opens one.
    pub stream: bool,
    /// Whether requests at the limiter's host and paths pass unlimited though no token shows that
    /// a filter sent them.
    pub trust_host: bool,
}

/// Which way checked requests go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Inbound on a sidecar, everything elsewhere.
    #[default]
    Auto,
    /// To this workload.
    Inbound,
    /// From this workload.
    Outbound,
    /// All.
    Both,
}

impl Choice for Direction {
    const CHOICES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("inbound", Self::Inbound),
        ("outbound", Self::Outbound),
        ("both", Self::Both),
    ];
}

impl Config {
    /// Reads a configuration as Envoy hands it over.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    // Compiled into who calls it, it would not be built as this crate is.
    #[inline(never)]
    pub fn from_json(bytes: &[u8]) -> Result<Self, Problems> {
        let mut report = Report::new(Form::File);
        let config = read::read(bytes, &mut report);
        report.finish(config)
    }
}
