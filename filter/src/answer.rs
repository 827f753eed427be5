//! An answer of the limiter as the state machine sees it.

use filter_core::CallAnswer;
use proxy_wasm::{
    hostcalls,
    types::{BufferType, MapType},
};

use crate::host::headers::{self, Pairs};

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
