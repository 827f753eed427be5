//! Whether a limit or a domain is paused.

use policy::{Pause, format_timestamp};

use crate::clock;

/// `paused`, `paused until 2026-12-01T00:00:00Z`; `None` if it does not hold any more.
pub fn pause_state(pause: Option<Pause>) -> Option<String> {
    let pause = pause.filter(|pause| pause.holds(clock::now_ms()))?;
    Some(match pause.until_ms {
        None => "paused".to_owned(),
        Some(ms) => format!("paused until {}", format_timestamp(ms)),
    })
}
