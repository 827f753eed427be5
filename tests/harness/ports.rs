//! Which port each program listens on; all of them on 127.0.0.1.

use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};

/// The ports of one Envoy and of what it talks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// Envoy, for clients.
    pub envoy: u16,
    /// Envoy's admin page.
    pub envoy_admin: u16,
    /// The limiter replicas' data ports.
    pub limiters: [u16; 2],
    /// The service behind Envoy.
    pub upstream: u16,
}

impl Ports {
    /// Those that envoy.yaml names.
    pub const SHIPPED: Self = Self {
        envoy: 10000,
        envoy_admin: 9901,
        limiters: [8090, 8092],
        upstream: 8080,
    };

    /// Free ones.
    pub fn free() -> Result<Self> {
        Ok(Self {
            envoy: free_port()?,
            envoy_admin: free_port()?,
            limiters: [free_port()?, free_port()?],
            upstream: free_port()?,
        })
    }

    /// This port in the place of a shipped one; None if envoy.yaml names a port
    /// that is not documented here.
    pub fn in_place_of(&self, shipped: u64) -> Option<u16> {
        let pairs = [
            (Self::SHIPPED.envoy, self.envoy),
            (Self::SHIPPED.envoy_admin, self.envoy_admin),
            (Self::SHIPPED.limiters[0], self.limiters[0]),
            (Self::SHIPPED.limiters[1], self.limiters[1]),
            (Self::SHIPPED.upstream, self.upstream),
        ];
        pairs
            .into_iter()
            .find(|(from, _)| u64::from(*from) == shipped)
            .map(|(_, to)| to)
    }
}

/// A port that nothing listens on. The kernel does not hand it out again soon,
/// so that the program it is meant for can take it.
pub fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port")?;
    Ok(listener.local_addr()?.port())
}
