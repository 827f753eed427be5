//! A response as the state machine sees it, and local responses.

use filter_core::{LocalReply, Refusal, Response, ResponseHeaders};
use proxy_wasm::types::{BufferType, MapType};

use crate::host::{
    HostError, body, headers, property,
    stream::{self, LocalResponse},
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
        body::chunk(BufferType::HttpResponseBody, from, len).ok()
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
    stream::send_local_response(&LocalResponse {
        status,
        details: &details,
        body: body.as_bytes(),
        headers: &pairs,
        grpc_status: i32::from(grpc_status),
    })
}
