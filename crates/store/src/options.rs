//! How a store is used, and how it is opened.

use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};

use redis_link::ClientCertificate;
use store_plan::Keys;

use crate::{Store, StoreError, StoreUrl, memory::MemoryStore, redis::RedisStore};

/// How a store is used.
#[derive(Clone, Debug)]
pub struct Options {
    /// What every key starts with.
    pub keys: Keys,
    /// How long a batch of checks may take, waiting for a connection included.
    pub timeout: Duration,
    /// How long one step of anything else may take: a listing or a record takes several.
    pub control_timeout: Duration,
    /// How long a connection attempt may take, login included.
    pub connect_timeout: Duration,
    /// The certificate for a store that requires one, over TLS.
    pub client_certificate: Option<ClientCertificate>,
    /// Counts the keys that listings and resets have scanned, to show their progress.
    pub walked: Arc<AtomicU64>,
    /// Buckets that the memory store holds. While it is full of buckets in use, a check that
    /// needs another one is refused with the code `OOM`, as by a Redis that never evicts.
    pub memory_buckets: usize,
}

/// The shortest probe timeout.
const PROBE_MIN: Duration = Duration::from_millis(500);

impl Options {
    /// Options for checks that may take `timeout`: logging in to so distant a server takes several
    /// round trips.
    pub fn within(timeout: Duration) -> Self {
        let least = Self::default();
        let turns = 2 * timeout;
        Self {
            timeout,
            control_timeout: turns.max(least.control_timeout),
            connect_timeout: turns.max(least.connect_timeout),
            ..least
        }
    }

    pub(crate) fn probe_timeout(&self) -> Duration {
        self.timeout.max(PROBE_MIN)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            keys: Keys::default(),
            timeout: Duration::from_millis(10),
            control_timeout: Duration::from_secs(2),
            connect_timeout: Duration::from_millis(500),
            client_certificate: None,
            walked: Arc::default(),
            memory_buckets: 1_000_000,
        }
    }
}

/// Opens a store. It connects at its first use, so this fails only where that can never work.
pub fn open(url: &StoreUrl, options: Options) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match url {
        StoreUrl::Memory => Arc::new(MemoryStore::new(&options)),
        StoreUrl::Redis(server) => Arc::new(RedisStore::new(server, options)?),
    })
}
