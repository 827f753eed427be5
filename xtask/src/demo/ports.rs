//! The demo's ports: those of envoy.yaml, or another block.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, TcpListener};

use anyhow::{Context, Result};
use harness::Ports;

use crate::help::Help;

/// Every port of the demo, all on 127.0.0.1.
#[derive(Debug, Clone, Copy)]
pub struct DemoPorts {
    /// The ports in Envoy's configuration.
    pub envoy: Ports,
    /// The limiters' admin ports.
    pub limiter_admins: [u16; 2],
    /// Redis or Valkey. Not 6379, which the owner of this machine may use.
    pub redis: u16,
}

impl DemoPorts {
    const DOCUMENTED: Self = Self {
        envoy: Ports::SHIPPED,
        limiter_admins: [8091, 8093],
        redis: 6390,
    };

    /// The documented ports, or eight in a row.
    pub fn choose(base: Option<u16>) -> Result<Self> {
        let Some(base) = base else {
            return Ok(Self::DOCUMENTED);
        };
        let nth = |n: u16| {
            base.checked_add(n).with_context(|| {
                Help::new(format!("there are no 8 ports from {base} on"))
                    .remedy("choose one below 65528: cargo xtask demo --port-base 20000")
            })
        };
        Ok(Self {
            envoy: Ports {
                envoy: nth(0)?,
                envoy_admin: nth(1)?,
                limiters: [nth(2)?, nth(4)?],
                upstream: nth(6)?,
            },
            limiter_admins: [nth(3)?, nth(5)?],
            redis: nth(7)?,
        })
    }

    /// Fails if any port is in use, and names all of them.
    pub fn check_free(&self) -> Result<()> {
        let [first, second] = self.envoy.limiters;
        let [first_admin, second_admin] = self.limiter_admins;
        let Ports {
            envoy,
            envoy_admin,
            upstream,
            ..
        } = self.envoy;
        let mut taken = Vec::new();
        for port in [
            envoy,
            envoy_admin,
            first,
            first_admin,
            second,
            second_admin,
            upstream,
            self.redis,
        ] {
            match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AddrInUse => taken.push(port.to_string()),
                Err(error) => return Err(error).with_context(|| format!("cannot use port {port}")),
            }
        }
        if taken.is_empty() {
            return Ok(());
        }
        Err(
            Help::new(format!("in use on 127.0.0.1: port {}", taken.join(", ")))
                .remedy("use others: cargo xtask demo --port-base 20000")
                .remedy("or stop what listens there; perhaps a demo left with --keep")
                .into(),
        )
    }
}
