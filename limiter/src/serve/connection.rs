//! One connection, from its first byte to its end.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes};
use futures_util::{
    future::BoxFuture,
    stream::{BoxStream, Stream, StreamExt},
};
use hyper::{
    HeaderMap, Response, Version,
    body::{Body, Frame, SizeHint},
    header::{CONNECTION, HeaderValue},
    rt::Executor,
    service::service_fn,
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
};
use tokio::io::{AsyncRead, AsyncWrite};

use super::{
    ConnectionBounds, Handler, Lifecycle,
    connections::{Order, Peer, Running, Unsent},
    task::{Arrivals, Inbound, Streams, UnauthenticatedReads},
};
use crate::tls::Tls;

/// Header bytes of one request; clients send a few hundred.
const MAX_HEAD: u16 = 16 * 1024;

/// Bound: streams of an HTTP/2 connection. Beyond it, HTTP/2 holds the client back.
///
/// Envoy sends all requests that waited for a connection before it reads this number, up to 1,024
/// unless configured. Refusing one of those streams would let its request pass or fail without a
/// decision. [`Peer::bound_streams`] bounds what they hold.
const MAX_STREAMS: u32 = 1024;

/// Bound: bytes of an HTTP/2 connection that have arrived and nobody has read yet, such as those of a check stream
/// whose answers are not read. Beyond it, HTTP/2 holds the client back.
const UNREAD_MAX: u32 = 256 * 1024;

/// Dead peers of HTTP/2 connections are found by pings this far apart.
const PING_EVERY: Duration = Duration::from_secs(20);

/// Serves the connections of one port.
pub(super) struct Server<H> {
    handler: Arc<H>,
    tls: Option<Tls>,
    max_body: usize,
    unauthenticated: Arc<UnauthenticatedReads>,
}

impl<H: Handler> Server<H> {
    pub(super) fn new(handler: Arc<H>, tls: Option<Tls>, bounds: ConnectionBounds) -> Self {
        Self {
            handler,
            tls,
            max_body: bounds.max_body,
            unauthenticated: Arc::default(),
        }
    }

    pub(super) async fn serve(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + 'static,
        peer: &Arc<Peer>,
        unsent: &Arc<Unsent>,
        lifecycle: &Arc<Lifecycle>,
    ) {
        let stream = Inbound::new(stream, Arc::clone(peer), Arc::clone(&self.unauthenticated));
        let Some(tls) = &self.tls else {
            return self.drive(stream, peer, unsent, lifecycle).await;
        };
        let accepted = tokio::select! {
            accepted = tls.accept(stream) => accepted,
            _ = peer.ordered(Some(Order::Drain)) => return,
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
            .initial_stream_window_size(window.clamp(16 * 1024, UNREAD_MAX))
            .initial_connection_window_size(UNREAD_MAX)
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
        let mut streams = Streams::default();
        let arrivals = streams.arrivals();
        let service = service_fn(|request| {
            let exchange = Exchange {
                arrivals: arrivals.clone(),
                running: Running::start(peer, unsent),
                lifecycle: Arc::clone(lifecycle),
                http1: request.version() <= Version::HTTP_11,
            };
            let answer = Arc::clone(&self.handler).handle(request, Arc::clone(peer));
            peer.bound_streams(unsent);
            exchange.answer(answer)
        });
        let socket = TokioIo::new(stream);
        let protocols = self.protocols(arrivals.clone());
        let mut connection = pin!(protocols.serve_connection(socket, service));
        let mut known = None;
        loop {
            tokio::select! {
                biased;
                ended = poll_fn(|context| streams.poll_with(connection.as_mut(), context)) => {
                    return log_end(ended);
                }
                order = peer.ordered(known) => match order {
                    Order::Drain => connection.as_mut().graceful_shutdown(),
                    Order::Close => return,
                },
            }
            known = Some(Order::Drain);
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
    arrivals: Arrivals,
    running: Running,
    lifecycle: Arc<Lifecycle>,
    http1: bool,
}

impl Exchange {
    async fn answer(
        self,
        answer: impl Future<Output = Response<Bytes>>,
    ) -> Result<Response<ResponseBody>, Infallible> {
        let peer = &self.running.peer;
        let mut response = answer.await;
        // A connection without an admitted request ends after this answer.
        let last = !peer.is_admitted();
        if self.http1 && (last || self.lifecycle.is_leaving()) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        } else if last {
            peer.order(Order::Drain);
        }
        let trailers = response.extensions_mut().remove();
        let following: Option<Following> = response.extensions_mut().remove();
        let mut response =
            response.map(|bytes| ResponseBody::new(bytes, trailers, peer, &self.running.unsent));
        if let Some(following) = following {
            let work = response.body_mut().stay_open(&following, self.running);
            if let Some(work) = work {
                self.arrivals.execute(work);
            }
        }
        Ok(response)
    }
}

// --- The body of a response, counted as unsent until its last byte is written.

/// About what a stream costs beside the bytes of its response.
const STREAM_BYTES: usize = 4096;

/// The gRPC trailers of a response, passed as an extension of it.
#[derive(Clone, Debug)]
pub(crate) struct Trailers(pub(crate) HeaderMap);

/// Further chunks of a body, or the trailers that end it.
type Chunks = BoxStream<'static, Result<Bytes, HeaderMap>>;

/// What the task of an HTTP/2 connection does beside, also while the client reads no chunks.
type Work = Option<BoxFuture<'static, ()>>;

/// The further chunks of a response that stays open, passed as an extension of it. The lower bound
/// of its size hint counts as unsent.
#[derive(Clone)]
pub(crate) struct Following(Arc<Mutex<Option<(Chunks, Work)>>>);

impl Following {
    pub(crate) fn new(
        chunks: impl Stream<Item = Result<Bytes, HeaderMap>> + Send + 'static,
        work: Work,
    ) -> Self {
        Self(Arc::new(Mutex::new(Some((chunks.boxed(), work)))))
    }
}

/// The body of one response: one chunk, or one and those that follow.
struct ResponseBody {
    chunk: Option<Chunk>,
    following: Option<Open>,
    trailers: Option<Trailers>,
}

/// The state of a response that stays open.
struct Open {
    chunks: Chunks,
    running: Running,
    /// Counts chunks that are certain to follow as unsent: while the client reads nothing, they are
    /// not made, but their sources stay in memory.
    owed: Option<UnsentResponse>,
}

impl Open {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Chunk, HeaderMap>>> {
        let next = self.chunks.poll_next_unpin(context);
        let Running { peer, unsent } = &self.running;
        let is_owed = self.chunks.size_hint().0 > 0;
        self.owed = is_owed.then(|| UnsentResponse::start(peer, unsent, STREAM_BYTES));
        next.map_ok(|bytes| Chunk::new(bytes, peer, unsent))
    }
}

/// The chunk, which hyper keeps until it is written.
struct Chunk {
    bytes: Bytes,
    _unsent: UnsentResponse,
}

/// A response that was not sent whole yet.
struct UnsentResponse {
    peer: Arc<Peer>,
    unsent: Arc<Unsent>,
    period: usize,
    bytes: usize,
}

impl ResponseBody {
    pub(super) fn new(
        bytes: Bytes,
        trailers: Option<Trailers>,
        peer: &Arc<Peer>,
        unsent: &Arc<Unsent>,
    ) -> Self {
        Self {
            chunk: (!bytes.is_empty()).then(|| Chunk::new(bytes, peer, unsent)),
            following: None,
            trailers,
        }
    }

    /// Keeps the response open for further chunks. Until they end, the request counts as running. Returns
    /// what to do beside.
    fn stay_open(&mut self, following: &Following, running: Running) -> Work {
        let mut following = following.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (chunks, work) = following.take()?;
        self.following = Some(Open {
            chunks,
            running,
            owed: None,
        });
        work
    }
}

impl Chunk {
    fn new(bytes: Bytes, peer: &Arc<Peer>, unsent: &Arc<Unsent>) -> Self {
        // All proxies that receive a snapshot share its memory, so it is not counted.
        let own = if bytes.is_unique() { bytes.len() } else { 0 };
        let unsent = UnsentResponse::start(peer, unsent, own.saturating_add(STREAM_BYTES));
        Self {
            bytes,
            _unsent: unsent,
        }
    }
}

impl UnsentResponse {
    fn start(peer: &Arc<Peer>, unsent: &Arc<Unsent>, bytes: usize) -> Self {
        let period = unsent.period();
        if let Some(answers) = peer.unsent.get(period) {
            answers.fetch_add(1, Ordering::Relaxed);
        }
        unsent.add(bytes);
        Self {
            peer: Arc::clone(peer),
            unsent: Arc::clone(unsent),
            period,
            bytes,
        }
    }
}

impl Drop for UnsentResponse {
    fn drop(&mut self) {
        if let Some(answers) = self.peer.unsent.get(self.period) {
            answers.fetch_sub(1, Ordering::Relaxed);
        }
        self.unsent.subtract(self.bytes);
    }
}

impl Body for ResponseBody {
    type Data = Chunk;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, Infallible>>> {
        let mut next = self.chunk.take();
        if next.is_none()
            && let Some(open) = &mut self.following
        {
            match ready!(open.poll_next(context)) {
                Some(Ok(chunk)) => next = Some(chunk),
                Some(Err(trailers)) => {
                    (self.following, self.trailers) = (None, Some(Trailers(trailers)));
                }
                None => self.following = None,
            }
        }
        let frame = match next {
            Some(chunk) => Some(Frame::data(chunk)),
            None => self.trailers.take().map(|last| Frame::trailers(last.0)),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.chunk.is_none() && self.following.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        if self.following.is_some() {
            return SizeHint::default();
        }
        let left = self.chunk.as_ref().map_or(0, Buf::remaining);
        SizeHint::with_exact(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
