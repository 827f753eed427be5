//! Reads messages from the body of a stream: each is a prefix of five bytes and as many bytes as it
//! says.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::FutureExt;
use hyper::body::{Body, Incoming};
use protocol::{ApiError, StreamCall};
use tokio::time::{Sleep, sleep};
use tonic::Code;

use crate::{
    api::{
        body::{Bodies, BodyError, Received, Room},
        refusal,
    },
    serve::Peer,
};

/// Before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// The prefix and the call's id, which a refusal needs.
const HEAD: usize = PREFIX + 4;

/// How long a message may take from its first byte to its last.
const WITHIN: Duration = Duration::from_secs(5);

/// The most bytes of a refused message that are skipped.
const SKIPPED_MAX: usize = 1 << 20;

/// What was read.
pub(super) enum Read {
    Message(Received),
    /// A call that is refused without being read.
    Refused {
        id: u32,
        error: ApiError,
    },
    /// There is nothing more to read: the stream ends with this status.
    End(Code),
}

/// A body, and how far it is read.
pub(super) struct Messages {
    body: Incoming,
    peer: Arc<Peer>,
    /// What arrived and is not read.
    data: Bytes,
    /// The start of a message that is not whole, with its prefix.
    partial: BytesMut,
    room: Option<Room>,
    /// Bytes still to be skipped.
    skip: usize,
    /// The deadline of the incomplete message.
    within: Option<Pin<Box<Sleep>>>,
}

impl Messages {
    pub(super) fn new(body: Incoming, peer: Arc<Peer>) -> Self {
        Self {
            body,
            peer,
            data: Bytes::new(),
            partial: BytesMut::new(),
            room: None,
            skip: 0,
            within: None,
        }
    }

    /// Reads the next message.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, bodies: &Bodies) -> Poll<Read> {
        loop {
            if let Some(read) = self.next(bodies) {
                self.within = None;
                return Poll::Ready(read);
            }
            let frame = match Pin::new(&mut self.body).poll_frame(context) {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    ready!(self.poll_too_slow(context));
                    return Poll::Ready(Read::End(Code::InvalidArgument));
                }
            };
            match frame {
                Some(Ok(frame)) => self.data = frame.into_data().unwrap_or_default(),
                Some(Err(_)) => return Poll::Ready(Read::End(Code::Cancelled)),
                None if self.is_between() => return Poll::Ready(Read::End(Code::Ok)),
                None => return Poll::Ready(Read::End(Code::InvalidArgument)),
            }
        }
    }

    /// Whether no message has begun.
    fn is_between(&self) -> bool {
        self.partial.is_empty() && self.skip == 0
    }

    fn poll_too_slow(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.is_between() {
            self.within = None;
            return Poll::Pending;
        }
        let within = self.within.get_or_insert_with(|| Box::pin(sleep(WITHIN)));
        within.poll_unpin(context)
    }

    /// Reads what arrived, up to the end of a message; `None`: more is needed.
    fn next(&mut self, bodies: &Bodies) -> Option<Read> {
        let skipped = self.skip.min(self.data.len());
        self.data.advance(skipped);
        self.skip -= skipped;
        let head = self.head()?;
        let (id, length) = match parse(&head) {
            Ok(parsed) => parsed,
            Err(status) => return Some(Read::End(status)),
        };
        let size = PREFIX + length;
        let read = if length > bodies.max() + (HEAD - PREFIX) {
            Err(BodyError::TooLarge)
        } else {
            self.whole(size, bodies)
        };
        match read {
            Ok(None) => None,
            Ok(Some(received)) => Some(Read::Message(received)),
            Err(error) => Some(self.refuse(id, size, refusal::of_body(error, bodies.max()))),
        }
    }

    /// The prefix and call id of the current message.
    fn head(&mut self) -> Option<[u8; HEAD]> {
        match self.data.first_chunk() {
            Some(head) if self.partial.is_empty() => Some(*head),
            _ => {
                self.stash(HEAD);
                self.partial.first_chunk().copied()
            }
        }
    }

    /// Moves received bytes to the incomplete message until it has `size` bytes; returns how many
    /// it moved.
    fn stash(&mut self, size: usize) -> usize {
        let missing = size.saturating_sub(self.partial.len());
        let part = self.data.split_to(missing.min(self.data.len()));
        self.partial.extend_from_slice(&part);
        part.len()
    }

    /// The message, once all `size` bytes have arrived. Bytes count against the bounds as they
    /// arrive.
    fn whole(&mut self, size: usize, bodies: &Bodies) -> Result<Option<Received>, BodyError> {
        let room = match &mut self.room {
            Some(room) => room,
            none => none.insert(bodies.room(&self.peer).ok_or(BodyError::NoRoom)?),
        };
        let mut bytes = if self.partial.is_empty() && self.data.len() >= size {
            room.grow(size).ok_or(BodyError::NoRoom)?;
            self.data.split_to(size)
        } else {
            let arriving = size.saturating_sub(self.partial.len()).min(self.data.len());
            room.grow(arriving).ok_or(BodyError::NoRoom)?;
            self.stash(size);
            if self.partial.len() < size {
                return Ok(None);
            }
            self.partial.split().freeze()
        };
        bytes.advance(PREFIX);
        let room = self.room.take();
        Ok(room.map(|room| Received { bytes, room }))
    }

    /// Refuses a message of `size` bytes and skips the rest of it.
    fn refuse(&mut self, id: u32, size: usize, error: ApiError) -> Read {
        self.skip = size.saturating_sub(self.partial.len());
        if self.skip > SKIPPED_MAX {
            return Read::End(Code::ResourceExhausted);
        }
        (self.partial, self.room) = (BytesMut::new(), None);
        Read::Refused { id, error }
    }
}

/// The number of a call, and the length of its message.
fn parse(head: &[u8; HEAD]) -> Result<(u32, usize), Code> {
    let [compressed, l0, l1, l2, l3, id @ ..] = *head;
    match compressed {
        0 => {}
        1 => return Err(Code::Unimplemented),
        _ => return Err(Code::InvalidArgument),
    }
    let length = u32::from_be_bytes([l0, l1, l2, l3]);
    let call = StreamCall::decode(&id).ok_or(Code::InvalidArgument)?;
    match usize::try_from(length) {
        Ok(length) if length >= HEAD - PREFIX => Ok((call.id, length)),
        _ => Err(Code::InvalidArgument),
    }
}
