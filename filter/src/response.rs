//! A response as the state machine sees it, and local responses.

use filter_core::{CallAnswer, LocalReply, Refusal, Response, ResponseHeaders};
use proxy_wasm::{
    hostcalls,
    types::{BufferType, MapType},
};

use crate::host::{
    self, HostError, LocalResponse,
    headers::{self, Pairs},
    property,
};

/// The response headers of the effective context.
#[derive(Clone, Copy, Debug)]
pub struct HostResponse;

impl ResponseHeaders for HostResponse {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        headers::get(MapType::HttpResponseHeaders, name)
    }

    fn set(&mut self, name: &'static str, value: &str) {
        // A response that no longer exists needs no headers.
        let _ = headers::set(MapType::HttpResponseHeaders, name, value.as_bytes());
    }

    fn add(&mut self, name: &'static str, value: &str) {
        let _ = headers::add(MapType::HttpResponseHeaders, name, value.as_bytes());
    }
}

impl Response for HostResponse {
    fn body(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        host::body_chunk(BufferType::HttpResponseBody, from, len).ok()
    }

    fn trailer(&self, name: &str) -> Option<Vec<u8>> {
        headers::get(MapType::HttpResponseTrailers, name)
    }

    fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
        property::get(path).ok()
    }
}

/// Answers the request of the effective context, a gRPC call or not.
pub fn refuse(refusal: Refusal, grpc: bool) -> Result<(), HostError> {
    let LocalReply {
        status,
        details,
        headers,
        body,
        grpc_status,
    } = refusal.reply(grpc);
    // For access logs: `%FILTER_STATE(wasm.rl_denied:PLAIN)%`.
    let _ = property::set("rl_denied", details.as_bytes());
    let pairs: Vec<(&str, &str)> = headers.iter().collect();
    host::send_local_response(&LocalResponse {
        status,
        details: &details,
        body: body.as_bytes(),
        headers: &pairs,
        grpc_status: i32::from(grpc_status),
    })
}

// --- An answer of the limiter as the state machine sees it.

/// The answer to the call whose callback is running.
#[derive(Debug)]
pub struct Answer {
    headers: Pairs,
    body_len: usize,
}

impl Answer {
    /// Reads the answer. One host call reads all headers and costs as much as a call for one header.
    pub fn read(body_len: usize) -> Self {
        Self {
            headers: headers::all(MapType::HttpCallResponseHeaders),
            body_len,
        }
    }
}

impl CallAnswer for Answer {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.first(name)
    }

    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        if self.body_len > max_len {
            return None;
        }
        let body = hostcalls::get_buffer(BufferType::HttpCallResponseBody, 0, self.body_len);
        // Envoy has no buffer for an empty body.
        Some(body.ok().flatten().unwrap_or_default())
    }
}
