//! A request as the state machine sees it.

use std::{borrow::Cow, cell::OnceCell};

use filter_core::{Direction, Request};

use crate::host::{
    headers::{self, Map, Pairs},
    properties,
};

/// The request of the effective context.
#[derive(Debug)]
pub struct HostRequest {
    /// All headers, where that is cheaper than one by one.
    all: Option<Pairs>,
    /// Asked for by several.
    path: OnceCell<Option<Vec<u8>>>,
}

impl HostRequest {
    /// A request of `present` headers, of which `wanted` will be asked for.
    ///
    /// What makes a value dear is the call by which the host gets memory for it. A map is one
    /// value, and its headers add up to another such call per 40, as measured.
    pub fn new(present: usize, wanted: usize) -> Self {
        let at_once = present <= wanted.saturating_sub(1).saturating_mul(40);
        Self {
            all: at_once.then(|| headers::all(Map::Request)),
            path: OnceCell::new(),
        }
    }

    /// A request that waited: what it has is asked for one by one.
    pub fn waiting() -> Self {
        Self {
            all: None,
            path: OnceCell::new(),
        }
    }

    /// Whether it is a call by gRPC.
    pub fn is_grpc(&self) -> bool {
        let content_type = self.header("content-type");
        content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
    }

    /// Whether the request may have a header. It is not fetched to find out.
    pub fn may_have(&self, name: &str) -> bool {
        self.all
            .as_ref()
            .is_none_or(|all| all.first(name).is_some())
    }
}

impl Request for HostRequest {
    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        if let Some(all) = &self.all {
            return all.first(name).map(Cow::Borrowed);
        }
        let fetch = || headers::get(Map::Request, name);
        if name == ":path" {
            return self.path.get_or_init(fetch).as_deref().map(Cow::Borrowed);
        }
        fetch().map(Cow::Owned)
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
