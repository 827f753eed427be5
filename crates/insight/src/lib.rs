//! What `rlctl` and the limiter's page show operators: problems, changes of edits, rates of limits
//! and buckets. This crate reads what the store returns and does no I/O of its own.

pub mod bucket;
pub mod changes;
mod duration;
mod finding;
pub mod findings;
pub mod history;
pub mod limit;
mod live_entries;
pub mod penalty;
mod rate;
mod truncated_list;
mod window;

use std::fmt::Display;

use policy::{Pause, format_timestamp};
use store::ProxyStatus;

pub use duration::{age, ceil_seconds, duration};
pub use finding::{Finding, Severity};
pub use live_entries::{Altered, LiveEntries};
pub use rate::Rate;
pub use truncated_list::truncated_list;
pub use window::Window;

/// `1 limit`, `2 limits`.
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// `paused`, `paused until 2026-12-01T00:00:00Z`; `None` if it has ended.
pub fn pause_state(pause: Option<Pause>, now_ms: u64) -> Option<String> {
    let pause = pause.filter(|pause| pause.holds(now_ms))?;
    Some(match pause.until_ms {
        None => "paused".to_owned(),
        Some(ms) => format!("paused until {}", format_timestamp(ms)),
    })
}

/// The display name of a limiter: host and port.
pub fn limiter_name(id: &str) -> &str {
    id.rsplit_once('/').map_or(id, |(name, _)| name)
}

/// The display name of a proxy: its node, or the start of its id.
pub fn proxy_name(proxy: &ProxyStatus) -> String {
    match &proxy.node {
        Some(node) => node.clone(),
        None => proxy.id.chars().take(12).collect(),
    }
}
