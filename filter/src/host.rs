//! The host calls that the SDK cannot make for this filter; it makes all others.
//!
//! The SDK's functions panic on statuses they do not expect, which ends the VM of a worker, and hold a
//! status in an enum, where an unlisted number is undefined behaviour. That is harmless only for calls
//! that Envoy answers with statuses the SDK expects. Each call here has a comment that says why the
//! filter makes it itself. All of the filter's `unsafe` code is here too.

#![expect(
    unsafe_code,
    reason = "calls the host with pointers to live slices and locals"
)]

pub mod grpc_stream;
pub mod headers;

use std::{fmt, ptr};

use filter_core::{CasMismatch, Host, Level, Version, Versioned};
use proxy_wasm::{
    hostcalls,
    types::{BufferType, LogLevel, StreamType},
};

// --- Statuses of host calls.

/// The status of a host call that failed: a plain number, for a host may send any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostError(u32);

impl HostError {
    /// No such header, property or value.
    pub const NOT_FOUND: Self = Self(1);
}

/// Converts a status to a result.
pub fn check(status: u32) -> Result<(), HostError> {
    match status {
        0 => Ok(()),
        status => Err(HostError(status)),
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.0)
    }
}

// --- Values that the host returns: it allocates them with the module's `malloc`, which the SDK exports,
// and the module frees them.

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

// --- Bodies and messages.

/// Up to `len` bytes, from an offset, of the body or message that the running callback is about.
///
/// Does not use the SDK, which panics on every status but `NotFound`.
pub fn body_chunk(of: BufferType, from: usize, len: usize) -> Result<Vec<u8>, HostError> {
    receive(|data, data_len| {
        // SAFETY: the out pointers are valid for writes.
        unsafe { proxy_get_buffer_bytes(of as u32, from, len, data, data_len) }
    })
}

// --- Envoy's properties of a stream, by path.

/// The value at a path whose parts are separated by zero bytes (`xds\0route_name`).
///
/// Does not use the SDK, which returns `None` both for an empty value and for an absent one: a request
/// with an empty claim would have no bucket, and so no limit.
pub fn property(path: &[u8]) -> Result<Vec<u8>, HostError> {
    receive(|value, value_len| {
        // SAFETY: `path` outlives the call, and the out pointers are valid for writes.
        unsafe { proxy_get_property(path.as_ptr(), path.len(), value, value_len) }
    })
}

/// Sets a value, which access logs find in filter state as `wasm.<name>`.
///
/// Does not use the SDK, which panics when the stream no longer exists (`NotFound`).
pub fn set_property(name: &str, value: &[u8]) -> Result<(), HostError> {
    // SAFETY: both slices outlive the call.
    check(unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) })
}

// --- The monotonic clock. The SDK has only the wall clock, and `std::time` panics on this target.

/// Nanoseconds on a clock that never steps back, the same for all workers of a process.
pub fn monotonic_ns() -> Result<u64, HostError> {
    const MONOTONIC: u32 = 1;
    let mut ns = 0;
    // SAFETY: the out pointer is valid for writes.
    check(unsafe { clock_time_get(MONOTONIC, 0, &raw mut ns) })?;
    Ok(ns)
}

// --- Random bytes, and the environment variables that the VM's configuration grants. The SDK has
// neither.

/// Fills a buffer with random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], HostError> {
    let mut bytes = [0; N];
    // SAFETY: the buffer is valid for writes of its length.
    check(unsafe { random_get(bytes.as_mut_ptr(), N) })?;
    Ok(bytes)
}

/// The value of an environment variable, if the VM was given it.
pub fn variable(name: &str) -> Option<Vec<u8>> {
    let (mut count, mut total_len) = (0_usize, 0_usize);
    // SAFETY: both out pointers are valid for writes.
    check(unsafe { environ_sizes_get(&raw mut count, &raw mut total_len) }).ok()?;
    let mut pointers = vec![ptr::null_mut(); count];
    let mut buffer = vec![0_u8; total_len];
    // SAFETY: the buffers have the sizes that the host just asked for.
    check(unsafe { environ_get(pointers.as_mut_ptr(), buffer.as_mut_ptr()) }).ok()?;
    // The buffer holds `NAME=value` texts, each ended by a zero: no need for the pointers.
    buffer.split(|byte| *byte == 0).find_map(|pair| {
        let value = pair.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(value.to_vec())
    })
}

// --- How a pause ends: the request of the effective context continues, or is answered here.

/// Resumes the request of the effective context.
///
/// Does not use the SDK, which panics if Envoy has nothing to resume.
pub fn resume_request() -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { proxy_continue_stream(StreamType::HttpRequest as u32) })
}

/// A response that Envoy sends itself.
pub struct LocalResponse<'a> {
    /// HTTP status, 400 to 599.
    pub status: u16,
    /// What `%RESPONSE_CODE_DETAILS%` shows.
    pub details: &'a str,
    /// For a gRPC request, the status message instead.
    pub body: &'a [u8],
    /// Header pairs; a line break in one would split the response, so none may hold client bytes.
    pub headers: &'a [(&'a str, &'a str)],
    /// The status of a gRPC call, -1 for none.
    pub grpc_status: i32,
}

/// Answers the request of the effective context.
///
/// Does not use the SDK, which sets no response code details and panics if the stream no longer exists.
pub fn send_local_response(response: &LocalResponse<'_>) -> Result<(), HostError> {
    let pairs = headers::encode(response.headers);
    // SAFETY: all slices outlive the call.
    check(unsafe {
        proxy_send_local_response(
            u32::from(response.status),
            response.details.as_ptr(),
            response.details.len(),
            response.body.as_ptr(),
            response.body.len(),
            pairs.as_ptr(),
            pairs.len(),
            response.grpc_status,
        )
    })
}

// --- Envoy's log.

/// Writes to Envoy's log. Escapes what a terminal would interpret.
pub fn log(level: LogLevel, text: &str) {
    let _ = hostcalls::log(level, &filter_core::printable(text));
}

/// The SDK's level of a message.
pub fn log_level(level: Level) -> LogLevel {
    match level {
        Level::Info => LogLevel::Info,
        Level::Warn => LogLevel::Warn,
    }
}

// --- Envoy's shared data as the state machine sees it.

/// The map that all workers of this process share.
#[derive(Clone, Copy, Debug)]
pub struct SharedData;

impl Host for SharedData {
    fn load(&self, key: &[u8]) -> Option<Versioned> {
        // The SDK takes keys as text; all keys of filter-core are text.
        let key = str::from_utf8(key).ok()?;
        let (bytes, cas) = hostcalls::get_shared_data(key).ok()?;
        // The SDK has no bytes for an empty value, and no CAS for an absent one.
        Some(Versioned {
            bytes: bytes.unwrap_or_default(),
            version: Version(cas?),
        })
    }

    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch> {
        let key = str::from_utf8(key).map_err(|_| CasMismatch)?;
        let Version(cas) = expected;
        // Whatever the reason, it was not written.
        hostcalls::set_shared_data(key, Some(value), Some(cas)).map_err(|_| CasMismatch)
    }
}

// --- Declarations of host functions, which only `host` calls.
//
// Statuses are plain integers: in an enum, an unlisted one would be undefined behaviour.

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    pub fn proxy_get_header_map_pairs(map: u32, pairs: *mut *mut u8, pairs_len: *mut usize) -> u32;
    pub fn proxy_get_header_map_value(
        map: u32,
        key: *const u8,
        key_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
    ) -> u32;
    pub fn proxy_replace_header_map_value(
        map: u32,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> u32;
    pub fn proxy_add_header_map_value(
        map: u32,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> u32;
    pub fn proxy_remove_header_map_value(map: u32, key: *const u8, key_len: usize) -> u32;
    pub fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        max_len: usize,
        data: *mut *mut u8,
        data_len: *mut usize,
    ) -> u32;
    pub fn proxy_get_property(
        path: *const u8,
        path_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
    ) -> u32;
    pub fn proxy_set_property(
        path: *const u8,
        path_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> u32;
    pub fn proxy_grpc_stream(
        service: *const u8,
        service_len: usize,
        name: *const u8,
        name_len: usize,
        method: *const u8,
        method_len: usize,
        headers: *const u8,
        headers_len: usize,
        token: *mut u32,
    ) -> u32;
    pub fn proxy_grpc_send(token: u32, message: *const u8, message_len: usize, end: bool) -> u32;
    pub fn proxy_grpc_close(token: u32) -> u32;
    pub fn proxy_grpc_cancel(token: u32) -> u32;
    pub fn proxy_continue_stream(stream: u32) -> u32;
    pub fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_len: usize,
        body: *const u8,
        body_len: usize,
        headers: *const u8,
        headers_len: usize,
        grpc_status: i32,
    ) -> u32;
}

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    pub fn clock_time_get(clock: u32, precision_ns: u64, nanoseconds: *mut u64) -> u32;
    pub fn random_get(buffer: *mut u8, buffer_len: usize) -> u32;
    pub fn environ_sizes_get(count: *mut usize, total_len: *mut usize) -> u32;
    pub fn environ_get(pointers: *mut *mut u8, buffer: *mut u8) -> u32;
}
