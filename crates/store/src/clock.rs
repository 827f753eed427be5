//! The wall clock, for what no server's clock decides.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since the epoch; 0 on a machine that is set before it.
pub fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
