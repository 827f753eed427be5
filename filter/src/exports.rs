//! What Envoy calls. A callback that is not here is one Envoy does not make.

#![expect(unsafe_code, reason = "the names are the ABI, and may not be mangled")]

use filter_core::StreamId;

use crate::{answer::Answer, contexts, plugin::Verdict, start};

/// The version of the ABI, told by this name.
#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// A plugin comes (`parent_id` 0), or a request of one.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(context_id: u32, parent_id: u32) {
    if parent_id == 0 {
        contexts::add_root(context_id);
    } else {
        contexts::add_stream(context_id, parent_id);
    }
}

/// A plugin is given its configuration; 0 refuses it.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(root_id: u32, _size: usize) -> u32 {
    match start::configured(root_id) {
        Some(plugin) => {
            contexts::set_plugin(root_id, plugin);
            1
        }
        None => 0,
    }
}

/// Time has passed.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(root_id: u32) {
    if let Some(plugin) = contexts::plugin(root_id) {
        plugin.on_tick();
    }
}

/// A request has come; 1 stops it for now.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(stream_id: u32, _headers: usize, _end: u32) -> u32 {
    let plugin = contexts::plugin_of(stream_id);
    match plugin.map(|plugin| plugin.on_request(StreamId(stream_id))) {
        Some(Verdict::Waits | Verdict::Answered) => 1,
        // A plugin without a good configuration lets everything pass.
        Some(Verdict::GoesOn) | None => 0,
    }
}

/// A response is about to leave.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(stream_id: u32, _headers: usize, _end: u32) -> u32 {
    if let Some(plugin) = contexts::plugin_of(stream_id) {
        plugin.on_response(StreamId(stream_id));
    }
    0
}

/// A call was answered, or came to nothing.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_http_call_response(
    root_id: u32,
    token: u32,
    headers: usize,
    body_len: usize,
    _trailers: usize,
) {
    if let Some(plugin) = contexts::plugin(root_id) {
        // Without headers the answer was cut short, and there is nothing to read.
        let answer = (headers > 0).then(|| Answer::read(body_len));
        plugin.on_answer(token, answer.as_ref());
    }
}

/// A queue of a plugin holds a value.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(root_id: u32, queue: u32) {
    if let Some(plugin) = contexts::plugin(root_id) {
        plugin.on_queue_ready(queue);
    }
}

/// A request or a plugin has gone.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(context_id: u32) {
    if let Some(plugin) = contexts::plugin_of(context_id) {
        plugin.on_gone(StreamId(context_id));
    }
    contexts::remove(context_id);
}
