//! The check stream: calls of a proxy as messages of one gRPC stream (`protocol::CHECK_STREAM`).
//!
//! The connection's task decides each message like the body of `POST /v1/check`: the stream of
//! answers reads the calls and polls their decisions.

mod messages;

use std::{
    any::Any,
    net::IpAddr,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{
    FutureExt, Stream, StreamExt,
    future::{BoxFuture, select},
    stream::FuturesUnordered,
};
use hyper::{HeaderMap, Version, body::Incoming, header::AUTHORIZATION, http::request::Parts};
use protocol::{ApiError, ErrorCode, StreamAnswer, StreamCall};
use tokio::time::{Sleep, sleep};
use tonic::Code;

use super::{
    Answered, Api,
    body::Received,
    grpc::{frame, is_grpc, open, trailers},
    refusal,
};
use crate::{
    serve::{Following, Peer, Phase},
    trace,
};
use messages::{Messages, Read};

/// Streams per connection; each plugin of a worker opens one.
const STREAMS_OF_ONE: usize = 64;

/// Calls of one stream decided at once. At this number the limiter reads no further call, and
/// HTTP/2 flow control makes the proxy wait.
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
        let place = self.bounds.streams.enter().ok_or_else(full)?;
        let of_peer = peer.follow(STREAMS_OF_ONE).ok_or_else(full)?;
        let mut response = open(frame(&StreamAnswer::OPEN.encode()));
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
            running: FuturesUnordered::new(),
            close_within: None,
            end: None,
            ended: false,
            _held: Box::new((place, of_peer)),
            peer: peer.address,
        };
        response.extensions_mut().insert(Following::new(calls));
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

    async fn check_message(&self, peer: IpAddr, mut body: Received) -> Answered {
        let inflight = &self.bounds.inflight;
        let _place = inflight.enter().ok_or_else(refusal::overloaded)?;
        body.room.decode().ok_or_else(refusal::no_room)?;
        trace::of_check(&HeaderMap::new(), self.check_compact(peer, body)).await
    }

    fn refuse_call(&self, error: &ApiError) -> hyper::Response<Bytes> {
        self.metrics.refused.get([error.code.word().into()]).inc();
        refusal::response(error)
    }
}

/// The calls of one stream, and their answers.
struct Calls {
    api: Arc<Api>,
    peer: IpAddr,
    /// The token that opened the stream, checked again for each call: it may be removed meanwhile.
    authorization: HeaderMap,
    messages: Messages,
    running: FuturesUnordered<BoxFuture<'static, Bytes>>,
    /// Ready when the stream is to end.
    ending: BoxFuture<'static, ()>,
    /// Set once the end is announced: the time the proxy has left to close its side.
    close_within: Option<Pin<Box<Sleep>>>,
    /// Set once nothing more is read: the stream ends with this status after the last answer.
    end: Option<Code>,
    ended: bool,
    /// The places that the stream holds until it ends.
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
            if let Poll::Ready(Some(answer)) = self.running.poll_next_unpin(context) {
                return Poll::Ready(Some(Ok(answer)));
            }
            if self.is_to_be_announced(context) {
                return Poll::Ready(Some(Ok(frame(&StreamAnswer::ENDING.encode()))));
            }
            if self.end.is_none() && self.running.len() < CALLS_AT_ONCE {
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
            Some(status) if self.running.is_empty() => {
                self.ended = true;
                Poll::Ready(Some(Err(trailers(status))))
            }
            _ => Poll::Pending,
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.running.len(), None)
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
                self.running.push(std::future::ready(answer).boxed());
            }
            Read::End(status) => self.end = Some(status),
        }
    }

    fn start(&mut self, received: Received) {
        let Received { bytes, room } = received;
        let Some(StreamCall { id, body }) = StreamCall::decode(&bytes) else {
            self.end = Some(Code::InvalidArgument);
            return;
        };
        let bytes = bytes.slice_ref(body);
        let (api, peer) = (Arc::clone(&self.api), self.peer);
        let decided = async move { api.answer_call(peer, Received { bytes, room }).await };
        // A panic ends the call, not the others of the connection.
        let decided = AssertUnwindSafe(decided)
            .catch_unwind()
            .map(move |decided| {
                let (status, body) = decided.unwrap_or((500, Bytes::new()));
                answer(id, status, &body)
            });
        self.running.push(decided.boxed());
    }
}

fn answer(id: u32, status: u16, body: &[u8]) -> Bytes {
    frame(&StreamAnswer { id, status, body }.encode())
}
