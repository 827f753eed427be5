//! The data that a worker shares with the others of its Envoy process.

use filter_config::Config;

use crate::{cache::Table, host::Host, identity::Identity};

/// The process of a worker, once it has joined it.
#[derive(Debug)]
pub(crate) struct Process {
    /// Becomes the identity of the process if no worker has stored one.
    seed: [u8; 32],
    shared: Option<Shared>,
}

/// The data that all workers of the process share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The name of the process in calls to limiters.
    pub(crate) proxy: String,
    pub(crate) table: Table,
}

impl Process {
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self { seed, shared: None }
    }

    /// `None` until the worker's first event.
    pub(crate) fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// The name of the process in calls to limiters; empty until the worker has joined.
    pub(crate) fn proxy(&self) -> &str {
        self.shared().map_or("", |shared| &shared.proxy)
    }

    /// Reads or stores the identity of the process. Returns whether this is the first time.
    pub(super) fn join(&mut self, host: &impl Host, config: &Config) -> bool {
        if self.shared.is_some() {
            return false;
        }
        // Contended: the worker uses an identity of its own, and limiters count one proxy more.
        let identity = Identity::join(host, self.seed);
        let identity = identity.unwrap_or_else(|_| Identity::of(self.seed));
        self.shared = Some(Shared {
            proxy: identity.proxy_name(),
            table: Table::new(config.domain.as_str(), config.buckets, identity.hash_key),
        });
        true
    }
}
