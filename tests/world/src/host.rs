//! What a process gets from its system, made reproducible: random bytes and the wall clock. The standard library and
//! all crates reach both by these two functions of libc, which this program defines in its place.

#![expect(unsafe_code, reason = "replaces two functions of libc")]

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use rustix::time::{ClockId, clock_gettime as of_the_system};

/// The wall clock in milliseconds since the epoch, and the other clocks; 0: the system's.
static WALL_MS: AtomicI64 = AtomicI64::new(0);
static MONO_MS: AtomicI64 = AtomicI64::new(0);
static DRAWN: AtomicU64 = AtomicU64::new(0);

/// Sets the clocks of everything in the process: the wall clock, and the time since the world began.
pub fn set_clocks(wall_ms: i64, mono_ms: i64) {
    WALL_MS.store(wall_ms, Ordering::Relaxed);
    // Clocks begin before a world does: who subtracts a minute from now finds a time.
    MONO_MS.store(mono_ms + 86_400_000, Ordering::Relaxed);
}

/// `getrandom` of libc: a sequence that is the same in each process.
///
/// # Safety
/// `buffer` has `len` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, len: usize, _flags: u32) -> isize {
    for at in 0..len {
        let count = DRAWN.fetch_add(1, Ordering::Relaxed);
        let mixed = (count + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // SAFETY: `at` is below `len`.
        unsafe { buffer.add(at).write((mixed >> 56).to_le_bytes()[0]) };
    }
    len.cast_signed()
}

#[repr(C)]
struct Timespec {
    seconds: i64,
    nanos: i64,
}

/// `clock_gettime` of libc: the world's clocks, if there is one.
///
/// # Safety
/// `time` may be written to.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: i32, time: *mut Timespec) -> i32 {
    let of = if clock == 0 { &WALL_MS } else { &MONO_MS };
    let ms = of.load(Ordering::Relaxed);
    let now = if ms != 0 {
        Timespec {
            seconds: ms / 1000,
            nanos: ms % 1000 * 1_000_000,
        }
    } else {
        let of = match clock {
            0 => ClockId::Realtime,
            2 => ClockId::ProcessCPUTime,
            3 => ClockId::ThreadCPUTime,
            _ => ClockId::Monotonic,
        };
        let now = of_the_system(of);
        Timespec {
            seconds: now.tv_sec,
            nanos: now.tv_nsec,
        }
    };
    // SAFETY: the caller says so.
    unsafe { time.write(now) };
    0
}
