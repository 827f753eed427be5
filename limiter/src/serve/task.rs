//! The task of a connection: how much it reads at a time, the requests that it runs, and its wakes.

use std::{
    io,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker, ready},
    time::Duration,
};

use futures_util::{
    FutureExt,
    stream::{FuturesUnordered, StreamExt},
    task::AtomicWaker,
};
use hyper::rt::Executor;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::connections::Peer;

// --- Bounds how fast connections are read
//
// hyper and h2 process everything in a socket before they yield, and a small frame costs as much
// as a large one. So a connection yields after each piece, and all unauthenticated connections share
// one rate, whatever their number.

/// Bytes after which a connection yields: a thousand of the smallest frames, about half a
/// millisecond.
const PIECE: usize = 16 * 1024;

/// Bound: bytes of one read from a connection without an admitted client. Beyond it, they wait for
/// the next read.
///
/// More than the headers of an honest request, or one step of a TLS handshake.
const UNAUTHENTICATED_READ: usize = 1024;

/// Bound: the time that a byte of such a connection takes, over all of them. Beyond it, later reads
/// wait their turn; the first kilobyte of a connection does not.
///
/// 2 MB/s in all. Refusing requests at that rate takes a fifth of a core.
const UNAUTHENTICATED_BYTE: Duration = Duration::from_nanos(500);

/// Bound: how long such a connection waits for its turn. Beyond it, reads share a turn.
///
/// As long as one read of each of 256 takes. First bytes do not wait: from connections that come faster than their bytes
/// are due, turns would come later and later, and stay so for as long again after the last of them.
const UNAUTHENTICATED_WAIT: Duration = Duration::from_millis(128);

/// Bound: the time that a byte of a health checker takes. Beyond it, its next read waits.
///
/// 2 KB/s, of 1,024 of them as much as of all strangers. It waits for no other connection: strangers would make Envoys
/// take this limiter for one that hangs.
const HEALTH_CHECK_BYTE: Duration = Duration::from_micros(500);

/// Schedules the reads of unauthenticated connections. The bytes of a read delay the
/// connection's next read, beyond its first [`UNAUTHENTICATED_READ`] bytes: a client whose first bytes are a request
/// never waits, in however many reads they are taken.
#[derive(Debug, Default)]
pub(super) struct UnauthenticatedReads {
    next: Mutex<Option<Instant>>,
}

impl UnauthenticatedReads {
    /// Schedules the next read after one of `bytes` bytes; `None`: read at once.
    fn after(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let takes = UNAUTHENTICATED_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX);
        let start = next.filter(|next| *next > now);
        let end = start.unwrap_or(now) + takes;
        *next = Some(end.min(now + UNAUTHENTICATED_WAIT));
        start
    }
}

/// A socket with a bounded read rate.
pub(super) struct Inbound<S> {
    socket: S,
    peer: Arc<Peer>,
    unauthenticated: Arc<UnauthenticatedReads>,
    /// The bytes that an unauthenticated connection may still read without a turn.
    first: usize,
    /// Bytes since this connection yielded.
    piece: usize,
    /// When it may be read again.
    turn: Option<Pin<Box<Sleep>>>,
}

impl<S> Inbound<S> {
    pub(super) fn new(
        socket: S,
        peer: Arc<Peer>,
        unauthenticated: Arc<UnauthenticatedReads>,
    ) -> Self {
        Self {
            socket,
            peer,
            unauthenticated,
            first: UNAUTHENTICATED_READ,
            piece: 0,
            turn: None,
        }
    }

    /// Ready when this connection may be read.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.piece >= PIECE {
            self.piece = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if let Some(turn) = &mut self.turn {
            if !self.peer.is_authenticated() {
                ready!(turn.as_mut().poll(context));
            }
            self.turn = None;
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> Inbound<S> {
    /// Reads a little, and schedules the next read.
    fn poll_unauthenticated(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut small = [0; UNAUTHENTICATED_READ];
        let most = match self.first {
            0 => UNAUTHENTICATED_READ,
            first => first,
        };
        let most = buffer.remaining().min(most);
        let mut read = ReadBuf::new(small.get_mut(..most).unwrap_or_default());
        ready!(Pin::new(&mut self.socket).poll_read(context, &mut read))?;
        let bytes = read.filled();
        buffer.put_slice(bytes);
        let now = Instant::now();
        let turn = if self.peer.is_admitted() {
            let bytes = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            Some(now + HEALTH_CHECK_BYTE * bytes)
        } else {
            self.first = self.first.saturating_sub(bytes.len());
            let turn = self.unauthenticated.after(bytes.len(), now);
            turn.filter(|_| self.first == 0)
        };
        self.turn = turn.map(|turn| Box::pin(sleep_until(turn)));
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Inbound<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_turn(context));
        // h2 would start all streams that it can read before it checks whether the connection ends.
        if self.peer.is_to_close() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if !self.peer.is_authenticated() {
            return self.poll_unauthenticated(context, buffer);
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.socket).poll_read(context, buffer);
        self.piece = match read {
            Poll::Ready(_) => self.piece + buffer.filled().len().saturating_sub(before),
            Poll::Pending => 0,
        };
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Inbound<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

// --- Runs the requests of an HTTP/2 connection in the connection's own task.
//
// Separate tasks would be spread over the threads, and the connection would run, and write to its
// socket, after each of them. Here one poll advances every request that is ready, and one write
// sends all their answers. So one thread at a time works on a connection.

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The requests of one connection.
#[derive(Default)]
pub(super) struct Streams {
    arrived: Arc<Mutex<Vec<Stream>>>,
    running: FuturesUnordered<Stream>,
}

/// Where hyper puts the requests of a connection. Weak, because they hold it, too.
#[derive(Clone)]
pub(super) struct Arrivals(Weak<Mutex<Vec<Stream>>>);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Arrivals {
    fn execute(&self, stream: F) {
        // Without a connection nobody waits for it.
        let Some(arrived) = self.0.upgrade() else {
            return;
        };
        // A panic ends the request, not the others of the connection.
        let stream = AssertUnwindSafe(stream).catch_unwind();
        let stream = Box::pin(stream.map(drop));
        let mut arrived = arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.push(stream);
    }
}

impl Streams {
    /// The executor to build the connection with.
    pub(super) fn arrivals(&self) -> Arrivals {
        Arrivals(Arc::downgrade(&self.arrived))
    }

    /// Drives the connection and its requests; ready when the connection has ended.
    pub(super) fn poll_with<C: Future>(
        &mut self,
        connection: Pin<&mut C>,
        context: &mut Context<'_>,
    ) -> Poll<C::Output> {
        // First the requests, so that the connection sends their answers.
        self.work(context);
        let ended = connection.poll(context);
        self.work(context);
        ended
    }

    /// Starts what arrived; `false`: nothing.
    fn start_arrived(&mut self) -> bool {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        let some = !arrived.is_empty();
        self.running.extend(arrived.drain(..));
        some
    }

    /// Works on each request that can go on, and on what they start.
    fn work(&mut self, context: &mut Context<'_>) {
        loop {
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(context) {}
            if !self.start_arrived() {
                return;
            }
        }
    }
}

// --- Polls a future again at once if it woke itself.
//
// hyper wakes a connection's task from within: once for every request with a body, when the body is
// taken from the channel into which hyper has just put it, and twice for every message of a stream.
// The runtime treats a task woken while it runs as one that yields: it wakes another thread, which
// takes the task over, and the request moves to another core for nothing.

/// Polls a future again, at once, while it is woken during its own poll: up to [`POLLS`] times.
///
/// A future that is still woken then has used up its share of the thread, or waits for other tasks on
/// it, so it yields.
pub(super) struct Repoll<F> {
    future: Pin<Box<F>>,
    flag: Arc<WakeFlag>,
    waker: Waker,
}

/// The most polls in a row.
const POLLS: usize = 4;

/// It is not being polled: a wake goes to the task.
const IDLE: u8 = 0;
/// It is being polled, and was not woken since.
const POLLED: u8 = 1;
/// It is being polled, and was woken since.
const WOKEN: u8 = 2;

struct WakeFlag {
    state: AtomicU8,
    task: AtomicWaker,
}

impl Wake for WakeFlag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let before =
            self.state
                .compare_exchange(POLLED, WOKEN, Ordering::AcqRel, Ordering::Acquire);
        if before == Err(IDLE) {
            self.task.wake();
        }
    }
}

impl<F: Future> Repoll<F> {
    pub(super) fn new(future: F) -> Self {
        let flag = Arc::new(WakeFlag {
            state: AtomicU8::new(IDLE),
            task: AtomicWaker::new(),
        });
        Self {
            future: Box::pin(future),
            waker: Waker::from(Arc::clone(&flag)),
            flag,
        }
    }

    /// Polls once; the flag says whether the future was woken meanwhile.
    fn poll_once(&mut self) -> (Poll<F::Output>, bool) {
        self.flag.state.store(POLLED, Ordering::Release);
        let polled = self
            .future
            .as_mut()
            .poll(&mut Context::from_waker(&self.waker));
        let woken = self.flag.state.swap(IDLE, Ordering::AcqRel) == WOKEN;
        (polled, woken)
    }
}

impl<F: Future> Future for Repoll<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.flag.task.register(context.waker());
        for _ in 0..POLLS {
            let (polled, woken) = self.poll_once();
            if polled.is_ready() || !woken {
                return polled;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod streams_tests;

#[cfg(test)]
mod repoll_tests;
