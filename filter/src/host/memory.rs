//! Values that the host returns: it allocates them with the module's `malloc`, which the SDK exports,
//! and the module frees them.

#![expect(unsafe_code, reason = "takes ownership of memory that the host filled")]

use std::ptr;

use super::status::{HostError, check};

/// Runs a host call that returns a value.
pub fn receive(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Vec<u8>, HostError> {
    let (mut data, mut len) = (ptr::null_mut(), 0);
    let status = call(&raw mut data, &raw mut len);
    let bytes = if data.is_null() {
        // The host allocates nothing for an empty value.
        Vec::new()
    } else {
        // SAFETY: the host got `data` from `malloc`, for this very length, and filled it; nobody
        // else holds the pointer.
        unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(data, len)) }.into_vec()
    };
    // Frees what the host allocated, whatever the status.
    check(status).map(|()| bytes)
}
