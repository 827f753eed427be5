//! From a listening socket to answered requests: connections, their number and their end.

mod awake;
mod connection;
mod lifecycle;
mod refuse;

use std::{io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::Full;
use hyper::{Request, Response, body::Incoming};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

use crate::tls::Tls;

use awake::Awake;

pub(crate) use lifecycle::{Lifecycle, Phase};

/// What answers the requests of one port.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers one request; it never fails, an error is an answer too. Dropped when the client
    /// leaves.
    fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send + 'static;
}

/// How many connections a port keeps, and for how long.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionBounds {
    /// Connections at once; one more is answered 503 and closed.
    pub max: usize,
    /// A connection without a request for this long is closed (at the latest after twice that).
    pub idle: Duration,
    /// The largest body in bytes; the window of an HTTP/2 stream is no larger.
    pub max_body: usize,
}

/// Accepts and serves connections until the lifecycle says to close, then sees them all end.
pub(crate) async fn serve<H: Handler>(
    listener: TcpListener,
    tls: Option<Tls>,
    handler: Arc<H>,
    bounds: ConnectionBounds,
    lifecycle: Arc<Lifecycle>,
) {
    let max = u32::try_from(bounds.max).unwrap_or(u32::MAX);
    let port = Port {
        slots: Arc::new(Semaphore::new(bounds.max)),
        refusals: Arc::new(Semaphore::new(refuse::AT_ONCE)),
        server: Arc::new(connection::Server::new(handler, tls, bounds)),
        lifecycle,
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => port.take(accepted).await,
            () = port.lifecycle.reached(Phase::Close) => break,
        }
    }
    // The kernel has shaken hands with clients that nobody accepted yet; closing the listener
    // would reset them.
    while let Some(accepted) = listener.accept().now_or_never() {
        port.take(accepted).await;
    }
    drop(listener);
    // Every connection holds a slot until its end.
    let _ended = port.slots.acquire_many(max).await;
}

struct Port<H> {
    slots: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    server: Arc<connection::Server<H>>,
    lifecycle: Arc<Lifecycle>,
}

impl<H: Handler> Port<H> {
    async fn take(&self, accepted: io::Result<(TcpStream, std::net::SocketAddr)>) {
        let (stream, _peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => return pause_after(&error).await,
        };
        // Small answers must not wait for more to send; a socket that refuses still works.
        let _ = stream.set_nodelay(true);
        let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned() else {
            if let Ok(permit) = Arc::clone(&self.refusals).try_acquire_owned() {
                tokio::spawn(refuse::refuse(stream, permit));
            }
            return;
        };
        let (server, lifecycle) = (Arc::clone(&self.server), Arc::clone(&self.lifecycle));
        tokio::spawn(Awake::new(async move {
            server.serve(stream, &lifecycle).await;
            drop(slot);
        }));
    }
}

/// A connection that broke before it was accepted is nothing; being out of file descriptors lasts
/// until a connection ends, and must not spin.
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
