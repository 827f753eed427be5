//! Declarations of host functions, which only `host` calls.
//!
//! Statuses are plain integers: in an enum, an unlisted one would be undefined behaviour.

#![expect(
    unsafe_code,
    reason = "declares foreign functions; `host` alone calls them"
)]

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
