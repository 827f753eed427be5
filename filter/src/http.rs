//! A request as the state machine sees it.

use filter_core::{
    Body, CallAnswer, Direction, LocalReply, NoProperty, Refusal, Request, RequestHeaders,
    Response, ResponseHeaders, is_grpc,
};

use crate::host::{
    self, Buffer, HostError, LocalResponse, Map,
    headers::{self, Pairs},
};

const CONTENT_TYPE: &str = "content-type";

/// The request whose callback is running.
///
/// One host call reads all headers. For the nine headers of a plain request Envoy needs 13,000
/// instructions; one by one, the first needs 12,000 and each other 10,000, because the cost is the
/// `malloc` that the host calls for each value, not the value itself.
#[derive(Debug)]
pub struct HostRequest {
    headers: Pairs,
    has_body: bool,
}

impl HostRequest {
    /// Reads the request. `has_body`: a body follows.
    pub fn read(has_body: bool) -> Self {
        Self {
            headers: headers::all(Map::Request),
            has_body,
        }
    }

    /// Whether the request has a header.
    pub fn has(&self, name: &str) -> bool {
        self.headers.first(name).is_some()
    }

    /// Whether it is a gRPC call.
    pub fn is_grpc(&self) -> bool {
        is_grpc(self.headers.first(CONTENT_TYPE))
    }
}

impl Request for HostRequest {
    fn headers<'r>(&'r self, name: &str) -> impl Iterator<Item = &'r [u8]> {
        self.headers.values(name)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.first(name)
    }

    fn has_body(&self) -> bool {
        self.has_body
    }

    fn property(&self, path: &[u8]) -> Result<Vec<u8>, NoProperty> {
        host::property(path).map_err(|error| match error {
            HostError::NOT_FOUND => NoProperty::Absent,
            _ => NoProperty::Unreadable,
        })
    }
}

/// The body of the request whose callback is running.
#[derive(Clone, Copy, Debug)]
pub struct HostBody;

impl Body for HostBody {
    fn bytes(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        host::buffer(Buffer::RequestBody, from, len).ok()
    }
}

/// Whether the paused request of the effective context is a gRPC call.
pub fn waiting_is_grpc() -> bool {
    is_grpc(headers::get(Map::Request, CONTENT_TYPE).as_deref())
}

/// The request headers of the effective context.
#[derive(Clone, Copy, Debug)]
pub struct HostHeaders;

impl RequestHeaders for HostHeaders {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        headers::get(Map::Request, name)
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        // A request that no longer exists needs no headers.
        let _ = headers::set(Map::Request, name, value);
    }

    fn remove(&mut self, name: &str) {
        let _ = headers::remove(Map::Request, name);
    }
}

/// Whether this Envoy is a sidecar.
pub fn is_sidecar() -> bool {
    host::property(b"xds\0node\0id").is_ok_and(|id| filter_core::is_sidecar(&id))
}

/// Whether the filter limits requests of the effective context's listener.
pub fn is_limited(direction: Direction, sidecar: bool) -> bool {
    direction.limits(sidecar, || {
        let bytes = host::property(b"xds\0listener_direction").ok()?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    })
}

// --- A response as the state machine sees it, and local responses.

/// The response headers of the effective context.
#[derive(Clone, Copy, Debug)]
pub struct HostResponse;

impl ResponseHeaders for HostResponse {
    fn get(&self, name: &str) -> Option<Vec<u8>> {
        headers::get(Map::Response, name)
    }

    fn set(&mut self, name: &'static str, value: &str) {
        // A response that no longer exists needs no headers.
        let _ = headers::set(Map::Response, name, value.as_bytes());
    }

    fn add(&mut self, name: &'static str, value: &str) {
        let _ = headers::add(Map::Response, name, value.as_bytes());
    }

    fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
        host::property(path).ok()
    }
}

impl Response for HostResponse {
    fn body(&self, from: usize, len: usize) -> Option<Vec<u8>> {
        host::buffer(Buffer::ResponseBody, from, len).ok()
    }

    fn trailer(&self, name: &str) -> Option<Vec<u8>> {
        headers::get(Map::ResponseTrailers, name)
    }

    fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
        host::property(path).ok()
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
    let _ = host::set_property("rl_denied", details.as_bytes());
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
            headers: headers::all(Map::CallResponse),
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
        let body = host::buffer(Buffer::CallResponse, 0, self.body_len);
        // Envoy has no buffer for an empty body.
        Some(body.unwrap_or_default())
    }
}
