//! The module's memory.

#![expect(unsafe_code, reason = "implements an allocator")]

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    ptr,
};

/// The module's memory: rlsf, 6 KB smaller than the standard library's allocator, and every call
/// takes constant time. Small blocks that were freed are kept for the next of their size, in a quarter
/// of that time.
///
/// When memory runs out the module aborts here, so none of the 150 places that allocate handles a
/// failure.
struct Memory {
    rlsf: rlsf::SmallGlobalTlsf,
    free: [Blocks; SIZES],
}

/// Bound: sizes of blocks that are kept, of 16 bytes each. Beyond it, above 504 bytes, rlsf gets a block back at once.
const SIZES: usize = 32;
/// Bound: blocks of one size that are kept, 64 KiB of all sizes. Beyond it, rlsf gets a block back at once.
const BLOCKS: usize = 8;

/// Free blocks of one size, the first word of each pointing to the next.
struct Blocks {
    first: Cell<*mut u8>,
    count: Cell<usize>,
}

#[global_allocator]
static MEMORY: Memory = Memory {
    rlsf: rlsf::SmallGlobalTlsf::new(),
    free: [const {
        Blocks {
            first: Cell::new(ptr::null_mut()),
            count: Cell::new(0),
        }
    }; SIZES],
};

// SAFETY: a VM has one thread.
unsafe impl Sync for Memory {}

impl Memory {
    /// The list of a block, and the size of all blocks in it: a multiple of 16 bytes with rlsf's header of 8.
    fn kept(&self, layout: Layout) -> Option<(&Blocks, Layout)> {
        let at = layout.size().wrapping_add(7) / 16;
        let blocks = self.free.get(at).filter(|_| layout.align() <= 8)?;
        // SAFETY: the alignment is a power of two, and the size small.
        Some((blocks, unsafe {
            Layout::from_size_align_unchecked(at * 16 + 8, 8)
        }))
    }
}

// SAFETY: rlsf's allocator does the work. A block that is kept has the size that `kept` says for all layouts of
// its list, and is in the list from when it is freed until it is returned.
unsafe impl GlobalAlloc for Memory {
    #[inline(never)]
    unsafe fn alloc(&self, mut layout: Layout) -> *mut u8 {
        if let Some((blocks, rounded)) = self.kept(layout) {
            let block = blocks.first.get();
            if !block.is_null() {
                // SAFETY: it is free, and its first word was written by `dealloc`.
                blocks
                    .first
                    .set(unsafe { block.cast::<*mut u8>().read_unaligned() });
                blocks.count.set(blocks.count.get() - 1);
                return block;
            }
            layout = rounded;
        }
        // SAFETY: the caller keeps to the same contract.
        let memory = unsafe { self.rlsf.alloc(layout) };
        if memory.is_null() {
            std::process::abort();
        }
        memory
    }

    #[inline(never)]
    unsafe fn dealloc(&self, memory: *mut u8, mut layout: Layout) {
        if let Some((blocks, rounded)) = self.kept(layout) {
            if blocks.count.get() < BLOCKS {
                // SAFETY: nobody uses it any more, and it has room for a pointer.
                unsafe { memory.cast::<*mut u8>().write_unaligned(blocks.first.get()) };
                blocks.first.set(memory);
                blocks.count.set(blocks.count.get() + 1);
                return;
            }
            layout = rounded;
        }
        // SAFETY: the caller keeps to the same contract.
        unsafe { self.rlsf.dealloc(memory, layout) }
    }
}
