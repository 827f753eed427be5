//! Envoy's ABI for dynamic modules, v0.2.0, as Envoy 1.40 has it: the functions that this module calls
//! and those that Envoy calls. All of the module's `unsafe` code is here.
//!
//! What keeps it sound:
//! - Values of Envoy's that a wrapper returns borrow from the wrapper, and everything that could move them
//!   takes it by `&mut`. A wrapper lives as long as the hook that it was made for.
//! - A request that is kept for later ([`Request::keep`]) is found by its key in a map of its own thread,
//!   which the hook that ends it removes it from. So no pointer is used on another thread or too late.
//! - Each hook counts a reference to the module's object for as long as it runs, because what it calls
//!   may end the request: Envoy then calls the hook that releases the object within the first one.
//! - Numbers of Envoy's enums are plain integers: in a Rust enum, an unlisted one would be undefined
//!   behaviour.
//! - No panic leaves a hook ([`hooks::caught`]): `extern "C"` would abort.
//! - What the hooks of a configuration get is never freed ([`Handle`]): Envoy may end one on a worker while
//!   such a hook runs on the main thread.

#![expect(
    unsafe_code,
    reason = "foreign functions, and pointers that they hand over"
)]

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::HashMap,
    ffi::c_void,
    marker::PhantomData,
    ptr,
    rc::Rc,
    slice,
    sync::{Arc, PoisonError, RwLock},
};

use crate::hooks::{self, BodyAction, Filter, HeadersAction, Stream};

// --- Types of the ABI.

/// Bytes of Envoy's.
#[repr(C)]
#[derive(Clone, Copy)]
struct EnvoyBuffer {
    data: *const u8,
    len: usize,
}

/// Bytes of the module's.
#[repr(C)]
#[derive(Clone, Copy)]
struct ModuleBuffer {
    data: *const u8,
    len: usize,
}

impl ModuleBuffer {
    fn new(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    /// No value: a header that is set to it is removed.
    const NONE: Self = Self {
        data: ptr::null(),
        len: 0,
    };
}

/// A header of either side's.
#[repr(C)]
#[derive(Clone, Copy)]
struct HeaderPair {
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
}

/// Which headers of a request or its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headers {
    /// The request's.
    Request = 0,
    /// The response's.
    Response = 2,
    /// The trailers of the response.
    ResponseTrailers = 3,
}

/// Which body, and which part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Of the request: what the running hook is about.
    RequestChunk = 0,
    /// Of the request: what Envoy has buffered.
    RequestBuffer = 1,
    /// Of the response: what the running hook is about.
    ResponseChunk = 2,
    /// Of the response: what Envoy has buffered.
    ResponseBuffer = 3,
}

/// Where metadata comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// What filters set for the request.
    Dynamic = 0,
    /// The route's.
    Route = 1,
}

/// Where a value of metadata is.
#[derive(Clone, Copy, Debug)]
pub struct MetadataPath<'p> {
    /// Where it comes from.
    pub of: Metadata,
    /// The name of the filter that set it.
    pub namespace: &'p [u8],
    /// The key.
    pub key: &'p [u8],
}

impl MetadataPath<'_> {
    fn arguments(&self) -> (u32, ModuleBuffer, ModuleBuffer) {
        let (namespace, key) = (
            ModuleBuffer::new(self.namespace),
            ModuleBuffer::new(self.key),
        );
        (self.of as u32, namespace, key)
    }
}

/// The severity of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// For information.
    Info = 2,
    /// Something works less well than it should.
    Warn = 3,
    /// Something does not work.
    Error = 4,
}

/// The result of a call or a metric that succeeded.
const SUCCESS: u32 = 0;

// --- The functions of Envoy. A `bool` of C and of Rust are the same byte.

type Ptr = *mut c_void;

unsafe extern "C" {
    fn envoy_dynamic_module_callback_log(level: u32, message: ModuleBuffer);
    fn envoy_dynamic_module_callback_get_concurrency() -> u32;
    fn envoy_dynamic_module_callback_is_validation_mode() -> bool;

    fn envoy_dynamic_module_callback_http_get_headers_size(filter: Ptr, of: u32) -> usize;
    fn envoy_dynamic_module_callback_http_get_headers(
        filter: Ptr,
        of: u32,
        headers: *mut HeaderPair,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_set_header(
        filter: Ptr,
        of: u32,
        name: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_clear_route_cache(filter: Ptr);
    fn envoy_dynamic_module_callback_http_add_header(
        filter: Ptr,
        of: u32,
        name: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_send_response(
        filter: Ptr,
        status: u32,
        headers: *mut HeaderPair,
        headers_len: usize,
        body: ModuleBuffer,
        details: ModuleBuffer,
    );
    fn envoy_dynamic_module_callback_http_get_body_chunks(
        filter: Ptr,
        of: u32,
        chunks: *mut EnvoyBuffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_body_chunks_size(filter: Ptr, of: u32) -> usize;
    fn envoy_dynamic_module_callback_http_get_metadata_string(
        filter: Ptr,
        of: u32,
        namespace: ModuleBuffer,
        key: ModuleBuffer,
        value: *mut EnvoyBuffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_number(
        filter: Ptr,
        of: u32,
        namespace: ModuleBuffer,
        key: ModuleBuffer,
        value: *mut f64,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_bool(
        filter: Ptr,
        of: u32,
        namespace: ModuleBuffer,
        key: ModuleBuffer,
        value: *mut bool,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_list_size(
        filter: Ptr,
        of: u32,
        namespace: ModuleBuffer,
        key: ModuleBuffer,
        size: *mut usize,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_list_string(
        filter: Ptr,
        of: u32,
        namespace: ModuleBuffer,
        key: ModuleBuffer,
        index: usize,
        value: *mut EnvoyBuffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_list_number(
        filter: Ptr,
        of: u32,
        namespace: ModuleBuffer,
        key: ModuleBuffer,
        index: usize,
        value: *mut f64,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_metadata_list_bool(
        filter: Ptr,
        of: u32,
        namespace: ModuleBuffer,
        key: ModuleBuffer,
        index: usize,
        value: *mut bool,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_set_filter_state_bytes(
        filter: Ptr,
        key: ModuleBuffer,
        value: ModuleBuffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_filter_state_typed(
        filter: Ptr,
        key: ModuleBuffer,
        value: *mut EnvoyBuffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
        filter: Ptr,
        attribute: u32,
        value: *mut EnvoyBuffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_get_attribute_int(
        filter: Ptr,
        attribute: u32,
        value: *mut u64,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_get_attribute_bool(
        filter: Ptr,
        attribute: u32,
        value: *mut bool,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_get_worker_index(filter: Ptr) -> u32;
    fn envoy_dynamic_module_callback_http_filter_continue_decoding(filter: Ptr);
    fn envoy_dynamic_module_callback_http_filter_scheduler_new(filter: Ptr) -> Ptr;
    fn envoy_dynamic_module_callback_http_filter_scheduler_commit(scheduler: Ptr, event: u64);
    fn envoy_dynamic_module_callback_http_filter_scheduler_delete(scheduler: Ptr);

    fn envoy_dynamic_module_callback_http_filter_config_scheduler_new(config: Ptr) -> Ptr;
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_commit(
        scheduler: Ptr,
        event: u64,
    );
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_delete(scheduler: Ptr);
    fn envoy_dynamic_module_callback_http_filter_config_http_callout(
        config: Ptr,
        id: *mut u64,
        cluster: ModuleBuffer,
        headers: *mut HeaderPair,
        headers_len: usize,
        body: ModuleBuffer,
        timeout_ms: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_start_http_stream(
        config: Ptr,
        id: *mut u64,
        cluster: ModuleBuffer,
        headers: *mut HeaderPair,
        headers_len: usize,
        body: ModuleBuffer,
        end: bool,
        timeout_ms: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_stream_send_data(
        config: Ptr,
        id: u64,
        data: ModuleBuffer,
        end: bool,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_config_reset_http_stream(config: Ptr, id: u64);
    fn envoy_dynamic_module_callback_http_filter_config_define_counter(
        config: Ptr,
        name: ModuleBuffer,
        labels: *mut ModuleBuffer,
        labels_len: usize,
        id: *mut usize,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_define_gauge(
        config: Ptr,
        name: ModuleBuffer,
        labels: *mut ModuleBuffer,
        labels_len: usize,
        id: *mut usize,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_define_histogram(
        config: Ptr,
        name: ModuleBuffer,
        labels: *mut ModuleBuffer,
        labels_len: usize,
        id: *mut usize,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_increment_counter(
        config: Ptr,
        id: usize,
        labels: *mut ModuleBuffer,
        labels_len: usize,
        value: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_set_gauge(
        config: Ptr,
        id: usize,
        labels: *mut ModuleBuffer,
        labels_len: usize,
        value: u64,
    ) -> u32;
    fn envoy_dynamic_module_callback_http_filter_config_record_histogram_value(
        config: Ptr,
        id: usize,
        labels: *mut ModuleBuffer,
        labels_len: usize,
        value: u64,
    ) -> u32;
}

// --- Of the process.

/// Writes to Envoy's log.
pub fn log(severity: Severity, text: &str) {
    // SAFETY: Envoy copies the text.
    unsafe {
        envoy_dynamic_module_callback_log(severity as u32, ModuleBuffer::new(text.as_bytes()));
    }
}

/// How many workers Envoy has. Only on the main thread.
pub fn concurrency() -> usize {
    // SAFETY: no pointers are passed; called where a configuration is made, on the main thread.
    let workers = unsafe { envoy_dynamic_module_callback_get_concurrency() };
    usize::try_from(workers).unwrap_or(1)
}

/// Whether Envoy only validates its configuration. Only on the main thread.
pub fn validates() -> bool {
    // SAFETY: as above.
    unsafe { envoy_dynamic_module_callback_is_validation_mode() }
}

// --- A request, for the hook that is running.

/// A request of this thread.
pub struct Request<'h> {
    filter: Ptr,
    /// The headers of [`Headers`] that were read, until one of them is set.
    headers: [OnceCell<Vec<HeaderPair>>; 3],
    hook: PhantomData<&'h mut ()>,
}

/// The key of a kept request, which no other request of its thread ever has.
pub type Key = u64;

thread_local! {
    /// The requests of this thread that are kept.
    static KEPT: RefCell<HashMap<Key, Ptr>> = RefCell::default();
    static LAST_KEY: Cell<Key> = const { Cell::new(0) };
}

impl Request<'_> {
    fn of_hook(filter: Ptr) -> Self {
        Self {
            filter,
            headers: Default::default(),
            hook: PhantomData,
        }
    }

    /// Keeps the request, so that [`Request::kept`] finds it until it ends. Returns its key.
    pub fn keep(&self, stream: &Stream) -> Key {
        let key = stream.key().unwrap_or_else(|| {
            LAST_KEY.set(LAST_KEY.get() + 1);
            LAST_KEY.get()
        });
        stream.keep(key);
        KEPT.with_borrow_mut(|kept| kept.insert(key, self.filter));
        key
    }

    /// A request that was kept by this thread and has not ended; the caller is a hook of this thread.
    pub fn kept(key: Key) -> Option<Self> {
        let filter = KEPT.with_borrow(|kept| kept.get(&key).copied());
        filter.map(Self::of_hook)
    }

    /// The number of this worker.
    pub fn worker_index(&self) -> usize {
        // SAFETY: the request exists while its hook runs. The same holds for all calls below.
        let index =
            unsafe { envoy_dynamic_module_callback_http_filter_get_worker_index(self.filter) };
        usize::try_from(index).unwrap_or(0)
    }

    /// The values of a header.
    pub fn values(&self, of: Headers, name: &str) -> impl Iterator<Item = &[u8]> {
        let name = match (of, name) {
            (Headers::Request, "host") => ":authority",
            _ => name,
        };
        // SAFETY: what Envoy returns stays in place until a header is set, which takes `&mut self`.
        unsafe { values(self.read(of), name) }
    }

    /// All headers at once: that costs Envoy less than to look up one, some 1,000 instructions.
    fn read(&self, of: Headers) -> &[HeaderPair] {
        self.of(of).get_or_init(|| {
            // SAFETY: the list has room for as many as Envoy says that there are.
            unsafe {
                let count =
                    envoy_dynamic_module_callback_http_get_headers_size(self.filter, of as u32);
                let mut headers = Vec::with_capacity(count);
                let to = headers.as_mut_ptr();
                if envoy_dynamic_module_callback_http_get_headers(self.filter, of as u32, to) {
                    headers.set_len(count);
                }
                headers
            }
        })
    }

    /// Whether the name of a header begins so.
    pub fn has_prefix(&self, of: Headers, prefix: &str) -> bool {
        self.read(of).iter().any(|pair| {
            let (data, len) = (pair.name, pair.name_len);
            // SAFETY: see `values`.
            unsafe { bytes(EnvoyBuffer { data, len }) }.starts_with(prefix.as_bytes())
        })
    }

    fn of(&self, of: Headers) -> &OnceCell<Vec<HeaderPair>> {
        let [request, response, trailers] = &self.headers;
        match of {
            Headers::Request => request,
            Headers::Response => response,
            Headers::ResponseTrailers => trailers,
        }
    }

    /// Sets a header, dropping its other values. Does nothing where there are no such headers.
    pub fn set_header(&mut self, of: Headers, name: &str, value: &[u8]) {
        // A null pointer would remove it, and an empty slice is not null.
        self.put_header(of, name, ModuleBuffer::new(value));
    }

    /// Removes a header.
    pub fn remove_header(&mut self, of: Headers, name: &str) {
        self.put_header(of, name, ModuleBuffer::NONE);
    }

    fn put_header(&mut self, of: Headers, name: &str, value: ModuleBuffer) {
        self.headers = Default::default();
        let name = ModuleBuffer::new(name.as_bytes());
        // SAFETY: Envoy copies both.
        unsafe {
            envoy_dynamic_module_callback_http_set_header(self.filter, of as u32, name, value);
            if matches!(of, Headers::Request) {
                // A route may match it. Envoy does the same when a wasm module edits a request's headers.
                envoy_dynamic_module_callback_http_clear_route_cache(self.filter);
            }
        }
    }

    /// Adds a value to a header and keeps its other values.
    pub fn add_header(&mut self, of: Headers, name: &str, value: &[u8]) {
        self.headers = Default::default();
        let name = ModuleBuffer::new(name.as_bytes());
        let value = ModuleBuffer::new(value);
        // SAFETY: Envoy copies both.
        unsafe {
            envoy_dynamic_module_callback_http_add_header(self.filter, of as u32, name, value);
        }
    }

    /// The chunks of a part of a body.
    pub fn body(&self, of: Part) -> Vec<&[u8]> {
        // SAFETY: the buffer has room for as many chunks as Envoy says that there are; nothing changes
        // the body in between, or as long as the result borrows `self`.
        unsafe {
            let count =
                envoy_dynamic_module_callback_http_get_body_chunks_size(self.filter, of as u32);
            let mut chunks = vec![EMPTY; count];
            if count == 0
                || !envoy_dynamic_module_callback_http_get_body_chunks(
                    self.filter,
                    of as u32,
                    chunks.as_mut_ptr(),
                )
            {
                return Vec::new();
            }
            chunks.into_iter().map(|chunk| bytes(chunk)).collect()
        }
    }

    /// A text in metadata, or in a list there: the item of this index.
    pub fn metadata_text(&self, path: &MetadataPath<'_>, item: Option<usize>) -> Option<&[u8]> {
        let (of, namespace, key) = path.arguments();
        // SAFETY: the arguments outlive the call; the module sets no metadata.
        let text = read(EMPTY, |value| unsafe {
            match item {
                None => envoy_dynamic_module_callback_http_get_metadata_string(
                    self.filter,
                    of,
                    namespace,
                    key,
                    value,
                ),
                Some(item) => envoy_dynamic_module_callback_http_get_metadata_list_string(
                    self.filter,
                    of,
                    namespace,
                    key,
                    item,
                    value,
                ),
            }
        })?;
        // SAFETY: as above.
        Some(unsafe { bytes(text) })
    }

    /// A number in metadata, as [`Request::metadata_text`].
    pub fn metadata_number(&self, path: &MetadataPath<'_>, item: Option<usize>) -> Option<f64> {
        let (of, namespace, key) = path.arguments();
        // SAFETY: the arguments outlive the call. The same holds for the next two.
        read(0.0, |value| unsafe {
            match item {
                None => envoy_dynamic_module_callback_http_get_metadata_number(
                    self.filter,
                    of,
                    namespace,
                    key,
                    value,
                ),
                Some(item) => envoy_dynamic_module_callback_http_get_metadata_list_number(
                    self.filter,
                    of,
                    namespace,
                    key,
                    item,
                    value,
                ),
            }
        })
    }

    /// A truth value in metadata, as [`Request::metadata_text`].
    pub fn metadata_bool(&self, path: &MetadataPath<'_>, item: Option<usize>) -> Option<bool> {
        let (of, namespace, key) = path.arguments();
        // SAFETY: see `metadata_number`.
        read(false, |value| unsafe {
            match item {
                None => envoy_dynamic_module_callback_http_get_metadata_bool(
                    self.filter,
                    of,
                    namespace,
                    key,
                    value,
                ),
                Some(item) => envoy_dynamic_module_callback_http_get_metadata_list_bool(
                    self.filter,
                    of,
                    namespace,
                    key,
                    item,
                    value,
                ),
            }
        })
    }

    /// How many items a list in metadata has.
    pub fn metadata_list(&self, path: &MetadataPath<'_>) -> Option<usize> {
        let (of, namespace, key) = path.arguments();
        // SAFETY: see `metadata_number`.
        read(0, |size| unsafe {
            envoy_dynamic_module_callback_http_get_metadata_list_size(
                self.filter,
                of,
                namespace,
                key,
                size,
            )
        })
    }

    /// A value of filter state, as text.
    pub fn filter_state(&self, key: &[u8]) -> Option<&[u8]> {
        let key = ModuleBuffer::new(key);
        // SAFETY: the arguments outlive the call. Envoy keeps the text until the hook returns or filter
        // state is set, which takes `&mut self`.
        unsafe {
            let value = read(EMPTY, |value| {
                envoy_dynamic_module_callback_http_get_filter_state_typed(self.filter, key, value)
            });
            value.map(|value| bytes(value))
        }
    }

    /// Sets a value of filter state, for access logs.
    pub fn set_filter_state(&mut self, key: &str, value: &[u8]) {
        let key = ModuleBuffer::new(key.as_bytes());
        // SAFETY: Envoy copies both.
        unsafe {
            envoy_dynamic_module_callback_http_set_filter_state_bytes(
                self.filter,
                key,
                ModuleBuffer::new(value),
            );
        }
    }

    /// An attribute that is text, by its number in the ABI.
    pub fn text_attribute(&self, attribute: u32) -> Option<&[u8]> {
        // SAFETY: the out pointer outlives the call, and what it gets the request.
        unsafe {
            let value = read(EMPTY, |value| {
                envoy_dynamic_module_callback_http_filter_get_attribute_string(
                    self.filter,
                    attribute,
                    value,
                )
            });
            value.map(|value| bytes(value))
        }
    }

    /// An attribute that is a number.
    pub fn number_attribute(&self, attribute: u32) -> Option<u64> {
        // SAFETY: the out pointer outlives the call.
        read(0, |value| unsafe {
            envoy_dynamic_module_callback_http_filter_get_attribute_int(
                self.filter,
                attribute,
                value,
            )
        })
    }

    /// An attribute that is a truth value.
    pub fn bool_attribute(&self, attribute: u32) -> Option<bool> {
        // SAFETY: the out pointer outlives the call.
        read(false, |value| unsafe {
            envoy_dynamic_module_callback_http_filter_get_attribute_bool(
                self.filter,
                attribute,
                value,
            )
        })
    }

    /// Events of this request, which any thread may schedule.
    pub fn scheduler(&self) -> RequestScheduler {
        // SAFETY: see `worker_index`.
        RequestScheduler(unsafe {
            envoy_dynamic_module_callback_http_filter_scheduler_new(self.filter)
        })
    }

    /// Continues a paused request. Envoy may call other hooks of this request, also the one that ends
    /// it, before this returns.
    pub fn continue_decoding(self) {
        // SAFETY: see `worker_index`; `self` is gone afterwards.
        unsafe { envoy_dynamic_module_callback_http_filter_continue_decoding(self.filter) }
    }

    /// Answers the request; hooks may run as in [`Request::continue_decoding`].
    pub fn respond<'v>(
        self,
        status: u16,
        headers: impl Iterator<Item = (&'static str, &'v str)>,
        body: &str,
        details: &str,
    ) {
        let mut headers = pairs(headers);
        // SAFETY: Envoy copies everything before it returns; `self` is gone afterwards.
        unsafe {
            envoy_dynamic_module_callback_http_send_response(
                self.filter,
                status.into(),
                headers.as_mut_ptr(),
                headers.len(),
                ModuleBuffer::new(body.as_bytes()),
                ModuleBuffer::new(details.as_bytes()),
            );
        }
    }
}

const EMPTY: EnvoyBuffer = EnvoyBuffer {
    data: ptr::null(),
    len: 0,
};

/// What a function of Envoy's writes, if it says that it did.
fn read<T>(empty: T, read: impl FnOnce(*mut T) -> bool) -> Option<T> {
    let mut value = empty;
    read(&raw mut value).then_some(value)
}

/// The bytes of a buffer.
///
/// # Safety
/// Envoy must keep them in place for as long as the caller says that they live.
unsafe fn bytes<'v>(buffer: EnvoyBuffer) -> &'v [u8] {
    if buffer.data.is_null() {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { slice::from_raw_parts(buffer.data, buffer.len) }
}

/// The values of a header.
///
/// # Safety
/// The bytes stay in place for `'v`.
unsafe fn values<'v>(headers: &'v [HeaderPair], name: &str) -> impl Iterator<Item = &'v [u8]> {
    headers.iter().filter_map(move |pair| {
        let [of, value] = [(pair.name, pair.name_len), (pair.value, pair.value_len)]
            .map(|(data, len)| EnvoyBuffer { data, len });
        // SAFETY: by the caller.
        unsafe { (bytes(of) == name.as_bytes()).then(|| bytes(value)) }
    })
}

fn pairs<'n, 'v>(headers: impl Iterator<Item = (&'n str, &'v str)>) -> Vec<HeaderPair> {
    headers
        .map(|(name, value)| HeaderPair {
            name: name.as_ptr(),
            name_len: name.len(),
            value: value.as_ptr(),
            value_len: value.len(),
        })
        .collect()
}

/// Schedules events of a request on its worker.
#[derive(Debug)]
pub struct RequestScheduler(Ptr);

// SAFETY: Envoy lets any thread commit to and delete a scheduler.
unsafe impl Send for RequestScheduler {}

impl RequestScheduler {
    /// Has Envoy call [`Stream::on_event`] on the request's worker, unless the request ends before.
    pub fn commit(&self, event: u64) {
        // SAFETY: the scheduler exists until `self` is dropped.
        unsafe { envoy_dynamic_module_callback_http_filter_scheduler_commit(self.0, event) }
    }
}

impl Drop for RequestScheduler {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { envoy_dynamic_module_callback_http_filter_scheduler_delete(self.0) }
    }
}

// --- A configuration, for the hook that is running on the main thread.

/// A configuration of the filter.
pub struct Config<'h> {
    config: Ptr,
    hook: PhantomData<&'h mut ()>,
}

/// Envoy refused a call or a stream: nothing was sent.
#[derive(Clone, Copy, Debug)]
pub struct Refused;

/// What to call: the headers include the pseudo-headers.
pub struct Target<'v> {
    /// The cluster.
    pub cluster: &'v str,
    /// Headers.
    pub headers: &'v [(&'v str, &'v str)],
    /// How long it may take, in milliseconds; 0: for ever.
    pub timeout_ms: u64,
}

impl Config<'_> {
    fn of_hook(config: Ptr) -> Self {
        Self {
            config,
            hook: PhantomData,
        }
    }

    /// Events of this configuration, which any thread may schedule.
    pub fn scheduler(&self) -> ConfigScheduler {
        // SAFETY: the configuration exists while its hook runs. The same holds for all calls below.
        ConfigScheduler(unsafe {
            envoy_dynamic_module_callback_http_filter_config_scheduler_new(self.config)
        })
    }

    /// Makes a call; returns its id.
    pub fn call(&mut self, target: &Target<'_>, body: &[u8]) -> Result<u64, Refused> {
        let mut headers = pairs(target.headers.iter().copied());
        // SAFETY: Envoy copies everything before it returns.
        let id = read(0, |id| unsafe {
            let result = envoy_dynamic_module_callback_http_filter_config_http_callout(
                self.config,
                id,
                ModuleBuffer::new(target.cluster.as_bytes()),
                headers.as_mut_ptr(),
                headers.len(),
                ModuleBuffer::new(body),
                target.timeout_ms,
            );
            result == SUCCESS
        });
        id.ok_or(Refused)
    }

    /// Opens a stream; returns its id.
    pub fn open(&mut self, target: &Target<'_>) -> Result<u64, Refused> {
        let mut headers = pairs(target.headers.iter().copied());
        // SAFETY: Envoy copies everything before it returns.
        let id = read(0, |id| unsafe {
            let result = envoy_dynamic_module_callback_http_filter_config_start_http_stream(
                self.config,
                id,
                ModuleBuffer::new(target.cluster.as_bytes()),
                headers.as_mut_ptr(),
                headers.len(),
                ModuleBuffer::new(&[]),
                false,
                target.timeout_ms,
            );
            result == SUCCESS
        });
        id.ok_or(Refused)
    }

    /// Sends on a stream. `end`: nothing follows.
    pub fn send(&mut self, stream: u64, data: &[u8], end: bool) -> Result<(), Refused> {
        let data = ModuleBuffer::new(data);
        // SAFETY: Envoy copies the data.
        let sent = unsafe {
            envoy_dynamic_module_callback_http_filter_config_stream_send_data(
                self.config,
                stream,
                data,
                end,
            )
        };
        sent.then_some(()).ok_or(Refused)
    }

    /// Resets a stream. Envoy calls the hook of its end before this returns, if the stream exists.
    pub fn reset(&mut self, stream: u64) {
        // SAFETY: no pointers but the configuration's.
        unsafe {
            envoy_dynamic_module_callback_http_filter_config_reset_http_stream(self.config, stream);
        }
    }

    /// Defines a counter. Only while the configuration is made.
    pub fn define(&mut self, kind: MetricKind, name: &str, labels: &[&str]) -> Option<usize> {
        let define = match kind {
            MetricKind::Counter => envoy_dynamic_module_callback_http_filter_config_define_counter,
            MetricKind::Gauge => envoy_dynamic_module_callback_http_filter_config_define_gauge,
            MetricKind::Histogram => {
                envoy_dynamic_module_callback_http_filter_config_define_histogram
            }
        };
        let mut labels = buffers(labels);
        let (name, count) = (ModuleBuffer::new(name.as_bytes()), labels.len());
        // SAFETY: Envoy copies the texts.
        read(0, |id| unsafe {
            define(self.config, name, labels.as_mut_ptr(), count, id) == SUCCESS
        })
    }

    /// Adds to a counter, sets a gauge, or adds a sample to a histogram. There must be as many labels as
    /// the metric was defined with. A failure affects nothing else.
    pub fn record(&mut self, kind: MetricKind, id: usize, labels: &[&str], value: u64) {
        let record = match kind {
            MetricKind::Counter => {
                envoy_dynamic_module_callback_http_filter_config_increment_counter
            }
            MetricKind::Gauge => envoy_dynamic_module_callback_http_filter_config_set_gauge,
            MetricKind::Histogram => {
                envoy_dynamic_module_callback_http_filter_config_record_histogram_value
            }
        };
        let mut labels = buffers(labels);
        // SAFETY: Envoy copies the texts.
        unsafe { record(self.config, id, labels.as_mut_ptr(), labels.len(), value) };
    }
}

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Events.
    Counter,
    /// A value that changes.
    Gauge,
    /// Samples.
    Histogram,
}

fn buffers(texts: &[&str]) -> Vec<ModuleBuffer> {
    let texts = texts.iter();
    texts
        .map(|text| ModuleBuffer::new(text.as_bytes()))
        .collect()
}

/// Schedules events of a configuration on the main thread.
#[derive(Debug)]
pub struct ConfigScheduler(Ptr);

// SAFETY: Envoy lets any thread commit to and delete a scheduler.
unsafe impl Send for ConfigScheduler {}
// SAFETY: and several at once, for a commit only posts to the dispatcher.
unsafe impl Sync for ConfigScheduler {}

impl ConfigScheduler {
    /// Has Envoy call [`Filter::on_event`] on the main thread, unless the configuration ends before.
    pub fn commit(&self, event: u64) {
        // SAFETY: the scheduler exists until `self` is dropped.
        unsafe { envoy_dynamic_module_callback_http_filter_config_scheduler_commit(self.0, event) }
    }
}

impl Drop for ConfigScheduler {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { envoy_dynamic_module_callback_http_filter_config_scheduler_delete(self.0) }
    }
}

/// The headers of an answer.
#[derive(Clone, Copy)]
pub struct AnswerHeaders<'h>(&'h [HeaderPair]);

impl<'h> AnswerHeaders<'h> {
    /// The first value of a header.
    pub fn first(&self, name: &str) -> Option<&'h [u8]> {
        // SAFETY: Envoy keeps them until the hook returns, which `'h` does not outlive.
        unsafe { values(self.0, name) }.next()
    }
}

/// The chunks of an answer's body.
#[derive(Clone, Copy)]
pub struct Chunks<'h>(&'h [EnvoyBuffer]);

impl<'h> Chunks<'h> {
    /// Its size.
    pub fn len(&self) -> usize {
        self.0.iter().map(|chunk| chunk.len).sum()
    }

    /// Its chunks.
    pub fn iter(&self) -> impl Iterator<Item = &'h [u8]> {
        // SAFETY: Envoy keeps them until the hook returns, which `'h` does not outlive.
        self.0.iter().map(|chunk| unsafe { bytes(*chunk) })
    }
}

/// An array of Envoy's, which may be null.
///
/// # Safety
/// It must have that many elements, and stay in place for `'h`.
unsafe fn array<'h, T>(data: *const T, len: usize) -> &'h [T] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { slice::from_raw_parts(data, len) }
}

// --- The hooks that Envoy calls.
//
// The pointers of the module's own that Envoy passes are `&'static Handle` for a configuration and
// `Rc<Stream>` for a request, which `_destroy` releases. Envoy calls all hooks of a request on one thread,
// and those of a configuration but its end on the main thread.

/// What Envoy has of a configuration, until it ends. It stays allocated, some 40 bytes for each
/// configuration that Envoy ever had.
type Handle = RwLock<Option<Arc<Filter>>>;

/// The module's object for a configuration, for as long as a hook runs; `None`: it has ended.
///
/// # Safety
/// `handle` must be what `config_new` returned.
unsafe fn filter_of(handle: *const c_void) -> Option<Arc<Filter>> {
    // SAFETY: by the caller, it is of `Box::leak`, or null.
    let handle = unsafe { handle.cast::<Handle>().as_ref() }?;
    let filter = handle.read().unwrap_or_else(PoisonError::into_inner);
    filter.clone()
}

/// The module's object for a request, for as long as a hook runs.
///
/// # Safety
/// `stream` must be what `filter_new` returned, on the same thread, and not released yet.
unsafe fn stream_of(stream: *const c_void) -> Rc<Stream> {
    let stream = stream.cast::<Stream>();
    // SAFETY: by the caller, it is one of `Rc::into_raw`, which still counts.
    unsafe {
        Rc::increment_strong_count(stream);
        Rc::from_raw(stream)
    }
}

/// Runs a hook of a configuration that has not ended.
fn with(filter: Option<Arc<Filter>>, hook: &str, act: impl FnOnce(&Filter)) {
    if let Some(filter) = filter {
        hooks::caught(hook, || act(&filter));
    }
}

/// The version of the ABI that this module is made for.
const ABI_VERSION: &[u8] = b"v0.2.0\0";

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const u8 {
    ABI_VERSION.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    config: Ptr,
    _name: EnvoyBuffer,
    json: EnvoyBuffer,
) -> *const c_void {
    // SAFETY: Envoy keeps the text until this returns.
    let json = unsafe { bytes(json) };
    hooks::configured(&mut Config::of_hook(config), json).map_or_else(ptr::null, |filter| {
        ptr::from_ref(Box::leak(Box::new(Handle::new(Some(filter))))).cast()
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(handle: *const c_void) {
    // SAFETY: `config_new` returned it.
    let handle = unsafe { handle.cast::<Handle>().as_ref() };
    let filter = handle.and_then(|handle| {
        let mut filter = handle.write().unwrap_or_else(PoisonError::into_inner);
        filter.take()
    });
    if let Some(filter) = filter {
        hooks::caught("config_destroy", || filter.on_end());
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
    config: Ptr,
    filter: *const c_void,
    event: u64,
) {
    // SAFETY: see `filter_of`. The same holds for the hooks below.
    if let Some(filter) = unsafe { filter_of(filter) } {
        filter.on_event(&mut Config::of_hook(config), event);
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_callout_done(
    _config: Ptr,
    filter: *const c_void,
    id: u64,
    result: u32,
    headers: *const HeaderPair,
    headers_len: usize,
    chunks: *const EnvoyBuffer,
    chunks_len: usize,
) {
    // SAFETY: as above; Envoy keeps both arrays until this returns.
    let (filter, headers, chunks) = unsafe {
        (
            filter_of(filter),
            array(headers, headers_len),
            array(chunks, chunks_len),
        )
    };
    let answer = (result == SUCCESS).then_some((AnswerHeaders(headers), Chunks(chunks)));
    with(filter, "callout_done", |filter| {
        filter.on_answer(id, answer);
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_headers(
    _config: Ptr,
    filter: *const c_void,
    id: u64,
    headers: *const HeaderPair,
    headers_len: usize,
    end: bool,
) {
    // SAFETY: as above.
    let (filter, headers) = unsafe { (filter_of(filter), array(headers, headers_len)) };
    with(filter, "stream_headers", |filter| {
        filter.on_stream_headers(id, AnswerHeaders(headers), end);
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_data(
    _config: Ptr,
    filter: *const c_void,
    id: u64,
    chunks: *const EnvoyBuffer,
    chunks_len: usize,
    end: bool,
) {
    // SAFETY: as above.
    let (filter, chunks) = unsafe { (filter_of(filter), array(chunks, chunks_len)) };
    with(filter, "stream_data", |filter| {
        filter.on_stream_data(id, Chunks(chunks), end);
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_trailers(
    _config: Ptr,
    filter: *const c_void,
    id: u64,
    trailers: *const HeaderPair,
    trailers_len: usize,
) {
    // SAFETY: as above.
    let (filter, trailers) = unsafe { (filter_of(filter), array(trailers, trailers_len)) };
    with(filter, "stream_trailers", |filter| {
        filter.on_stream_trailers(id, AnswerHeaders(trailers));
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_complete(
    _config: Ptr,
    filter: *const c_void,
    id: u64,
) {
    // SAFETY: as above.
    let filter = unsafe { filter_of(filter) };
    with(filter, "stream_gone", |filter| filter.on_stream_gone(id));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_http_stream_reset(
    _config: Ptr,
    filter: *const c_void,
    id: u64,
    _reason: u32,
) {
    // SAFETY: as above.
    let filter = unsafe { filter_of(filter) };
    with(filter, "stream_gone", |filter| filter.on_stream_gone(id));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_new(
    filter: *const c_void,
    request: Ptr,
) -> *const c_void {
    // SAFETY: as above.
    let filter = unsafe { filter_of(filter) };
    filter.map_or_else(ptr::null, |filter| {
        let stream = Stream::new(filter, &Request::of_hook(request));
        Rc::into_raw(Rc::new(stream)).cast()
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_destroy(stream: *const c_void) {
    if stream.is_null() {
        return;
    }
    // SAFETY: `filter_new` returned it, and Envoy uses it no more.
    let stream = unsafe { Rc::from_raw(stream.cast::<Stream>()) };
    if let Some(key) = stream.key() {
        // The pointer is invalid once this returns.
        KEPT.with_borrow_mut(|kept| kept.remove(&key));
    }
    hooks::caught("destroy", || stream.on_gone());
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    request: Ptr,
    stream: *const c_void,
    end: bool,
) -> u32 {
    // SAFETY: see `stream_of`. The same holds for the hooks below.
    let stream = unsafe { stream_of(stream) };
    let action = hooks::caught("request_headers", || {
        Stream::on_request(&stream, Request::of_hook(request), end)
    });
    let passes = || stream.passes_after_panic(Request::of_hook(request));
    match action {
        Some(action) => action as u32,
        None if passes() => CONTINUE,
        None => HeadersAction::StopIteration as u32,
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_request_body(
    request: Ptr,
    stream: *const c_void,
    end: bool,
) -> u32 {
    // SAFETY: as above.
    let stream = unsafe { stream_of(stream) };
    request_body(&stream, request, end) as u32
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_request_trailers(
    request: Ptr,
    stream: *const c_void,
) -> u32 {
    // SAFETY: as above.
    let stream = unsafe { stream_of(stream) };
    // They end the body. Both kinds of pauses are 1 here.
    u32::from(request_body(&stream, request, true) != BodyAction::Continue)
}

fn request_body(stream: &Rc<Stream>, request: Ptr, end: bool) -> BodyAction {
    let action = hooks::caught("request_body", || {
        Stream::on_request_body(stream, Request::of_hook(request), end)
    });
    let passes = || stream.passes_after_panic(Request::of_hook(request));
    match action {
        Some(action) => action,
        None if passes() => BodyAction::Continue,
        None => BodyAction::StopAndWatermark,
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    request: Ptr,
    stream: *const c_void,
    end: bool,
) -> u32 {
    // SAFETY: as above.
    let stream = unsafe { stream_of(stream) };
    hooks::caught("response_headers", || {
        stream.on_response(|| Request::of_hook(request), end);
    });
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_body(
    request: Ptr,
    stream: *const c_void,
    end: bool,
) -> u32 {
    // SAFETY: as above.
    let stream = unsafe { stream_of(stream) };
    hooks::caught("response_body", || {
        stream.on_response_body(&Request::of_hook(request), end);
    });
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_trailers(
    request: Ptr,
    stream: *const c_void,
) -> u32 {
    // SAFETY: as above.
    let stream = unsafe { stream_of(stream) };
    hooks::caught("response_trailers", || {
        stream.on_response_trailers(&Request::of_hook(request));
    });
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
    request: Ptr,
    stream: *const c_void,
    event: u64,
) {
    let _ = request;
    // SAFETY: as above.
    let stream = unsafe { stream_of(stream) };
    hooks::caught("scheduled", || {
        stream.on_event(event);
    });
}

/// Of headers, a body or trailers: it goes on.
const CONTINUE: u32 = 0;

// Envoy refuses a module without these. The module makes no calls for one request, and is not the last
// filter.

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(_: Ptr, _: *const c_void) {}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_http_callout_done(
    _: Ptr,
    _: *const c_void,
    _: u64,
    _: u32,
    _: *const HeaderPair,
    _: usize,
    _: *const EnvoyBuffer,
    _: usize,
) {
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_headers(
    _: Ptr,
    _: *const c_void,
    _: u64,
    _: *const HeaderPair,
    _: usize,
    _: bool,
) {
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_data(
    _: Ptr,
    _: *const c_void,
    _: u64,
    _: *const EnvoyBuffer,
    _: usize,
    _: bool,
) {
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_trailers(
    _: Ptr,
    _: *const c_void,
    _: u64,
    _: *const HeaderPair,
    _: usize,
) {
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_complete(
    _: Ptr,
    _: *const c_void,
    _: u64,
) {
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_http_stream_reset(
    _: Ptr,
    _: *const c_void,
    _: u64,
    _: u32,
) {
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(
    _: Ptr,
    _: *const c_void,
) {
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(
    _: Ptr,
    _: *const c_void,
) {
}
