//! Exports that replace the SDK's: `cargo xtask wasm` gives them the SDK's names.
//!
//! Envoy has several ways to pause a request, and the SDK has one: `Pause`. With it, the filter receives
//! the body of a paused request if Envoy's configuration has `allow_on_headers_stop_iteration`, and Envoy
//! buffers the body until it refuses the request with 413. So these exports wrap the SDK's: a request waits
//! with its body unread, or, where the filter reads the body, with as much of it as Envoy's buffers hold.

#![expect(
    unsafe_code,
    reason = "the names are the ABI, and the SDK's exports have no safe ones"
)]

use std::cell::Cell;

/// The SDK's `Action::Pause`.
const PAUSE: u32 = 1;
/// For headers: neither headers nor body continue, and Envoy applies backpressure to the client.
const STOP_ALL_AND_WATERMARK: u32 = 4;
/// For a body: it does not continue, and Envoy applies backpressure to the client once the buffer is
/// full.
const STOP_AND_WATERMARK: u32 = 2;

thread_local! {
    /// Whether the request whose callback is running waits for its body.
    static FOR_BODY: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn proxy_on_request_headers(context_id: u32, count: usize, end: bool) -> u32;
    fn proxy_on_request_body(context_id: u32, size: usize, end: bool) -> u32;
}

/// Pauses the request whose callback is running until its body arrives.
pub fn pause_for_body() {
    FOR_BODY.set(true);
}

#[unsafe(no_mangle)]
extern "C" fn rl_proxy_on_request_headers(context_id: u32, count: usize, end: bool) -> u32 {
    // SAFETY: this is the SDK's export, with the arguments that Envoy passed for it.
    let action = unsafe { proxy_on_request_headers(context_id, count, end) };
    if action == PAUSE && !FOR_BODY.replace(false) {
        return STOP_ALL_AND_WATERMARK;
    }
    action
}

#[unsafe(no_mangle)]
extern "C" fn rl_proxy_on_request_body(context_id: u32, size: usize, end: bool) -> u32 {
    // SAFETY: as above.
    let action = unsafe { proxy_on_request_body(context_id, size, end) };
    if action == PAUSE {
        return STOP_AND_WATERMARK;
    }
    action
}

// --- Callbacks of gRPC streams.
//
// The SDK delivers them only to contexts that opened a stream by its own call, which cannot open this
// one (`host/grpc_stream.rs`). So these exports deliver
// each event through the SDK's queue callback: host calls in that callback belong to the root.

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
pub fn take_grpc_event() -> Option<GrpcEvent> {
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
