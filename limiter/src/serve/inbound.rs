//! Bounds how fast connections are read.
//!
//! hyper and h2 process everything in a socket before they yield, and a small frame costs as much
//! as a large one. So a connection yields after each [`PIECE`], and all connections without an
//! admitted client share one rate, whatever their number.

use std::{
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use super::peer::Peer;

/// Bytes after which a connection yields: a thousand of the smallest frames, about half a
/// millisecond.
const PIECE: usize = 16 * 1024;

/// Bytes of one read from a connection that is not a client's: more than the headers of an honest
/// request, or one step of a TLS handshake.
const STRANGER_READ: usize = 1024;

/// Time per byte of such connections: 2 MB/s in all. Refusing requests at that rate takes a fifth
/// of a core.
const STRANGER_BYTE: Duration = Duration::from_nanos(500);

/// Schedules the reads of connections without an admitted client. The bytes of a read delay the
/// connection's next read: a client whose first bytes are a request never waits.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    next: Mutex<Option<Instant>>,
}

impl Strangers {
    /// Schedules the next read after one of `bytes` bytes; `None`: read at once.
    fn after(&self, bytes: usize, now: Instant) -> Option<Instant> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let takes = STRANGER_BYTE * u32::try_from(bytes).unwrap_or(u32::MAX);
        let start = next.filter(|next| *next > now);
        *next = Some(start.unwrap_or(now) + takes);
        start
    }
}

/// A socket with a bounded read rate.
pub(super) struct Inbound<S> {
    socket: S,
    peer: Arc<Peer>,
    strangers: Arc<Strangers>,
    /// Bytes since this connection yielded.
    piece: usize,
    /// When it may be read again.
    turn: Option<Pin<Box<Sleep>>>,
}

impl<S> Inbound<S> {
    pub(super) fn new(socket: S, peer: Arc<Peer>, strangers: Arc<Strangers>) -> Self {
        Self {
            socket,
            peer,
            strangers,
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
            if !self.peer.is_client() {
                ready!(turn.as_mut().poll(context));
            }
            self.turn = None;
        }
        Poll::Ready(())
    }
}

impl<S: AsyncRead + Unpin> Inbound<S> {
    /// Reads a little, and schedules the next read.
    fn poll_stranger(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut small = [0; STRANGER_READ];
        let most = buffer.remaining().min(STRANGER_READ);
        let mut read = ReadBuf::new(small.get_mut(..most).unwrap_or_default());
        ready!(Pin::new(&mut self.socket).poll_read(context, &mut read))?;
        let bytes = read.filled();
        buffer.put_slice(bytes);
        let turn = self.strangers.after(bytes.len(), Instant::now());
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
        if self.peer.is_cut() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        if !self.peer.is_client() {
            return self.poll_stranger(context, buffer);
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Weak;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[test]
    fn strangers_share_one_read_rate_and_idle_time_earns_no_credit() {
        let (strangers, now) = (Strangers::default(), Instant::now());
        let ms = Duration::from_millis;
        // The first read is free, and delays those that follow.
        assert_eq!(strangers.after(2000, now), None);
        assert_eq!(strangers.after(2000, now), Some(now + ms(1)));
        assert_eq!(strangers.after(200, now), Some(now + ms(2)));
        // Idle time earns no credit.
        let later = now + ms(1000);
        assert_eq!(strangers.after(2000, later), None);
        assert_eq!(strangers.after(0, later), Some(later + ms(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_of_strangers_are_throttled_but_all_read() {
        let strangers = Arc::<Strangers>::default();
        let started = Instant::now();
        let read = (0..8_u8).map(async |id| {
            let (mut client, server) = duplex(64 * 1024);
            let address = std::net::Ipv4Addr::LOCALHOST.into();
            let peer = Peer::new(id.into(), address, Weak::new());
            let mut inbound = Inbound::new(server, peer, Arc::clone(&strangers));
            client.write_all(&vec![id; 20_000]).await.unwrap();
            drop(client);
            let mut bytes = Vec::new();
            inbound.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, vec![id; 20_000]);
        });
        futures_util::future::join_all(read).await;
        // The paused clock shows the time spent waiting. Nothing waits after the last reads.
        let rate = STRANGER_BYTE * (8 * (20_000 - 2 * 1024));
        assert!(started.elapsed() >= rate, "{:?}", started.elapsed());
    }
}
