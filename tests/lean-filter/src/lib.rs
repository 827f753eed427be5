//! The leanest filter that sees requests: Envoy enters it once for each, and it lets the request pass.
//!
//! It has no SDK, because that exports every callback there is, and Envoy makes those that are exported:
//! with it a filter that does nothing is entered twice as often as ours. What this one costs is the
//! price of wasm in Envoy, and the benchmarks measure ours against it.
#![expect(unsafe_code, reason = "the names are the ABI, and may not be mangled")]

/// The version of the ABI, told by this name.
#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Room for what Envoy hands over. It hands nothing over that nobody asked for, but loads no module
/// without this function.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    Vec::with_capacity(size).leak().as_mut_ptr()
}

/// A request has come: it goes on.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(_stream_id: u32, _headers: u32, _end: u32) -> u32 {
    0
}
