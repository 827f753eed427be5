//! Callbacks of gRPC streams.
//!
//! The SDK delivers them only to contexts that opened a stream by its own call, which cannot open this
//! one (`host/grpc_stream.rs`). So these exports replace the SDK's, as those of `pause` do, and deliver
//! each event through the SDK's queue callback: host calls in that callback belong to the root.

#![expect(
    unsafe_code,
    reason = "the names are the ABI, and the SDK's exports have no safe ones"
)]

use std::cell::Cell;

/// Envoy numbers its queues from 1.
const NO_QUEUE: u32 = 0;

/// What happened to a stream.
#[derive(Clone, Copy, Debug)]
pub struct GrpcEvent {
    /// The stream.
    pub token: u32,
    /// What happened.
    pub kind: GrpcEventKind,
}

/// What may happen to a stream.
#[derive(Clone, Copy, Debug)]
pub enum GrpcEventKind {
    /// A message of so many bytes, which Envoy holds during the callback.
    Message(usize),
    /// It ended with this gRPC status.
    Closed(u32),
}

thread_local! {
    static EVENT: Cell<Option<GrpcEvent>> = const { Cell::new(None) };
}

unsafe extern "C" {
    fn proxy_on_queue_ready(root_id: u32, queue_id: u32);
}

/// The gRPC event of the running queue callback; `None` if the callback is about a queue.
pub fn take() -> Option<GrpcEvent> {
    EVENT.take()
}

fn deliver(root_id: u32, token: u32, kind: GrpcEventKind) {
    EVENT.set(Some(GrpcEvent { token, kind }));
    // SAFETY: this is the SDK's export, with a context that Envoy made a callback for.
    unsafe { proxy_on_queue_ready(root_id, NO_QUEUE) };
}

#[unsafe(no_mangle)]
extern "C" fn rl_proxy_on_grpc_receive(root_id: u32, token: u32, size: usize) {
    deliver(root_id, token, GrpcEventKind::Message(size));
}

#[unsafe(no_mangle)]
extern "C" fn rl_proxy_on_grpc_close(root_id: u32, token: u32, status: u32) {
    deliver(root_id, token, GrpcEventKind::Closed(status));
}
