//! A client of a Cluster, written by hand.

use std::collections::{HashMap, hash_map::Entry};

use algorithms::check::Options;
use anyhow::{Context, Result, bail};
use redis::{AsyncConnectionConfig, RedisResult, aio::MultiplexedConnection};
use store::{
    script::{Clock, ScriptCheck, ScriptLimit, decode, encode},
    scripts::CHECK,
    slot,
};

/// One client, with connections of its own.
#[derive(Default)]
pub struct Client {
    /// Which ports own which slots, as far as it knows.
    owners: Vec<(u16, u16, u16)>,
    links: HashMap<u16, MultiplexedConnection>,
    /// How often a node named another.
    pub moved: usize,
    /// How often a node did not have the script.
    pub loaded: usize,
}

impl Client {
    /// A client that starts with these ports and the first and last slot of each.
    pub fn new(owners: Vec<(u16, u16, u16)>) -> Self {
        Self {
            owners,
            ..Self::default()
        }
    }

    pub fn owner(&self, slot: u16) -> Result<u16> {
        let owner = |(first, last, _): &&(u16, u16, u16)| (*first..=*last).contains(&slot);
        let (_, _, port) = self.owners.iter().rev().find(owner).context("an owner")?;
        Ok(*port)
    }

    async fn link(&mut self, port: u16) -> Result<&mut MultiplexedConnection> {
        match self.links.entry(port) {
            Entry::Occupied(link) => Ok(link.into_mut()),
            Entry::Vacant(free) => {
                let client = redis::Client::open(format!("redis://127.0.0.1:{port}"))?;
                // A test machine is busy, and these tests do not measure how fast an answer comes.
                let patient = AsyncConnectionConfig::new()
                    .set_response_timeout(None)
                    .set_connection_timeout(None);
                let link = client.get_multiplexed_async_connection_with_config(&patient);
                Ok(free.insert(link.await?))
            }
        }
    }

    /// Whether a check passes. Only what certainly did not run is sent again.
    pub async fn check(&mut self, limits: &[ScriptLimit<'_>]) -> Result<bool> {
        let checks = [ScriptCheck {
            limits: limits.to_vec(),
            options: Options::default(),
        }];
        let call = encode(&checks, Clock::Server);
        let slot = slot(call.keys.first().context("a key")?);
        let mut evalsha = redis::cmd("EVALSHA");
        evalsha.arg(&CHECK.sha1).arg(call.keys.len());
        evalsha.arg(&call.keys).arg(call.packed());
        for _ in 0..5 {
            let port = self.owner(slot)?;
            let link = self.link(port).await?;
            let reply: RedisResult<Vec<u8>> = evalsha.query_async(link).await;
            let error = match reply {
                Ok(reply) => {
                    let result = decode(&reply, &checks)?.results.remove(0);
                    return Ok(result?.allowed);
                }
                Err(error) => error,
            };
            if let Some((address, moved)) = error.redirect_node() {
                let (_, port) = address.rsplit_once(':').context("a port")?;
                self.owners.push((moved, moved, port.parse()?));
                self.moved += 1;
            } else if error.code() == Some("NOSCRIPT") {
                let mut load = redis::cmd("SCRIPT");
                load.arg("LOAD").arg(&CHECK.source);
                load.query_async::<()>(link).await?;
                self.loaded += 1;
            } else {
                return Err(error.into());
            }
        }
        bail!("moved, or without the script, again and again")
    }
}
