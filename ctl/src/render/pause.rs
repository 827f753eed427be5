//! Whether a limit or a domain is paused.

use policy::Pause;

use crate::clock;

/// `paused`, `paused until 2026-12-01T00:00:00Z`; `None` if it does not hold any more.
pub fn pause_state(pause: Option<Pause>) -> Option<String> {
    insight::pause_state(pause, clock::now_ms())
}
