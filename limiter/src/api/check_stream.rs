//! The check stream: calls of a proxy as messages of one gRPC stream (`protocol::CHECK_STREAM`).
//!
//! The connection's task decides each message like the body of `POST /v1/check`: the stream of
//! answers reads the calls, and a future beside it works on them.

use std::{
    any::Any,
    net::IpAddr,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, select},
    stream::poll_fn,
};
use hyper::{
    HeaderMap, Version,
    body::{Body, Incoming},
    header::AUTHORIZATION,
    http::request::Parts,
};
use protocol::{ApiError, ErrorCode, StreamAnswer, StreamCall};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Sleep, sleep},
};
use tonic::Code;

use super::{
    Answered, Api,
    body::{Bodies, BodyError, MemoryPermit, Received},
    grpc::{PREFIX, frame, is_grpc, open, trailers},
    refusal,
};
use crate::{
    serve::{Following, Peer, Phase},
    trace,
};

/// Bound: check streams of a connection. Beyond it, refused.
///
/// In a dynamic module the workers of all configurations share the connection of Envoy's main thread. Half of what HTTP/2
/// permits on one, so that callouts find room beside them.
const STREAMS_OF_ONE: usize = 512;

/// Bound: calls of a check stream at once, until HTTP/2 takes their answers. Beyond it, HTTP/2's flow
/// control holds the proxy back.
const CALLS_AT_ONCE: usize = 16;

/// How long a proxy may take to close its side of a stream that is ending.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

impl Api {
    /// Opens a stream, which lasts until the proxy closes it, the connection is to end, or this limiter
    /// drains.
    pub(super) fn check_stream(
        self: &Arc<Self>,
        head: &Parts,
        body: Incoming,
        peer: &Arc<Peer>,
    ) -> Answered {
        if head.version < Version::HTTP_2 || !is_grpc(&head.headers) {
            let message =
                "this path is a gRPC stream: HTTP/2, and the content type application/grpc";
            return Err(ApiError::new(ErrorCode::UnsupportedMediaType, message));
        }
        // Refuse while limits are loading or the limiter is shutting down.
        self.health()?;
        let full = || ApiError::new(ErrorCode::TooManyWaiters, "too many check streams are open");
        let streams = &self.bounds.streams;
        let most = most_of_one(streams.used(), streams.max());
        let of_peer = peer.follow(most).ok_or_else(full)?;
        let permit = streams.enter().ok_or_else(full)?;
        let mut response = open(frame(&StreamAnswer::OPEN.encode()));
        let (start, started) = unbounded_channel();
        let (answered, answers) = unbounded_channel();
        let calls = Calls {
            messages: Messages::new(body, Arc::clone(peer)),
            ending: self.ending(peer),
            api: Arc::clone(self),
            authorization: head
                .headers
                .get_all(AUTHORIZATION)
                .iter()
                .cloned()
                .map(|value| (AUTHORIZATION, value))
                .collect(),
            start,
            answers,
            unanswered: 0,
            close_within: None,
            end: None,
            ended: false,
            _held: Box::new((permit, of_peer)),
            peer: peer.address,
        };
        let following = Following::new(calls, Some(work(started, answered).boxed()));
        response.extensions_mut().insert(following);
        Ok(response)
    }

    /// Waits until the streams of a connection are to end.
    fn ending(self: &Arc<Self>, peer: &Arc<Peer>) -> BoxFuture<'static, ()> {
        let (lifecycle, peer) = (Arc::clone(&self.lifecycle), Arc::clone(peer));
        let leaving = async move { lifecycle.reached(Phase::Leave).await };
        let ordered = async move { peer.ordered_to_drain().await };
        select(leaving.boxed(), ordered.boxed()).map(drop).boxed()
    }

    /// Decides a call. Errors that HTTP would answer become answers too.
    async fn answer_call(&self, peer: IpAddr, body: Received) -> (u16, Bytes) {
        let answered = self.check_message(peer, body).await;
        let response = answered.unwrap_or_else(|error| self.refuse_call(&error));
        (response.status().as_u16(), response.into_body())
    }

    async fn check_message(&self, peer: IpAddr, body: Received) -> Answered {
        let _permit = self.bounds.enter()?;
        trace::of_check(&HeaderMap::new(), self.check_compact(peer, body)).await
    }

    fn refuse_call(&self, error: &ApiError) -> hyper::Response<Bytes> {
        self.metrics.refused.get([error.code.word().into()]).inc();
        refusal::response(error)
    }
}

/// How many streams a connection may have, while all have so many: fewer once half are taken, by the cube of the part
/// that is left. Of the last sixteenth each connection gets one, so that a few cannot take what all others need.
fn most_of_one(used: usize, max: usize) -> usize {
    let left = max.saturating_sub(used);
    let part = |of: usize| of.saturating_mul(left) / max.max(1);
    part(part(part(8 * STREAMS_OF_ONE))).clamp(1, STREAMS_OF_ONE)
}

type Call = BoxFuture<'static, Bytes>;

/// Works on the calls of a stream, until the stream is dropped.
///
/// The stream of answers is not polled while its proxy reads nothing. Calls that it polled itself would hold
/// their permits until the connection is closed, and one connection would hold those of all requests.
async fn work(mut started: UnboundedReceiver<Call>, answered: UnboundedSender<Bytes>) {
    let calls = poll_fn(|context| started.poll_recv(context));
    let worked = calls.for_each_concurrent(None, |call| {
        let answered = &answered;
        async move {
            // The stream may have been dropped: nobody wants the answer.
            let _ = answered.send(call.await);
        }
    });
    tokio::select! {
        () = worked => {}
        () = answered.closed() => {}
    }
}

/// The calls of one stream, and their answers.
struct Calls {
    api: Arc<Api>,
    peer: IpAddr,
    /// The token that opened the stream, checked again for each call: it may be removed meanwhile.
    authorization: HeaderMap,
    messages: Messages,
    /// To [`work`], and from it.
    start: UnboundedSender<Call>,
    answers: UnboundedReceiver<Bytes>,
    /// Calls whose answers did not come from there yet.
    unanswered: usize,
    /// Ready when the stream is to end.
    ending: BoxFuture<'static, ()>,
    /// Set once the end is announced: the time the proxy has left to close its side.
    close_within: Option<Pin<Box<Sleep>>>,
    /// Set once nothing more is read: the stream ends with this status after the last answer.
    end: Option<Code>,
    ended: bool,
    /// The permits that the stream holds until it ends.
    _held: Box<dyn Any + Send>,
}

/// The messages to the proxy, and the trailers.
impl Stream for Calls {
    type Item = Result<Bytes, HeaderMap>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, HeaderMap>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        loop {
            if let Poll::Ready(Some(answer)) = self.answers.poll_recv(context) {
                self.unanswered = self.unanswered.saturating_sub(1);
                return Poll::Ready(Some(Ok(answer)));
            }
            if self.is_to_be_announced(context) {
                return Poll::Ready(Some(Ok(frame(&StreamAnswer::ENDING.encode()))));
            }
            if self.end.is_none() && self.unanswered < CALLS_AT_ONCE {
                let Self { messages, api, .. } = &mut *self;
                match messages.poll(context, &api.bounds.bodies) {
                    Poll::Ready(read) => {
                        self.handle(read);
                        continue;
                    }
                    Poll::Pending => self.limit_closing(context),
                }
            }
            break;
        }
        match self.end {
            Some(status) if self.unanswered == 0 => {
                self.ended = true;
                Poll::Ready(Some(Err(trailers(status))))
            }
            _ => Poll::Pending,
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.unanswered, None)
    }
}

impl Calls {
    fn is_to_be_announced(&mut self, context: &mut Context<'_>) -> bool {
        let announced = self.close_within.is_some() || self.end.is_some();
        if announced || self.ending.poll_unpin(context).is_pending() {
            return false;
        }
        self.close_within = Some(Box::pin(sleep(CLOSE_WITHIN)));
        true
    }

    /// Ends the stream of a proxy that does not close its side.
    fn limit_closing(&mut self, context: &mut Context<'_>) {
        if let Some(close_within) = &mut self.close_within
            && close_within.poll_unpin(context).is_ready()
        {
            self.end = Some(Code::Unavailable);
        }
    }

    fn handle(&mut self, read: Read) {
        let tokens = self.api.tokens.as_ref();
        if tokens.is_some_and(|tokens| !tokens.admit(&self.authorization)) {
            self.end = Some(Code::Unauthenticated);
            return;
        }
        match read {
            Read::Message(received) => self.start(received),
            Read::Refused { id, error } => {
                let response = self.api.refuse_call(&error);
                let (status, body) = (response.status().as_u16(), response.into_body());
                let answer = answer(id, status, &body);
                self.work_on(std::future::ready(answer).boxed());
            }
            Read::End(status) => self.end = Some(status),
        }
    }

    fn start(&mut self, received: Received) {
        let Received { bytes, memory } = received;
        let Some(StreamCall { id, body }) = StreamCall::decode(&bytes) else {
            self.end = Some(Code::InvalidArgument);
            return;
        };
        let bytes = bytes.slice_ref(body);
        let (api, peer) = (Arc::clone(&self.api), self.peer);
        let decided = async move { api.answer_call(peer, Received { bytes, memory }).await };
        // A panic ends the call, not the others of the connection.
        let decided = AssertUnwindSafe(decided)
            .catch_unwind()
            .map(move |decided| {
                let (status, body) = decided.unwrap_or((500, Bytes::new()));
                answer(id, status, &body)
            });
        self.work_on(decided.boxed());
    }

    fn work_on(&mut self, call: Call) {
        // Without who works, the connection is about to be dropped.
        if self.start.send(call).is_ok() {
            self.unanswered += 1;
        }
    }
}

fn answer(id: u32, status: u16, body: &[u8]) -> Bytes {
    frame(&StreamAnswer { id, status, body }.encode())
}

// --- The messages in the body of a stream: each is a prefix of five bytes and as many bytes as it says

/// The prefix and the call's id, which a refusal needs.
const HEAD: usize = PREFIX + 4;

/// How long a message may take from its first byte to its last.
const MESSAGE_WITHIN: Duration = Duration::from_secs(5);

/// The most bytes of a refused message that are skipped.
const SKIPPED_MAX: usize = 1 << 20;

/// What was read.
enum Read {
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
struct Messages {
    body: Incoming,
    peer: Arc<Peer>,
    /// What arrived and is not read.
    data: Bytes,
    /// The start of a message that is not whole, with its prefix.
    partial: BytesMut,
    memory: Option<MemoryPermit>,
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
            memory: None,
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
        let within = self
            .within
            .get_or_insert_with(|| Box::pin(sleep(MESSAGE_WITHIN)));
        within.poll_unpin(context)
    }

    /// Reads what arrived, up to the end of a message; `None`: more is needed.
    fn next(&mut self, bodies: &Bodies) -> Option<Read> {
        let skipped = self.skip.min(self.data.len());
        self.data.advance(skipped);
        self.skip -= skipped;
        let head = self.head()?;
        let (id, length) = match parse_head(&head) {
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
        let memory = match &mut self.memory {
            Some(memory) => memory,
            none => none.insert(bodies.memory_permit(&self.peer).ok_or(BodyError::NoRoom)?),
        };
        let mut bytes = if self.partial.is_empty() && self.data.len() >= size {
            memory.grow(size).ok_or(BodyError::NoRoom)?;
            self.data.split_to(size)
        } else {
            let arriving = size.saturating_sub(self.partial.len()).min(self.data.len());
            memory.grow(arriving).ok_or(BodyError::NoRoom)?;
            self.stash(size);
            if self.partial.len() < size {
                return Ok(None);
            }
            self.partial.split().freeze()
        };
        bytes.advance(PREFIX);
        let memory = self.memory.take();
        Ok(memory.map(|memory| Received { bytes, memory }))
    }

    /// Refuses a message of `size` bytes and skips the rest of it.
    fn refuse(&mut self, id: u32, size: usize, error: ApiError) -> Read {
        self.skip = size.saturating_sub(self.partial.len());
        if self.skip > SKIPPED_MAX {
            return Read::End(Code::ResourceExhausted);
        }
        (self.partial, self.memory) = (BytesMut::new(), None);
        Read::Refused { id, error }
    }
}

/// The number of a call, and the length of its message.
fn parse_head(head: &[u8; HEAD]) -> Result<(u32, usize), Code> {
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

#[cfg(test)]
mod tests {
    use super::most_of_one;

    #[test]
    fn only_many_connections_take_all_streams() {
        let (max, mut used, mut connections) = (8192, 0, 0);
        while used < max {
            let mut own = 0;
            while used < max && own < most_of_one(used, max) {
                (own, used) = (own + 1, used + 1);
            }
            connections += 1;
        }
        assert!(connections > 700, "{connections}");
        assert_eq!(most_of_one(max / 2, max), 512);
        assert_eq!(most_of_one(max / 4 * 3, max), 64);
        assert_eq!(most_of_one(max, max), 1);
    }
}
