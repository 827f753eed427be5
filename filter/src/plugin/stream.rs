//! The check stream: one gRPC stream of the root context at a time.
//!
//! Envoy keeps an entry for each stream until both sides have closed it. The entry points to an object
//! that Envoy deletes when the limiter ends the stream. So the filter answers each end of a stream with
//! a cancellation, in the callback that reports it, while the object still exists, and does not use the
//! token afterwards. It cancels no stream in the callback of a message: Envoy may have read further
//! messages and would deliver them to an entry that no longer exists.

use std::cell::{Cell, RefCell};

use filter_core::{CallId, MAX_MESSAGE, StreamStep};
use protocol::{CHECK_STREAM_METHOD, CHECK_STREAM_SERVICE};

use super::Plugin;
use crate::host::{
    self, Buffer, SharedData,
    grpc_stream::{self, Target},
};

/// Streams, by the host's tokens.
#[derive(Debug, Default)]
pub(super) struct Streams {
    current: Cell<Option<u32>>,
    /// Streams to cancel outside of their callbacks.
    given_up: RefCell<Vec<u32>>,
}

impl Streams {
    /// Cancels the streams that were given up. Call it only in callbacks that belong to no stream.
    pub(super) fn cancel_given_up(&self) {
        for token in self.given_up.take() {
            let _ = grpc_stream::cancel(token);
        }
    }
}

/// What happened to a stream.
#[derive(Clone, Copy, Debug)]
pub enum StreamEvent {
    /// A message of so many bytes, which Envoy holds during the callback.
    Message(usize),
    /// It ended with this gRPC status.
    Closed(u32),
}

impl Plugin {
    pub fn on_stream_event(&self, token: u32, event: StreamEvent) {
        let is_current = self.streams.current.get() == Some(token);
        match event {
            StreamEvent::Message(size) if is_current => self.on_message(size),
            StreamEvent::Message(_) => return,
            StreamEvent::Closed(status) => {
                let _ = grpc_stream::cancel(token);
                let mut given_up = self.streams.given_up.borrow_mut();
                given_up.retain(|other| *other != token);
                drop(given_up);
                if is_current {
                    self.streams.current.set(None);
                    let now = self.clock.now();
                    let mut worker = self.worker.borrow_mut();
                    worker.on_stream_closed(&SharedData, now, status);
                }
            }
        }
        self.carry_out(None);
    }

    fn on_message(&self, size: usize) {
        let fits = u32::try_from(size).is_ok_and(|size| size <= MAX_MESSAGE);
        let message = fits.then(|| host::buffer(Buffer::GrpcMessage, 0, size));
        // A message that is too large or unreadable becomes an empty one, which no limiter sends.
        let message = message.and_then(Result::ok).unwrap_or_default();
        let now = self.clock.now();
        let mut worker = self.worker.borrow_mut();
        worker.on_stream_message(&SharedData, now, &message);
    }

    /// Call it only in a callback of the root, which owns the stream.
    pub(super) fn carry_out_on_stream(&self, step: StreamStep) {
        match step {
            StreamStep::Open(bearer) => self.open_stream(bearer.as_deref()),
            StreamStep::Send(id, message) => self.send(id, &message),
            StreamStep::Close => {
                if let Some(token) = self.streams.current.get() {
                    let _ = grpc_stream::close(token);
                }
            }
            StreamStep::Cancel => {
                if let Some(token) = self.streams.current.take() {
                    self.streams.given_up.borrow_mut().push(token);
                    // If this fails, the next tick cancels it.
                    let _ = self.turn_end.request();
                }
            }
        }
    }

    fn send(&self, id: CallId, message: &[u8]) {
        let token = self.streams.current.get();
        if token.is_none_or(|token| grpc_stream::send(token, message).is_err()) {
            let now = self.clock.now();
            let mut worker = self.worker.borrow_mut();
            worker.on_call_refused(&SharedData, now, id);
        }
    }

    fn open_stream(&self, bearer: Option<&str>) {
        let service = self.stream_service();
        let headers: Vec<_> = bearer
            .map(|bearer| ("authorization", bearer))
            .into_iter()
            .collect();
        let opened = grpc_stream::open(&Target {
            service: &service,
            name: CHECK_STREAM_SERVICE,
            method: CHECK_STREAM_METHOD,
            headers: &headers,
        });
        if let Ok(token) = opened {
            self.streams.current.set(Some(token));
        } else {
            let now = self.clock.now();
            let why = "no such cluster, or none of its hosts is there";
            let mut worker = self.worker.borrow_mut();
            worker.stream_failed(&SharedData, now, why);
        }
    }

    /// `envoy.config.core.v3.GrpcService` in Protocol Buffers: the limiter's cluster and authority, and
    /// the largest message; Envoy ends the stream at a larger one.
    fn stream_service(&self) -> Vec<u8> {
        const ENVOY_GRPC: u8 = 1;
        const CLUSTER_NAME: u8 = 1;
        const AUTHORITY: u8 = 2;
        const MAX_RECEIVE_MESSAGE_LENGTH: u8 = 4;
        /// The field of `google.protobuf.UInt32Value`, a number.
        const VALUE: u8 = 1 << 3;
        let worker = self.worker.borrow();
        let limiter = &worker.config().limiter;
        let mut max_length = vec![VALUE];
        push_number(&mut max_length, MAX_MESSAGE);
        let mut envoy_grpc = Vec::new();
        push_field(&mut envoy_grpc, CLUSTER_NAME, limiter.cluster.as_bytes());
        push_field(&mut envoy_grpc, AUTHORITY, limiter.authority.as_bytes());
        push_field(&mut envoy_grpc, MAX_RECEIVE_MESSAGE_LENGTH, &max_length);
        let mut service = Vec::new();
        push_field(&mut service, ENVOY_GRPC, &envoy_grpc);
        service
    }
}

/// Writes a field of bytes.
fn push_field(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    const BYTES: u8 = 2;
    message.push(field << 3 | BYTES);
    push_number(message, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    message.extend_from_slice(bytes);
}

/// Writes a number, seven bits at a time.
fn push_number(message: &mut Vec<u8>, mut number: u32) {
    while let (low, 1..) = (number & 0x7f, number >> 7) {
        message.push(0x80 | u8::try_from(low).unwrap_or(0));
        number >>= 7;
    }
    message.push(u8::try_from(number).unwrap_or(0));
}
