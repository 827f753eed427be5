//! A native host for the module: the functions that Envoy provides, over plain values.
//!
//! It checks what Envoy relies on, and aborts the process where the module breaks it: a request is used only
//! on its own thread and before it ends, a configuration only on the main thread and before it ends, and no
//! call is made within the hook of a call.

use std::{
    cell::Cell,
    collections::VecDeque,
    ffi::c_void,
    slice,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

type Ptr = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Buffer {
    data: *const u8,
    len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pair {
    name: Buffer,
    value: Buffer,
}

impl Buffer {
    fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr(),
            len: bytes.len(),
        }
    }

    fn text(self) -> String {
        if self.data.is_null() {
            return String::new();
        }
        // SAFETY: the module passes live slices.
        let bytes = unsafe { slice::from_raw_parts(self.data, self.len) };
        String::from_utf8_lossy(bytes).into_owned()
    }
}

unsafe extern "C" {
    fn envoy_dynamic_module_on_http_filter_config_new(
        config: Ptr,
        name: Buffer,
        json: Buffer,
    ) -> Ptr;
    fn envoy_dynamic_module_on_http_filter_config_destroy(filter: Ptr);
    fn envoy_dynamic_module_on_http_filter_config_scheduled(config: Ptr, filter: Ptr, event: u64);
    fn envoy_dynamic_module_on_http_filter_config_http_callout_done(
        config: Ptr,
        filter: Ptr,
        id: u64,
        result: u32,
        headers: *const Pair,
        headers_len: usize,
        chunks: *const Buffer,
        chunks_len: usize,
    );
    fn envoy_dynamic_module_on_http_filter_config_http_stream_data(
        config: Ptr,
        filter: Ptr,
        id: u64,
        chunks: *const Buffer,
        chunks_len: usize,
        end: bool,
    );
    fn envoy_dynamic_module_on_http_filter_config_http_stream_reset(
        config: Ptr,
        filter: Ptr,
        id: u64,
        reason: u32,
    );
    fn envoy_dynamic_module_on_http_filter_new(filter: Ptr, request: Ptr) -> Ptr;
    fn envoy_dynamic_module_on_http_filter_destroy(stream: Ptr);
    fn envoy_dynamic_module_on_http_filter_request_headers(
        request: Ptr,
        stream: Ptr,
        end: bool,
    ) -> u32;
    fn envoy_dynamic_module_on_http_filter_request_body(
        request: Ptr,
        stream: Ptr,
        end: bool,
    ) -> u32;
    fn envoy_dynamic_module_on_http_filter_response_headers(
        request: Ptr,
        stream: Ptr,
        end: bool,
    ) -> u32;
    fn envoy_dynamic_module_on_http_filter_response_body(
        request: Ptr,
        stream: Ptr,
        end: bool,
    ) -> u32;
    fn envoy_dynamic_module_on_http_filter_response_trailers(request: Ptr, stream: Ptr) -> u32;
    fn envoy_dynamic_module_on_http_filter_scheduled(request: Ptr, stream: Ptr, event: u64);
}

// --- What Envoy would keep.

pub const WORKERS: usize = 8;

static MAIN: Mutex<VecDeque<(Weak<Config>, u64)>> = Mutex::new(VecDeque::new());
static CAME: Condvar = Condvar::new();
type Events = Mutex<VecDeque<(Weak<Request>, u64)>>;
static EVENTS: [Events; WORKERS] = [const { Mutex::new(VecDeque::new()) }; WORKERS];
static CALLS: Mutex<VecDeque<Call>> = Mutex::new(VecDeque::new());
static NEXT_CALL: AtomicU64 = AtomicU64::new(1);
/// The stream that the module opened last and did not reset; 0: none.
pub static STREAM: AtomicU64 = AtomicU64::new(0);
/// Messages in the log that contain this word are counted.
static COUNTED: &str = "failed";
pub static FAILURES: AtomicU64 = AtomicU64::new(0);
/// Schedulers that the module has not deleted.
pub static SCHEDULERS: AtomicUsize = AtomicUsize::new(0);
/// Whether Envoy refuses calls.
pub static REFUSES: AtomicBool = AtomicBool::new(false);
/// Whether the next commit of a configuration's scheduler was the last to hold it: Envoy ends it there.
pub static ENDS_IN_COMMIT: AtomicBool = AtomicBool::new(false);
/// Panics that the module counted.
pub static PANICS: AtomicU64 = AtomicU64::new(0);
pub static CONCURRENCY: AtomicU32 = AtomicU32::new(1);

thread_local! {
    static IN_CALL: Cell<bool> = const { Cell::new(false) };
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the module has deleted its schedulers: the thread of the ticks may still have one in use.
pub fn no_scheduler_is_left() {
    let patience = patience();
    while SCHEDULERS.load(SeqCst) > 0 {
        thread::yield_now();
        patience();
    }
}

/// The tests of one process run one after the other: what they use is of the process.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = locked(&ALONE);
    locked(&MAIN).clear();
    locked(&CALLS).clear();
    for events in &EVENTS {
        locked(events).clear();
    }
    REFUSES.store(false, SeqCst);
    ENDS_IN_COMMIT.store(false, SeqCst);
    STREAM.store(0, SeqCst);
    FAILURES.store(0, SeqCst);
    PANICS.store(0, SeqCst);
    CONCURRENCY.store(1, SeqCst);
    assert_eq!(SCHEDULERS.load(SeqCst), 0, "schedulers are left");
    alone
}

/// A call that the module made.
pub struct Call {
    id: u64,
    pub path: String,
    pub body: Vec<u8>,
}

pub fn next_call() -> Option<Call> {
    locked(&CALLS).pop_front()
}

/// A configuration.
pub struct Config {
    thread: ThreadId,
    alive: AtomicBool,
    filter: AtomicPtr<c_void>,
}

impl Config {
    /// `None`: the module refuses it.
    pub fn new(json: &str) -> Option<Arc<Self>> {
        let config = Arc::new(Self {
            thread: thread::current().id(),
            alive: AtomicBool::new(true),
            filter: AtomicPtr::default(),
        });
        let (name, json) = (Buffer::of(b"ratelimit"), Buffer::of(json.as_bytes()));
        // SAFETY: as Envoy calls it. The same holds for all hooks below.
        let filter =
            unsafe { envoy_dynamic_module_on_http_filter_config_new(config.ptr(), name, json) };
        config.filter.store(filter, SeqCst);
        (!filter.is_null()).then_some(config)
    }

    fn ptr(self: &Arc<Self>) -> Ptr {
        Arc::as_ptr(self).cast_mut().cast()
    }

    fn filter(&self) -> Ptr {
        self.filter.load(SeqCst)
    }

    /// On any thread, as Envoy does. Calls that are under way are not answered.
    pub fn end(self: Arc<Self>) {
        unsafe { envoy_dynamic_module_on_http_filter_config_destroy(self.filter()) };
        self.alive.store(false, SeqCst);
    }

    pub fn is_alive(&self) -> bool {
        self.alive.load(SeqCst)
    }

    /// The limiter sends on a stream, in one chunk.
    pub fn receive(self: &Arc<Self>, stream: u64, data: &[u8]) {
        let chunk = Buffer::of(data);
        IN_CALL.set(true);
        unsafe {
            envoy_dynamic_module_on_http_filter_config_http_stream_data(
                self.ptr(),
                self.filter(),
                stream,
                &raw const chunk,
                1,
                false,
            );
        }
        IN_CALL.set(false);
    }

    pub fn answer(self: &Arc<Self>, call: &Call, answer: Option<(&str, &[u8])>) {
        let status = answer.map_or("503", |(status, _)| status);
        let headers = [(":status", status), ("x-rl-api", "1")].map(|(name, value)| Pair {
            name: Buffer::of(name.as_bytes()),
            value: Buffer::of(value.as_bytes()),
        });
        // In two chunks, and from memory that is freed afterwards.
        let (first, second) = answer.map_or((&[][..], &[][..]), |(_, body)| {
            body.split_at(body.len() / 2)
        });
        let (first, second) = (first.to_vec(), second.to_vec());
        let chunks = [Buffer::of(&first), Buffer::of(&second)];
        let [headers_len, chunks_len] = if answer.is_some() { [2, 2] } else { [0, 0] };
        IN_CALL.set(true);
        unsafe {
            envoy_dynamic_module_on_http_filter_config_http_callout_done(
                self.ptr(),
                self.filter(),
                call.id,
                u32::from(answer.is_none()),
                headers.as_ptr(),
                headers_len,
                chunks.as_ptr(),
                chunks_len,
            );
        }
        IN_CALL.set(false);
    }
}

/// Delivers the events of the main thread that have come.
pub fn deliver_on_main() {
    while let Some((config, event)) = { locked(&MAIN).pop_front() } {
        if let Some(config) = config.upgrade().filter(|config| config.alive.load(SeqCst)) {
            let filter = config.filter();
            unsafe {
                envoy_dynamic_module_on_http_filter_config_scheduled(config.ptr(), filter, event);
            }
        }
    }
}

/// Delivers the events of a worker, on its thread.
pub fn deliver(worker: usize) {
    while let Some((request, event)) = { locked(&EVENTS[worker]).pop_front() } {
        if let Some(request) = request.upgrade().filter(|request| !request.ended()) {
            let stream = request.stream();
            unsafe {
                envoy_dynamic_module_on_http_filter_scheduled(request.ptr(), stream, event);
            }
        }
    }
}

/// Waits for an event of the main thread; ticks come by themselves.
pub fn wait() {
    let events = locked(&MAIN);
    if events.is_empty() {
        drop(CAME.wait_timeout(events, Duration::from_millis(100)));
    }
}

/// A deadline, which only a module that hangs reaches.
pub fn patience() -> impl Fn() {
    let started = Instant::now();
    move || assert!(started.elapsed() < Duration::from_secs(30), "it hangs")
}

/// A request.
pub struct Request {
    worker: usize,
    thread: ThreadId,
    headers: Mutex<Vec<(String, Vec<u8>)>>,
    body: Mutex<Vec<u8>>,
    stream: AtomicPtr<c_void>,
    ended: AtomicBool,
    /// Whether Envoy calls the hooks for its response and its end before it returns from continuing or
    /// answering it.
    ends_at_once: bool,
    paused: AtomicBool,
    status: AtomicU32,
    /// Of the answer; empty: none.
    pub grpc_status: Mutex<String>,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Continued,
    Answered(u32),
    Undecided,
}

impl Request {
    /// Begins a request on a worker of this thread; below `/reserving` it has a body. That of a user `….grpc`
    /// is a gRPC call, and that of `….web` one of gRPC-Web.
    pub fn begin(
        config: &Config,
        worker: usize,
        path: &str,
        user: &str,
        ends_at_once: bool,
    ) -> Arc<Self> {
        let content_type = match user.split_once('.') {
            Some((_, "grpc")) => "application/grpc",
            Some((_, "web")) => "application/grpc-web",
            _ => "application/json",
        };
        let headers = [
            (":method", "GET"),
            (":path", path),
            (":authority", "shop.example"),
            ("x-user-id", user),
            ("content-type", content_type),
            ("x-ratelimit-degraded", "a client's own"),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value.into()));
        let request = Arc::new(Self {
            worker,
            thread: thread::current().id(),
            headers: Mutex::new(headers.into()),
            body: Mutex::default(),
            stream: AtomicPtr::default(),
            ended: AtomicBool::new(false),
            ends_at_once,
            paused: AtomicBool::new(true),
            status: AtomicU32::new(0),
            grpc_status: Mutex::default(),
        });
        let stream =
            unsafe { envoy_dynamic_module_on_http_filter_new(config.filter(), request.ptr()) };
        request.stream.store(stream, SeqCst);
        let end = !path.starts_with("/reserving");
        let action = unsafe {
            envoy_dynamic_module_on_http_filter_request_headers(request.ptr(), stream, end)
        };
        if action == 0 {
            request.paused.store(false, SeqCst);
        }
        assert!(
            request.header("x-ratelimit-degraded").is_none(),
            "it is the client's"
        );
        request
    }

    fn ptr(self: &Arc<Self>) -> Ptr {
        Arc::as_ptr(self).cast_mut().cast()
    }

    fn stream(&self) -> Ptr {
        self.stream.load(SeqCst)
    }

    fn ended(&self) -> bool {
        self.ended.load(SeqCst)
    }

    fn header(&self, name: &str) -> Option<Vec<u8>> {
        let headers = locked(&self.headers);
        let found = headers.iter().find(|(of, _)| of == name);
        found.map(|(_, value)| value.clone())
    }

    pub fn outcome(&self) -> Outcome {
        match self.status.load(SeqCst) {
            0 if self.paused.load(SeqCst) => Outcome::Undecided,
            0 => Outcome::Continued,
            status => Outcome::Answered(status),
        }
    }

    /// The response of a service, which ends the request.
    pub fn respond(self: &Arc<Self>) {
        let (request, stream) = (self.ptr(), self.stream());
        unsafe {
            envoy_dynamic_module_on_http_filter_response_headers(request, stream, false);
        }
        for (body, end) in [(&b"{\"n\":"[..], false), (b"5}", false)] {
            *locked(&self.body) = body.to_vec();
            unsafe { envoy_dynamic_module_on_http_filter_response_body(request, stream, end) };
        }
        unsafe { envoy_dynamic_module_on_http_filter_response_trailers(request, stream) };
        self.end();
    }

    /// Its body arrives, which may decide it. Returns whether it passes.
    pub fn send(self: &Arc<Self>, body: &[u8]) -> bool {
        *locked(&self.body) = body.to_vec();
        let (request, stream) = (self.ptr(), self.stream());
        let action =
            unsafe { envoy_dynamic_module_on_http_filter_request_body(request, stream, true) };
        if action == 0 {
            self.paused.store(false, SeqCst);
        }
        action == 0
    }

    /// It ends, for whatever reason.
    pub fn end(self: &Arc<Self>) {
        if !self.ended.swap(true, SeqCst) {
            unsafe { envoy_dynamic_module_on_http_filter_destroy(self.stream()) };
        }
    }
}

/// The request behind a pointer, which the module may use now.
fn request_at(pointer: Ptr) -> Arc<Request> {
    let pointer = pointer.cast_const().cast::<Request>();
    // SAFETY: it is one of `Arc::as_ptr`, and the test keeps all requests.
    let request = unsafe {
        Arc::increment_strong_count(pointer);
        Arc::from_raw(pointer)
    };
    assert!(!request.ended(), "a request was used after its end");
    assert_eq!(thread::current().id(), request.thread, "on another thread");
    request
}

fn config_at(pointer: Ptr) -> Arc<Config> {
    let pointer = pointer.cast_const().cast::<Config>();
    // SAFETY: as above.
    let config = unsafe {
        Arc::increment_strong_count(pointer);
        Arc::from_raw(pointer)
    };
    assert!(
        config.alive.load(SeqCst),
        "a configuration was used after its end"
    );
    assert_eq!(thread::current().id(), config.thread, "on another thread");
    config
}

// --- Metadata, the same for each request.

enum Claim {
    Text(&'static str),
    Number(f64),
    Bool(bool),
    List,
}

/// The items of each list.
const ITEMS: [Claim; 3] = [
    Claim::Text(
        "a text of more than a hundred and twenty-seven bytes, whose length takes two bytes in \
                 protobuf encoding, and the rest of it is only here to be long",
    ),
    Claim::Number(5.0),
    Claim::Bool(true),
];

fn claim(key: &str) -> Claim {
    match key {
        "text" => Claim::Text("12345678"),
        "bool" => Claim::Bool(true),
        "list" => Claim::List,
        _ => Claim::Number(100.0),
    }
}

fn text_of(claims: &[Claim], at: usize, to: *mut Buffer) -> bool {
    let Some(Claim::Text(text)) = claims.get(at) else {
        return false;
    };
    put(to, Buffer::of(text.as_bytes()));
    true
}

fn number_of(claims: &[Claim], at: usize, to: *mut f64) -> bool {
    let Some(Claim::Number(number)) = claims.get(at) else {
        return false;
    };
    put(to, *number);
    true
}

fn bool_of(claims: &[Claim], at: usize, to: *mut bool) -> bool {
    let Some(Claim::Bool(bit)) = claims.get(at) else {
        return false;
    };
    put(to, *bit);
    true
}

// --- The functions of Envoy.

macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $of:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $of),*) $(-> $result)? $body)*
    };
}

/// Writes through an out pointer of the module's.
fn put<T>(to: *mut T, value: T) {
    // SAFETY: the module passes pointers to locals.
    unsafe { to.write(value) };
}

functions! {
    fn envoy_dynamic_module_callback_log(_level: u32, message: Buffer) {
        let message = message.text();
        println!("{message}");
        if message.contains(COUNTED) {
            FAILURES.fetch_add(1, SeqCst);
        }
    }
    fn envoy_dynamic_module_callback_get_concurrency() -> u32 {
        CONCURRENCY.load(SeqCst)
    }
    fn envoy_dynamic_module_callback_is_validation_mode() -> bool {
        false
    }
    fn envoy_dynamic_module_callback_http_get_headers_size(request: Ptr, of: u32) -> usize {
        let request = request_at(request);
        if of == 0 { locked(&request.headers).len() } else { 0 }
    }
    fn envoy_dynamic_module_callback_http_get_headers(request: Ptr, of: u32, headers: *mut Pair) -> bool {
        let request = request_at(request);
        // They stay in place until one is set.
        for (at, (name, value)) in locked(&request.headers).iter().enumerate().filter(|_| of == 0) {
            let pair = Pair { name: Buffer::of(name.as_bytes()), value: Buffer::of(value) };
            put(headers.wrapping_add(at), pair);
        }
        of == 0
    }
    fn envoy_dynamic_module_callback_http_set_header(request: Ptr, of: u32, name: Buffer, value: Buffer) -> bool {
        let request = request_at(request);
        let mut headers = locked(&request.headers);
        let name = name.text();
        if of == 0 {
            headers.retain(|(key, _)| *key != name);
            if !value.data.is_null() {
                headers.push((name, value.text().into()));
            }
        }
        true
    }
    fn envoy_dynamic_module_callback_http_clear_route_cache(request: Ptr) -> () {
        request_at(request);
    }
    fn envoy_dynamic_module_callback_http_add_header(request: Ptr, _of: u32, _name: Buffer, _value: Buffer) -> bool {
        request_at(request);
        true
    }
    fn envoy_dynamic_module_callback_http_send_response(
        request: Ptr, status: u32, headers: *mut Pair, len: usize, _body: Buffer, _details: Buffer,
    ) {
        let request = request_at(request);
        // SAFETY: the module passes a live slice.
        let headers = unsafe { slice::from_raw_parts(headers, len) };
        if let Some(header) = headers.iter().find(|pair| pair.name.text() == "grpc-status") {
            *locked(&request.grpc_status) = header.value.text();
        }
        assert_eq!(request.outcome(), Outcome::Undecided, "it is decided already");
        request.status.store(status, SeqCst);
        if request.ends_at_once {
            request.end();
        }
    }
    fn envoy_dynamic_module_callback_http_get_body_chunks(request: Ptr, _of: u32, chunks: *mut Buffer) -> bool {
        let request = request_at(request);
        put(chunks, Buffer::of(&locked(&request.body)));
        true
    }
    fn envoy_dynamic_module_callback_http_get_body_chunks_size(request: Ptr, _of: u32) -> usize {
        request_at(request);
        1
    }
    fn envoy_dynamic_module_callback_http_get_metadata_string(
        request: Ptr, _of: u32, _namespace: Buffer, key: Buffer, value: *mut Buffer,
    ) -> bool {
        request_at(request);
        text_of(&[claim(&key.text())], 0, value)
    }
    fn envoy_dynamic_module_callback_http_get_metadata_number(
        request: Ptr, _of: u32, _namespace: Buffer, key: Buffer, value: *mut f64,
    ) -> bool {
        request_at(request);
        number_of(&[claim(&key.text())], 0, value)
    }
    fn envoy_dynamic_module_callback_http_get_metadata_bool(
        request: Ptr, _of: u32, _namespace: Buffer, key: Buffer, value: *mut bool,
    ) -> bool {
        request_at(request);
        bool_of(&[claim(&key.text())], 0, value)
    }
    fn envoy_dynamic_module_callback_http_get_metadata_list_size(
        request: Ptr, _of: u32, _namespace: Buffer, key: Buffer, size: *mut usize,
    ) -> bool {
        request_at(request);
        let is_list = matches!(claim(&key.text()), Claim::List);
        if is_list {
            put(size, ITEMS.len());
        }
        is_list
    }
    fn envoy_dynamic_module_callback_http_get_metadata_list_string(
        request: Ptr, _of: u32, _namespace: Buffer, _key: Buffer, index: usize, value: *mut Buffer,
    ) -> bool {
        request_at(request);
        text_of(&ITEMS, index, value)
    }
    fn envoy_dynamic_module_callback_http_get_metadata_list_number(
        request: Ptr, _of: u32, _namespace: Buffer, _key: Buffer, index: usize, value: *mut f64,
    ) -> bool {
        request_at(request);
        number_of(&ITEMS, index, value)
    }
    fn envoy_dynamic_module_callback_http_get_metadata_list_bool(
        request: Ptr, _of: u32, _namespace: Buffer, _key: Buffer, index: usize, value: *mut bool,
    ) -> bool {
        request_at(request);
        bool_of(&ITEMS, index, value)
    }
    fn envoy_dynamic_module_callback_http_set_filter_state_bytes(request: Ptr, _key: Buffer, _value: Buffer) -> bool {
        request_at(request);
        true
    }
    fn envoy_dynamic_module_callback_http_get_filter_state_typed(
        request: Ptr, _key: Buffer, _value: *mut Buffer,
    ) -> bool {
        request_at(request);
        false
    }
    fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
        request: Ptr, _of: u32, _value: *mut Buffer,
    ) -> bool {
        request_at(request);
        false
    }
    fn envoy_dynamic_module_callback_http_filter_get_attribute_int(
        request: Ptr, _of: u32, _value: *mut u64,
    ) -> bool {
        request_at(request);
        false
    }
    fn envoy_dynamic_module_callback_http_filter_get_attribute_bool(
        request: Ptr, _of: u32, _value: *mut bool,
    ) -> bool {
        request_at(request);
        false
    }
    fn envoy_dynamic_module_callback_http_filter_get_worker_index(request: Ptr) -> u32 {
        u32::try_from(request_at(request).worker).unwrap()
    }
    fn envoy_dynamic_module_callback_http_filter_continue_decoding(request: Ptr) {
        let request = request_at(request);
        assert_eq!(request.outcome(), Outcome::Undecided, "it is decided already");
        request.paused.store(false, SeqCst);
        if request.ends_at_once {
            request.respond();
        }
    }
    fn envoy_dynamic_module_callback_http_filter_scheduler_new(request: Ptr) -> Ptr {
        SCHEDULERS.fetch_add(1, SeqCst);
        Box::into_raw(Box::new(Arc::downgrade(&request_at(request)))).cast()
    }
    fn envoy_dynamic_module_callback_http_filter_scheduler_commit(scheduler: Ptr, event: u64) {
        // SAFETY: of `scheduler_new`, and not deleted.
        let request = unsafe { &*scheduler.cast::<Weak<Request>>() };
        // No hook of another thread is needed for that, so the module may hold a lock.
        if let Some(worker) = request.upgrade().map(|request| request.worker) {
            locked(&EVENTS[worker]).push_back((request.clone(), event));
        }
    }
    fn envoy_dynamic_module_callback_http_filter_scheduler_delete(scheduler: Ptr) {
        SCHEDULERS.fetch_sub(1, SeqCst);
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(scheduler.cast::<Weak<Request>>()) });
    }
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_new(config: Ptr) -> Ptr {
        SCHEDULERS.fetch_add(1, SeqCst);
        Box::into_raw(Box::new(Arc::downgrade(&config_at(config)))).cast()
    }
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_commit(scheduler: Ptr, event: u64) {
        // SAFETY: of `scheduler_new`, and not deleted.
        let config = unsafe { &*scheduler.cast::<Weak<Config>>() };
        if ENDS_IN_COMMIT.swap(false, SeqCst) {
            return config.upgrade().unwrap().end();
        }
        locked(&MAIN).push_back((config.clone(), event));
        CAME.notify_one();
    }
    fn envoy_dynamic_module_callback_http_filter_config_scheduler_delete(scheduler: Ptr) {
        SCHEDULERS.fetch_sub(1, SeqCst);
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(scheduler.cast::<Weak<Config>>()) });
    }
    fn envoy_dynamic_module_callback_http_filter_config_http_callout(
        config: Ptr, id: *mut u64, _cluster: Buffer, headers: *mut Pair, len: usize, body: Buffer, _timeout_ms: u64,
    ) -> u32 {
        config_at(config);
        assert!(!IN_CALL.get(), "a call within the hook of a call");
        if REFUSES.load(SeqCst) {
            return 4;
        }
        // SAFETY: the module passes a live slice.
        let headers = unsafe { slice::from_raw_parts(headers, len) };
        let path = headers.iter().find(|pair| pair.name.text() == ":path");
        let call = Call {
            id: NEXT_CALL.fetch_add(1, SeqCst),
            path: path.unwrap().value.text(),
            // SAFETY: as above.
            body: unsafe { slice::from_raw_parts(body.data, body.len) }.to_vec(),
        };
        put(id, call.id);
        locked(&CALLS).push_back(call);
        0
    }
    fn envoy_dynamic_module_callback_http_filter_config_start_http_stream(
        config: Ptr, id: *mut u64, _cluster: Buffer, _headers: *mut Pair, _len: usize, _body: Buffer, _end: bool,
        _timeout_ms: u64,
    ) -> u32 {
        config_at(config);
        assert!(!IN_CALL.get(), "a stream within the hook of a call");
        let stream = NEXT_CALL.fetch_add(1, SeqCst);
        put(id, stream);
        STREAM.store(stream, SeqCst);
        0
    }
    fn envoy_dynamic_module_callback_http_filter_config_stream_send_data(
        config: Ptr, _id: u64, _data: Buffer, _end: bool,
    ) -> bool {
        config_at(config);
        true
    }
    fn envoy_dynamic_module_callback_http_filter_config_reset_http_stream(config: Ptr, id: u64) {
        let config = config_at(config);
        assert!(!IN_CALL.get(), "a reset within the hook of a stream");
        let _ = STREAM.compare_exchange(id, 0, SeqCst, SeqCst);
        unsafe {
            envoy_dynamic_module_on_http_filter_config_http_stream_reset(config.ptr(), config.filter(), id, 0);
        }
    }
    fn envoy_dynamic_module_callback_http_filter_config_define_counter(
        config: Ptr, name: Buffer, _labels: *mut Buffer, _len: usize, id: *mut usize,
    ) -> u32 {
        config_at(config);
        put(id, usize::from(name.text() == "rl_panics"));
        0
    }
    fn envoy_dynamic_module_callback_http_filter_config_define_gauge(
        config: Ptr, _name: Buffer, _labels: *mut Buffer, _len: usize, id: *mut usize,
    ) -> u32 {
        config_at(config);
        put(id, 2);
        0
    }
    fn envoy_dynamic_module_callback_http_filter_config_define_histogram(
        config: Ptr, _name: Buffer, _labels: *mut Buffer, _len: usize, id: *mut usize,
    ) -> u32 {
        config_at(config);
        put(id, 3);
        0
    }
    fn envoy_dynamic_module_callback_http_filter_config_increment_counter(
        config: Ptr, id: usize, _labels: *mut Buffer, _len: usize, value: u64,
    ) -> u32 {
        config_at(config);
        if id == 1 {
            PANICS.fetch_add(value, SeqCst);
        }
        0
    }
    fn envoy_dynamic_module_callback_http_filter_config_set_gauge(
        config: Ptr, _id: usize, _labels: *mut Buffer, _len: usize, _value: u64,
    ) -> u32 {
        config_at(config);
        0
    }
    fn envoy_dynamic_module_callback_http_filter_config_record_histogram_value(
        config: Ptr, _id: usize, _labels: *mut Buffer, _len: usize, _value: u64,
    ) -> u32 {
        config_at(config);
        0
    }
}
