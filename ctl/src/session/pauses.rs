//! Warnings that a limit, or the whole domain, is paused.

use policy::Policy;

use super::Session;
use crate::render::pause_state;

impl Session<'_> {
    /// Warns if the whole domain is paused, or one of the limits that are named.
    pub fn warn_of_pause(&self, policy: &Policy, limits: &[&str]) {
        if let Some(paused) = pause_state(policy.paused) {
            self.printer.warn(format_args!(
                "domain {} is {paused}: none of its limits is in force; `rlctl resume` ends that",
                policy.domain
            ));
        }
        let named = limits.iter().filter_map(|name| policy.limit(name));
        for (limit, paused) in named.filter_map(|limit| Some((limit, pause_state(limit.paused)?))) {
            let name = &limit.name;
            self.printer.warn(format_args!(
                "{name} is {paused}: it is not in force; `rlctl resume --limit {name}` ends that"
            ));
        }
    }
}
