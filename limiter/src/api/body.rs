//! Reading a request's body, no further than the bounds.
//!
//! Bytes are counted as they arrive, not as they were announced: per request, per connection and in
//! all. Once decoded, a request counts with what its checks take, until they are answered.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use policy::Descriptor;
use prometheus_client::metrics::gauge::Gauge;
use protocol::{ApiError, Check, ErrorCode};
use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

use super::inflight::{Inflight, Place};
use crate::serve::Peer;

/// A body that takes longer counts as slow; few may: proxies send theirs at once.
const AT_ONCE: Duration = Duration::from_millis(100);

/// How long a client may take to send what it announced: a request holds its place meanwhile.
const WITHIN: Duration = Duration::from_secs(5);

/// Bodies that may be slow at once.
const SLOW_MAX: usize = 64;

/// Bytes of all requests at once, as received and as decoded. A batch of a hundred checks takes some
/// ten thousand.
const BYTES_MAX: usize = 32 << 20;

/// The share of it that the requests of one connection may take.
const CONNECTION_SHARE: usize = 4;

/// Bodies above are decoded beside the threads that serve, one at a time: it takes up to some
/// milliseconds, for which the checks of others would wait.
const LARGE: usize = 16 * 1024;

/// Bytes that a byte of a body takes at most while it is decoded.
const DECODED_FACTOR: usize = 32;

/// Bytes of a body that is too large that are read over, and how long that may take.
const DISCARDED_MAX: usize = 1 << 20;
const DISCARD: Duration = Duration::from_millis(100);

/// Why there is no whole body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// Larger than the bound.
    TooLarge,
    /// Still not whole after a long while.
    TooSlow,
    /// The client stopped sending.
    Broken,
    /// No room for it, beside those of others.
    NoRoom,
}

/// What bounds the requests of all connections together.
pub(super) struct Bodies {
    /// The largest body, in bytes.
    max: usize,
    /// Bytes of all requests.
    bytes: Arc<Inflight>,
    /// Bodies that are slow.
    slow: Arc<Inflight>,
    /// Who decodes a large body.
    decoding: Arc<Semaphore>,
}

/// A body, with the room that it takes.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) room: Room,
}

/// The room that one request takes.
pub(super) struct Room {
    place: Place,
    peer: Arc<Peer>,
    /// The most that the requests of its connection may take together.
    share: usize,
}

impl Bodies {
    pub(super) fn new(max: usize, gauge: Gauge) -> Self {
        let all = BYTES_MAX.max(max.saturating_mul(2 * CONNECTION_SHARE));
        Self {
            max,
            bytes: Inflight::new(all, gauge),
            slow: Inflight::new(SLOW_MAX, Gauge::default()),
            decoding: Arc::new(Semaphore::new(1)),
        }
    }

    /// The largest body, in bytes.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Decodes a body, a large one off the threads that serve.
    pub(super) async fn decode<T: Send + 'static>(
        &self,
        bytes: Bytes,
        decode: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if bytes.len() <= LARGE {
            return decode(&bytes);
        }
        let turn = Arc::clone(&self.decoding).acquire_owned().await;
        // The turn ends with the work: a client that leaves meanwhile does not start the next early.
        let work = move || {
            let _turn = turn;
            decode(&bytes)
        };
        let decoded = spawn_blocking(work).await;
        decoded.unwrap_or_else(|error| Err(ApiError::new(ErrorCode::Internal, error.to_string())))
    }

    /// Room for a request, of which nothing is taken yet.
    pub(super) fn room(&self, peer: &Arc<Peer>) -> Option<Room> {
        Some(Room {
            place: self.bytes.enter_with(0)?,
            peer: Arc::clone(peer),
            share: self.bytes.max() / CONNECTION_SHARE,
        })
    }

    /// Reads a body.
    pub(super) async fn receive(
        &self,
        mut body: Incoming,
        peer: Arc<Peer>,
    ) -> Result<Received, BodyError> {
        let received = self.gather(&mut body, peer).await;
        if matches!(received, Err(BodyError::TooLarge)) {
            discard(&mut body).await;
        }
        received
    }

    async fn gather(&self, body: &mut Incoming, peer: Arc<Peer>) -> Result<Received, BodyError> {
        let announced = body.size_hint().lower();
        if usize::try_from(announced).unwrap_or(usize::MAX) > self.max {
            return Err(BodyError::TooLarge);
        }
        let mut gathered = Gathered {
            first: Bytes::new(),
            rest: BytesMut::new(),
            room: self.room(&peer).ok_or(BodyError::NoRoom)?,
        };
        if let Ok(read) = timeout(AT_ONCE, gathered.fill(body, self.max)).await {
            read?;
            return Ok(gathered.into_received());
        }
        let _slow = self.slow.enter().ok_or(BodyError::NoRoom)?;
        match timeout(WITHIN, gathered.fill(body, self.max)).await {
            Ok(read) => read?,
            Err(_) => return Err(BodyError::TooSlow),
        }
        Ok(gathered.into_received())
    }
}

/// What came of a body so far. A small one comes in one piece, which is not copied.
struct Gathered {
    first: Bytes,
    rest: BytesMut,
    room: Room,
}

/// Reads over a body, as far as it is small and soon there: a connection that is closed with bytes
/// unread is reset, and the reset can overtake the answer.
async fn discard(body: &mut Incoming) {
    let mut left = DISCARDED_MAX;
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
            if left == 0 {
                break;
            }
        }
    };
    // What is not there in time is not waited for.
    let _ = timeout(DISCARD, read).await;
}

impl Gathered {
    async fn fill(&mut self, body: &mut Incoming, max: usize) -> Result<(), BodyError> {
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
                continue;
            };
            if self.first.len() + self.rest.len() + data.len() > max {
                return Err(BodyError::TooLarge);
            }
            self.room.grow(data.len()).ok_or(BodyError::NoRoom)?;
            if self.first.is_empty() {
                self.first = data;
            } else {
                self.rest.extend_from_slice(&data);
            }
        }
        Ok(())
    }

    fn into_received(self) -> Received {
        let bytes = if self.rest.is_empty() {
            self.first
        } else {
            let mut whole = BytesMut::with_capacity(self.first.len() + self.rest.len());
            whole.extend_from_slice(&self.first);
            whole.extend_from_slice(&self.rest);
            whole.freeze()
        };
        Received {
            bytes,
            room: self.room,
        }
    }
}

impl Room {
    /// Takes so much more; `None`, and no more, if there is not.
    pub(super) fn grow(&mut self, bytes: usize) -> Option<()> {
        if !self.peer.hold_bytes(bytes, self.share) {
            return None;
        }
        let grown = self.place.grow(bytes);
        if grown.is_none() {
            self.peer.release_bytes(bytes);
        }
        grown
    }

    /// Takes what decoding may take at the worst, until [`Self::hold`].
    pub(super) fn decode(&mut self) -> Option<()> {
        let most = self.place.size().saturating_mul(DECODED_FACTOR);
        self.take(most.min(self.share))
    }

    /// Takes what the checks take, now that the body is gone.
    pub(super) fn hold(&mut self, checks: &[Check]) -> Option<()> {
        let bytes = checks.iter().map(memory).sum::<usize>();
        self.take(bytes.min(self.share))
    }

    /// Takes so much in all.
    fn take(&mut self, bytes: usize) -> Option<()> {
        let now = self.place.size();
        if let Some(less) = now.checked_sub(bytes) {
            self.place.shrink(less);
            self.peer.release_bytes(less);
            return Some(());
        }
        self.grow(bytes.saturating_sub(now))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.peer.release_bytes(self.place.size());
    }
}

/// Bytes that a check takes, about.
fn memory(check: &Check) -> usize {
    const CHECK: usize = 320;
    /// A key, a value and what allocating them costs.
    const ENTRY: usize = 112;
    const LIMIT: usize = 64;
    const SETTLEMENT: usize = 24;
    let of = |descriptor: &Descriptor| -> usize {
        descriptor
            .iter()
            .map(|(_, value)| value.len() + ENTRY)
            .sum()
    };
    let parts = check.service.iter().flat_map(|service| &service.parts);
    let parts: usize = parts.map(|part| CHECK + of(&part.descriptor)).sum();
    let limits = check.only.len() + check.skip.len() + check.debits.len() + check.leases.len();
    let settled = check.leases.iter().map(|lease| lease.settle.len());
    CHECK + of(&check.descriptor) + parts + limits * LIMIT + settled.sum::<usize>() * SETTLEMENT
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn a_client_that_leaves_does_not_start_the_next_body_early() {
        let bodies = Arc::new(Bodies::new(256 << 10, Gauge::default()));
        let large = Bytes::from(vec![0; LARGE + 1]);
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (finish, may_finish) = mpsc::channel::<()>();
        let first = tokio::spawn({
            let (bodies, large) = (Arc::clone(&bodies), large.clone());
            async move {
                let decode = move |_: &[u8]| {
                    started.send(()).unwrap();
                    may_finish.recv().unwrap();
                    Ok(())
                };
                bodies.decode(large, decode).await
            }
        });
        has_started.await.unwrap();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(bodies.decoding.available_permits(), 0);
        finish.send(()).unwrap();
        let length = bodies.decode(large, |bytes| Ok(bytes.len())).await;
        assert_eq!(length.unwrap(), LARGE + 1);
    }
}
