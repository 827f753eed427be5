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
) -> Result<(Process, u16)> {
    let (port, key) = (free_port()?, KeyPair::generate()?);
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
    Ok((process, port))
}

/// Waits until a limiter that trusts `roots` reports these words about its store.
async fn limiter_says(dir: &Path, roots: &str, store: &[&str], words: &str) -> Result<()> {
    let (data, admin) = (free_port()?, free_port()?);
    let mut command = Command::new(env!("CARGO_BIN_EXE_limiter"));
    command.args(["--listen", &format!("127.0.0.1:{data}")]);
    command.args(["--admin", &format!("127.0.0.1:{admin}"), "--store"]);
    command.args(store).current_dir(dir);
    command
        .env("SSL_CERT_FILE", dir.join(roots))
        .stdin(Stdio::null());
    let _limiter = Process::start(&format!("limiter-{roots}"), &mut command, dir)?;
    let (client, mut last) = (Client::new(), String::new());
    let page = format!("http://127.0.0.1:{admin}/readyz");
    let said = until(words, PATIENCE, async || {
        last = client.get(&page).send().await.ok()?.text();
        last.contains(words).then_some(())
    });
    said.await.with_context(|| last.clone())
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_certificate_is_verified_by_its_authority_and_its_name() -> Result<()> {
    let dir = TempDir::new()?;
    let ours = authority(dir.path(), "ours.pem")?;
    authority(dir.path(), "other.pem")?;
    let (_redis, port) = redis(dir.path(), &ours, "no").await?;
    let url = format!("rediss://localhost:{port}");
    limiter_says(dir.path(), "ours.pem", &[&url], "\"ready\": true").await?;
    limiter_says(dir.path(), "other.pem", &[&url], "invalid peer certificate").await?;
    let by_address = format!("rediss://127.0.0.1:{port}");
    limiter_says(dir.path(), "ours.pem", &[&by_address], "not valid for name").await
}

#[tokio::test]
#[ignore = "needs a server"]
async fn a_store_that_wants_a_certificate_gets_one() -> Result<()> {
    let dir = TempDir::new()?;
    let ours = authority(dir.path(), "ours.pem")?;
    let (_redis, port) = redis(dir.path(), &ours, "yes").await?;
    let key = KeyPair::generate()?;
    let mut client = CertificateParams::default();
    // OpenSSL considers a certificate with the authority's name self-signed.
    client.distinguished_name = DistinguishedName::new();
    client
        .distinguished_name
        .push(DnType::CommonName, "limiter");
    let client = client.signed_by(&key, &ours)?;
    fs::write(dir.path().join("client.pem"), client.pem())?;
    fs::write(dir.path().join("client.key"), key.serialize_pem())?;
    let url = format!("rediss://localhost:{port}");
    limiter_says(dir.path(), "ours.pem", &[&url], "\"ready\": false").await?;
    let shown = [
        url.as_str(),
        "--store-cert",
        "client.pem",
        "--store-key",
        "client.key",
    ];
    limiter_says(dir.path(), "ours.pem", &shown, "\"ready\": true").await
}
