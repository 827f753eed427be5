//! How requests are paused.
//!
//! Envoy has several ways, and the SDK has one: `Pause`. With it, the filter receives the body of a
//! paused request if Envoy's configuration has `allow_on_headers_stop_iteration`, and Envoy buffers the
//! body until it refuses the request with 413. So these exports wrap the SDK's, and `cargo xtask wasm`
//! gives them the SDK's names: a request waits with its body unread, or, where the filter reads the
//! body, with as much of it as Envoy's buffers hold.

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
pub fn for_body() {
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
