//! Transports: HTTP/1.1, HTTP/2 and TLS.

use std::{fs, path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use harness::until;
use http_body_util::{BodyExt, Full};
use hyper::{Request, Version, body::Bytes, client::conn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use limiter::{Settings, TlsFiles};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tempfile::TempDir;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::support::{PATIENCE, PER_USER, Service, quick};

const CHECK: &str = r#"{"domain":"shop","descriptor":{"user":"a"}}"#;

/// Sends several checks at once over one HTTP/2 connection; returns what was left after each.
async fn over_http2<I>(stream: I) -> Result<Vec<u64>>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) =
        conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut answers = Vec::new();
    for _ in 0..3 {
        let request =
            Request::post("http://localhost/v1/check").body(Full::<Bytes>::from(CHECK))?;
        answers.push(sender.send_request(request));
    }
    let mut left = Vec::new();
    for answer in answers {
        let answer = answer.await?;
        assert_eq!(answer.version(), Version::HTTP_2);
        let body = answer.into_body().collect().await?.to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body)?;
        left.push(body["remaining"].as_u64().context("remaining")?);
    }
    left.sort_unstable();
    Ok(left)
}

#[tokio::test]
async fn http2_is_spoken_without_tls_on_the_same_port() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let stream = TcpStream::connect(service.data).await?;
    assert_eq!(over_http2(stream).await?, [7, 8, 9]);
    assert!(service.allows("a").await?, "and HTTP/1.1 beside it");
    Ok(())
}

#[tokio::test]
async fn a_connection_serves_many_requests_even_sent_ahead() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut stream = TcpStream::connect(service.data).await?;
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{CHECK}",
        CHECK.len()
    );
    let last = "GET /v1/policy?domain=none HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let ahead = [request.repeat(3), last.to_owned()].concat();
    stream.write_all(ahead.as_bytes()).await?;
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await?;
    assert_eq!(
        answers.matches("HTTP/1.1 200 OK\r\n").count(),
        3,
        "{answers}"
    );
    assert_eq!(answers.matches("HTTP/1.1 404 Not Found\r\n").count(), 1);
    let lefts: Vec<_> = (7..10)
        .rev()
        .map(|n| answers.find(&format!("\"remaining\":{n},")))
        .collect();
    assert!(
        lefts.iter().all(Option::is_some) && lefts.is_sorted(),
        "in order: {answers}"
    );
    Ok(())
}

/// An authority, and certificates that it signed; they live as long as the test.
struct Certificates {
    folder: TempDir,
}

impl Certificates {
    fn new() -> Result<Self> {
        let certificates = Self {
            folder: TempDir::new()?,
        };
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::write(certificates.file("ca.pem"), ca.pem())?;
        for who in ["server", "client"] {
            let key = KeyPair::generate()?;
            let params = CertificateParams::new(["localhost".to_owned()])?;
            let signed = params.signed_by(&key, &ca)?;
            fs::write(certificates.file(&format!("{who}.pem")), signed.pem())?;
            fs::write(
                certificates.file(&format!("{who}.key")),
                key.serialize_pem(),
            )?;
        }
        Ok(certificates)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A service with the server's certificate; `client_ca`: clients must have one too.
    async fn service(&self, client_ca: bool) -> Result<Service> {
        let settings = Settings {
            tls: Some(TlsFiles {
                cert: self.file("server.pem"),
                key: self.file("server.key"),
                client_ca: client_ca.then(|| self.file("ca.pem")),
            }),
            ..quick()
        };
        Service::with_settings(PER_USER, settings).await
    }

    /// A connection by a client with or without a certificate.
    async fn connect(
        &self,
        service: &Service,
        protocol: &[u8],
        certificate: bool,
    ) -> Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca.pem"))?)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots);
        let mut config = if certificate {
            let chain = vec![CertificateDer::from_pem_file(self.file("client.pem"))?];
            let key = PrivateKeyDer::from_pem_file(self.file("client.key"))?;
            builder.with_client_auth_cert(chain, key)?
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(service.data).await?;
        let connector = TlsConnector::from(Arc::new(config));
        Ok(connector.connect("localhost".try_into()?, stream).await?)
    }
}

/// One request over HTTP/1.1; the answer's first line.
async fn over_http1(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<String> {
    let request = "GET /v1/policy?domain=shop HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let answer = String::from_utf8(answer)?;
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn tls_carries_both_versions() -> Result<()> {
    let certificates = Certificates::new()?;
    let service = certificates.service(false).await?;
    let stream = certificates.connect(&service, b"h2", false).await?;
    assert_eq!(over_http2(stream).await?, [7, 8, 9]);
    let stream = certificates.connect(&service, b"http/1.1", false).await?;
    assert_eq!(over_http1(stream).await?, "HTTP/1.1 200 OK");
    let plain = TcpStream::connect(service.data).await?;
    assert_ne!(
        over_http1(plain).await.unwrap_or_default(),
        "HTTP/1.1 200 OK"
    );
    Ok(())
}

#[tokio::test]
async fn with_a_client_ca_only_its_clients_get_in() -> Result<()> {
    let certificates = Certificates::new()?;
    let service = certificates.service(true).await?;
    let stream = certificates.connect(&service, b"http/1.1", true).await?;
    assert_eq!(over_http1(stream).await?, "HTTP/1.1 200 OK");
    // With TLS 1.3 a client learns of its missing certificate only when it reads.
    let answer = match certificates.connect(&service, b"http/1.1", false).await {
        Ok(stream) => over_http1(stream).await,
        Err(error) => Err(error),
    };
    assert!(answer.is_err(), "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn certificates_that_cannot_be_used_end_it_with_the_file() -> Result<()> {
    let certificates = Certificates::new()?;
    for (cert, key, named) in [
        ("none.pem", "server.key", "none.pem"),
        ("server.pem", "ca.pem", "ca.pem"),
        ("server.pem", "client.key", "server.pem"),
    ] {
        let settings = Settings {
            tls: Some(TlsFiles {
                cert: certificates.file(cert),
                key: certificates.file(key),
                client_ca: None,
            }),
            ..quick()
        };
        let store = store::open(&store::StoreUrl::Memory, store::Options::default())?;
        let error = Service::start(store, settings)?.end().await?.err();
        let text = error.context("an error")?.to_string();
        assert!(text.contains(named), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn a_new_certificate_is_used_without_a_restart() -> Result<()> {
    let certificates = Certificates::new()?;
    let service = certificates.service(false).await?;
    certificates.connect(&service, b"http/1.1", false).await?;
    let renewed = Certificates::new()?;
    for name in ["server.pem", "server.key"] {
        fs::copy(renewed.file(name), certificates.file(name))?;
    }
    until(
        "clients that trust only the new authority connect",
        PATIENCE,
        async || renewed.connect(&service, b"http/1.1", false).await.ok(),
    )
    .await?;
    Ok(())
}
