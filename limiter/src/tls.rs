//! TLS on the data port: the limiter's certificate, and clients' certificates if required.

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use store::{PemError, PemFile};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        RootCertStore, ServerConfig,
        crypto::ring,
        server::{VerifierBuilderError, WebPkiClientVerifier},
    },
};

use crate::watched_files::WatchedFiles;

/// How long a client may take to shake hands.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The files, as given by flags.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Our certificate chain, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
    /// Clients must show a certificate signed by one of these authorities; PEM.
    pub client_ca: Option<PathBuf>,
}

/// Why TLS cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read, or does not contain what it should.
    #[error(transparent)]
    File(#[from] PemError),
    /// Certificate and key do not match, or are of an unsupported kind.
    #[error("cannot use the certificate {} with its key: {error}", .cert.display())]
    Pair {
        /// The certificate's file.
        cert: PathBuf,
        /// What is wrong.
        error: tokio_rustls::rustls::Error,
    },
    /// The file with the authorities of clients' certificates.
    #[error("cannot use the client CA {}: {error}", .path.display())]
    ClientCa {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: VerifierBuilderError,
    },
}

/// Certificates in force; they follow their files.
#[derive(Clone)]
pub(crate) struct Tls {
    files: TlsFiles,
    watched: Arc<WatchedFiles>,
    config: Arc<ArcSwap<ServerConfig>>,
}

impl Tls {
    /// Reads the files.
    pub(crate) fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let paths = [&files.cert, &files.key].into_iter();
        let watched = WatchedFiles::new(paths.chain(&files.client_ca).map(PathBuf::as_path));
        let config = ArcSwap::from_pointee(configure(&files)?);
        Ok(Self {
            files,
            watched: Arc::new(watched),
            config: Arc::new(config),
        })
    }

    pub(crate) async fn accept<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
    ) -> io::Result<impl AsyncRead + AsyncWrite + Unpin + use<S>> {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await?
    }

    /// Follows the files forever. If they become unusable, the certificates stay as they were.
    pub(crate) async fn follow(self) {
        let again = || {
            self.config.store(Arc::new(configure(&self.files)?));
            tracing::info!("certificates read again");
            Ok::<_, TlsError>(())
        };
        self.watched.follow("certificates", again).await;
    }
}

fn configure(files: &TlsFiles) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let pair = |error| TlsError::Pair {
        cert: files.cert.clone(),
        error,
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(pair)?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(PemFile::read(path)?.certificates()?);
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|error| TlsError::ClientCa {
                    path: path.clone(),
                    error,
                })?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let key = PemFile::read(&files.key)?.private_key()?;
    let mut config = builder
        .with_single_cert(PemFile::read(&files.cert)?.certificates()?, key)
        .map_err(pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
