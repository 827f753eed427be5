//! Replies of servers about themselves.

use std::time::Duration;

/// The reply to a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PingReply {
    /// The round trip on an open connection; if several servers answer, that of the last.
    pub latency: Duration,
    /// Servers that hold keys and answered: 1, or the masters of a Cluster.
    pub nodes: usize,
    /// `redis`, `valkey` or `memory`.
    pub server: String,
    /// Its version, if it is permitted to read it.
    pub version: Option<String>,
    /// `master`, `replica`, ..., if it is permitted to read it.
    pub role: Option<String>,
}

/// A script that checks and edits need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScriptStatus {
    /// The file it comes from, without its extension.
    pub name: &'static str,
    /// What EVALSHA calls it.
    pub sha1: String,
    /// Whether the server has it.
    pub loaded: bool,
}
