//! Values that the host hands over: it has the module allocate them, and the module frees them.

#![expect(
    unsafe_code,
    reason = "gives memory to the host under an exported name, and takes it back"
)]

#[cfg(target_family = "wasm")]
use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

use super::status::{HostError, check};

/// The module's memory: rlsf, 6 KB smaller than the standard library's allocator, and every call
/// takes constant time.
///
/// Without memory the module ends here, not where it asked: none of the 150 places that do needs
/// to look.
#[cfg(target_family = "wasm")]
struct Memory(rlsf::SmallGlobalTlsf);

#[cfg(target_family = "wasm")]
#[global_allocator]
static MEMORY: Memory = Memory(rlsf::SmallGlobalTlsf::new());

// SAFETY: as rlsf's, which does all of it.
#[cfg(target_family = "wasm")]
unsafe impl GlobalAlloc for Memory {
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to the same contract.
        let memory = unsafe { self.0.alloc(layout) };
        if memory.is_null() {
            std::process::abort();
        }
        memory
    }

    #[inline(never)]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the same contract.
        unsafe { self.0.dealloc(memory, layout) }
    }
}

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
