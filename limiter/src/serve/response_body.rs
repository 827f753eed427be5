//! The body of a response, counted until its last byte was written.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use hyper::{
    HeaderMap,
    body::{Body, Frame, SizeHint},
};

use super::{connections::Unsent, peer::Peer};

/// About what a stream costs beside the bytes of its response.
const STREAM_BYTES: usize = 4096;

/// What follows the body of a response, as gRPC has it: an extension of the response.
#[derive(Clone, Debug)]
pub(crate) struct Trailers(pub(crate) HeaderMap);

/// The body of one response, in one chunk.
pub(super) struct ResponseBody {
    chunk: Option<Chunk>,
    trailers: Option<Trailers>,
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
        if bytes.is_empty() {
            return Self {
                chunk: None,
                trailers,
            };
        }
        // A snapshot is the same memory for every proxy that receives it.
        let own = if bytes.is_unique() { bytes.len() } else { 0 };
        let unsent_response = UnsentResponse::start(peer, unsent, own.saturating_add(STREAM_BYTES));
        let chunk = Chunk {
            bytes,
            _unsent: unsent_response,
        };
        Self {
            chunk: Some(chunk),
            trailers,
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
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, Infallible>>> {
        let frame = match self.chunk.take() {
            Some(chunk) => Some(Frame::data(chunk)),
            None => self.trailers.take().map(|last| Frame::trailers(last.0)),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.chunk.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
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
