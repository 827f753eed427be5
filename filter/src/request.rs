//! A request as the state machine sees it.

use std::cell::OnceCell;

use filter_core::{Direction, Request};

use crate::host::{
    headers::{self, Map},
    properties,
};

/// The request of the effective context. Its path is asked for by several and fetched once.
#[derive(Debug, Default)]
pub struct HostRequest {
    path: OnceCell<Option<Vec<u8>>>,
}

impl Request for HostRequest {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        if name == ":path" {
            let fetch = || headers::get(Map::Request, name);
            return self.path.get_or_init(fetch).clone();
        }
        headers::get(Map::Request, name)
    }

    fn property(&self, path: &[u8]) -> Option<Vec<u8>> {
        properties::get(path)
    }
}

/// Whether this Envoy is a sidecar: Istio's node names begin with the kind of proxy.
pub fn is_sidecar() -> bool {
    properties::get(b"xds\0node\0id").is_some_and(|id| id.starts_with(b"sidecar~"))
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
    let direction = bytes.and_then(|bytes| <[u8; 8]>::try_from(bytes).ok());
    direction.map(u64::from_le_bytes) == Some(wanted)
}
