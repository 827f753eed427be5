//! A byte stream whose replies have a bound.
//!
//! The client library keeps whatever a server sends until a reply is complete, and reserves nothing before, so
//! only the server decides how much memory a reply takes: an endless text or a long list of small items. This
//! stream counts each reply before the library sees it, and fails at the first byte, or the announcement, that
//! takes it beyond the bound. The library then closes the connection.

use std::{
    io,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bound: bytes of a reply of Redis to a check. Beyond it, the connection is closed and opened
/// again.
///
/// A thousand times what any takes.
pub(crate) const CHECK_MAX: u64 = 4 << 20;
/// Bound: bytes of a reply of Redis to anything else. Beyond it, the connection is closed and
/// opened again.
///
/// A record of the largest policy with its overrides, or a page of the history.
pub(crate) const RECORD_MAX: u64 = 64 << 20;
/// Bound: bytes of a message of a sentinel or a subscription. Beyond it, the connection is closed
/// and opened again.
pub(crate) const MESSAGE_MAX: u64 = 1 << 20;

/// What an item of a list takes in memory besides its bytes.
const ITEM: u64 = 64;

/// A stream that fails where a reply is too large.
pub(crate) struct Bounded<S> {
    stream: S,
    replies: Replies,
    fault: Fault,
}

/// Why the stream failed, if a reply was too large: the client library reports a broken connection only.
pub(crate) type Fault = Arc<OnceLock<String>>;

impl<S> Bounded<S> {
    pub(crate) fn new(stream: S, max: u64) -> Self {
        Self {
            stream,
            replies: Replies::new(max),
            fault: Fault::default(),
        }
    }

    pub(crate) fn fault(&self) -> Fault {
        Arc::clone(&self.fault)
    }
}

/// The place in a sequence of replies, in RESP2 or RESP3.
#[derive(Debug)]
struct Replies {
    max: u64,
    /// What the current reply takes so far, announced items and bytes included.
    taken: u64,
    /// Values of the current reply that are still to come.
    left: u64,
    /// Bytes of the current text that are still to come, with the end of its line.
    text: u64,
    /// The first byte of the current line; `None`: at its start.
    kind: Option<u8>,
    number: u64,
    negative: bool,
}

impl Replies {
    const fn new(max: u64) -> Self {
        Self {
            max,
            taken: 0,
            left: 1,
            text: 0,
            kind: None,
            number: 0,
            negative: false,
        }
    }

    /// Counts bytes that were read.
    fn read(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.text > 0 {
                let len = usize::try_from(self.text).unwrap_or(usize::MAX);
                let (read, rest) = bytes.split_at(len.min(bytes.len()));
                bytes = rest;
                self.text -= u64::try_from(read.len()).unwrap_or(self.text);
                if self.text == 0 {
                    self.ended(0);
                }
                continue;
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let (line, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
            bytes = rest;
            self.line(line)?;
            if end.is_some() {
                self.line_ended()?;
            }
        }
        Ok(())
    }

    /// Reads a part of a line.
    fn line(&mut self, part: &[u8]) -> io::Result<()> {
        for byte in part {
            match (self.kind, byte) {
                (None, kind) => self.kind = Some(*kind),
                (_, b'-') => self.negative = true,
                (_, b'0'..=b'9') => {
                    let digit = u64::from(byte - b'0');
                    self.number = self.number.saturating_mul(10).saturating_add(digit);
                }
                _ => {}
            }
        }
        self.take(u64::try_from(part.len()).unwrap_or(u64::MAX))
    }

    fn line_ended(&mut self) -> io::Result<()> {
        let kind = self.kind.take();
        let number = std::mem::take(&mut self.number);
        let nil = std::mem::take(&mut self.negative);
        let items = match kind {
            Some(b'$' | b'=' | b'!') if !nil => {
                self.take(number)?;
                self.text = number.saturating_add(2);
                return Ok(());
            }
            Some(b'*' | b'~' | b'>') if !nil => number,
            Some(b'%') if !nil => number.saturating_mul(2),
            // What it describes follows.
            Some(b'|') if !nil => number.saturating_mul(2).saturating_add(1),
            _ => 0,
        };
        self.take(items.saturating_mul(ITEM))?;
        self.ended(items);
        Ok(())
    }

    /// A value has ended, or has so many values in it that follow.
    fn ended(&mut self, items: u64) {
        self.left = self.left.saturating_sub(1).saturating_add(items);
        if self.left == 0 {
            (self.left, self.taken) = (1, 0);
        }
    }

    fn take(&mut self, more: u64) -> io::Result<()> {
        self.taken = self.taken.saturating_add(more);
        if self.taken <= self.max {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a reply of more than {} MiB", self.max >> 20),
        ))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        let read = buf.filled().get(before..).unwrap_or_default();
        let counted = this.replies.read(read);
        if let Err(error) = &counted {
            // Only the first failure can happen: the stream is not read again.
            let _ = this.fault.set(format!("the server sent {error}"));
        }
        Poll::Ready(counted)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replies of every type, each with what it takes.
    fn replies() -> Vec<(Vec<u8>, u64)> {
        let texts: [(&[u8], u64); 12] = [
            (b"+OK\r\n", 5),
            (b"-ERR 12 of -3\r\n", 15),
            (b":-1042\r\n", 8),
            (b"$-1\r\n", 5),
            (b"$0\r\n\r\n", 4),
            (b"$5\r\na\r\n*9\r\n", 4 + 5),
            (b"*-1\r\n", 5),
            (b"*0\r\n", 4),
            (
                b"*2\r\n$3\r\n\r\n*\r\n*1\r\n:7\r\n",
                4 + 128 + 4 + 3 + 4 + 64 + 4,
            ),
            (b"%1\r\n+a\r\n_\r\n", 4 + 128 + 4 + 3),
            (
                b"|1\r\n+a\r\n#t\r\n~1\r\n,1.5\r\n",
                4 + 192 + 4 + 4 + 4 + 64 + 6,
            ),
            (b"=7\r\ntxt:a-1\r\n", 4 + 7),
        ];
        texts.map(|(text, taken)| (text.to_vec(), taken)).to_vec()
    }

    #[test]
    fn each_reply_is_counted_alone_however_it_is_cut() {
        let all: Vec<u8> = replies().into_iter().flat_map(|(text, _)| text).collect();
        for piece in 1..=all.len() {
            let mut counted = Replies::new(300);
            for bytes in all.chunks(piece) {
                counted.read(bytes).unwrap();
            }
            assert_eq!(
                (counted.taken, counted.left, counted.text),
                (0, 1, 0),
                "{piece}"
            );
        }
        for (text, taken) in replies() {
            let name = String::from_utf8_lossy(&text).into_owned();
            Replies::new(taken).read(&text).expect(&name);
            assert!(Replies::new(taken - 1).read(&text).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_announced_counts_at_once() {
        for text in [
            "$1048577\r\n",
            "*16385\r\n",
            "%8193\r\n",
            "*2\r\n*8192\r\n",
            "*99999999999999999999999999\r\n",
            "$18446744073709551615\r\n",
        ] {
            let mut counted = Replies::new(1 << 20);
            let error = if text.starts_with("*2") {
                counted.read(text.as_bytes()).unwrap();
                counted
                    .read(b"$1048000\r\n")
                    .and_then(|()| counted.read(&[b'x'; 64]))
            } else {
                counted.read(text.as_bytes())
            };
            assert_eq!(
                error.unwrap_err().to_string(),
                "a reply of more than 1 MiB",
                "{text}"
            );
        }
        // A line without an end.
        let mut counted = Replies::new(1 << 20);
        counted.read(&vec![b'+'; 1 << 20]).unwrap();
        assert!(counted.read(b"+").is_err());
    }
}
