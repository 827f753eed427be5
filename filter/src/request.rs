//! A request as the state machine sees it.

use filter_core::{Direction, NoProperty, Request};

use crate::host::{
    HostError,
    headers::{self, Map, Pairs},
    properties,
};

const CONTENT_TYPE: &str = "content-type";

/// The request of the effective context, in whose callback it is read.
///
/// All headers come in one call. Of a plain request's nine, that takes Envoy 13,000 instructions;
/// one by one, the first takes 12,000 and each other 10,000, because it is not the value that is
/// dear but that the host has the module allocate memory for it. Only to look for one that is not
/// there takes 8,000, and the more the more headers there are, as Envoy makes an index of them.
#[derive(Debug)]
pub struct HostRequest {
    headers: Pairs,
}

impl HostRequest {
    /// Reads the request.
    pub fn read() -> Self {
        Self {
            headers: headers::all(Map::Request),
        }
    }

    /// Whether the request has a header.
    pub fn has(&self, name: &str) -> bool {
        self.headers.first(name).is_some()
    }

    /// Whether it is a call by gRPC.
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

    fn property(&self, path: &[u8]) -> Result<Vec<u8>, NoProperty> {
        properties::get(path).map_err(|error| match error {
            HostError::NotFound => NoProperty::Absent,
            _ => NoProperty::Unreadable,
        })
    }
}

/// Whether the request of the effective context, which waited, is a call by gRPC.
pub fn waiting_is_grpc() -> bool {
    is_grpc(headers::get(Map::Request, CONTENT_TYPE).as_deref())
}

fn is_grpc(content_type: Option<&[u8]>) -> bool {
    content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
}

/// Whether this Envoy is a sidecar: Istio's node names begin with the kind of proxy.
pub fn is_sidecar() -> bool {
    properties::get(b"xds\0node\0id").is_ok_and(|id| id.starts_with(b"sidecar~"))
}

/// Whether requests of the effective context's listener are to be checked.
pub fn is_meant(direction: Direction, sidecar: bool) -> bool {
    const INBOUND: u64 = 1;
    const OUTBOUND: u64 = 2;
    let wanted = match direction {
        Direction::Both => return true,
        Direction::Auto if !sidecar => return true,
        Direction::Auto | Direction::Inbound => INBOUND,
        Direction::Outbound => OUTBOUND,
    };
    let bytes = properties::get(b"xds\0listener_direction");
    let direction = bytes.ok().and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    direction.map(u64::from_le_bytes) == Some(wanted)
}
