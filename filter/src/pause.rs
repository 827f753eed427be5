//! How requests are paused.
//!
//! Envoy has several ways, and the SDK has one: `Pause`, which lets the body of a paused request come to
//! the filter, if Envoy's configuration says `allow_on_headers_stop_iteration`, and collects it until
//! Envoy refuses the request with 413. So these exports are around the SDK's, and `cargo xtask wasm`
//! gives them the SDK's names: a request waits with its body unread, or, where the body is read, with
//! as much of it as Envoy's buffers take.

#![expect(
    unsafe_code,
    reason = "the names are the ABI, and the SDK's exports have no safe ones"
)]

use std::cell::Cell;

/// The SDK's `Action::Pause`.
const PAUSE: u32 = 1;
/// Of headers: neither headers nor body go on, and the client is slowed down.
const STOP_ALL_AND_WATERMARK: u32 = 4;
/// Of a body: it does not go on, and the client is slowed down where the buffer is full.
const STOP_AND_WATERMARK: u32 = 2;

thread_local! {
    /// Whether the request whose callback is running waits for its body.
    static FOR_BODY: Cell<bool> = const { Cell::new(false) };
}

unsafe extern "C" {
    fn proxy_on_request_headers(context_id: u32, count: usize, end: bool) -> u32;
    fn proxy_on_request_body(context_id: u32, size: usize, end: bool) -> u32;
}

/// The request whose callback is running is paused for its body to come.
pub fn for_body() {
    FOR_BODY.set(true);
}

#[unsafe(no_mangle)]
extern "C" fn rl_proxy_on_request_headers(context_id: u32, count: usize, end: bool) -> u32 {
    // SAFETY: it is the SDK's, with the arguments that Envoy gave for it.
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
