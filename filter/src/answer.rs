//! An answer of the limiter as the state machine sees it.

use filter_core::CallAnswer;

use crate::host::{
    buffers::{self, Buffer},
    headers::{self, Map},
};

/// The answer to the call whose callback is running.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub body_len: usize,
}

impl CallAnswer for Answer {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        headers::get(Map::CalloutAnswer, name)
    }

    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        if self.body_len > max_len {
            return None;
        }
        // An empty body is not found rather than empty.
        Some(buffers::get(Buffer::CalloutAnswer, self.body_len).unwrap_or_default())
    }
}
