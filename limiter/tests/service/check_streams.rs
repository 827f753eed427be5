//! The check stream: calls and answers, its end, and its bounds.

use std::{fs, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use bytes::{Bytes, BytesMut};
use h2::{RecvStream, SendStream, client::SendRequest};
use harness::until;
use hyper::{HeaderMap, Request};
use policy::Name;
use protocol::{
    CHECK_STREAM, StreamAnswer, StreamCall,
    compact::{Batch, BatchAnswer},
};
use tokio::{io::AsyncReadExt, net::TcpStream, time::timeout};

use crate::support::{PATIENCE, PER_USER, Scripted, Service, compact, proxy_id, quick, tuned};

const OK: u32 = 0;
const INVALID_ARGUMENT: u32 = 3;
const RESOURCE_EXHAUSTED: u32 = 8;
const UNIMPLEMENTED: u32 = 12;
const UNAVAILABLE: u32 = 14;
const UNAUTHENTICATED: u32 = 16;

/// A proxy with a stream.
struct Proxy {
    connection: SendRequest<Bytes>,
    calls: SendStream<Bytes>,
    answers: RecvStream,
    unread: BytesMut,
    /// Whether the client releases the window for what it has read.
    reads_on: bool,
}

/// An answer of the limiter.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    id: u32,
    status: u16,
    body: Vec<u8>,
}

/// A call with checks of users.
fn call(id: u32, users: &[&str]) -> Vec<u8> {
    let body = compact("p", users);
    StreamCall { id, body: &body }.encode()
}

/// A message with gRPC's prefix.
fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat()
}

async fn connect(data: SocketAddr) -> Result<SendRequest<Bytes>> {
    let (client, connection) = h2::client::handshake(TcpStream::connect(data).await?).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Opens a stream; `Err`: the gRPC status that refuses it.
async fn open(connection: SendRequest<Bytes>, token: &str) -> Result<Result<Proxy, u32>> {
    open_and_read(connection, token, true).await
}

async fn open_and_read(
    connection: SendRequest<Bytes>,
    token: &str,
    reads_on: bool,
) -> Result<Result<Proxy, u32>> {
    let request = Request::post(format!("http://localhost{CHECK_STREAM}"))
        .header("content-type", "application/grpc")
        .header("authorization", token)
        .body(())?;
    let mut connection = connection.ready().await?;
    let (response, calls) = connection.send_request(request, false)?;
    let response = timeout(PATIENCE, response).await??;
    if let Some(status) = response.headers().get("grpc-status") {
        return Ok(Err(status.to_str()?.parse()?));
    }
    let mut proxy = Proxy {
        connection,
        calls,
        answers: response.into_body(),
        unread: BytesMut::new(),
        reads_on,
    };
    let first = proxy.next().await?;
    assert_eq!(first, Ok(about(&StreamAnswer::OPEN)));
    Ok(Ok(proxy))
}

fn about(answer: &StreamAnswer<'_>) -> Answer {
    Answer {
        id: answer.id,
        status: answer.status,
        body: answer.body.to_vec(),
    }
}

impl Proxy {
    async fn connect(service: &Service) -> Result<Self> {
        let opened = open(connect(service.data).await?, "").await?;
        opened.ok().context("the stream is refused")
    }

    /// Sends bytes within HTTP/2's flow control.
    async fn send(&mut self, bytes: impl Into<Bytes>) -> Result<()> {
        let mut bytes = bytes.into();
        while !bytes.is_empty() {
            self.calls.reserve_capacity(bytes.len());
            let ready = std::future::poll_fn(|cx| self.calls.poll_capacity(cx)).await;
            let part = bytes.split_to(ready.context("closed")??.min(bytes.len()));
            self.calls.send_data(part, false)?;
        }
        Ok(())
    }

    async fn call(&mut self, id: u32, users: &[&str]) -> Result<()> {
        self.send(framed(&call(id, users))).await
    }

    /// The next message; `Err`: the status in the trailers.
    async fn next(&mut self) -> Result<Result<Answer, u32>> {
        loop {
            if let Some((prefix, rest)) = self.unread.split_first_chunk::<5>() {
                let [0, length @ ..] = *prefix else {
                    bail!("compressed");
                };
                let length = usize::try_from(u32::from_be_bytes(length))?;
                if rest.len() >= length {
                    let message = self.unread.split_to(5 + length).split_off(5);
                    let answer = StreamAnswer::decode(&message).context("no answer")?;
                    return Ok(Ok(about(&answer)));
                }
            }
            let data = timeout(PATIENCE, self.answers.data()).await?;
            let Some(data) = data.transpose()? else {
                break;
            };
            if self.reads_on {
                self.answers.flow_control().release_capacity(data.len())?;
            }
            self.unread.extend_from_slice(&data);
        }
        let trailers = timeout(PATIENCE, self.answers.trailers()).await??;
        Ok(Err(status(&trailers.context("no trailers")?)?))
    }

    /// The next message, which answers a call; whether each check is allowed.
    async fn decisions(&mut self, id: u32) -> Result<Vec<bool>> {
        let answer = self
            .next()
            .await?
            .map_err(|status| anyhow::anyhow!("{status}"))?;
        assert_eq!((answer.id, answer.status), (id, 200));
        let results = BatchAnswer::decode(&answer.body)?.results;
        Ok(results
            .into_iter()
            .map(|result| result.unwrap().allowed)
            .collect())
    }

    /// The status with which the stream ends, after its answers.
    async fn end(&mut self) -> Result<u32> {
        loop {
            if let Err(status) = self.next().await? {
                return Ok(status);
            }
        }
    }
}

fn status(trailers: &HeaderMap) -> Result<u32> {
    Ok(trailers["grpc-status"].to_str()?.parse()?)
}

/// Waits until no stream is open and nothing is held.
async fn is_left(service: &Service) -> Result<()> {
    until("nothing is held", PATIENCE, async || {
        for name in ["rl_check_streams", "rl_inflight_requests", "rl_body_bytes"] {
            if service.metric(name).await.ok()? > 0 {
                return None;
            }
        }
        Some(())
    })
    .await
}

#[tokio::test]
async fn calls_of_a_stream_are_decided_as_those_over_http() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut proxy = Proxy::connect(&service).await?;
    assert_eq!(service.metric("rl_check_streams").await?, 1);
    proxy.call(7, &["a", "b"]).await?;
    assert_eq!(proxy.decisions(7).await?, [true, true]);
    proxy.call(8, &["a"; 10]).await?;
    let decisions = proxy.decisions(8).await?;
    assert_eq!(decisions.iter().filter(|allowed| **allowed).count(), 9);
    assert!(!service.allows("a").await?);
    proxy.calls.send_data(Bytes::new(), true)?;
    assert_eq!(proxy.next().await?, Err(OK));
    is_left(&service).await
}

#[tokio::test]
async fn messages_may_arrive_in_any_parts_and_several_at_once() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut proxy = Proxy::connect(&service).await?;
    let message = framed(&call(1, &["a"]));
    for at in 1..message.len() {
        proxy.send(message[..at].to_vec()).await?;
        tokio::task::yield_now().await;
        proxy.send(message[at..].to_vec()).await?;
        proxy.decisions(1).await?;
    }
    for byte in &message {
        proxy.send(vec![*byte]).await?;
    }
    proxy.decisions(1).await?;
    let several: Vec<u8> = (1..=40).flat_map(|id| framed(&call(id, &["b"]))).collect();
    let (most, rest) = several.split_at(several.len() - 3);
    proxy.send(most.to_vec()).await?;
    proxy.send(rest.to_vec()).await?;
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(proxy.next().await?.unwrap().id);
    }
    ids.sort_unstable();
    assert_eq!(ids, (1..=40).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn errors_are_those_of_http() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut proxy = Proxy::connect(&service).await?;
    let elsewhere = Batch {
        domain: "elsewhere".parse::<Name>()?,
        proxy: proxy_id("p"),
        revision: None,
        keys: Vec::new(),
        checks: Vec::new(),
    };
    for body in [b"no batch".to_vec(), elsewhere.encode(), compact("", &[])] {
        let over_http = service.post("/v1/check", body.clone());
        let over_http = over_http.header("content-type", "application/vnd.rl.check+cbor");
        let over_http = over_http.send().await?;
        proxy
            .send(framed(&StreamCall { id: 3, body: &body }.encode()))
            .await?;
        let answer = proxy.next().await?.unwrap();
        assert_eq!((answer.id, answer.status), (3, over_http.status.as_u16()));
        assert_eq!(answer.body, over_http.body);
    }
    // The stream goes on.
    proxy.call(4, &["a"]).await?;
    assert_eq!(proxy.decisions(4).await?, [true]);
    Ok(())
}

#[tokio::test]
async fn a_call_that_is_too_large_is_refused_and_the_stream_goes_on() -> Result<()> {
    let settings = tuned(|s| s.max_body = 20_000);
    let service = Service::with_settings(PER_USER, settings).await?;
    let mut proxy = Proxy::connect(&service).await?;
    let large = StreamCall {
        id: 9,
        body: &vec![0; 300_000],
    };
    proxy.send(framed(&large.encode())).await?;
    proxy.call(10, &["a"]).await?;
    let answer = proxy.next().await?.unwrap();
    assert_eq!((answer.id, answer.status), (9, 413));
    assert_eq!(proxy.decisions(10).await?, [true]);
    // A call with an excessive announced length.
    proxy
        .send(vec![0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 1])
        .await?;
    assert_eq!(proxy.end().await?, RESOURCE_EXHAUSTED);
    is_left(&service).await
}

#[tokio::test]
async fn an_invalid_message_ends_the_stream() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut compressed = framed(&call(1, &["a"]));
    compressed[0] = 1;
    let mut unknown = compressed.clone();
    unknown[0] = 7;
    for (bytes, wanted) in [
        (compressed, UNIMPLEMENTED),
        (unknown, INVALID_ARGUMENT),
        (framed(&call(0, &["a"])), INVALID_ARGUMENT),
        ([framed(b"123"), vec![0; 9]].concat(), INVALID_ARGUMENT),
    ] {
        let mut proxy = Proxy::connect(&service).await?;
        proxy.call(5, &["a"]).await?;
        proxy.send(bytes).await?;
        // Earlier calls are answered.
        proxy.decisions(5).await?;
        assert_eq!(proxy.next().await?, Err(wanted));
    }
    let mut proxy = Proxy::connect(&service).await?;
    proxy.send(framed(&call(1, &["a"]))[..20].to_vec()).await?;
    proxy.calls.send_data(Bytes::new(), true)?;
    assert_eq!(proxy.next().await?, Err(INVALID_ARGUMENT));
    is_left(&service).await
}

#[tokio::test]
async fn an_incomplete_message_ends_the_stream() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut proxy = Proxy::connect(&service).await?;
    proxy.send(framed(&call(1, &["a"]))[..30].to_vec()).await?;
    assert_eq!(proxy.next().await?, Err(INVALID_ARGUMENT));
    is_left(&service).await
}

#[tokio::test]
async fn a_stream_processes_sixteen_calls_at_once_and_the_others_wait() -> Result<()> {
    let store = Scripted::with(PER_USER, 0).await?;
    let settings = tuned(|s| s.max_body = 16 * 1024);
    let service = Service::ready_on(store.clone(), settings).await?;
    let mut proxy = Proxy::connect(&service).await?;
    let calls: Vec<u8> = (1..=2_000)
        .flat_map(|id| framed(&call(id, &["a"; 20])))
        .collect();
    let sent = timeout(Duration::from_millis(300), proxy.send(calls)).await;
    assert!(sent.is_err(), "flow control lets everything through");
    until("calls wait", PATIENCE, async || {
        let held = service.metric("rl_inflight_requests").await.ok()?;
        (held == 16).then_some(())
    })
    .await?;
    // Let the held calls finish.
    store.let_through(100);
    drop(proxy);
    is_left(&service).await
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_throttled_and_then_disconnected() -> Result<()> {
    let settings = tuned(|s| s.idle_timeout = Duration::from_millis(500));
    let service = Service::with_settings(PER_USER, settings).await?;
    let mut proxy = Proxy::connect(&service).await?;
    let calls: Bytes = (1..=200)
        .flat_map(|id| framed(&call(id, &["a"; 100])))
        .collect();
    let mut sent = 0;
    // The client never releases the window.
    while timeout(PATIENCE, proxy.send(calls.clone())).await?.is_ok() {
        sent += calls.len();
        assert!(sent < 100 << 20, "it takes calls without end");
    }
    assert!(service.allows("b").await?);
    is_left(&service).await
}

/// A connection on which the window of each stream is exactly used up by the first answer.
async fn reads_nothing(service: &Service) -> Result<SendRequest<Bytes>> {
    let first = framed(&StreamAnswer::OPEN.encode());
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(u32::try_from(first.len())?);
    let (client, connection) = builder
        .handshake(TcpStream::connect(service.data).await?)
        .await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A proxy whose window is exactly used up by the first answer.
#[tokio::test]
async fn calls_of_a_client_that_reads_no_answers_are_dropped() -> Result<()> {
    let settings = tuned(|s| s.idle_timeout = Duration::from_millis(500));
    let service = Service::with_settings(PER_USER, settings).await?;
    let client = reads_nothing(&service).await?;
    let proxy = open_and_read(client, "", false).await?;
    let mut proxy = proxy.ok().context("refused")?;
    for id in 1..=16 {
        proxy.call(id, &["a"]).await?;
    }
    is_left(&service).await
}

/// A proxy that reads nothing has as many calls as it may, until its connection is closed: others are decided meanwhile.
#[tokio::test]
async fn calls_of_a_client_that_reads_no_answers_take_no_room_of_others() -> Result<()> {
    let settings = tuned(|s| s.max_inflight = 16);
    let service = Service::with_settings(PER_USER, settings).await?;
    let client = reads_nothing(&service).await?;
    let mut proxies = Vec::new();
    for _ in 0..2 {
        let proxy = open_and_read(client.clone(), "", false).await?;
        let mut proxy = proxy.ok().context("refused")?;
        for id in 1..=16 {
            proxy.call(id, &["a"]).await?;
        }
        proxies.push(proxy);
    }
    until("no call is under way", PATIENCE, async || {
        let decided = service
            .metric("rl_check_duration_seconds_count")
            .await
            .ok()?;
        let held = service.metric("rl_inflight_requests").await.ok()?;
        (decided >= 16 && held == 0).then_some(())
    })
    .await?;
    assert_eq!(service.metric("rl_check_streams").await?, 2);
    assert!(service.allows("b").await?);
    Ok(())
}

#[tokio::test]
async fn a_stream_without_calls_stays_open() -> Result<()> {
    let settings = tuned(|s| s.idle_timeout = Duration::from_millis(300));
    let service = Service::with_settings(PER_USER, settings).await?;
    let mut proxy = Proxy::connect(&service).await?;
    for id in 1..5 {
        // Two connections without a stream are closed meanwhile, one after the other.
        for _ in 0..2 {
            let mut idle = TcpStream::connect(service.data).await?;
            idle.read_to_end(&mut Vec::new()).await?;
        }
        proxy.call(id, &["a"]).await?;
        assert_eq!(proxy.decisions(id).await?, [true]);
    }
    Ok(())
}

#[tokio::test]
async fn a_removed_token_ends_the_streams_that_were_opened_with_it() -> Result<()> {
    const TOKEN: &str = "a-token-of-one-proxy-1f2e3d";
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), TOKEN)?;
    let settings = tuned(|s| s.token_file = Some(file.path().to_owned()));
    let service = Service::with_settings(PER_USER, settings).await?;
    let connection = connect(service.data).await?;
    assert_eq!(
        open(connection, "Bearer wrong").await?.err(),
        Some(UNAUTHENTICATED)
    );
    let connection = connect(service.data).await?;
    let bearer = format!("Bearer {TOKEN}");
    let mut proxy = open(connection, &bearer).await?.ok().context("refused")?;
    proxy.call(1, &["a"]).await?;
    proxy.decisions(1).await?;
    fs::write(file.path(), "another-token-6a7b8c9d0e")?;
    until("the token is gone", PATIENCE, async || {
        let connection = connect(service.data).await.ok()?;
        open(connection, &bearer).await.ok()?.err()
    })
    .await?;
    proxy.call(2, &["a"]).await?;
    assert_eq!(proxy.next().await?, Err(UNAUTHENTICATED));
    Ok(())
}

#[tokio::test]
async fn a_connection_has_a_bounded_number_of_streams() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let connection = connect(service.data).await?;
    let mut proxies = Vec::new();
    for _ in 0..512 {
        proxies.push(
            open(connection.clone(), "")
                .await?
                .ok()
                .context("refused")?,
        );
    }
    assert_eq!(
        open(connection.clone(), "").await?.err(),
        Some(RESOURCE_EXHAUSTED)
    );
    drop(proxies);
    is_left(&service).await?;
    assert!(open(connection, "").await?.is_ok());
    Ok(())
}

#[tokio::test]
async fn the_fewer_streams_are_left_the_fewer_a_connection_gets() -> Result<()> {
    let settings = tuned(|s| s.max_connections = 16);
    let service = Service::with_settings(PER_USER, settings).await?;
    let (mut taken, mut connections) = (Vec::new(), Vec::new());
    for own in [14, 1, 1, 0] {
        let connection = connect(service.data).await?;
        let before = taken.len();
        while let Ok(proxy) = open(connection.clone(), "").await? {
            taken.push(proxy);
        }
        assert_eq!(taken.len() - before, own);
        connections.push(connection);
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_requires_grpc_over_http2() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let reply = service
        .post(CHECK_STREAM, "")
        .header("content-type", "application/grpc");
    let reply = reply.send().await?;
    assert_eq!(reply.status, 200);
    assert_eq!(
        reply.header("grpc-status"),
        Some(UNIMPLEMENTED.to_string().as_str())
    );
    let reply = service.post(CHECK_STREAM, "").send().await?;
    assert_eq!(reply.status, 415);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopping_limiter_answers_the_calls_it_received() -> Result<()> {
    let settings = tuned(|s| s.drain = Duration::from_millis(300));
    let service = Service::with_settings(PER_USER, settings).await?;
    let mut proxy = Proxy::connect(&service).await?;
    proxy.call(1, &["a"]).await?;
    proxy.decisions(1).await?;
    let connection = proxy.connection.clone();
    let ended = service.end();
    let (mut sent, mut answered, mut announced) = (1, 1, false);
    // The proxy sends until the end is announced, and then closes its side.
    let status = loop {
        if !announced {
            sent += 1;
            proxy.call(sent, &["a"]).await?;
        }
        match proxy.next().await? {
            Ok(answer) if answer == about(&StreamAnswer::ENDING) => {
                announced = true;
                sent += 1;
                // This call crosses the announcement.
                proxy.call(sent, &["a"]).await?;
                proxy.calls.send_data(Bytes::new(), true)?;
            }
            Ok(answer) => {
                assert_eq!(answer.status, 200);
                answered += 1;
            }
            Err(status) => break status,
        }
    };
    assert_eq!((status, answered, announced), (OK, sent, true));
    assert!(
        open(connection, "")
            .await
            .is_ok_and(|opened| opened.is_err())
    );
    timeout(PATIENCE, ended).await???;
    Ok(())
}

#[tokio::test]
async fn a_proxy_that_does_not_close_its_side_is_not_waited_for() -> Result<()> {
    let settings = tuned(|s| s.max_connection_age = Some(Duration::from_millis(500)));
    let service = Service::with_settings(PER_USER, settings).await?;
    let mut proxy = Proxy::connect(&service).await?;
    assert_eq!(proxy.next().await?, Ok(about(&StreamAnswer::ENDING)));
    // Later calls are answered.
    proxy.call(2, &["a"]).await?;
    assert_eq!(proxy.decisions(2).await?, [true]);
    assert_eq!(proxy.next().await?, Err(UNAVAILABLE));
    Ok(())
}

#[tokio::test]
async fn a_reset_stream_leaves_no_resources_behind() -> Result<()> {
    let store = Scripted::with(PER_USER, 0).await?;
    let service = Service::ready_on(store.clone(), quick()).await?;
    let mut proxy = Proxy::connect(&service).await?;
    proxy.call(1, &["a"]).await?;
    proxy.send(framed(&call(2, &["a"]))[..20].to_vec()).await?;
    until("the call waits", PATIENCE, async || {
        let held = service.metric("rl_inflight_requests").await.ok()?;
        (held > 0).then_some(())
    })
    .await?;
    proxy.calls.send_reset(h2::Reason::CANCEL);
    is_left(&service).await
}
