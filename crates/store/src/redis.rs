//! The store on Redis or Valkey.
//!
//! An ACL user needs these rights and no other (with the default key prefix):
//!
//! ```text
//! ~rl:* &rl:* -@all +eval +evalsha +script|load +script|exists +ping +time
//! +get +set +del +unlink +scan +pttl +pexpire +persist +rename
//! +hget +hset +hdel +hmget +hlen +hgetall +hscan +lindex +llen +lrange +lset +ltrim +rpush
//! +xadd +xdel +xlen +xrange +xrevrange +zadd +zcard +zremrangebyscore +zcount +zrange +zrangebyscore +zrem +zscore
//! +sadd +smembers +publish +subscribe
//! ```
//!
//! `+hello` lets `rlctl ping` show the server's version and role; a Cluster needs `+cluster|slots`
//! and `+asking` too.

mod buckets;
mod checks;
mod cluster_batch;
mod commands;
mod diagnostics;
mod health;
mod policy;
mod proxies;
mod scan;
mod seal;
mod telemetry;

use std::{fmt, sync::Arc};

use redis_link::{Server, Servers, Settings, Subscription};
use store_plan::Keys;

use seal::SharedSeal;
use telemetry::ClockOffset;

use crate::{
    Options, StoreError,
    scripts::{CHECK, REFUND},
};

/// The store on one server or on a Cluster. Connects at the first use, and again whenever it has
/// to.
pub(crate) struct RedisStore {
    servers: Servers,
    edits: Subscription,
    clock_offset: ClockOffset,
    seal: SharedSeal,
    options: Options,
    address: String,
}

impl RedisStore {
    /// A store that has not connected yet. Fails only where TLS has no root certificates.
    pub(crate) fn new(server: &Server, options: Options) -> Result<Self, StoreError> {
        let settings = Settings {
            connect_timeout: options.connect_timeout,
            probe_timeout: options.probe_timeout(),
            client_certificate: options.client_certificate.clone(),
            // Loaded at connecting: a check that had to load its script first would be late.
            scripts: Arc::new([&CHECK, &REFUND]),
        };
        let servers = Servers::new(server.clone(), &settings)?;
        Ok(Self {
            edits: servers.subscription(options.keys.edits(), options.connect_timeout),
            servers,
            clock_offset: ClockOffset::default(),
            seal: SharedSeal::default(),
            address: server.to_string(),
            options,
        })
    }

    fn keys(&self) -> &Keys {
        &self.options.keys
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}
