//! Declarations of what Envoy gives a module. Nothing else in the project declares foreign functions.
//!
//! Statuses are plain integers: a host newer than this list may answer any
//! number, and an enum holding an unlisted one would be undefined behaviour.

#![expect(
    unsafe_code,
    reason = "declaring foreign functions is the point of this file; `host` alone calls them"
)]

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    pub fn proxy_log(level: u32, text: *const u8, text_len: usize) -> u32;
    pub fn proxy_get_current_time_nanoseconds(nanoseconds: *mut u64) -> u32;
    pub fn proxy_set_tick_period_milliseconds(period_ms: u32) -> u32;
    pub fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        max_len: usize,
        data: *mut *mut u8,
        data_len: *mut usize,
    ) -> u32;
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
    pub fn proxy_get_shared_data(
        key: *const u8,
        key_len: usize,
        value: *mut *mut u8,
        value_len: *mut usize,
        cas: *mut u32,
    ) -> u32;
    pub fn proxy_set_shared_data(
        key: *const u8,
        key_len: usize,
        value: *const u8,
        value_len: usize,
        cas: u32,
    ) -> u32;
    pub fn proxy_register_shared_queue(name: *const u8, name_len: usize, queue: *mut u32) -> u32;
    pub fn proxy_enqueue_shared_queue(queue: u32, value: *const u8, value_len: usize) -> u32;
    pub fn proxy_dequeue_shared_queue(
        queue: u32,
        value: *mut *mut u8,
        value_len: *mut usize,
    ) -> u32;
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
    pub fn proxy_http_call(
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
    pub fn proxy_set_effective_context(context_id: u32) -> u32;
    pub fn proxy_define_metric(kind: u32, name: *const u8, name_len: usize, id: *mut u32) -> u32;
    pub fn proxy_record_metric(id: u32, value: u64) -> u32;
    pub fn proxy_increment_metric(id: u32, offset: i64) -> u32;
}

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    pub fn clock_time_get(clock: u32, precision_ns: u64, nanoseconds: *mut u64) -> u32;
    pub fn random_get(buffer: *mut u8, buffer_len: usize) -> u32;
    pub fn environ_sizes_get(count: *mut usize, total_len: *mut usize) -> u32;
    pub fn environ_get(pointers: *mut *mut u8, buffer: *mut u8) -> u32;
}
