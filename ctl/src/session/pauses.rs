//! Saying that limits are not in force: whoever looks at one must not overlook it.

use policy::{Pause, Policy, format_timestamp};

use super::Session;
use crate::clock;

/// `paused`, `paused until 2026-12-01T00:00:00Z`; `None` if it does not hold any more.
pub fn describe(pause: Option<Pause>) -> Option<String> {
    let pause = pause.filter(|pause| pause.holds(clock::now_ms()))?;
    Some(match pause.until_ms {
        None => "paused".to_owned(),
        Some(ms) => format!("paused until {}", format_timestamp(ms)),
    })
}

impl Session<'_> {
    /// Warns if the whole domain is paused, or one of the limits that are named.
    pub fn warn_of_pause(&self, policy: &Policy, limits: &[&str]) {
        if let Some(paused) = describe(policy.paused) {
            self.printer.warn(format_args!(
                "domain {} is {paused}: none of its limits is in force; `rlctl resume` ends that",
                policy.domain
            ));
        }
        let named = limits.iter().filter_map(|name| policy.limit(name));
        for (limit, paused) in named.filter_map(|limit| Some((limit, describe(limit.paused)?))) {
            let name = &limit.name;
            self.printer.warn(format_args!(
                "{name} is {paused}: it is not in force; `rlctl resume --limit {name}` ends that"
            ));
        }
    }
}
