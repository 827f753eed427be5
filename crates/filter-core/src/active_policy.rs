//! The domain's limits in this proxy: which are in force, and how edits reach it.
//!
//! One worker of the process polls the limiter (`poll`, at the times that `schedule` gives) and stores
//! the snapshot in shared data (`snapshot`), from which the others load it (`poller`).

mod active;
mod poll;
mod poller;
mod schedule;
mod snapshot;
mod supplied_entries;

use std::rc::Rc;

use filter_config::Config;

pub(crate) use active::{ActiveLimit, ActivePolicy, FallbackBucket, PolicyState};
use poller::PolicyPoller;
use snapshot::{Snapshot, SnapshotBody};

use crate::random::Random;

/// Characters of an operator's name for a proxy.
const MAX_NODE: usize = 128;

/// One worker's copy of the domain's limits.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) state: PolicyState,
    pub(crate) poller: PolicyPoller,
    node: String,
    warned_lost: bool,
}

impl Policy {
    /// Starts with the limits in the configuration, if it has any.
    pub(crate) fn new(config: &mut Config, random: &mut Random) -> Self {
        let state = match config.limits.take() {
            Some(compiled) => {
                let active = ActivePolicy::new(compiled, &config.sources);
                PolicyState::Limits(Rc::new(active))
            }
            None => PolicyState::Unknown,
        };
        let worker_id = random.next_u64();
        let random = Random::new(random.next_u64());
        Self {
            state,
            poller: PolicyPoller::new(config.domain.as_str(), worker_id, random),
            node: String::new(),
            warned_lost: false,
        }
    }

    /// Sets the operator's name for this proxy. Characters that a query cannot hold become `_`.
    pub(crate) fn set_node(&mut self, node: &str) {
        self.node.clear();
        for c in node.chars().take(MAX_NODE) {
            let plain = matches!(c, 'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '.' | '_' | '~' | ':' | '/' | '@');
            self.node.push(if plain { c } else { '_' });
        }
    }
}
