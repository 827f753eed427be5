//! The leanest possible filter: Envoy enters it once per request, and it lets the request pass.
//!
//! It does not use the SDK, which exports every callback, and Envoy makes every exported callback: with
//! the SDK, a filter that does nothing is entered twice as often as ours. The cost of this one is the
//! cost of wasm in Envoy; it is the reference of the benchmarks.
#![expect(unsafe_code, reason = "the names are the ABI, and may not be mangled")]

/// The ABI version; the name declares it.
#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Allocates memory for the host. This filter makes no call that needs it, but Envoy loads no module
/// without this function.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    Vec::with_capacity(size).leak().as_mut_ptr()
}

/// Lets the request continue.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(_stream_id: u32, _headers: u32, _end: u32) -> u32 {
    0
}
