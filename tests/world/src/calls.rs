//! Connections of workers to limiters: one for each call with HTTP/1.1, or one for all calls and the check stream with
//! HTTP/2.

use std::{
    cell::RefCell, collections::BTreeMap, convert::Infallible, future::pending, net::Ipv4Addr,
    rc::Rc,
};

use bytes::Bytes;
use filter_core::{Callback, StreamStep};
use futures_util::stream::unfold;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    HeaderMap, Request, Response,
    body::{Frame, Incoming},
    client::conn::{
        http1,
        http2::{self, SendRequest},
    },
};
use hyper_util::rt::TokioIo;
use protocol::{CHECK_STREAM, StreamAnswer, StreamCall};
use tokio::{
    io::{DuplexStream, duplex},
    sync::mpsc,
    task::{AbortHandle, spawn_local},
    time::{Duration, sleep},
};

use crate::{
    book::By,
    mutations::Rule,
    proxy::{Answer, At, decides},
    sim::Part,
    world::World,
};

/// What a worker sends.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// gRPC's status where a connection breaks.
const UNAVAILABLE: u32 = 14;
/// What is before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// A call on a stream ends by its timeout this long after it was sent, in milliseconds.
const TIMEOUT_MS: u64 = 20;

/// Each worker's connection to each limiter, and its task.
pub type Connections = RefCell<BTreeMap<(At, usize), (SendRequest<Body>, AbortHandle)>>;

type Calls = mpsc::UnboundedReceiver<Vec<u8>>;

/// A worker's check stream.
pub struct CheckStream {
    number: u64,
    /// What takes its calls; `None`: this side is closed.
    calls: Option<mpsc::UnboundedSender<Vec<u8>>>,
    task: AbortHandle,
    /// When each call was sent that has no answer.
    sent: BTreeMap<u32, u64>,
}

/// Runs what a connection needs on the only thread.
#[derive(Clone)]
struct Local;

impl<F: Future + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        spawn_local(async move {
            task.await;
        });
    }
}

/// Takes the first whole message from what arrived.
fn take_message(bytes: &mut Vec<u8>) -> Option<Vec<u8>> {
    let (_, length) = bytes.get(..PREFIX)?.split_first_chunk::<1>()?;
    let end = PREFIX + usize::try_from(u32::from_be_bytes(length.try_into().unwrap())).unwrap();
    let message = bytes.get(PREFIX..end)?.to_vec();
    bytes.drain(..end);
    Some(message)
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0], &length[..], message].concat().into()
}

impl World {
    /// A new connection to a limiter; `None`: there is none.
    fn connect(&self, at: At, limiter: usize) -> Option<TokioIo<DuplexStream>> {
        let (ours, theirs) = duplex(64 * 1024);
        let from = Ipv4Addr::new(10, 0, 0, u8::try_from(at.envoy + 1).unwrap());
        let mut limiters = self.limiters.borrow_mut();
        limiters[limiter].as_mut()?.accept(theirs, from.into());
        Some(TokioIo::new(ours))
    }

    /// Sends a request by the worker's connection.
    async fn send_by_http2(
        &self,
        at: At,
        limiter: usize,
        request: Request<Body>,
    ) -> Option<Response<Incoming>> {
        let known = self
            .connections
            .borrow()
            .get(&(at, limiter))
            .map(|(sender, _)| sender.clone());
        let mut sender = if let Some(sender) = known.filter(|sender| !sender.is_closed()) {
            sender
        } else {
            let stream = self.connect(at, limiter)?;
            let (sender, connection) = http2::handshake(Local, stream).await.ok()?;
            let task = spawn_local(connection).abort_handle();
            let made = (sender.clone(), task);
            self.connections.borrow_mut().insert((at, limiter), made);
            sender
        };
        sender.send_request(request).await.ok()
    }

    /// A call of a worker arrives at a limiter.
    pub async fn ask_limiter(&self, at: At, limiter: usize, request: Request<Body>) -> Answer {
        let answered = async {
            let response = if self.plan.streams {
                self.send_by_http2(at, limiter, request).await?
            } else {
                let stream = self.connect(at, limiter)?;
                let (mut sender, connection) = http1::handshake(stream).await.ok()?;
                spawn_local(connection);
                sender.send_request(request).await.ok()?
            };
            let (head, body) = response.into_parts();
            let body = body.collect().await.ok()?.to_bytes();
            let status = head.status.as_u16();
            let mut headers = vec![(":status".to_owned(), status.to_string().into_bytes())];
            for (name, value) in &head.headers {
                headers.push((name.as_str().to_owned(), value.as_bytes().to_vec()));
            }
            Some(Answer {
                decided: false,
                headers,
                body,
            })
        };
        let gone = || Answer::of_envoy(503, "connection termination");
        answered.await.unwrap_or_else(gone)
    }

    /// A process has crashed.
    pub fn break_connections(&self, envoy: usize) {
        for worker in 0..=self.plan.workers {
            self.end_stream(self.at(envoy, worker));
        }
        self.connections.borrow_mut().retain(|(at, _), (_, task)| {
            if at.envoy == envoy {
                task.abort();
            }
            at.envoy != envoy
        });
    }

    // --- Check streams

    pub fn carry_out_on_stream(self: &Rc<Self>, at: At, step: StreamStep) {
        let mut envoys = self.envoys.borrow_mut();
        let current = &mut envoys[at.envoy].streams[at.worker];
        match step {
            StreamStep::Open(_) => {
                let (calls, called) = mpsc::unbounded_channel();
                let number = self.sim.number();
                let task = spawn_local(Rc::clone(self).stream(at, number, called));
                *current = Some(CheckStream {
                    number,
                    calls: Some(calls),
                    task: task.abort_handle(),
                    sent: BTreeMap::new(),
                });
            }
            StreamStep::Send(id, message) => {
                if let Some(stream) = current
                    && let Some(calls) = &stream.calls
                {
                    let call = StreamCall::decode(&message).unwrap();
                    stream.sent.insert(call.id, self.sim.now_ms());
                    let _ = calls.send(message);
                    return;
                }
                drop(envoys);
                self.turn(at, Callback::of_root(), |worker, shared, now| {
                    worker.on_call_refused(shared, now, id);
                });
            }
            StreamStep::Close => {
                if let Some(stream) = current {
                    stream.calls = None;
                }
            }
            StreamStep::Cancel => {
                drop(envoys);
                self.end_stream(at);
            }
        }
    }

    /// What has no answer on a worker's stream gets none.
    fn end_stream(&self, at: At) {
        let stream = self.envoys.borrow_mut()[at.envoy].streams[at.worker].take();
        if let Some(stream) = stream {
            stream.task.abort();
            self.book.borrow_mut().lost += u64::try_from(stream.sent.len()).unwrap();
        }
    }

    /// Does something with a stream, if it is still the worker's.
    fn with_stream<T>(
        &self,
        at: At,
        number: u64,
        act: impl FnOnce(&mut CheckStream) -> T,
    ) -> Option<T> {
        let stream = &mut self.envoys.borrow_mut()[at.envoy].streams[at.worker];
        stream
            .as_mut()
            .filter(|stream| stream.number == number)
            .map(act)
    }

    /// A stream, until somebody ends it.
    async fn stream(self: Rc<Self>, at: At, number: u64, calls: Calls) {
        let status = self.relay(at, number, calls).await.unwrap_or(UNAVAILABLE);
        if self.awake(at).await && self.with_stream(at, number, |_| ()).is_some() {
            self.end_stream(at);
            self.turn(at, Callback::of_root(), |worker, shared, now| {
                worker.on_stream_closed(shared, now, status);
            });
        }
    }

    /// Carries messages to a limiter and back. Returns the status with which the limiter ends it; `None`: it breaks.
    async fn relay(self: &Rc<Self>, at: At, number: u64, mut calls: Calls) -> Option<u32> {
        let limiter = self.choose_limiter()?;
        self.carry(at, limiter, false).await?;
        let (sends, sent) = mpsc::unbounded_channel();
        let messages = unfold(sent, |mut sent| async move {
            let message: Bytes = sent.recv().await?;
            Some((Ok::<_, Infallible>(Frame::data(message)), sent))
        });
        let request = Request::post(format!("http://limiter{CHECK_STREAM}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(StreamBody::new(messages).boxed_unsync())
            .unwrap();
        let response = self.send_by_http2(at, limiter, request).await?;
        let status =
            |of: &HeaderMap| -> Option<u32> { of.get("grpc-status")?.to_str().ok()?.parse().ok() };
        if let Some(refused) = status(response.headers()) {
            return Some(refused);
        }
        let sending = async move {
            while let Some(call) = calls.recv().await {
                self.carry(at, limiter, false).await?;
                let times = if self.sim.keeps(Rule::Once) { 1 } else { 2 };
                for _ in 0..times {
                    sends.send(framed(&call)).ok()?;
                }
            }
            drop(sends);
            pending().await
        };
        let receiving = async {
            let (mut body, mut bytes) = (response.into_body(), Vec::new());
            loop {
                let frame = body.frame().await?.ok()?;
                if let Some(trailers) = frame.trailers_ref() {
                    self.carry(at, limiter, true).await?;
                    return status(trailers);
                }
                bytes.extend(frame.into_data().unwrap_or_default());
                while let Some(message) = take_message(&mut bytes) {
                    self.carry(at, limiter, true).await?;
                    self.deliver(at, number, message).await;
                }
            }
        };
        tokio::select! {
            biased;
            ended = receiving => ended,
            broken = sending => broken,
        }
    }

    /// A message is on its way; what is lost is sent again, and what follows waits for it. `None`: the connection
    /// breaks.
    async fn carry(&self, at: At, limiter: usize, answer: bool) -> Option<()> {
        let (chance, weather) = (&self.sim.chance, self.sim.weather.get());
        let lost = if answer {
            weather.unanswered
        } else {
            weather.lost
        };
        let mut ms = chance.below(4) / 2;
        if chance.percent(lost) {
            ms += 200 + chance.below(200);
        }
        if chance.percent(weather.late) {
            ms += 20 + chance.below(100);
        }
        sleep(Duration::from_millis(ms)).await;
        let parts = [Part::Proxy(at.envoy), Part::Limiter(limiter)];
        self.sim.reaches(&parts).await;
        (!chance.percent(weather.garbled / 4)).then_some(())
    }

    /// A message of the limiter arrives.
    async fn deliver(self: &Rc<Self>, at: At, number: u64, mut message: Vec<u8>) {
        if !self.awake(at).await {
            return;
        }
        if self.sim.chance.percent(self.sim.weather.get().garbled / 4) {
            message.truncate(3);
        }
        let now_ms = self.sim.now_ms();
        let answer = StreamAnswer::decode(&message);
        let decided = self.with_stream(at, number, |stream| {
            let answer = answer?;
            let sent_ms = stream.sent.remove(&answer.id)?;
            Some(now_ms < sent_ms + TIMEOUT_MS && decides(answer.body))
        });
        let Some(decided) = decided else {
            return;
        };
        self.book.borrow_mut().lost += u64::from(decided == Some(false));
        let by = if decided == Some(true) {
            By::Limiter
        } else {
            By::Fallback
        };
        self.deciding.set(by);
        self.turn(at, Callback::of_root(), |worker, shared, now| {
            worker.on_stream_message(shared, now, &message);
        });
        self.deciding.set(By::Fallback);
    }
}
