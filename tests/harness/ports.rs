//! Which port each program listens on; all of them on 127.0.0.1.

use std::fs::{File, create_dir_all};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

/// The ports of one Envoy and of the programs that it talks to.
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
    /// The ports in envoy.yaml.
    pub const SHIPPED: Self = Self {
        envoy: 10000,
        envoy_admin: 9901,
        limiters: [8090, 8092],
        upstream: 8080,
    };

    /// Free ports.
    pub fn free() -> Result<Self> {
        Ok(Self {
            envoy: free_port()?,
            envoy_admin: free_port()?,
            limiters: [free_port()?, free_port()?],
            upstream: free_port()?,
        })
    }

    /// The port that replaces a shipped one; `None` if envoy.yaml names a port that is not listed
    /// here.
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

/// The range of ports: below the kernel's range for outgoing connections (from 32768 on Linux), so
/// that none of those can take a program's port.
const FIRST: u16 = 12_000;
const COUNT: u32 = 20_000;

/// A port that nothing listens on; no other test gets it during this process.
pub fn free_port() -> Result<u16> {
    /// Locks on the ports of this process.
    static CLAIMS: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let claims = std::env::temp_dir().join("rl-test-ports");
    create_dir_all(&claims).with_context(|| claims.display().to_string())?;
    let mut held = CLAIMS.lock().unwrap_or_else(PoisonError::into_inner);
    // Processes with consecutive ids begin the search at different ports.
    let start = std::process::id().wrapping_mul(61) % COUNT;
    for step in 0..COUNT {
        let port = FIRST + u16::try_from((start + step) % COUNT)?;
        let claim = File::create(claims.join(port.to_string()))?;
        let is_mine = claim.try_lock().is_ok();
        if is_mine && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            held.push(claim);
            return Ok(port);
        }
    }
    bail!("no free port from {FIRST} on")
}
