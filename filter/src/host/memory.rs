//! Values that the host hands over: it allocates them in this module's memory, the module frees them.

#![expect(
    unsafe_code,
    reason = "takes ownership of memory that the host allocated through the exported `malloc`"
)]

use std::ptr;

use super::status::{HostError, check};

/// Where a host call leaves a value.
pub struct Handover {
    data: *mut u8,
    len: usize,
}

impl Handover {
    fn new() -> Self {
        Self {
            data: ptr::null_mut(),
            len: 0,
        }
    }

    /// Owns what the host left. An empty value may come without memory.
    fn into_bytes(self) -> Vec<u8> {
        if self.data.is_null() {
            return Vec::new();
        }
        let whole = ptr::slice_from_raw_parts_mut(self.data, self.len);
        // SAFETY: the host obtained `data` from this module's `malloc`, which
        // is the SDK's and leaks a `Box<[u8]>` of exactly the length asked
        // for, and wrote all of it; nobody else holds the pointer.
        unsafe { Box::from_raw(whole) }.into_vec()
    }
}

/// Runs a host call that hands over a value.
pub fn receive(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Vec<u8>, HostError> {
    let mut handover = Handover::new();
    let status = call(&raw mut handover.data, &raw mut handover.len);
    // Whatever the status, memory that was handed over must be freed.
    let bytes = handover.into_bytes();
    check(status).map(|()| bytes)
}
