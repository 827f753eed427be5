//! A Redis that speaks TLS only.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};
use harness::{Client, Process, free_port, until};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, IsCa, KeyPair,
};
use tempfile::TempDir;

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// An authority, its certificate in a file.
fn authority(dir: &Path, name: &str) -> Result<CertifiedIssuer<'static, KeyPair>> {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(parameters, KeyPair::generate()?)?;
    fs::write(dir.join(name), authority.pem())?;
    Ok(authority)
}

/// A Redis whose certificate is for `localhost`; `clients` says whether it requires a client
/// certificate.
async fn redis(
    dir: &Path,
    authority: &CertifiedIssuer<'_, KeyPair>,
    clients: &str,
    port: u16,
) -> Result<Process> {
    let key = KeyPair::generate()?;
    let parameters = CertificateParams::new(vec!["localhost".to_owned()])?;
    fs::write(
        dir.join("redis.pem"),
        parameters.signed_by(&key, authority)?.pem(),
    )?;
    fs::write(dir.join("redis.key"), key.serialize_pem())?;
    let program = std::env::var_os("RL_TEST_REDIS").unwrap_or_else(|| "redis-server".into());
    let mut command = Command::new(program);
    command.args(["--port", "0", "--save", "", "--bind", "127.0.0.1"]);
    command.args([
        "--tls-port",
        &port.to_string(),
        "--tls-auth-clients",
        clients,
    ]);
    command.args([
        "--tls-cert-file",
        "redis.pem",
        "--tls-key-file",
        "redis.key",
    ]);
    command
        .args(["--tls-ca-cert-file", "ours.pem"])
        .current_dir(dir);
    let mut process = Process::start("redis", &mut command, dir)?;
    let address = ("127.0.0.1", port);
    process
        .ready(async || tokio::net::TcpStream::connect(address).await.ok())
        .await?;
    Ok(process)
}

/// A limiter that trusts `roots`.
struct Limiter {
    _process: Process,
    page: String,
}

fn limiter(dir: &Path, roots: &str, store: &[&str]) -> Result<Limiter> {
    let (data, admin) = (free_port()?, free_port()?);
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiter"));
    command.args(["--listen", &format!("127.0.0.1:{data}")]);
    command.args(["--admin", &format!("127.0.0.1:{admin}"), "--store"]);
    command.args(store).current_dir(dir);
    command
        .env("SSL_CERT_FILE", dir.join(roots))
        .env("SSL_CERT_DIR", dir.join("more"))
        .stdin(Stdio::null());
    Ok(Limiter {
        _process: Process::start(&format!("limiter-{roots}"), &mut command, dir)?,
        page: format!("http://127.0.0.1:{admin}/readyz"),
    })
}

impl Limiter {
    /// Waits until it reports these words about its store.
    async fn says(&self, words: &str) -> Result<()> {
        let (client, mut last) = (Client::new(), String::new());
        let said = until(words, PATIENCE, async || {
            last = client.get(&self.page).send().await.ok()?.text();
            last.contains(words).then_some(())
        });
        said.await.with_context(|| last.clone())
    }
}

async fn limiter_says(dir: &Path, roots: &str, store: &[&str], words: &str) -> Result<()> {
    limiter(dir, roots, store)?.says(words).await
}

/// Writes a certificate of this authority for the limiter, and its key.
fn client_certificate(dir: &Path, authority: &CertifiedIssuer<'_, KeyPair>) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut client = CertificateParams::default();
    // OpenSSL considers a certificate with the authority's name self-signed.
    client.distinguished_name = DistinguishedName::new();
    client
        .distinguished_name
        .push(DnType::CommonName, "limiter");
    let client = client.signed_by(&key, authority)?;
    fs::write(dir.join("client.pem"), client.pem())?;
    fs::write(dir.join("client.key"), key.serialize_pem())?;
    Ok(())
}

const SHOWN: [&str; 4] = ["--store-cert", "client.pem", "--store-key", "client.key"];

#[tokio::test]
#[ignore = "needs a server"]
async fn a_certificate_is_verified_by_its_authority_and_its_name() -> Result<()> {
    let dir = TempDir::new()?;
    let ours = authority(dir.path(), "ours.pem")?;
    authority(dir.path(), "other.pem")?;
    let port = free_port()?;
    let _redis = redis(dir.path(), &ours, "no", port).await?;
    let url = format!("rediss://localhost:{port}");
    limiter_says(dir.path(), "ours.pem", &[&url], "\"ready\": true").await?;
    limiter_says(dir.path(), "other.pem", &[&url], "invalid peer certificate").await?;
    let by_address = format!("rediss://127.0.0.1:{port}");
    limiter_says(dir.path(), "ours.pem", &[&by_address], "not valid for name").await?;
    let plain = format!("redis://127.0.0.1:{port}");
    limiter_says(dir.path(), "ours.pem", &[&plain], "does this port want TLS").await?;
    let more = dir.path().join("more");
    fs::create_dir(&more)?;
    fs::copy(dir.path().join("other.pem"), more.join("other.pem"))?;
    limiter_says(dir.path(), "none.pem", &[&url], "none.pem").await?;
    // A server without TLS waits for the rest of what it takes for a command.
    let silent = std::net::TcpListener::bind("127.0.0.1:0")?;
    let url = format!("rediss://{}", silent.local_addr()?);
    limiter_says(dir.path(), "ours.pem", &[&url], "does this port speak TLS?").await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_store_that_wants_a_certificate_gets_one() -> Result<()> {
    let dir = TempDir::new()?;
    let ours = authority(dir.path(), "ours.pem")?;
    let port = free_port()?;
    let _redis = redis(dir.path(), &ours, "yes", port).await?;
    client_certificate(dir.path(), &ours)?;
    let url = format!("rediss://localhost:{port}");
    limiter_says(
        dir.path(),
        "ours.pem",
        &[&url],
        "another client certificate",
    )
    .await?;
    let shown = [&[url.as_str()], &SHOWN[..]].concat();
    limiter_says(dir.path(), "ours.pem", &shown, "\"ready\": true").await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn renewed_certificates_and_roots_are_used_for_the_next_connection() -> Result<()> {
    let dir = TempDir::new()?;
    let port = free_port()?;
    let url = format!("rediss://localhost:{port}");
    let before = authority(dir.path(), "ours.pem")?;
    client_certificate(dir.path(), &before)?;
    let first = redis(dir.path(), &before, "yes", port).await?;
    let shown = [&[url.as_str()], &SHOWN[..]].concat();
    let limiter = limiter(dir.path(), "ours.pem", &shown)?;
    limiter.says("\"up\": true").await?;
    first.stop().await?;

    // The authority is replaced; a moment in which a file is half written does no harm.
    fs::write(dir.path().join("client.pem"), "")?;
    limiter.says("\"up\": false").await?;
    let after = authority(dir.path(), "ours.pem")?;
    client_certificate(dir.path(), &after)?;
    let _second = redis(dir.path(), &after, "yes", port).await?;
    limiter.says("\"up\": true").await
}
