//! Clients without a token or with bad behaviour: they cost little, and do not affect the answers
//! of others.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use bytes::Bytes;
use harness::{Client, until};
use hyper::{Request, Version};
use limiter::Settings;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{PATIENCE, PER_USER, Service, quick, tuned};

/// Short for a test: unread answers end their connection after twice this.
const IDLE: Duration = Duration::from_millis(500);

fn impatient() -> Settings {
    Settings {
        idle_timeout: IDLE,
        ..quick()
    }
}

/// A service that requires a token.
async fn with_token(settings: Settings) -> Result<(Service, NamedTempFile)> {
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), "0123456789abcdef\n")?;
    let settings = Settings {
        token_file: Some(file.path().to_owned()),
        ..settings
    };
    Ok((Service::with_settings(PER_USER, settings).await?, file))
}

/// Sends a check over a new connection.
async fn asks_with_token(service: &Service) -> Result<u16> {
    let body = r#"{"domain":"shop","descriptor":{"user":"a"}}"#;
    let url = format!("http://{}/v1/check", service.data);
    let request = Client::new().post(&url, body);
    let request = request.header("authorization", "Bearer 0123456789abcdef");
    Ok(request.send().await?.status.as_u16())
}

/// Waits until this many connections were cut for this reason.
async fn cut(service: &Service, reason: &str, connections: u64) -> Result<()> {
    let name = format!("rl_connections_cut_total{{reason=\"{reason}\"}}");
    until(&name, PATIENCE, async || {
        (service.metric(&name).await.ok()? >= connections).then_some(())
    })
    .await
}

/// Sends a request repeatedly without reading answers, until the connection ends; returns the bytes
/// sent.
async fn send_without_reading(address: SocketAddr, request: &str) -> Result<usize> {
    const MOST: usize = 64 << 20;
    let mut stream = TcpStream::connect(address).await?;
    let many = request.repeat(64);
    let mut sent = 0;
    while sent < MOST && stream.write_all(many.as_bytes()).await.is_ok() {
        sent += many.len();
    }
    Ok(sent)
}

/// The most that the sockets of both sides can hold.
const SOCKETS: usize = 16 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_reads_no_answers_is_throttled_and_disconnected() -> Result<()> {
    let service = Service::with_settings(PER_USER, impatient()).await?;
    // The second has an answer without a body, before the body of the request has arrived.
    let sent = tokio::try_join!(
        send_without_reading(service.data, "GET /nothing HTTP/1.1\r\nhost: x\r\n\r\n"),
        send_without_reading(
            service.data,
            "HEAD /v1/policy?domain=none HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx"
        ),
        send_without_reading(service.admin, "GET / HTTP/1.1\r\nhost: x\r\n\r\n"),
    )?;
    let bounded = [sent.0, sent.1, sent.2].map(|sent| sent < SOCKETS);
    assert_eq!(bounded, [true; 3], "{sent:?} bytes");
    assert!(service.allows("a").await?);
    Ok(())
}

#[tokio::test]
async fn a_malformed_request_gets_an_error_on_both_ports() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let long = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nlong: {}\r\n\r\n",
        "x".repeat(64 << 10)
    );
    for address in [service.data, service.admin] {
        for (request, status) in [("GET / HTTP/1.1\r\nno colon\r\n\r\n", 400), (&long, 431)] {
            let mut stream = TcpStream::connect(address).await?;
            let _ = stream.write_all(request.as_bytes()).await;
            let mut head = [0; 12];
            stream.read_exact(&mut head).await?;
            assert_eq!(
                head.as_slice(),
                format!("HTTP/1.1 {status}").as_bytes(),
                "{address}"
            );
        }
    }
    Ok(())
}

/// An HTTP/2 client whose streams have an empty window.
async fn without_window(address: SocketAddr) -> Result<h2::client::SendRequest<Bytes>> {
    http2(address, h2::client::Builder::new().initial_window_size(0)).await
}

async fn http2(
    address: SocketAddr,
    builder: &h2::client::Builder,
) -> Result<h2::client::SendRequest<Bytes>> {
    let stream = TcpStream::connect(address).await?;
    let (client, connection) = builder.handshake(stream).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn get(uri: &str) -> Result<Request<()>> {
    let request = Request::get(format!("http://localhost{uri}"));
    Ok(request.version(Version::HTTP_2).body(())?)
}

#[tokio::test]
async fn a_client_that_opens_no_window_is_disconnected() -> Result<()> {
    let service = Service::with_settings(PER_USER, impatient()).await?;
    let mut client = without_window(service.data).await?;
    let mut waiting = Vec::new();
    for _ in 0..64 {
        client = client.ready().await?;
        let (answer, _) = client.send_request(get("/v1/policy?domain=shop")?, true)?;
        waiting.push(answer.await?);
    }
    cut(&service, "unread", 1).await?;
    for answer in &mut waiting {
        let data = answer.body_mut().data().await;
        assert!(data.is_none_or(|data| data.is_err()), "no answer came");
    }
    assert!(service.allows("a").await?);
    Ok(())
}

/// Envoy sends all requests that waited for a connection before it reads the stream limit.
#[tokio::test]
async fn a_clients_first_flight_is_answered_whole() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut builder = h2::client::Builder::new();
    let mut client = http2(service.data, builder.initial_max_send_streams(1000)).await?;
    let mut answers = Vec::new();
    for _ in 0..500 {
        client = client.ready().await?;
        let (answer, _) = client.send_request(get("/v1/policy?domain=shop")?, true)?;
        answers.push(answer);
    }
    for answer in answers {
        assert_eq!(answer.await?.status(), 200);
    }
    Ok(())
}

/// Neither a client without a token nor, while many answers are unsent, an authorized client holds
/// many streams.
#[tokio::test]
async fn a_client_without_a_token_may_hold_few_streams() -> Result<()> {
    let (service, _file) = with_token(quick()).await?;
    let mut client = without_window(service.data).await?;
    let mut health = Vec::new();
    for _ in 0..200 {
        let Ok(ready) = client.ready().await else {
            break;
        };
        client = ready;
        match client.send_request(get("/v1/health")?, true) {
            Ok((answer, _)) => health.push(answer),
            Err(_) => break,
        }
    }
    cut(&service, "streams", 1).await?;
    assert_eq!(asks_with_token(&service).await?, 200);
    Ok(())
}

#[tokio::test]
async fn without_a_token_a_connection_ends_with_its_first_answer() -> Result<()> {
    let (service, _file) = with_token(quick()).await?;
    let reply = service.get("/v1/policy?domain=shop").send().await?;
    assert_eq!(
        (reply.status.as_u16(), reply.header("connection")),
        (401, Some("close"))
    );
    let mut client = without_window(service.data).await?.ready().await?;
    let (answer, _) = client.send_request(get("/v1/policy?domain=shop")?, true)?;
    assert_eq!(answer.await?.status(), 401);
    until("the connection takes no more", PATIENCE, async || {
        let ready = client.clone().ready().await;
        ready.is_err().then_some(())
    })
    .await?;
    assert_eq!(asks_with_token(&service).await?, 200);
    Ok(())
}

#[tokio::test]
async fn silent_connections_make_room() -> Result<()> {
    let four = tuned(|s| s.max_connections = 4);
    let (service, _file) = with_token(four).await?;
    let mut silent = Vec::new();
    // More than the limits of the data port and of the admin port.
    for (address, connections) in [(service.data, 8), (service.admin, 80)] {
        for _ in 0..connections {
            silent.push(TcpStream::connect(address).await?);
        }
    }
    for _ in 0..3 {
        assert_eq!(asks_with_token(&service).await?, 200);
        assert_eq!(service.admin("/healthz").send().await?.status, 200);
    }
    cut(&service, "crowded", 5 + 17).await?;
    Ok(())
}

#[tokio::test]
async fn connections_without_a_token_make_room_for_authorized_ones() -> Result<()> {
    let two = tuned(|s| s.max_connections = 2);
    let (service, _file) = with_token(two).await?;
    let mut strangers = Vec::new();
    for _ in 0..4 {
        let mut client = without_window(service.data).await?.ready().await?;
        let (answer, _) = client.send_request(get("/v1/policy?domain=shop")?, true)?;
        let status = answer.await.map(|answer| answer.status().as_u16());
        strangers.push((client, status));
        assert_eq!(asks_with_token(&service).await?, 200);
    }
    Ok(())
}

/// Each keeps one connection for all its checks, as long as there are few such connections.
#[tokio::test]
async fn health_checkers_keep_their_connection_if_there_are_few() -> Result<()> {
    let eight = tuned(|s| s.max_connections = 8);
    let (service, _file) = with_token(eight).await?;
    let mut checkers = Vec::new();
    for nth in 0..4 {
        let mut stream = TcpStream::connect(service.data).await?;
        let mut answer = vec![0; 4096];
        stream
            .write_all(b"GET /v1/health HTTP/1.1\r\nhost: x\r\n\r\n")
            .await?;
        let read = stream.read(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
        ensure!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        // A quarter of all connections may be those of health checkers.
        assert_eq!(answer.contains("connection: close"), nth >= 2, "{answer}");
        checkers.push(stream);
    }
    assert_eq!(asks_with_token(&service).await?, 200);
    Ok(())
}

#[tokio::test]
async fn a_connection_without_a_complete_request_is_closed_in_time() -> Result<()> {
    let service = Service::with_settings(PER_USER, impatient()).await?;
    for address in [service.data, service.admin] {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /heal").await?;
        let mut rest = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        ensure!(read.is_ok() && rest.is_empty(), "{address}: {rest:?}");
    }
    cut(&service, "silent", 2).await
}

/// A page in somebody's browser can send simple requests to any address that the browser reaches.
#[tokio::test]
async fn requests_that_web_pages_can_send_are_refused() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let body = r#"{"domain":"shop","descriptor":{"user":"a"}}"#;
    for kind in [
        "text/plain",
        "text/plain;charset=UTF-8",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ] {
        let request = service.post("/v1/check", body).header("content-type", kind);
        let reply = request.send().await?;
        assert_eq!(reply.status, 415, "{kind}");
        let message = reply.json()?["error"]["message"].to_string();
        assert!(message.contains("application/json"), "{message}");
    }
    // Without a type, or through a name that the page's DNS resolves to this machine.
    for kind in [None, Some("application/json")] {
        let mut request = service.post("/v1/check", body);
        request = request.header("origin", "http://page.example");
        if let Some(kind) = kind {
            request = request.header("content-type", kind);
        }
        let reply = request.send().await?;
        assert_eq!(reply.status, 400);
        assert_eq!(reply.json()?["error"]["field"], "origin");
    }
    let left = service.ask(json!({"descriptor": {"user": "a"}})).await?;
    assert_eq!(left.json()?["remaining"], 9, "nothing was charged");
    Ok(())
}
