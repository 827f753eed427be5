//! The calls that the host answers: all of the filter's `unsafe` code but its exports.
//!
//! A status is a plain number, for a host may send any, and none ends the VM: whoever makes a call says what a
//! failure means.

#![expect(
    unsafe_code,
    reason = "calls the host with pointers to live slices and locals"
)]

pub mod grpc_stream;
pub mod headers;

use std::{fmt, ptr};

use filter_core::{CasMismatch, Host, Level, Version, Versioned};
pub use headers::Map;

// --- Statuses of host calls.

/// The status of a host call that failed.
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

// --- Values that the host returns: it allocates them with `proxy_on_memory_allocate`, and the module frees them.

/// Runs a host call that returns a value.
pub fn receive(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> Result<Vec<u8>, HostError> {
    let (mut data, mut len) = (ptr::null_mut(), 0);
    let status = call(&raw mut data, &raw mut len);
    let bytes = if data.is_null() {
        // The host allocates nothing for an empty value.
        Vec::new()
    } else {
        // SAFETY: the host got `data` from `proxy_on_memory_allocate`, for this very length, and filled it;
        // nobody else holds the pointer.
        unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(data, len)) }.into_vec()
    };
    // Frees what the host allocated, whatever the status.
    check(status).map(|()| bytes)
}

// --- Bodies, messages and the configuration.

/// A buffer, by its number.
#[derive(Clone, Copy, Debug)]
pub enum Buffer {
    /// The body of the request.
    RequestBody = 0,
    /// The body of the response.
    ResponseBody = 1,
    /// The body of the answer to a call.
    CallResponse = 4,
    /// A message of a stream.
    GrpcMessage = 5,
    /// The plugin's configuration.
    Configuration = 7,
}

/// Up to `len` bytes, from an offset, of a buffer that the running callback is about.
pub fn buffer(of: Buffer, from: usize, len: usize) -> Result<Vec<u8>, HostError> {
    receive(|data, data_len| {
        // SAFETY: the out pointers are valid for writes.
        unsafe { proxy_get_buffer_bytes(of as u32, from, len, data, data_len) }
    })
}

// --- Envoy's properties of a stream, by path.

/// The value at a path whose parts are separated by zero bytes (`xds\0route_name`).
pub fn property(path: &[u8]) -> Result<Vec<u8>, HostError> {
    receive(|value, value_len| {
        // SAFETY: `path` outlives the call, and the out pointers are valid for writes.
        unsafe { proxy_get_property(path.as_ptr(), path.len(), value, value_len) }
    })
}

/// Sets a value, which access logs find in filter state as `wasm.<name>`.
pub fn set_property(name: &str, value: &[u8]) -> Result<(), HostError> {
    // SAFETY: both slices outlive the call.
    check(unsafe { proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len()) })
}

// --- Clocks, and ticks.

/// The clock of the time since the epoch.
pub const REALTIME: u32 = 0;
/// A clock that never steps back, the same for all workers of a process.
pub const MONOTONIC: u32 = 1;

/// Nanoseconds on a clock.
pub fn clock_ns(clock: u32) -> Result<u64, HostError> {
    let mut ns = 0;
    // SAFETY: the out pointer is valid for writes.
    check(unsafe { clock_time_get(clock, 0, &raw mut ns) })?;
    Ok(ns)
}

/// Has the effective root called every so many milliseconds.
pub fn set_tick_period(ms: u32) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { proxy_set_tick_period_milliseconds(ms) })
}

// --- Random bytes, and the environment variables that the VM's configuration grants.

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
pub fn resume_request() -> Result<(), HostError> {
    const REQUEST: u32 = 0;
    // SAFETY: no pointers are passed.
    check(unsafe { proxy_continue_stream(REQUEST) })
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

// --- Calls of the effective context, and that context.

/// A call to a cluster.
pub struct HttpCall<'a> {
    /// The cluster.
    pub cluster: &'a str,
    /// Header pairs.
    pub headers: &'a [(&'a str, &'a str)],
    /// The body; empty: none.
    pub body: &'a [u8],
    /// How long it may take; 0: for ever.
    pub timeout_ms: u32,
}

/// Makes a call; returns its token.
pub fn call(call: &HttpCall<'_>) -> Result<u32, HostError> {
    let (headers, trailers) = (headers::encode(call.headers), headers::encode(&[]));
    let mut token = 0;
    // SAFETY: all slices outlive the call, and `token` is valid for writes.
    check(unsafe {
        proxy_http_call(
            call.cluster.as_ptr(),
            call.cluster.len(),
            headers.as_ptr(),
            headers.len(),
            call.body.as_ptr(),
            call.body.len(),
            trailers.as_ptr(),
            trailers.len(),
            call.timeout_ms,
            &raw mut token,
        )
    })?;
    Ok(token)
}

/// Has the host calls of this callback apply to another context; fails if that does not exist.
pub fn set_effective_context(context: u32) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { proxy_set_effective_context(context) })
}

// --- Metrics.

/// A kind of metric, by its number.
#[derive(Clone, Copy, Debug)]
pub enum MetricKind {
    /// It grows.
    Counter = 0,
    /// It is what it was set to.
    Gauge = 1,
    /// It collects samples.
    Histogram = 2,
}

/// The id of a metric.
pub fn define_metric(kind: MetricKind, name: &str) -> Result<u32, HostError> {
    let mut id = 0;
    // SAFETY: `name` outlives the call, and `id` is valid for writes.
    check(unsafe { proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &raw mut id) })?;
    Ok(id)
}

/// Sets a gauge, or adds a sample to a histogram.
pub fn record_metric(id: u32, value: u64) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { proxy_record_metric(id, value) })
}

/// Adds to a counter.
pub fn increment_metric(id: u32, by: i64) -> Result<(), HostError> {
    // SAFETY: no pointers are passed.
    check(unsafe { proxy_increment_metric(id, by) })
}

// --- Shared queues.

/// The id of the queue of a name, which this worker has the host deliver.
pub fn register_queue(name: &str) -> Result<u32, HostError> {
    let mut id = 0;
    // SAFETY: `name` outlives the call, and `id` is valid for writes.
    check(unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &raw mut id) })?;
    Ok(id)
}

/// Puts an empty value into a queue.
pub fn enqueue(id: u32) -> Result<(), HostError> {
    // SAFETY: an empty slice is passed.
    check(unsafe { proxy_enqueue_shared_queue(id, ptr::null(), 0) })
}

/// Takes a value from a queue; fails if it has none.
pub fn dequeue(id: u32) -> Result<Vec<u8>, HostError> {
    // SAFETY: the out pointers are valid for writes.
    receive(|value, value_len| unsafe { proxy_dequeue_shared_queue(id, value, value_len) })
}

// --- Envoy's log.

/// A level of the log, by its number.
#[derive(Clone, Copy, Debug)]
pub enum LogLevel {
    /// Something happened.
    Info = 2,
    /// Something is not right.
    Warn = 3,
    /// The filter does not work.
    Error = 4,
}

/// Writes to Envoy's log. Escapes what a terminal would interpret.
pub fn log(level: LogLevel, text: &str) {
    let text = filter_core::printable(text);
    // SAFETY: `text` outlives the call.
    let _ = check(unsafe { proxy_log(level as u32, text.as_ptr(), text.len()) });
}

/// The host's level of a message.
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
        let mut cas = 0;
        let bytes = receive(|value, value_len| {
            // SAFETY: `key` outlives the call, and the out pointers are valid for writes.
            unsafe {
                proxy_get_shared_data(key.as_ptr(), key.len(), value, value_len, &raw mut cas)
            }
        });
        // By the number 0, a swap would overwrite whatever there is.
        let bytes = bytes.ok().filter(|_| cas != 0)?;
        let version = Version(cas);
        Some(Versioned { bytes, version })
    }

    fn swap(&self, key: &[u8], value: &[u8], expected: Version) -> Result<(), CasMismatch> {
        let Version(cas) = expected;
        // SAFETY: both slices outlive the call.
        let status = unsafe {
            proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas)
        };
        // Whatever the reason, it was not written.
        check(status).map_err(|_| CasMismatch)
    }
}

// --- Declarations of host functions, which only `host` calls.

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    fn proxy_log(level: u32, text: *const u8, text_len: usize) -> u32;
    fn proxy_set_tick_period_milliseconds(ms: u32) -> u32;
    fn proxy_set_effective_context(context: u32) -> u32;
    fn proxy_get_shared_data(
        key: *const u8,
        key_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
        cas: *mut u32,
    ) -> u32;
    fn proxy_set_shared_data(
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
        cas: u32,
    ) -> u32;
    fn proxy_register_shared_queue(name: *const u8, name_len: usize, id: *mut u32) -> u32;
    fn proxy_enqueue_shared_queue(id: u32, value: *const u8, value_len: usize) -> u32;
    fn proxy_dequeue_shared_queue(id: u32, value: *mut *mut u8, value_len: *mut usize) -> u32;
    fn proxy_define_metric(kind: u32, name: *const u8, name_len: usize, id: *mut u32) -> u32;
    fn proxy_record_metric(id: u32, value: u64) -> u32;
    fn proxy_increment_metric(id: u32, by: i64) -> u32;
    fn proxy_http_call(
        cluster: *const u8,
        cluster_len: usize,
        headers: *const u8,
        headers_len: usize,
        body: *const u8,
        body_len: usize,
        trailers: *const u8,
        trailers_len: usize,
        timeout_ms: u32,
        token: *mut u32,
    ) -> u32;
    fn proxy_get_header_map_pairs(map: u32, pairs: *mut *mut u8, pairs_len: *mut usize) -> u32;
    fn proxy_get_header_map_value(
        map: u32,
        key: *const u8,
        key_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
    ) -> u32;
    fn proxy_replace_header_map_value(
        map: u32,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> u32;
    fn proxy_add_header_map_value(
        map: u32,
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> u32;
    fn proxy_remove_header_map_value(map: u32, key: *const u8, key_len: usize) -> u32;
    fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        max_len: usize,
        data: *mut *mut u8,
        data_len: *mut usize,
    ) -> u32;
    fn proxy_get_property(
        path: *const u8,
        path_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
    ) -> u32;
    fn proxy_set_property(
        path: *const u8,
        path_len: usize,
        value: *const u8,
        value_len: usize,
    ) -> u32;
    fn proxy_grpc_stream(
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
    fn proxy_grpc_send(token: u32, message: *const u8, message_len: usize, end: bool) -> u32;
    fn proxy_grpc_close(token: u32) -> u32;
    fn proxy_grpc_cancel(token: u32) -> u32;
    fn proxy_continue_stream(stream: u32) -> u32;
    fn proxy_send_local_response(
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
    fn clock_time_get(clock: u32, precision_ns: u64, nanoseconds: *mut u64) -> u32;
    fn random_get(buffer: *mut u8, buffer_len: usize) -> u32;
    fn environ_sizes_get(count: *mut usize, total_len: *mut usize) -> u32;
    fn environ_get(pointers: *mut *mut u8, buffer: *mut u8) -> u32;
}
