//! The map that all workers of this Envoy process share.

#![expect(
    unsafe_code,
    reason = "calls the host with pointers to live slices and locals"
)]

use super::{
    memory::receive,
    raw,
    status::{HostError, check},
};

/// A value and the number its next write must name.
pub fn get(key: &[u8]) -> Result<(Vec<u8>, u32), HostError> {
    let mut cas = 0;
    let bytes = receive(|value, value_len| {
        // SAFETY: `key` outlives the call, and the out pointers are valid for writes.
        unsafe {
            raw::proxy_get_shared_data(key.as_ptr(), key.len(), value, value_len, &raw mut cas)
        }
    })?;
    Ok((bytes, cas))
}

/// Writes a value if nobody wrote since `cas` was read. The host takes 0 for "whatever is there".
pub fn set(key: &[u8], value: &[u8], cas: u32) -> Result<(), HostError> {
    // SAFETY: both slices outlive the call.
    check(unsafe {
        raw::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas)
    })
}
