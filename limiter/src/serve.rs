//! Serves a listening socket: accepts, bounds and closes connections, and passes requests on.

mod connection;
mod connections;
mod inbound;
mod lifecycle;
mod peer;
mod reject;
mod repoll;
mod response_body;
mod streams;
mod unsent;

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use hyper::{Request, Response, body::Incoming};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    time::{Interval, MissedTickBehavior},
};

use crate::{metrics::Metrics, tls::Tls};

use connections::{Connections, Room};
use repoll::Repoll;

pub(crate) use lifecycle::{Lifecycle, Phase};
pub(crate) use peer::{Peer, Standing};
pub(crate) use response_body::{Following, Trailers};

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
    /// The most connections at once; one more replaces the oldest newcomer, or is answered 503 and
    /// closed.
    pub max: usize,
    /// The most newcomers among them: connections without an admitted request so far
    /// ([`Peer::admit_as`]). Such a connection ends with its first answer.
    pub max_newcomers: usize,
    /// The most connections that may send any number of requests without a token: health checkers.
    pub max_guests: usize,
    /// A connection without a request for this long is closed.
    pub idle: Duration,
    /// A connection older than this ends after its current requests.
    pub max_age: Option<Duration>,
    /// The largest body in bytes; the window of an HTTP/2 stream is no larger.
    pub max_body: usize,
}

/// How long accepting pauses while all newcomers are too young to be replaced.
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
        rejections: Arc::new(Semaphore::new(reject::AT_ONCE)),
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
    connections.close();
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

struct Port<H> {
    rejections: Arc<Semaphore>,
    server: Arc<connection::Server<H>>,
    connections: Arc<Connections>,
    lifecycle: Arc<Lifecycle>,
    open: mpsc::Sender<()>,
}

impl<H: Handler> Port<H> {
    async fn take(
        &self,
        accepted: io::Result<(TcpStream, std::net::SocketAddr)>,
        sweeps: &mut Interval,
    ) {
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return pause_after(&error).await,
        };
        // Small answers must not wait for more to send; a socket that refuses still works.
        let _ = stream.set_nodelay(true);
        let peer = loop {
            match self.connections.open(address.ip().to_canonical()) {
                Room::For(peer) => break peer,
                // New connections wait in the kernel's queue meanwhile.
                Room::Soon => tokio::select! {
                    () = tokio::time::sleep(A_MOMENT) => {}
                    _ = sweeps.tick() => self.connections.sweep(),
                },
                Room::None => {
                    if let Ok(permit) = Arc::clone(&self.rejections).try_acquire_owned() {
                        tokio::spawn(reject::reject(stream, permit));
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
