//! A native host for the filter: the functions that Envoy provides to a module, over plain values.
//!
//! Each test thread has its own host and its own copy of the filter's thread-local state.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::slice;

/// The statuses of host calls.
pub mod status {
    pub const OK: u32 = 0;
    pub const NOT_FOUND: u32 = 1;
    pub const BAD_ARGUMENT: u32 = 2;
    pub const SERIALIZATION_FAILURE: u32 = 3;
    pub const EMPTY: u32 = 7;
    pub const CAS_MISMATCH: u32 = 8;
    pub const INTERNAL_FAILURE: u32 = 10;
}
use status::{BAD_ARGUMENT, CAS_MISMATCH, EMPTY, NOT_FOUND, OK};

/// The root context.
pub const ROOT: u32 = 1;
const QUEUE: u32 = 1;
const REQUEST_HEADERS: u32 = 0;
const REQUEST_BODY: u32 = 0;
const CALL_HEADERS: u32 = 6;
const GRPC_MESSAGE: u32 = 5;
const CONFIGURATION: u32 = 7;

/// Header pairs as the ABI encodes them.
pub type Pairs = Vec<(String, Vec<u8>)>;

/// A call that the filter made.
pub struct Call {
    pub token: u32,
    pub context: u32,
    pub path: String,
    pub body: Vec<u8>,
}

/// Envoy's entry for a gRPC stream.
#[derive(Default)]
pub struct Stream {
    pub token: u32,
    /// Messages of the filter that the limiter has not read yet.
    pub sent: VecDeque<Vec<u8>>,
    /// Whether the limiter opened it.
    pub opened: bool,
    /// Whether the filter closed its side.
    pub closed: bool,
    /// The message whose callback is running.
    pub message: Option<Vec<u8>>,
}

/// The state that Envoy would keep.
#[derive(Default)]
pub struct Host {
    /// A host function and the status that it answers with.
    pub fault: Option<(&'static str, u32)>,
    pub configuration: Vec<u8>,
    pub now_ns: u64,
    /// The context of the running callback.
    pub current: u32,
    pub effective: u32,
    pub requests: HashMap<u32, Pairs>,
    /// The answer to the call whose callback is running.
    pub answer: Option<(Pairs, Vec<u8>)>,
    pub calls: VecDeque<Call>,
    /// Calls with checks so far.
    pub check_calls: u32,
    /// Values in the queue, and callbacks of the root for them that are due.
    pub queued: u32,
    pub reports: u32,
    pub streams: Vec<Stream>,
    /// Streams that the filter resumed, or answered with a status.
    pub resumed: Vec<u32>,
    pub answered: Vec<(u32, u32)>,
    /// Streams whose responses begin when the running callback ends, because the filter answered them,
    /// or resumed them on a route that answers at once.
    pub responses: VecDeque<u32>,
    /// Whether all routes do.
    pub answers_at_once: bool,
    /// How many responses begin within each other now, and did at most.
    pub depth: u32,
    pub deepest: u32,
    pub log: Vec<String>,
    shared: HashMap<Vec<u8>, (Vec<u8>, u32)>,
    writes: u32,
    tokens: u32,
    metrics: u32,
}

thread_local! {
    static HOST: RefCell<Host> = RefCell::default();
}

/// Accesses this thread's host; not allowed while the filter runs.
pub fn with<T>(act: impl FnOnce(&mut Host) -> T) -> T {
    HOST.with_borrow_mut(act)
}

/// Runs a host function, or returns its fault.
fn answer(name: &'static str, act: impl FnOnce(&mut Host) -> u32) -> u32 {
    with(|host| match host.fault {
        Some((faulty, status)) if faulty == name => status,
        _ => act(host),
    })
}

/// Returns a value as Envoy does: in memory that the filter frees.
unsafe fn give(value: &[u8], to: *mut *mut u8, to_len: *mut usize) -> u32 {
    let data = if value.is_empty() {
        std::ptr::null_mut()
    } else {
        Box::into_raw(value.to_vec().into_boxed_slice()).cast()
    };
    // SAFETY: the filter gives valid out pointers.
    unsafe {
        *to = data;
        *to_len = value.len();
    }
    OK
}

unsafe fn bytes(data: *const u8, len: usize) -> Vec<u8> {
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: the filter gives live slices.
    unsafe { slice::from_raw_parts(data, len) }.to_vec()
}

fn encode(pairs: &Pairs) -> Vec<u8> {
    let word = |n: usize| u32::try_from(n).unwrap().to_le_bytes();
    let mut encoded = word(pairs.len()).to_vec();
    for (name, value) in pairs {
        encoded.extend(word(name.len()));
        encoded.extend(word(value.len()));
    }
    for (name, value) in pairs {
        encoded.extend([name.as_bytes(), b"\0", value, b"\0"].concat());
    }
    encoded
}

/// The value of one pair in encoded pairs.
fn decode(encoded: &[u8], wanted: &str) -> Option<String> {
    let word = |at: usize| {
        let bytes = encoded[at..at + 4].try_into().unwrap();
        usize::try_from(u32::from_le_bytes(bytes)).unwrap()
    };
    let count = word(0);
    let mut at = 4 + 8 * count;
    for pair in 0..count {
        let (name_len, value_len) = (word(4 + 8 * pair), word(8 + 8 * pair));
        let value = at + name_len + 1;
        if &encoded[at..at + name_len] == wanted.as_bytes() {
            let text = encoded[value..value + value_len].to_vec();
            return Some(String::from_utf8(text).unwrap());
        }
        at = value + value_len + 1;
    }
    None
}

impl Host {
    /// The context that host calls apply to.
    fn context(&self) -> u32 {
        if self.effective == 0 {
            self.current
        } else {
            self.effective
        }
    }

    fn headers(&mut self, map: u32) -> Option<&mut Pairs> {
        let context = self.context();
        match map {
            REQUEST_HEADERS => self.requests.get_mut(&context),
            CALL_HEADERS => self.answer.as_mut().map(|(headers, _)| headers),
            _ => None,
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_log(_level: u32, text: *const u8, len: usize) -> u32 {
    // SAFETY: as above, here and below.
    let text = unsafe { bytes(text, len) };
    answer("proxy_log", |host| {
        host.log.push(String::from_utf8(text).unwrap());
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn clock_time_get(clock: u32, _precision: u64, to: *mut u64) -> u32 {
    const REALTIME: u32 = 0;
    let epoch_ns = if clock == REALTIME {
        1_763_000_000_000_000_000
    } else {
        0
    };
    answer("clock_time_get", |host| {
        unsafe { *to = epoch_ns + host.now_ns };
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn random_get(to: *mut u8, len: usize) -> u32 {
    answer("random_get", |_| {
        unsafe { to.write_bytes(7, len) };
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn environ_sizes_get(count: *mut usize, len: *mut usize) -> u32 {
    answer("environ_sizes_get", |_| {
        unsafe { (*count, *len) = (1, TOKEN.len()) };
        OK
    })
}

const TOKEN: &[u8] = b"TOKEN=secret\0";

#[unsafe(no_mangle)]
extern "C" fn environ_get(_pointers: *mut *mut u8, to: *mut u8) -> u32 {
    answer("environ_get", |_| {
        unsafe { to.copy_from(TOKEN.as_ptr(), TOKEN.len()) };
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_set_tick_period_milliseconds(_period: u32) -> u32 {
    answer("proxy_set_tick_period_milliseconds", |_| OK)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_get_buffer_bytes(
    kind: u32,
    _start: usize,
    _max: usize,
    to: *mut *mut u8,
    to_len: *mut usize,
) -> u32 {
    answer("proxy_get_buffer_bytes", |host| {
        let body = host.answer.as_ref().map(|(_, body)| body);
        let message = host
            .streams
            .iter()
            .find_map(|stream| stream.message.as_ref());
        // The start of any JSON.
        let request = b" ".repeat(10);
        let buffer = match kind {
            REQUEST_BODY => Some(&request),
            CONFIGURATION => Some(&host.configuration),
            GRPC_MESSAGE => message,
            _ => body,
        };
        buffer.map_or(NOT_FOUND, |value| unsafe { give(value, to, to_len) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_get_header_map_pairs(map: u32, to: *mut *mut u8, to_len: *mut usize) -> u32 {
    answer("proxy_get_header_map_pairs", |host| {
        let pairs = host.headers(map).map(|pairs| encode(pairs));
        unsafe { give(&pairs.unwrap_or_default(), to, to_len) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_get_header_map_value(
    map: u32,
    name: *const u8,
    len: usize,
    to: *mut *mut u8,
    to_len: *mut usize,
) -> u32 {
    let name = unsafe { bytes(name, len) };
    answer("proxy_get_header_map_value", |host| {
        let Some(pairs) = host.headers(map) else {
            return BAD_ARGUMENT;
        };
        let found = pairs.iter().find(|(known, _)| known.as_bytes() == name);
        found.map_or(NOT_FOUND, |(_, value)| unsafe { give(value, to, to_len) })
    })
}

/// Changes a header, unless the response no longer exists.
fn change(function: &'static str, map: u32) -> u32 {
    answer(function, |host| match host.headers(map) {
        Some(_) => OK,
        None => BAD_ARGUMENT,
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_replace_header_map_value(map: u32) -> u32 {
    change("proxy_replace_header_map_value", map)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_add_header_map_value(map: u32) -> u32 {
    change("proxy_add_header_map_value", map)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_remove_header_map_value(map: u32) -> u32 {
    change("proxy_remove_header_map_value", map)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_get_property(
    _path: *const u8,
    _len: usize,
    to: *mut *mut u8,
    to_len: *mut usize,
) -> u32 {
    answer("proxy_get_property", |_| unsafe {
        give(b"value", to, to_len)
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_set_property() -> u32 {
    answer("proxy_set_property", |_| OK)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_get_shared_data(
    key: *const u8,
    len: usize,
    to: *mut *mut u8,
    to_len: *mut usize,
    to_cas: *mut u32,
) -> u32 {
    let key = unsafe { bytes(key, len) };
    answer("proxy_get_shared_data", |host| {
        match host.shared.get(&key) {
            Some((value, cas)) => unsafe {
                *to_cas = *cas;
                give(value, to, to_len)
            },
            None => NOT_FOUND,
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_set_shared_data(
    key: *const u8,
    key_len: usize,
    value: *const u8,
    value_len: usize,
    cas: u32,
) -> u32 {
    let (key, value) = unsafe { (bytes(key, key_len), bytes(value, value_len)) };
    answer("proxy_set_shared_data", |host| {
        let known = host.shared.get(&key).map(|(_, cas)| *cas);
        if known.is_some_and(|known| cas != 0 && cas != known) {
            return CAS_MISMATCH;
        }
        host.writes += 1;
        host.shared.insert(key, (value, host.writes));
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_register_shared_queue(_name: *const u8, _len: usize, to: *mut u32) -> u32 {
    answer("proxy_register_shared_queue", |_| {
        unsafe { *to = QUEUE };
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_enqueue_shared_queue() -> u32 {
    answer("proxy_enqueue_shared_queue", |host| {
        host.queued += 1;
        host.reports += 1;
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_dequeue_shared_queue(_queue: u32, to: *mut *mut u8, to_len: *mut usize) -> u32 {
    answer("proxy_dequeue_shared_queue", |host| {
        if host.queued == 0 {
            return EMPTY;
        }
        host.queued -= 1;
        unsafe { give(b"1", to, to_len) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_continue_stream(_stream: u32) -> u32 {
    // Records the attempt: a stream that Envoy does not resume no longer exists.
    with(|host| host.resumed.push(host.context()));
    answer("proxy_continue_stream", |host| {
        if host.answers_at_once {
            host.responses.push_back(host.context());
        }
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_send_local_response(response: u32) -> u32 {
    with(|host| host.answered.push((host.context(), response)));
    answer("proxy_send_local_response", |host| {
        host.responses.push_back(host.context());
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_http_call(
    _cluster: *const u8,
    _cluster_len: usize,
    headers: *const u8,
    headers_len: usize,
    body: *const u8,
    body_len: usize,
    _trailers: *const u8,
    _trailers_len: usize,
    _timeout_ms: u32,
    to: *mut u32,
) -> u32 {
    let headers = unsafe { bytes(headers, headers_len) };
    let body = unsafe { bytes(body, body_len) };
    answer("proxy_http_call", |host| {
        host.tokens += 1;
        let path = decode(&headers, ":path").unwrap();
        host.check_calls += u32::from(path == "/v1/check");
        host.calls.push_back(Call {
            token: host.tokens,
            context: host.context(),
            path,
            body,
        });
        unsafe { *to = host.tokens };
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_grpc_stream(
    service: *const u8,
    service_len: usize,
    _name: *const u8,
    _name_len: usize,
    _method: *const u8,
    _method_len: usize,
    headers: *const u8,
    headers_len: usize,
    to: *mut u32,
) -> u32 {
    let service = unsafe { bytes(service, service_len) };
    let headers = unsafe { bytes(headers, headers_len) };
    // The cluster, the authority, and a number of 1 MiB.
    let expected = b"\n\x18\n\x07limiter\x12\x07limiter\x22\x04\x08\x80\x80\x40";
    assert_eq!(
        service.escape_ascii().to_string(),
        expected.escape_ascii().to_string()
    );
    let bearer = decode(&headers, "authorization");
    assert!(bearer.is_none_or(|bearer| bearer == "Bearer secret"));
    answer("proxy_grpc_stream", |host| {
        assert_eq!(host.context(), ROOT);
        host.tokens += 1;
        host.streams.push(Stream {
            token: host.tokens,
            ..Stream::default()
        });
        unsafe { *to = host.tokens };
        OK
    })
}

/// The entry of a stream, in the maps of the root.
fn stream_of(host: &mut Host, token: u32) -> Option<usize> {
    assert_eq!(host.context(), ROOT);
    host.streams.iter().position(|stream| stream.token == token)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_grpc_send(token: u32, message: *const u8, len: usize, end: bool) -> u32 {
    let message = unsafe { bytes(message, len) };
    assert!(!end);
    answer("proxy_grpc_send", |host| {
        let Some(at) = stream_of(host, token) else {
            return NOT_FOUND;
        };
        host.streams[at].sent.push_back(message);
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_grpc_close(token: u32) -> u32 {
    answer("proxy_grpc_close", |host| {
        let Some(at) = stream_of(host, token) else {
            return NOT_FOUND;
        };
        host.streams[at].closed = true;
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_grpc_cancel(token: u32) -> u32 {
    // Records the attempt: the filter cannot do more.
    with(|host| {
        if let Some(at) = stream_of(host, token) {
            let stream = host.streams.swap_remove(at);
            assert!(
                stream.message.is_none(),
                "Envoy hands over further messages"
            );
        }
    });
    answer("proxy_grpc_cancel", |_| OK)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_set_effective_context(context: u32) -> u32 {
    let set = |host: &mut Host| {
        host.effective = context;
        OK
    };
    // A root outlives its callbacks.
    if context == ROOT {
        return with(set);
    }
    answer("proxy_set_effective_context", set)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_define_metric(_kind: u32, _name: *const u8, _len: usize, to: *mut u32) -> u32 {
    answer("proxy_define_metric", |host| {
        host.metrics += 1;
        unsafe { *to = host.metrics };
        OK
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_record_metric(_id: u32, _value: u64) -> u32 {
    answer("proxy_record_metric", |_| OK)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_increment_metric(_id: u32, by: i64) -> u32 {
    answer("proxy_increment_metric", |_| {
        if by == 0 { BAD_ARGUMENT } else { OK }
    })
}
