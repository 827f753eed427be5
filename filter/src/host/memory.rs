//! Values that the host hands over: it has the module allocate them, and the module frees them.

#![expect(
    unsafe_code,
    reason = "gives memory to the host under an exported name, and takes it back"
)]

use std::ptr;

use super::status::{HostError, check};

/// 6 KB smaller than the standard library's allocator, and every call takes constant time.
#[cfg(target_family = "wasm")]
#[global_allocator]
static ALLOCATOR: rlsf::SmallGlobalTlsf = rlsf::SmallGlobalTlsf::new();

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
        // SAFETY: the host obtained `data` from `proxy_on_memory_allocate`,
        // asking for this very length, and nobody else holds the pointer.
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

/// Memory for the host to write a value of `len` bytes into. [`receive`] takes it back.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(len: usize) -> *mut u8 {
    // Zeroed, so that it is initialised whatever the host writes.
    Box::into_raw(vec![0_u8; len].into_boxed_slice()).cast()
}
