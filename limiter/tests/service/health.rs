//! gRPC's health service: its bounds, and `Watch`.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use bytes::Bytes;
use harness::until;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Request, Response,
    body::Incoming,
    client::conn::http2::{SendRequest, handshake},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::support::{PATIENCE, PER_USER, Service, tuned};

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const INVALID_ARGUMENT: &str = "3";
const RESOURCE_EXHAUSTED: &str = "8";
const UNAVAILABLE: &str = "14";

/// The most watches of one connection.
const WATCHES_OF_ONE: usize = 8;

/// A gRPC body that names a service.
fn about(service: &[u8]) -> Vec<u8> {
    let length = u8::try_from(service.len()).unwrap();
    [&[0, 0, 0, 0, length + 2, 10, length], service].concat()
}

async fn connect(data: SocketAddr) -> Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(data).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn call(
    sender: &mut SendRequest<Full<Bytes>>,
    path: &str,
    body: Vec<u8>,
) -> Result<Response<Incoming>> {
    let request = Request::post(format!("http://localhost{path}"))
        .header("content-type", "application/grpc")
        .body(Full::from(body))?;
    Ok(timeout(PATIENCE, sender.send_request(request)).await??)
}

/// The next message of a watch, without its prefix; `Err`: the trailers.
async fn next(watch: &mut Response<Incoming>) -> Result<Result<Bytes, HeaderMap>> {
    let frame = timeout(PATIENCE, watch.body_mut().frame()).await?;
    let frame = frame.context("the end without trailers")??;
    Ok(match frame.into_data() {
        Ok(data) => Ok(data.slice(5..)),
        Err(frame) => Err(frame.into_trailers().unwrap_or_default()),
    })
}

#[tokio::test]
async fn a_health_check_with_a_large_body_is_refused() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    for path in [CHECK, WATCH] {
        let mut sender = connect(service.data).await?;
        let answer = call(&mut sender, path, vec![0; 2000]).await?;
        assert_eq!(answer.headers()["grpc-status"], INVALID_ARGUMENT, "{path}");
    }
    assert_eq!(service.metric("rl_body_bytes").await?, 0);
    Ok(())
}

#[tokio::test]
async fn a_health_check_that_is_announced_and_never_sent_is_answered() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut stream = TcpStream::connect(service.data).await?;
    let head = format!(
        "POST {CHECK} HTTP/1.1\r\nhost: x\r\ncontent-type: application/grpc\r\n\
         content-length: 1000000000\r\n\r\n"
    );
    let started = Instant::now();
    stream.write_all(head.as_bytes()).await?;
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await??;
    assert!(answer.contains("grpc-status: 3\r\n"), "{answer}");
    // A body that is still arriving has one second.
    assert!(started.elapsed() >= Duration::from_millis(900));
    Ok(())
}

#[tokio::test]
async fn a_watch_of_an_unknown_service_stays() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut sender = connect(service.data).await?;
    let mut unknown = call(&mut sender, WATCH, about(b"other")).await?;
    assert_eq!(next(&mut unknown).await?.unwrap().as_ref(), [8, 3]);
    let mut known = call(&mut sender, WATCH, about(b"")).await?;
    assert_eq!(next(&mut known).await?.unwrap().as_ref(), [8, 1]);
    let ended = service.end();
    // It first reports that this limiter ends, then ends.
    let last = match next(&mut known).await? {
        Ok(state) => {
            assert_eq!(state.as_ref(), [8, 2]);
            next(&mut known).await?
        }
        ended => ended,
    };
    assert_eq!(last.unwrap_err()["grpc-status"], UNAVAILABLE);
    assert_eq!(
        next(&mut unknown).await?.unwrap_err()["grpc-status"],
        UNAVAILABLE
    );
    timeout(PATIENCE, ended).await???;
    Ok(())
}

#[tokio::test]
async fn watches_per_connection_are_bounded_and_ended_ones_make_room() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut sender = connect(service.data).await?;
    let mut watches = Vec::new();
    for _ in 0..WATCHES_OF_ONE {
        let mut watch = call(&mut sender, WATCH, about(b"ratelimit")).await?;
        assert_eq!(next(&mut watch).await?.unwrap().as_ref(), [8, 1]);
        watches.push(watch);
    }
    let refused = call(&mut sender, WATCH, about(b"")).await?;
    assert_eq!(refused.headers()["grpc-status"], RESOURCE_EXHAUSTED);
    let mut other = connect(service.data).await?;
    let mut watch = call(&mut other, WATCH, about(b"")).await?;
    assert_eq!(next(&mut watch).await?.unwrap().as_ref(), [8, 1]);
    assert_eq!(service.metric("rl_health_watches").await?, 9);
    drop(watches);
    drop(watch);
    until("the watches are gone", PATIENCE, async || {
        (service.metric("rl_health_watches").await.ok()? == 0).then_some(())
    })
    .await?;
    let mut again = call(&mut sender, WATCH, about(b"")).await?;
    assert_eq!(next(&mut again).await?.unwrap().as_ref(), [8, 1]);
    Ok(())
}

/// Health checks need no token, so whoever connects may watch.
#[tokio::test]
async fn strangers_cannot_hold_all_places_of_watches() -> Result<()> {
    let service = Service::with(PER_USER).await?;
    let mut strangers = Vec::new();
    for _ in 0..128 {
        let mut sender = connect(service.data).await?;
        for _ in 0..8 {
            let mut watch = call(&mut sender, WATCH, about(b"")).await?;
            assert_eq!(next(&mut watch).await?.unwrap().as_ref(), [8, 1]);
            strangers.push(watch);
        }
    }
    assert_eq!(service.metric("rl_health_watches").await?, 1024);
    let mut other = connect(service.data).await?;
    let mut watch = call(&mut other, WATCH, about(b"")).await?;
    assert_eq!(next(&mut watch).await?.unwrap().as_ref(), [8, 1]);
    assert_eq!(service.metric("rl_health_watches").await?, 1024);
    // The oldest made room, and its client may call again.
    let trailers = next(&mut strangers[0]).await?.unwrap_err();
    assert_eq!(trailers["grpc-status"], "14");
    Ok(())
}

#[tokio::test]
async fn a_connection_at_its_maximum_age_ends_with_its_watch() -> Result<()> {
    let settings = tuned(|s| s.max_connection_age = Some(Duration::from_millis(50)));
    let service = Service::with_settings(PER_USER, settings).await?;
    let mut sender = connect(service.data).await?;
    let mut watch = call(&mut sender, WATCH, about(b"")).await?;
    assert_eq!(next(&mut watch).await?.unwrap().as_ref(), [8, 1]);
    assert_eq!(
        next(&mut watch).await?.unwrap_err()["grpc-status"],
        UNAVAILABLE
    );
    until("the connection ends", PATIENCE, async || {
        sender.is_closed().then_some(())
    })
    .await?;
    Ok(())
}
