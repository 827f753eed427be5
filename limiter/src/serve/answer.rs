//! An answer's body, counted until its last byte was written.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};

use super::{connections::Unsent, peer::Peer};

/// What a stream costs beside its answer's bytes, about.
const STREAM_BYTES: usize = 4096;

/// The body of one answer, in one piece.
pub(super) struct Payload(Option<Piece>);

/// The piece, which the protocols keep until it is written.
pub(super) struct Piece {
    bytes: Bytes,
    _sending: Sending,
}

/// An answer that was not sent whole yet.
struct Sending {
    peer: Arc<Peer>,
    unsent: Arc<Unsent>,
    period: usize,
    bytes: usize,
}

impl Payload {
    pub(super) fn new(bytes: Bytes, peer: &Arc<Peer>, unsent: &Arc<Unsent>) -> Self {
        if bytes.is_empty() {
            return Self(None);
        }
        // A snapshot is the same memory for every proxy that receives it.
        let own = if bytes.is_unique() { bytes.len() } else { 0 };
        let sending = Sending::start(peer, unsent, own.saturating_add(STREAM_BYTES));
        Self(Some(Piece {
            bytes,
            _sending: sending,
        }))
    }
}

impl Sending {
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

impl Drop for Sending {
    fn drop(&mut self) {
        if let Some(answers) = self.peer.unsent.get(self.period) {
            answers.fetch_sub(1, Ordering::Relaxed);
        }
        self.unsent.subtract(self.bytes);
    }
}

impl Body for Payload {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, Infallible>>> {
        Poll::Ready(self.0.take().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.0.as_ref().map_or(0, Buf::remaining);
        SizeHint::with_exact(u64::try_from(left).unwrap_or(u64::MAX))
    }
}

impl Buf for Piece {
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
