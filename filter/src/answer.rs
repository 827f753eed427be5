//! An answer of the limiter as the state machine sees it.

use filter_core::CallAnswer;

use crate::host::{
    buffers::{self, Buffer},
    headers::{self, Map, Pairs},
};

/// The answer to the call whose callback is running.
#[derive(Debug)]
pub struct Answer {
    headers: Pairs,
    body_len: usize,
}

impl Answer {
    /// Reads the answer, whose headers cost no more together than one of them would.
    pub fn read(body_len: usize) -> Self {
        Self {
            headers: headers::all(Map::CalloutAnswer),
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
        // An empty body is not found rather than empty.
        Some(buffers::get(Buffer::CalloutAnswer, self.body_len).unwrap_or_default())
    }
}
