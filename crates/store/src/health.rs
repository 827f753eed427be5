//! The state of a server, for diagnosis.

use std::{collections::BTreeMap, time::Duration};

use crate::ScriptStatus;

/// One server's health, as far as the user's rights show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Where it is, without a password.
    pub address: String,
    /// The fields of `INFO`; `None` where that is not permitted.
    pub info: Option<BTreeMap<String, String>>,
    /// Settings that `INFO` does not show, by name; `None` where `CONFIG GET` is not permitted.
    pub settings: Option<BTreeMap<String, String>>,
    /// Its clock, in milliseconds since the epoch.
    pub now_ms: u64,
    /// The round trip of reading the clock: `now_ms` was the time at some instant of it.
    pub round_trip: Duration,
    /// The scripts, and whether it has them.
    pub scripts: Vec<ScriptStatus>,
    /// What the user may do; `None` where even that cannot be asked.
    pub rights: Option<Rights>,
}

/// What the user may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Commands that the limiter or `rlctl` needs and the user may not run.
    pub lacking: Vec<String>,
    /// Rights that the user has and does not need.
    pub spare: Vec<String>,
}
