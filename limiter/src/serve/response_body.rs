//! The body of a response, counted until its last byte was written.

use std::{
    any::Any,
    convert::Infallible,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes};
use futures_util::stream::{BoxStream, StreamExt, unfold};
use hyper::{
    HeaderMap,
    body::{Body, Frame, SizeHint},
};
use tokio::sync::watch;

use super::{
    peer::{Peer, Running},
    unsent::Unsent,
};

/// About what a stream costs beside the bytes of its response.
const STREAM_BYTES: usize = 4096;

/// What follows the body of a response, as gRPC has it: an extension of the response.
#[derive(Clone, Debug)]
pub(crate) struct Trailers(pub(crate) HeaderMap);

/// What follows the first message of a response that stays open until its connection is ordered to end:
/// an extension of the response.
#[derive(Clone)]
pub(crate) struct Following {
    /// Each change is a message; those that come faster than they are sent are one.
    pub(crate) messages: watch::Receiver<Bytes>,
    /// What the response holds until it ends.
    pub(crate) _held: Arc<dyn Any + Send + Sync>,
}

/// The body of one response: one chunk, or one and those that follow.
pub(super) struct ResponseBody {
    chunk: Option<Chunk>,
    following: Option<BoxStream<'static, Chunk>>,
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
        Self {
            chunk: (!bytes.is_empty()).then(|| Chunk::new(bytes, peer, unsent)),
            following: None,
            trailers,
        }
    }

    /// Keeps it open until the connection of `running` is ordered to end.
    pub(super) fn stay_open(&mut self, following: Following, running: Running) {
        let state = (following, running);
        let messages = unfold(state, |(mut following, running)| async move {
            let peer = running.peer();
            tokio::select! {
                _ = peer.ordered(None) => return None,
                changed = following.messages.changed() => changed.ok()?,
            }
            let bytes = following.messages.borrow_and_update().clone();
            let chunk = Chunk::new(bytes, peer, running.unsent());
            Some((chunk, (following, running)))
        });
        self.following = Some(messages.boxed());
    }
}

impl Chunk {
    fn new(bytes: Bytes, peer: &Arc<Peer>, unsent: &Arc<Unsent>) -> Self {
        // A snapshot is the same memory for every proxy that receives it.
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
            && let Some(following) = &mut self.following
        {
            next = ready!(following.poll_next_unpin(context));
            if next.is_none() {
                self.following = None;
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
