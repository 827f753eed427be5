//! Bodies and configurations.

#![expect(unsafe_code, reason = "calls the host with pointers to locals")]

use super::{memory::receive, raw, status::HostError};

/// Something the host holds in a buffer.
#[derive(Clone, Copy, Debug)]
#[repr(u32)]
pub enum Buffer {
    /// The body of the answer to a callout.
    CalloutAnswer = 4,
    /// The plugin's configuration.
    PluginConfiguration = 7,
}

/// The first `max_len` bytes of a buffer.
pub fn get(buffer: Buffer, max_len: usize) -> Result<Vec<u8>, HostError> {
    receive(|data, data_len| {
        // SAFETY: the out pointers are valid for writes.
        unsafe { raw::proxy_get_buffer_bytes(buffer as u32, 0, max_len, data, data_len) }
    })
}
