//! Envoy's properties of a stream, by path.

#![expect(unsafe_code, reason = "calls the host with pointers to live slices")]

use super::{HostError, check, raw, receive};

/// The value at a path whose parts are separated by zero bytes (`xds\0route_name`).
///
/// Does not use the SDK, which returns `None` both for an empty value and for an absent one: a request
/// with an empty claim would have no bucket, and so no limit.
pub fn get(path: &[u8]) -> Result<Vec<u8>, HostError> {
    receive(|value, value_len| {
        // SAFETY: `path` outlives the call, and the out pointers are valid for writes.
        unsafe { raw::proxy_get_property(path.as_ptr(), path.len(), value, value_len) }
    })
}

/// Sets a value, which access logs find in filter state as `wasm.<name>`.
///
/// Does not use the SDK, which panics when the stream no longer exists (`NotFound`).
pub fn set(name: &str, value: &[u8]) -> Result<(), HostError> {
    // SAFETY: both slices outlive the call.
    check(unsafe {
        raw::proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}
