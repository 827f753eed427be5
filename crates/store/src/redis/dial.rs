//! Opens a byte stream to a server.

use std::{io, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{ClientConfig, RootCertStore, pki_types::ServerName},
};

use super::sentinel;
use crate::{
    StoreError,
    url::{Address, Server},
};

/// What a connection talks over.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Knows how to reach a server.
#[derive(Clone)]
pub(crate) struct Dialer {
    server: Server,
    tls: Option<TlsConnector>,
}

impl Dialer {
    /// Reads the system's root certificates, if the server speaks TLS.
    pub(crate) fn new(server: Server) -> Result<Self, StoreError> {
        let tls = match server.address {
            Address::Tcp { tls: true, .. }
            | Address::Sentinel { tls: true, .. }
            | Address::Cluster { tls: true, .. } => Some(connector()?),
            _ => None,
        };
        Ok(Self { server, tls })
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// To another server, with the same login and the same trust.
    pub(crate) fn to(&self, host: &str, port: u16) -> Self {
        let server = Server {
            address: Address::Tcp {
                host: host.to_owned(),
                port,
                tls: self.tls.is_some(),
            },
            login: self.server.login.clone(),
        };
        Self {
            server,
            tls: self.tls.clone(),
        }
    }

    pub(crate) async fn dial(&self) -> io::Result<Box<dyn Stream>> {
        match &self.server.address {
            Address::Tcp { host, port, .. } => self.tcp(host, *port).await,
            Address::Sentinel { sentinels, .. } => sentinel::dial(self, sentinels).await,
            Address::Cluster { .. } => Err(io::Error::other("a cluster is dialled node by node")),
            #[cfg(unix)]
            Address::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
        }
    }

    /// With TLS if the URL says so.
    pub(super) async fn tcp(&self, host: &str, port: u16) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect((host, port)).await?;
        // A check is one small write and then a wait: Nagle would add a delayed ACK to it.
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(host.to_owned())
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        Ok(Box::new(tls.connect(name, stream).await?))
    }
}

fn connector() -> Result<TlsConnector, StoreError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        let why = found.errors.first().map(ToString::to_string);
        return Err(StoreError::Unreachable(format!(
            "no root certificates found for TLS ({}); SSL_CERT_FILE can name some",
            why.unwrap_or_else(|| "the system has none".to_owned())
        )));
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
