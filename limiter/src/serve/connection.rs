//! One connection, from its first byte to its end.

use std::{convert::Infallible, future::poll_fn, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use hyper::{
    Response, Version,
    header::{CONNECTION, HeaderValue},
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use super::{
    ConnectionBounds, Handler, Lifecycle,
    inbound::{Inbound, Strangers},
    peer::{Order, Peer, Running},
    response_body::{Following, ResponseBody},
    streams::{Arrivals, Streams},
    unsent::Unsent,
};
use crate::tls::Tls;

/// Header bytes of one request; clients send a few hundred.
const MAX_HEAD: u16 = 16 * 1024;

/// Streams of one HTTP/2 connection at once. Envoy sends all requests that waited for a connection
/// before it reads this number, up to 1,024 unless configured. Refusing one of those streams would
/// let its request pass or fail without a decision. [`Peer::bound_streams`] bounds what they hold.
const MAX_STREAMS: u32 = 1024;

/// Dead peers of HTTP/2 connections are found by pings this far apart.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Serves the connections of one port.
pub(super) struct Server<H> {
    handler: Arc<H>,
    tls: Option<Tls>,
    max_body: usize,
    strangers: Arc<Strangers>,
}

impl<H: Handler> Server<H> {
    pub(super) fn new(handler: Arc<H>, tls: Option<Tls>, bounds: ConnectionBounds) -> Self {
        Self {
            handler,
            tls,
            max_body: bounds.max_body,
            strangers: Arc::default(),
        }
    }

    pub(super) async fn serve(
        &self,
        stream: TcpStream,
        peer: &Arc<Peer>,
        unsent: &Arc<Unsent>,
        lifecycle: &Arc<Lifecycle>,
    ) {
        let stream = Inbound::new(stream, Arc::clone(peer), Arc::clone(&self.strangers));
        let Some(tls) = &self.tls else {
            return self.drive(stream, peer, unsent, lifecycle).await;
        };
        let accepted = tokio::select! {
            accepted = tls.accept(stream) => accepted,
            _ = peer.ordered(Some(Order::End)) => return,
        };
        match accepted {
            Ok(stream) => self.drive(stream, peer, unsent, lifecycle).await,
            Err(error) => tracing::debug!(%error, "TLS handshake failed"),
        }
    }

    /// How the requests of a connection are read and its answers written.
    fn protocols(&self, arrivals: Arrivals) -> Builder<Arrivals> {
        let mut protocols = Builder::new(arrivals);
        protocols
            .http1()
            .max_buf_size(usize::from(MAX_HEAD))
            // The sweep ends silent connections and slow headers: hyper would set a timer for every
            // request.
            .header_read_timeout(None);
        let window = u32::try_from(self.max_body).unwrap_or(u32::MAX);
        protocols
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(u32::from(MAX_HEAD))
            .initial_stream_window_size(window.clamp(16 * 1024, 1 << 20))
            .initial_connection_window_size(1 << 20)
            .keep_alive_interval(PING_EVERY);
        protocols
    }

    async fn drive<I>(
        &self,
        stream: I,
        peer: &Arc<Peer>,
        unsent: &Arc<Unsent>,
        lifecycle: &Arc<Lifecycle>,
    ) where
        I: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let service = service_fn(|request| {
            let exchange = Exchange {
                running: Running::start(peer, unsent),
                lifecycle: Arc::clone(lifecycle),
                http1: request.version() <= Version::HTTP_11,
            };
            let answer = Arc::clone(&self.handler).handle(request, Arc::clone(peer));
            peer.bound_streams(unsent);
            exchange.answer(answer)
        });
        let socket = TokioIo::new(stream);
        let mut streams = Streams::default();
        let protocols = self.protocols(streams.arrivals());
        let mut connection = pin!(protocols.serve_connection(socket, service));
        let mut known = None;
        loop {
            tokio::select! {
                biased;
                ended = poll_fn(|context| streams.poll_with(connection.as_mut(), context)) => {
                    return log_end(ended);
                }
                order = peer.ordered(known) => match order {
                    Order::End => connection.as_mut().graceful_shutdown(),
                    Order::Cut => return,
                },
            }
            known = Some(Order::End);
        }
    }
}

fn log_end<E: std::fmt::Display>(ended: Result<(), E>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

/// One request and what its answer needs.
struct Exchange {
    running: Running,
    lifecycle: Arc<Lifecycle>,
    http1: bool,
}

impl Exchange {
    async fn answer(
        self,
        answer: impl Future<Output = Response<Bytes>>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let peer = self.running.peer();
        let mut response = answer.await;
        // A connection without an admitted request ends after this answer.
        let last = !peer.is_admitted();
        if self.http1 && (last || self.lifecycle.is_leaving()) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        } else if last {
            peer.order(Order::End);
        }
        let trailers = response.extensions_mut().remove();
        let following: Option<Following> = response.extensions_mut().remove();
        let mut response =
            response.map(|bytes| ResponseBody::new(bytes, trailers, peer, self.running.unsent()));
        if let Some(following) = following {
            response.body_mut().stay_open(&following, self.running);
        }
        Ok(response)
    }
}
