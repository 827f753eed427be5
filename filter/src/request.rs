//! A request as the state machine sees it.

use filter_core::{Body, Direction, NoProperty, Request};
use proxy_wasm::types::{BufferType, MapType};

use crate::host::{
    self, HostError,
    headers::{self, Pairs},
    property,
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
            headers: headers::all(MapType::HttpRequestHeaders),
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
        property::get(path).map_err(|error| match error {
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
        host::body_chunk(BufferType::HttpRequestBody, from, len).ok()
    }
}

/// Whether the paused request of the effective context is a gRPC call.
pub fn waiting_is_grpc() -> bool {
    is_grpc(headers::get(MapType::HttpRequestHeaders, CONTENT_TYPE).as_deref())
}

fn is_grpc(content_type: Option<&[u8]>) -> bool {
    content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
}

/// Whether this Envoy is a sidecar: Istio's node names begin with the kind of proxy.
pub fn is_sidecar() -> bool {
    property::get(b"xds\0node\0id").is_ok_and(|id| id.starts_with(b"sidecar~"))
}

/// Whether the filter limits requests of the effective context's listener.
pub fn is_limited(direction: Direction, sidecar: bool) -> bool {
    const INBOUND: u64 = 1;
    const OUTBOUND: u64 = 2;
    let wanted = match direction {
        Direction::Both => return true,
        Direction::Auto if !sidecar => return true,
        Direction::Auto | Direction::Inbound => INBOUND,
        Direction::Outbound => OUTBOUND,
    };
    let bytes = property::get(b"xds\0listener_direction");
    let direction = bytes.ok().and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    direction.map(u64::from_le_bytes) == Some(wanted)
}
