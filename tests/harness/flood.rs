//! Many requests as fast as possible: over many connections at once, or opened and reset over HTTP/2.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::{RawClient, RawReply};

/// Sends requests `0..total` over `connections` at once; returns how many were answered with 200.
pub async fn flood(
    port: u16,
    connections: u64,
    total: u64,
    request: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static,
) -> Result<u64> {
    let request = Arc::new(request);
    let mut tasks = JoinSet::new();
    for connection in 0..connections {
        let request = Arc::clone(&request);
        let mine = (connection..total).step_by(usize::try_from(connections)?);
        tasks.spawn(async move { one_by_one(port, mine, &*request).await });
    }
    let mut allowed = 0;
    while let Some(done) = tasks.join_next().await {
        allowed += done??;
    }
    Ok(allowed)
}

/// Sends the same request on many connections at once; returns the answers.
pub async fn crowd(port: u16, connections: usize, request: &[u8]) -> Result<Vec<RawReply>> {
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let request = request.to_vec();
        tasks.spawn(async move { RawClient::new(port).send(&request).await });
    }
    let mut replies = Vec::with_capacity(connections);
    while let Some(done) = tasks.join_next().await {
        let reply = done??;
        replies.push(reply.context("a connection ended without an answer")?);
    }
    Ok(replies)
}

/// Envoy closes connections on which several of its own answers wait to be written, so each request
/// waits for the previous answer.
async fn one_by_one(
    port: u16,
    numbers: impl Iterator<Item = u64>,
    request: &(impl Fn(u64) -> Vec<u8> + Sync),
) -> Result<u64> {
    let mut client = RawClient::new(port);
    let mut allowed = 0;
    for number in numbers {
        let reply = client.send(&request(number)).await?;
        let reply = reply.context("the connection ended among many requests")?;
        allowed += u64::from(reply.status == 200);
    }
    Ok(allowed)
}

/// Opens HTTP/2 streams with these headers and resets each at once, over as many connections as the
/// server closes.
pub async fn rapid_resets(port: u16, headers: &[(&str, &str)], streams: u64) -> Result<()> {
    let block = header_block(headers)?;
    let mut left = streams;
    while left > 0 {
        left -= resets(port, &block, left).await?.max(1);
    }
    Ok(())
}

/// Resets streams of one connection until it is closed; returns how many streams were opened.
async fn resets(port: u16, block: &[u8], most: u64) -> Result<u64> {
    const HEADERS: u8 = 1;
    const RST_STREAM: u8 = 3;
    const SETTINGS: u8 = 4;
    /// `END_STREAM` and `END_HEADERS`.
    const WHOLE: u8 = 5;
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let (mut incoming, mut outgoing) = stream.into_split();
    // Responses are read and dropped, so that they do not fill the connection.
    let drain = tokio::spawn(async move {
        let mut scratch = [0; 16_384];
        while matches!(incoming.read(&mut scratch).await, Ok(read) if read > 0) {}
    });
    let mut start = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    start.extend(frame(SETTINGS, 0, 0, &[])?);
    start.extend(frame(SETTINGS, 1, 0, &[])?);
    outgoing.write_all(&start).await?;
    let mut opened = 0;
    while opened < most {
        let id = u32::try_from(opened * 2 + 1)?;
        let mut bytes = frame(HEADERS, WHOLE, id, block)?;
        bytes.extend(frame(RST_STREAM, 0, id, &8_u32.to_be_bytes())?);
        if outgoing.write_all(&bytes).await.is_err() {
            break;
        }
        opened += 1;
    }
    let _ = outgoing.shutdown().await;
    drain.await?;
    Ok(opened)
}

/// Opens HTTP/2 streams with these headers and a window of 0, so that answers with a body cannot be
/// sent. Returns how many were opened when the server closes the connection.
pub async fn streams_without_window(
    port: u16,
    headers: &[(&str, &str)],
    streams: u32,
) -> Result<u32> {
    let block = header_block(headers)?;
    let mut bytes = preface_without_window()?;
    for nth in 0..streams {
        bytes.extend(frame(1, 5, nth * 2 + 1, &block)?);
    }
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(&bytes).await?;
    let mut scratch = [0; 4096];
    while matches!(stream.read(&mut scratch).await, Ok(read) if read > 0) {}
    Ok(streams)
}

/// Opens that many streams whose responses have no window, sends this on each, which has to fit into HTTP/2's
/// default windows, and leaves them open until the other side closes or a while has passed. Returns the
/// number of streams.
pub async fn open_streams_without_window(
    port: u16,
    headers: &[(&str, &str)],
    streams: u32,
    data: &[u8],
) -> Result<u32> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let mut bytes = preface_without_window()?;
    let block = header_block(headers)?;
    for nth in 0..streams {
        bytes.extend(frame(1, 4, nth * 2 + 1, &block)?);
        for part in data.chunks(16_384) {
            bytes.extend(frame(0, 0, nth * 2 + 1, part)?);
        }
    }
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let sent = async {
        stream.write_all(&bytes).await?;
        let mut scratch = [0; 4096];
        while matches!(stream.read(&mut scratch).await, Ok(read) if read > 0) {}
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, sent)
        .await
        .unwrap_or(Ok(()))?;
    Ok(streams)
}

/// What a client says first that lets no response send a body.
fn preface_without_window() -> Result<Vec<u8>> {
    const INITIAL_WINDOW_SIZE: [u8; 6] = [0, 4, 0, 0, 0, 0];
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(4, 0, 0, &INITIAL_WINDOW_SIZE)?);
    bytes.extend(frame(4, 1, 0, &[])?);
    Ok(bytes)
}

/// Sends PING and SETTINGS frames, each of which requires an answer, and reads no answer, until the
/// server accepts no more or `most` are sent. Returns the number sent.
pub async fn control_frames(port: u16, most: u64) -> Result<u64> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let pair = [frame(6, 0, 0, &[0; 8])?, frame(4, 0, 0, &[])?].concat();
    let many = pair.repeat(500);
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await?;
    stream.write_all(&frame(4, 0, 0, &[])?).await?;
    let mut sent = 0;
    while sent < most {
        match tokio::time::timeout(PATIENCE, stream.write_all(&many)).await {
            Ok(Ok(())) => sent += 1000,
            _ => break,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(sent)
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<Vec<u8>> {
    let length = u32::try_from(payload.len())?.to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    Ok([head.as_slice(), payload].concat())
}

/// Headers as HPACK literals without indexing.
fn header_block(headers: &[(&str, &str)]) -> Result<Vec<u8>> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        for text in [name, value] {
            ensure!(text.len() < 127, "too long for this encoder: {text}");
            block.push(u8::try_from(text.len())?);
            block.extend(text.as_bytes());
        }
    }
    Ok(block)
}
