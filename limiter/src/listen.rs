//! The ports, bound before all other work, so that a port in use is reported at once.

use std::{io, net::SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Connections that the kernel completes and queues while the limiter is busy.
const BACKLOG: u32 = 1024;

/// The bound ports.
#[derive(Debug)]
pub struct Listeners {
    /// Checks and policy snapshots.
    pub data: TcpListener,
    /// Health and metrics.
    pub admin: Vec<TcpListener>,
}

/// Why a port could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody else has it.
    #[error(
        "cannot listen on {address}: the port is in use; stop the other program, or choose another with {flag}"
    )]
    InUse {
        /// The address.
        address: SocketAddr,
        /// The flag that gives it.
        flag: &'static str,
    },
    /// A low port, without the right to it.
    #[error(
        "cannot listen on {address}: not permitted; ports below 1024 need privileges, choose another with {flag}"
    )]
    NotPermitted {
        /// The address.
        address: SocketAddr,
        /// The flag that gives it.
        flag: &'static str,
    },
    /// The address is not one of this machine's.
    #[error(
        "cannot listen on {address}: this machine does not have that address; try 0.0.0.0 or 127.0.0.1 with {flag}"
    )]
    NotHere {
        /// The address.
        address: SocketAddr,
        /// The flag that gives it.
        flag: &'static str,
    },
    /// Anything else.
    #[error("cannot listen on {address} ({flag}): {error}")]
    Other {
        /// The address.
        address: SocketAddr,
        /// The flag that gives it.
        flag: &'static str,
        /// What the system says.
        error: io::Error,
    },
}

impl Listeners {
    /// Binds all ports; must be called within a Tokio runtime. Port 0 lets the system choose.
    pub fn bind(data: SocketAddr, admin: &[SocketAddr]) -> Result<Self, ListenError> {
        Ok(Self {
            data: bind(data, "--listen")?,
            admin: admin
                .iter()
                .map(|address| bind(*address, "--admin"))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ListenError> {
    let listen = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        // Connections of a process that just ended must not keep its port in use.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address, flag },
        io::ErrorKind::PermissionDenied => ListenError::NotPermitted { address, flag },
        io::ErrorKind::AddrNotAvailable => ListenError::NotHere { address, flag },
        _ => ListenError::Other {
            address,
            flag,
            error,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_in_use_is_named_with_its_flag() {
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let first = Listeners::bind(any, &[any]).unwrap();
        let taken = first.data.local_addr().unwrap();
        let error = Listeners::bind(any, &[taken]).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "cannot listen on {taken}: the port is in use; stop the other program, or choose another with --admin"
            )
        );
    }
}
