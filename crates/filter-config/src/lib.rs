//! The filter's configuration, as Envoy passes it.
//!
//! `docs/filter.md` is the manual. Unknown fields are errors, and all problems of a configuration are
//! reported together. It is a crate of its own because a configuration is read only once, so the module
//! builds this code for size alone.

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
use policy::{Compiled, OnFailure};

pub use client::{DenyBody, DenyConfig, Styles};
pub use source::{Format, IfSeveral, Prefixes, Source};

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The set of limits that applies.
    pub domain: Name,
    /// How checks reach the limiter.
    pub limiter: LimiterConfig,
    /// The direction of the requests that are checked.
    pub direction: Direction,
    /// The sources of entries, including the built-in ones.
    pub sources: Vec<(Name, Source)>,
    /// What happens without a limiter while no policy is loaded.
    pub failure_mode: OnFailure,
    /// The format of denials.
    pub deny: DenyConfig,
    /// The headers in responses.
    pub styles: Styles,
    /// Share of requests that are checked, in percent.
    pub enabled_percent: u8,
    /// Requests held at once in queues, for each worker; beyond it they are denied.
    pub hold_max: usize,
    /// The longest request body that is read for the number to reserve, in bytes; `None`: none is read.
    pub request_body_max: Option<u64>,
    /// Buckets in the shared table.
    pub buckets: u32,
    /// Limits until the first snapshot arrives.
    pub limits: Option<Compiled>,
}

/// How the limiter is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterConfig {
    /// The cluster.
    pub cluster: String,
    /// The `:authority` of calls.
    pub authority: String,
    /// How long a call may take, in milliseconds.
    pub timeout_ms: u64,
    /// The environment variable that holds the token, if the limiter requires one.
    pub token_env: Option<String>,
    /// Whether checks go by a stream where the limiter opens one.
    pub stream: bool,
    /// Whether requests to the limiter's host and paths pass unlimited without a token that proves that
    /// a filter sent them.
    pub trust_host: bool,
}

/// The direction of checked requests.
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
    /// Reads the configuration that Envoy passes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_json(bytes: &[u8]) -> Result<Self, Problems> {
        let mut report = Report::new(Form::File);
        let config = read::read(bytes, &mut report);
        report.finish(config)
    }
}
