//! Values that the host hands over: it allocates them with the module's `malloc`, which the SDK
//! exports, and the module frees them.

#![expect(unsafe_code, reason = "takes ownership of memory that the host filled")]

use std::ptr;

use super::status::{HostError, check};

/// Runs a host call that hands over a value.
pub fn receive(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Vec<u8>, HostError> {
    let (mut data, mut len) = (ptr::null_mut(), 0);
    let status = call(&raw mut data, &raw mut len);
    let bytes = if data.is_null() {
        // An empty value comes without memory.
        Vec::new()
    } else {
        // SAFETY: the host got `data` from `malloc`, for this very length, and filled it; nobody
        // else holds the pointer.
        unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(data, len)) }.into_vec()
    };
    // Whatever the status, memory that was handed over is freed.
    check(status).map(|()| bytes)
}
