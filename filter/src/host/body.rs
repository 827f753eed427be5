//! Bodies and messages.

#![expect(unsafe_code, reason = "calls the host with pointers to live slices")]

use proxy_wasm::types::BufferType;

use super::{memory::receive, raw, status::HostError};

/// Up to `len` bytes, from an offset, of the body or message that the running callback is about.
///
/// Does not use the SDK, which panics on every status but `NotFound`.
pub fn chunk(of: BufferType, from: usize, len: usize) -> Result<Vec<u8>, HostError> {
    receive(|data, data_len| {
        // SAFETY: the out pointers are valid for writes.
        unsafe { raw::proxy_get_buffer_bytes(of as u32, from, len, data, data_len) }
    })
}
