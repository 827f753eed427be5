//! The module's memory.

#![expect(unsafe_code, reason = "implements an allocator")]

use std::alloc::{GlobalAlloc, Layout};

/// The module's memory: rlsf, 6 KB smaller than the standard library's allocator, and every call
/// takes constant time.
///
/// When memory runs out the module aborts here, so none of the 150 places that allocate handles a
/// failure.
struct Memory(rlsf::SmallGlobalTlsf);

#[global_allocator]
static MEMORY: Memory = Memory(rlsf::SmallGlobalTlsf::new());

// SAFETY: rlsf's allocator does all the work.
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
