//! Reads request bodies within bounds.
//!
//! Bytes are counted as they arrive, not as announced: per request, per connection and in all. A
//! decoded request counts the memory of its checks until they are answered.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use policy::Descriptor;
use prometheus_client::metrics::gauge::Gauge;
use protocol::{ApiError, Check, ErrorCode, LimitRequest};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
    time::timeout,
};

use super::refusal;
use crate::serve::Peer;

/// A body that takes longer counts as slow, and only few slow ones may be read at once: proxies
/// send theirs in one go.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Bound: time for a body or a message to arrive. Beyond it, 400, or the stream ends.
const WITHIN: Duration = Duration::from_secs(5);

/// Bound: bodies that take longer than a moment to arrive, at once. Beyond it, 503.
const SLOW_MAX: usize = 64;

/// Bound: bytes of requests in a limiter until they are answered. Beyond it, 503.
///
/// A batch of a hundred checks takes some ten thousand.
const BYTES_MAX: usize = 16 << 20;

/// Bound: the part of those bytes that one connection may have: one of so many. Beyond it, 503.
const CONNECTION_SHARE: usize = 4;

/// Bound: the part of those bytes that slow bodies may have: one of so many. Beyond it, 503.
const SLOW_SHARE: usize = 2;

/// Bound: bytes of a body that is decoded at once with others. Beyond it, a larger one waits until
/// no other large one is decoded.
///
/// Decoding takes up to a few milliseconds, which would delay other checks.
const LARGE: usize = 16 * 1024;

/// The most memory that decoding takes, in bytes per byte of the body.
const DECODED_FACTOR: usize = 32;

/// Bytes of a too large body that are read and discarded, and the time limit for it.
const DISCARDED_MAX: usize = 1 << 20;
const DISCARD: Duration = Duration::from_millis(100);

/// Why a body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyError {
    /// Larger than the bound.
    TooLarge,
    /// Not complete in time.
    TooSlow,
    /// The client stopped sending.
    Broken,
    /// The memory bound of all requests, or of its connection, is reached.
    NoRoom,
}

/// What bounds the requests of all connections together.
pub(super) struct Bodies {
    /// The largest body, in bytes.
    max: usize,
    /// Bytes of all requests.
    bytes: Arc<Inflight>,
    /// Bytes of bodies that are slow, each of which counts as at least one of [`SLOW_MAX`] parts.
    slow: Arc<Inflight>,
    /// The permit to decode a large body.
    decoding: Arc<Semaphore>,
}

/// A body, with the memory that it takes.
pub(super) struct Received {
    pub(super) bytes: Bytes,
    pub(super) memory: MemoryPermit,
}

/// The memory that one request has reserved.
pub(super) struct MemoryPermit {
    permit: InflightPermit,
    peer: Arc<Peer>,
    /// The most memory for all requests of its connection.
    share: usize,
    /// The permit to decode a large body, until what was decoded is counted.
    turn: Option<OwnedSemaphorePermit>,
}

impl Bodies {
    pub(super) fn new(max: usize, gauge: Gauge) -> Self {
        let all = BYTES_MAX.max(max.saturating_mul(2 * CONNECTION_SHARE));
        Self {
            max,
            bytes: Inflight::new(all, gauge),
            slow: Inflight::new(all / SLOW_SHARE, Gauge::default()),
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
        body: Received,
        decode: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<(T, MemoryPermit), ApiError> {
        let Received { bytes, mut memory } = body;
        if bytes.len() <= LARGE {
            memory.decode().ok_or_else(refusal::no_room)?;
            return Ok((decode(&bytes)?, memory));
        }
        memory.turn = Arc::clone(&self.decoding).acquire_owned().await.ok();
        // With those that wait for their turn counted, four clients left nothing for all others.
        memory.decode().ok_or_else(refusal::no_room)?;
        // The work holds the permits: a client that disconnects meanwhile must not let the next
        // decode start early.
        let work = move || Ok((decode(&bytes)?, memory));
        let decoded = spawn_blocking(work).await;
        decoded.unwrap_or_else(|error| Err(ApiError::new(ErrorCode::Internal, error.to_string())))
    }

    /// The permit of a request, with nothing reserved yet.
    pub(super) fn memory_permit(&self, peer: &Arc<Peer>) -> Option<MemoryPermit> {
        Some(MemoryPermit {
            permit: self.bytes.enter_with(0)?,
            peer: Arc::clone(peer),
            share: self.bytes.max() / CONNECTION_SHARE,
            turn: None,
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
            memory: self.memory_permit(&peer).ok_or(BodyError::NoRoom)?,
            slow: None,
        };
        if let Ok(read) = timeout(AT_ONCE, gathered.fill(body, self.max)).await {
            read?;
            return Ok(gathered.into_received());
        }
        let least = self.slow.max() / SLOW_MAX;
        let slow = self.slow.enter_with(least.max(gathered.len()));
        gathered.slow = Some(slow.ok_or(BodyError::NoRoom)?);
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
    memory: MemoryPermit,
    /// If it is slow.
    slow: Option<InflightPermit>,
}

/// Discards the rest of a body if it is small and arrives soon: closing a connection with unread
/// bytes resets it, and the reset can overtake the answer.
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
            let length = self.len() + data.len();
            if length > max {
                return Err(BodyError::TooLarge);
            }
            self.memory.grow(data.len()).ok_or(BodyError::NoRoom)?;
            if let Some(slow) = &mut self.slow {
                let more = length.saturating_sub(slow.size());
                slow.grow(more).ok_or(BodyError::NoRoom)?;
            }
            if self.first.is_empty() {
                self.first = data;
            } else {
                self.rest.extend_from_slice(&data);
            }
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn into_received(self) -> Received {
        let bytes = if self.rest.is_empty() {
            self.first
        } else {
            let mut whole = BytesMut::with_capacity(self.len());
            whole.extend_from_slice(&self.first);
            whole.extend_from_slice(&self.rest);
            whole.freeze()
        };
        Received {
            bytes,
            memory: self.memory,
        }
    }
}

impl MemoryPermit {
    /// Reserves `bytes` more; `None`, and nothing reserved, if they exceed a bound.
    pub(super) fn grow(&mut self, bytes: usize) -> Option<()> {
        if !self.peer.hold_bytes(bytes, self.share) {
            return None;
        }
        let grown = self.permit.grow(bytes);
        if grown.is_none() {
            self.peer.release_bytes(bytes);
        }
        grown
    }

    /// Reserves the most that decoding can take, until [`Self::hold`].
    fn decode(&mut self) -> Option<()> {
        let most = self.permit.size().saturating_mul(DECODED_FACTOR);
        self.take(most.min(self.share))
    }

    /// Reserves the memory of the checks, now that the body is dropped.
    pub(super) fn hold(&mut self, checks: &[Check]) -> Option<()> {
        let bytes = checks.iter().map(check_bytes).sum::<usize>();
        let held = self.take(bytes.min(self.share));
        self.turn = None;
        held
    }

    /// Changes the reservation to `bytes`.
    fn take(&mut self, bytes: usize) -> Option<()> {
        let now = self.permit.size();
        if let Some(less) = now.checked_sub(bytes) {
            self.permit.shrink(less);
            self.peer.release_bytes(less);
            return Some(());
        }
        self.grow(bytes.saturating_sub(now))
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.peer.release_bytes(self.permit.size());
    }
}

/// The approximate bytes that a check takes.
fn check_bytes(check: &Check) -> usize {
    const CHECK: usize = 320;
    /// A key, a value and what allocating them costs.
    const ENTRY: usize = 112;
    const NAME: usize = 16;
    const LIMIT: usize = size_of::<LimitRequest>();
    const SETTLEMENT: usize = 24;
    let of = |descriptor: &Descriptor| -> usize {
        descriptor
            .iter()
            .map(|(_, value)| value.len() + ENTRY)
            .sum()
    };
    let parts = check.service.iter().flat_map(|service| &service.parts);
    let parts: usize = parts.map(|part| CHECK + of(&part.descriptor)).sum();
    let of_limit = |entry: &LimitRequest| {
        let leased = entry.lease.as_ref().map_or(0, |lease| lease.settle.len());
        let settled = leased + entry.slots.len() + 2 * entry.settle.len();
        LIMIT + settled * SETTLEMENT
    };
    let limits: usize = check.limits.iter().map(of_limit).sum();
    CHECK + of(&check.descriptor) + parts + check.only.len() * NAME + limits
}

// --- Bounds on concurrent work

/// A bound, with a gauge that shows how much of it is used.
pub(super) struct Inflight {
    max: usize,
    used: AtomicUsize,
    gauge: Gauge,
}

/// A part of the bound, released when dropped.
pub(super) struct InflightPermit {
    of: Arc<Inflight>,
    size: usize,
}

impl Inflight {
    pub(super) fn new(max: usize, gauge: Gauge) -> Arc<Self> {
        Arc::new(Self {
            max,
            used: AtomicUsize::new(0),
            gauge,
        })
    }

    /// A permit, if one is free.
    pub(super) fn enter(self: &Arc<Self>) -> Option<InflightPermit> {
        self.enter_with(1)
    }

    /// The bound.
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// How much is used, in the units of the bound.
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// A permit of this size, if it fits.
    fn enter_with(self: &Arc<Self>, size: usize) -> Option<InflightPermit> {
        let used = self.used.fetch_add(size, Ordering::Relaxed);
        if used.saturating_add(size) > self.max {
            self.used.fetch_sub(size, Ordering::Relaxed);
            return None;
        }
        self.gauge.inc_by(signed(size));
        Some(InflightPermit {
            of: Arc::clone(self),
            size,
        })
    }
}

impl InflightPermit {
    /// In the units of the bound.
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Makes it larger by so much, if that fits.
    pub(super) fn grow(&mut self, more: usize) -> Option<()> {
        // `part` is emptied, so its drop releases nothing.
        let mut part = self.of.enter_with(more)?;
        self.size += std::mem::take(&mut part.size);
        Some(())
    }

    /// Makes it smaller by so much.
    pub(super) fn shrink(&mut self, less: usize) {
        let less = less.min(self.size);
        self.size -= less;
        drop(Self {
            of: Arc::clone(&self.of),
            size: less,
        });
    }
}

impl Drop for InflightPermit {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.size, Ordering::Relaxed);
        self.of.gauge.dec_by(signed(self.size));
    }
}

fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
