//! The body of a response, counted as unsent until its last byte is written.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    task::{Context, Poll, ready},
};

use super::{
    peer::{Peer, Running},
    unsent::Unsent,
};
use bytes::{Buf, Bytes};
use futures_util::stream::{BoxStream, Stream, StreamExt};
use hyper::{
    HeaderMap,
    body::{Body, Frame, SizeHint},
};

/// About what a stream costs beside the bytes of its response.
const STREAM_BYTES: usize = 4096;

/// The gRPC trailers of a response, passed as an extension of it.
#[derive(Clone, Debug)]
pub(crate) struct Trailers(pub(crate) HeaderMap);

/// Further chunks of a body, or the trailers that end it.
type Chunks = BoxStream<'static, Result<Bytes, HeaderMap>>;

/// The further chunks of a response that stays open, passed as an extension of it. The lower bound
/// of its size hint counts as unsent.
#[derive(Clone)]
pub(crate) struct Following(Arc<Mutex<Option<Chunks>>>);

impl Following {
    pub(crate) fn new(
        chunks: impl Stream<Item = Result<Bytes, HeaderMap>> + Send + 'static,
    ) -> Self {
        Self(Arc::new(Mutex::new(Some(chunks.boxed()))))
    }
}

/// The body of one response: one chunk, or one and those that follow.
pub(super) struct ResponseBody {
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
        let (peer, unsent) = (self.running.peer(), self.running.unsent());
        let is_owed = self.chunks.size_hint().0 > 0;
        self.owed = is_owed.then(|| UnsentResponse::start(peer, unsent, STREAM_BYTES));
        next.map_ok(|bytes| Chunk::new(bytes, peer, unsent))
    }
}

/// The chunk, which hyper keeps until it is written.
pub(super) struct Chunk {
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

    /// Keeps the response open for further chunks. Until they end, the request counts as running.
    pub(super) fn stay_open(&mut self, following: &Following, running: Running) {
        let mut chunks = following.0.lock().unwrap_or_else(PoisonError::into_inner);
        self.following = chunks.take().map(|chunks| Open {
            chunks,
            running,
            owed: None,
        });
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
