//! A server at the limiter's address that misbehaves.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::serve::serve_each;

/// The time that an answer to a poll takes; checks are answered meanwhile.
const POLL_TAKES: Duration = Duration::from_millis(5);

/// The reaction to every call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misbehaviour {
    /// Sends these bytes and closes the connection.
    Send(Vec<u8>),
    /// Sends one response to polls, and these to checks, in turn.
    SendEach {
        /// The response to polls.
        polls: Vec<u8>,
        /// The responses to checks.
        checks: Vec<Vec<u8>>,
    },
    /// Sends these bytes, one after the other, with a pause before each.
    Drip(Vec<u8>, Duration),
    /// Never answers.
    Hang,
    /// Closes the connection.
    Close,
}

/// Calls so far.
#[derive(Debug, Default)]
struct Calls {
    checks: AtomicU64,
    polls: AtomicU64,
}

/// The running server; it ends when dropped.
#[derive(Debug)]
pub struct FakeLimiter {
    calls: Arc<Calls>,
    does: watch::Sender<Misbehaviour>,
    _tasks: JoinSet<()>,
}

impl FakeLimiter {
    /// Starts it.
    pub async fn start(port: u16, does: Misbehaviour) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let calls = Arc::<Calls>::default();
        let (does, current) = watch::channel(does);
        let counted = Arc::clone(&calls);
        let each = move |stream| serve(stream, current.clone(), Arc::clone(&counted));
        Ok(Self {
            calls,
            does,
            _tasks: serve_each(listener, each),
        })
    }

    /// Changes the reaction from the next call on.
    pub fn change(&self, does: Misbehaviour) {
        self.does.send_replace(does);
    }

    /// Checks so far.
    pub fn checks(&self) -> u64 {
        self.calls.checks.load(Ordering::Relaxed)
    }

    /// Polls so far.
    pub fn polls(&self) -> u64 {
        self.calls.polls.load(Ordering::Relaxed)
    }
}

/// An HTTP answer with these header lines and this body.
pub fn answer(status: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    // It closes each connection, and says so: Envoy may send the next call before it sees the end.
    let mut text = format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n",
        body.len()
    );
    for line in headers {
        text.push_str(line);
        text.push_str("\r\n");
    }
    text.push_str("\r\n");
    [text.as_bytes(), body].concat()
}

async fn serve(mut stream: TcpStream, current: watch::Receiver<Misbehaviour>, calls: Arc<Calls>) {
    // A proxy may disconnect at any time.
    let _ = serve_one(&mut stream, current, &calls).await;
}

async fn serve_one(
    stream: &mut TcpStream,
    current: watch::Receiver<Misbehaviour>,
    calls: &Calls,
) -> Result<()> {
    let head = read_call(stream).await?;
    let polls = head.starts_with("GET ");
    let nth = if head.starts_with("POST /v1/check") {
        calls.checks.fetch_add(1, Ordering::Relaxed)
    } else {
        0
    };
    // Envoy's health checks are no polls.
    if head.starts_with("GET /v1/policy") {
        calls.polls.fetch_add(1, Ordering::Relaxed);
    }
    let does = current.borrow().clone();
    match does {
        Misbehaviour::Send(bytes) => stream.write_all(&bytes).await?,
        Misbehaviour::SendEach { polls: bytes, .. } if polls => {
            tokio::time::sleep(POLL_TAKES).await;
            stream.write_all(&bytes).await?;
        }
        Misbehaviour::SendEach { checks, .. } => {
            let nth = usize::try_from(nth)?.checked_rem(checks.len());
            let bytes = nth.and_then(|nth| checks.get(nth)).context("no response")?;
            stream.write_all(bytes).await?;
        }
        Misbehaviour::Drip(bytes, pause) => {
            for byte in bytes {
                tokio::time::sleep(pause).await;
                stream.write_all(&[byte]).await?;
            }
        }
        // Until the proxy closes the connection.
        Misbehaviour::Hang => while stream.read_u8().await.is_ok() {},
        Misbehaviour::Close => {}
    }
    stream.shutdown().await?;
    Ok(())
}

/// Reads a call and returns its head.
async fn read_call(stream: &mut TcpStream) -> Result<String> {
    let mut bytes = Vec::new();
    let end = loop {
        let found = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(at) = found {
            break at + 4;
        }
        anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "no whole call");
    };
    let head = String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).to_lowercase();
    let length = head
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(Ok(0), str::parse::<usize>)?;
    while bytes.len() < end + length {
        anyhow::ensure!(stream.read_buf(&mut bytes).await? > 0, "no whole body");
    }
    let method = head
        .split_once(' ')
        .context("no request line")?
        .0
        .to_uppercase();
    Ok(format!(
        "{method}{}",
        head.get(method.len()..).unwrap_or_default()
    ))
}
