//! Serves a listening socket: accepts, bounds and closes connections, and passes requests on.

mod connection;
mod connections;
mod task;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use hyper::{
    Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{CONTENT_TYPE, HeaderValue},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    task::JoinSet,
    time::{Interval, MissedTickBehavior},
};

use crate::{metrics::Metrics, tls::Tls};
pub(crate) use connection::{Following, Trailers};
use connections::{Admission, Connections};
pub(crate) use connections::{AuthState, Peer};
use task::Repoll;

/// What answers the requests of one port.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request of a connection; an error is an answer too. The future is dropped when
    /// the client disconnects.
    fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        peer: Arc<Peer>,
    ) -> impl Future<Output = Response<Bytes>> + Send + 'static;
}

/// How many connections a port keeps, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionBounds {
    /// The most connections at once; one more replaces the oldest unauthenticated one, or is answered 503 and
    /// closed.
    pub max: usize,
    /// The most among them without an admitted request so far
    /// ([`Peer::authenticated_as`]). Such a connection ends with its first answer.
    pub max_unauthenticated: usize,
    /// The most connections that may send any number of requests without a token: health checkers.
    pub max_health_checkers: usize,
    /// A connection without a request for this long is closed.
    pub idle: Duration,
    /// A connection older than this ends after its current requests.
    pub max_age: Option<Duration>,
    /// The largest body in bytes; the window of an HTTP/2 stream is no larger.
    pub max_body: usize,
}

/// How long accepting pauses while all unauthenticated connections are too young to be replaced.
const A_MOMENT: Duration = Duration::from_millis(5);

/// How often connections are swept once the port stops accepting.
const CLOSING_SWEEP: Duration = Duration::from_millis(20);

/// Accepts and serves connections until the lifecycle reaches `Close`, then waits for all to end.
pub(crate) async fn serve<H: Handler>(
    listener: TcpListener,
    tls: Option<Tls>,
    handler: Arc<H>,
    bounds: ConnectionBounds,
    lifecycle: Arc<Lifecycle>,
    metrics: Arc<Metrics>,
) {
    let connections = Connections::new(bounds, metrics);
    let (open, mut all_closed) = mpsc::channel::<()>(1);
    let port = Port {
        rejections: Arc::new(Semaphore::new(REJECTIONS_MAX)),
        server: Arc::new(connection::Server::new(handler, tls, bounds)),
        connections: Arc::clone(&connections),
        lifecycle,
        open,
    };
    let mut sweeps = every(connections.sweep_every());
    loop {
        tokio::select! {
            accepted = listener.accept() => port.take(accepted, &mut sweeps).await,
            _ = sweeps.tick() => connections.sweep(),
            () = port.lifecycle.reached(Phase::Close) => break,
        }
    }
    connections.drain();
    let mut sweeps = every(CLOSING_SWEEP);
    // The kernel has completed handshakes that are not accepted yet; closing the listener would
    // reset those connections.
    while let Some(accepted) = listener.accept().now_or_never() {
        port.take(accepted, &mut sweeps).await;
    }
    drop(listener);
    let Port {
        lifecycle, open, ..
    } = port;
    drop(open);
    let mut aborted = false;
    loop {
        tokio::select! {
            // Every connection holds a sender until its end.
            _ = all_closed.recv() => break,
            _ = sweeps.tick() => connections.sweep(),
            () = lifecycle.reached(Phase::Abort), if !aborted => {
                connections.abort();
                aborted = true;
            }
        }
    }
}

fn every(period: Duration) -> Interval {
    let mut sweeps = tokio::time::interval(period);
    sweeps.set_missed_tick_behavior(MissedTickBehavior::Delay);
    sweeps
}

/// Serves streams in place of a port's connections. Dropping it breaks them, as a crash does.
pub(crate) struct Streams<H> {
    server: Arc<connection::Server<H>>,
    connections: Arc<Connections>,
    lifecycle: Arc<Lifecycle>,
    serving: JoinSet<()>,
}

impl<H: Handler> Streams<H> {
    pub(crate) fn new(
        handler: Arc<H>,
        bounds: ConnectionBounds,
        lifecycle: Arc<Lifecycle>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            server: Arc::new(connection::Server::new(handler, None, bounds)),
            connections: Connections::new(bounds, metrics),
            lifecycle,
            serving: JoinSet::new(),
        }
    }

    /// Serves a stream, if the bounds admit it.
    pub(crate) fn accept(
        &mut self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        from: IpAddr,
    ) {
        while self.serving.try_join_next().is_some() {}
        let Admission::Serve(peer) = self.connections.open(from) else {
            return;
        };
        let (connections, server) = (Arc::clone(&self.connections), Arc::clone(&self.server));
        let lifecycle = Arc::clone(&self.lifecycle);
        self.serving.spawn(async move {
            server
                .serve(stream, &peer, &connections.unsent, &lifecycle)
                .await;
            connections.closed(peer.id);
        });
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.lifecycle.enter(phase);
    }

    /// Connections end after the requests that they have, and at last in any case.
    pub(crate) async fn close(mut self, within: Duration) {
        self.enter(Phase::Close);
        self.connections.drain();
        let mut sweeps = every(CLOSING_SWEEP);
        let ended = async {
            loop {
                tokio::select! {
                    ended = self.serving.join_next() => match ended {
                        Some(_) => {}
                        None => return,
                    },
                    _ = sweeps.tick() => self.connections.sweep(),
                }
            }
        };
        let _ = tokio::time::timeout(within, ended).await;
    }
}

struct Port<H> {
    rejections: Arc<Semaphore>,
    server: Arc<connection::Server<H>>,
    connections: Arc<Connections>,
    lifecycle: Arc<Lifecycle>,
    open: mpsc::Sender<()>,
}

impl<H: Handler> Port<H> {
    async fn take(&self, accepted: io::Result<(TcpStream, SocketAddr)>, sweeps: &mut Interval) {
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return pause_after(&error).await,
        };
        // Small answers must not wait for more to send; a socket that refuses still works.
        let _ = stream.set_nodelay(true);
        let peer = loop {
            match self.connections.open(address.ip().to_canonical()) {
                Admission::Serve(peer) => break peer,
                // New connections wait in the kernel's queue meanwhile.
                Admission::Later => tokio::select! {
                    () = tokio::time::sleep(A_MOMENT) => {}
                    _ = sweeps.tick() => self.connections.sweep(),
                },
                Admission::Reject => {
                    if let Ok(permit) = Arc::clone(&self.rejections).try_acquire_owned() {
                        tokio::spawn(reject(stream, permit));
                    }
                    return;
                }
            }
        };
        let served = Served {
            connections: Arc::clone(&self.connections),
            peer,
            _open: self.open.clone(),
        };
        let (by, lifecycle) = (Arc::clone(&self.server), Arc::clone(&self.lifecycle));
        tokio::spawn(Repoll::new(async move {
            let unsent = &served.connections.unsent;
            by.serve(stream, &served.peer, unsent, &lifecycle).await;
        }));
    }
}

/// A connection being served; dropping this records its end.
struct Served {
    connections: Arc<Connections>,
    peer: Arc<Peer>,
    _open: mpsc::Sender<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.connections.closed(self.peer.id);
    }
}

/// Ignores a connection that broke before it was accepted. Pauses after other errors: a lack of
/// file descriptors lasts until a connection ends, and the loop must not spin.
async fn pause_after(error: &io::Error) {
    let of_the_peer = matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    );
    if !of_the_peer {
        tracing::warn!(%error, "cannot accept a connection");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

// --- The ports, bound before all other work, so that a port in use is reported at once

/// Connections that the kernel completes and queues while the limiter is busy.
const BACKLOG: u32 = 1024;

/// The bound ports.
#[derive(Debug)]
pub struct Listeners {
    /// Checks and policy snapshots.
    pub data: TcpListener,
    /// Health and metrics.
    pub admin: Vec<TcpListener>,
}

/// Why a port could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}{}", self.reason())]
pub struct ListenError {
    address: SocketAddr,
    /// The flag that gives it.
    flag: &'static str,
    error: io::Error,
}

impl ListenError {
    fn reason(&self) -> String {
        let Self { flag, error, .. } = self;
        match error.kind() {
            io::ErrorKind::AddrInUse => format!(
                ": the port is in use; stop the other program, or choose another with {flag}"
            ),
            io::ErrorKind::PermissionDenied => format!(
                ": not permitted; ports below 1024 need privileges, choose another with {flag}"
            ),
            io::ErrorKind::AddrNotAvailable => format!(
                ": this machine does not have that address; try 0.0.0.0 or 127.0.0.1 with {flag}"
            ),
            _ => format!(" ({flag}): {error}"),
        }
    }
}

impl Listeners {
    /// Binds all ports; must be called within a Tokio runtime. Port 0 lets the system choose.
    pub fn bind(data: SocketAddr, admin: &[SocketAddr]) -> Result<Self, ListenError> {
        Ok(Self {
            data: bind(data, "--listen")?,
            admin: admin
                .iter()
                .map(|address| bind(*address, "--admin"))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn bind(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ListenError> {
    let listen = || -> io::Result<TcpListener> {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        // Connections of a process that just ended must not keep its port in use.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().map_err(|error| ListenError {
        address,
        flag,
        error,
    })
}

// --- The phases of a shutdown

/// How far the shutdown has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is served.
    Serve,
    /// Everything is served, but `/readyz` fails and every HTTP/1.1 answer closes its connection,
    /// so that clients move to another limiter without losing a request.
    Leave,
    /// Nothing new is accepted; connections end after the requests they have.
    Close,
    /// Connections end now.
    Abort,
}

/// The phase, which every connection can wait for.
#[derive(Debug)]
pub(crate) struct Lifecycle {
    phase: watch::Sender<Phase>,
    // An atomic, because every answer reads it and a lock would be expensive.
    leaving: AtomicBool,
}

impl Lifecycle {
    pub(crate) fn new() -> Self {
        Self {
            phase: watch::Sender::new(Phase::Serve),
            leaving: AtomicBool::new(false),
        }
    }

    /// Advances to `phase`; phases never go back.
    pub(crate) fn enter(&self, phase: Phase) {
        self.leaving.store(phase >= Phase::Leave, Ordering::Relaxed);
        self.phase.send_if_modified(|now| {
            let later = phase > *now;
            *now = phase.max(*now);
            later
        });
    }

    /// Whether the service is on its way out.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    /// Waits until `phase`, or a later one.
    pub(crate) async fn reached(&self, phase: Phase) {
        let mut phases = self.phase.subscribe();
        // Cannot fail: the sender is borrowed from self.
        let _ = phases.wait_for(|now| *now >= phase).await;
    }
}

// --- The response to a connection beyond `--max-connections`

/// Responses written at once; further connections are closed without one.
const REJECTIONS_MAX: usize = 64;

/// How long the client may take to read its response.
const LINGER: Duration = Duration::from_millis(200);

const REJECTION: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
    x-rl-api: 1\r\n\
    content-type: application/json\r\n\
    content-length: 92\r\n\
    connection: close\r\n\r\n\
    {\"error\":{\"code\":\"overloaded\",\"message\":\"too many connections (--max-connections reached)\"}}";

/// Writes the response, then reads what the client still sends: closing a socket with unread bytes
/// resets it, and the client loses the answer.
async fn reject(mut stream: TcpStream, permit: OwnedSemaphorePermit) {
    let _ = tokio::time::timeout(LINGER, async {
        stream.write_all(REJECTION).await?;
        stream.shutdown().await?;
        let mut rest = [0; 1024];
        while stream.read(&mut rest).await? > 0 {}
        Ok::<_, io::Error>(())
    })
    .await;
    drop(permit);
}

// --- Pieces of requests and answers that both ports share

pub(crate) const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// An answer with a body.
pub(crate) fn answer(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Bytes> {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    answer
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// An answer of a line or two.
pub(crate) fn text(status: StatusCode, body: &'static str) -> Response<Bytes> {
    answer(status, TEXT, body)
}

/// The parameters of a request's query, as sent: names and values here need no escapes, and an
/// escaped name matches none of them.
pub(crate) fn query(uri: &Uri) -> impl Iterator<Item = (&str, &str)> {
    uri.query()
        .unwrap_or_default()
        .split('&')
        .filter(|part| !part.is_empty())
        .map(|part| part.split_once('=').unwrap_or((part, "")))
}

#[cfg(test)]
mod tests;
