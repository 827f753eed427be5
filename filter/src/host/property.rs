//! Envoy's properties of a stream, by path.

#![expect(unsafe_code, reason = "calls the host with pointers to live slices")]

use super::{
    memory::receive,
    raw,
    status::{HostError, check},
};

/// The value at a path whose parts are separated by zero bytes (`xds\0route_name`).
///
/// Not by the SDK, which gives `None` for an empty value as for an absent one: no bucket, and so no
/// limit, for a request whose claim is empty.
pub fn get(path: &[u8]) -> Result<Vec<u8>, HostError> {
    receive(|value, value_len| {
        // SAFETY: `path` outlives the call, and the out pointers are valid for writes.
        unsafe { raw::proxy_get_property(path.as_ptr(), path.len(), value, value_len) }
    })
}

/// Sets a value, which access logs find in filter state as `wasm.<name>`.
///
/// Not by the SDK, which panics when the stream is gone (`NotFound`).
pub fn set(name: &str, value: &[u8]) -> Result<(), HostError> {
    // SAFETY: both slices outlive the call.
    check(unsafe {
        raw::proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}
