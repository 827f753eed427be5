//! Envoy's callbacks, which are the module's exports, and the contexts that they are about.
//!
//! There is no SDK between them. Envoy makes every callback that a module exports, and the SDK exports all, so
//! that Envoy would enter the VM twice as often for a request. It also has no word for half of the ways in which
//! a request can be paused, and dispatches by maps of maps, with code of all the callbacks that nobody makes: 25 KB.

#![expect(unsafe_code, reason = "the names are the ABI, and may not be mangled")]

use std::{cell::RefCell, rc::Rc};

use filter_core::{ByStream, CallAnswer, Config, StreamId, Worker, usable_token};

use crate::{
    host::{self, Buffer, LogLevel, log},
    http::Answer,
    plugin::{Plugin, StreamEvent},
};

/// The contexts of this VM: plugins by their roots, and requests.
#[derive(Default)]
struct Contexts {
    /// A root without a valid configuration has no plugin, and limits nothing.
    plugins: Vec<(u32, Rc<Plugin>)>,
    streams: ByStream<Stream>,
}

/// One request and its response.
#[derive(Clone)]
struct Stream {
    plugin: Rc<Plugin>,
    /// Whether the rest of the response determines what the request costs.
    metered: bool,
}

thread_local! {
    /// Borrowed for a look-up only, so that a callback within a callback finds it free.
    static CONTEXTS: RefCell<Contexts> = RefCell::default();
}

fn plugin_of(root: u32) -> Option<Rc<Plugin>> {
    CONTEXTS.with_borrow(|all| {
        let mut plugins = all.plugins.iter();
        let (_, plugin) = plugins.find(|(id, _)| *id == root)?;
        Some(Rc::clone(plugin))
    })
}

fn stream_of(id: StreamId) -> Option<Stream> {
    CONTEXTS.with_borrow(|all| all.streams.get(id).cloned())
}

/// Does something with the request of a callback, or lets it continue if no plugin limits it.
fn of_request(id: u32, act: impl FnOnce(&Plugin, StreamId) -> Action) -> Action {
    let id = StreamId(id);
    stream_of(id).map_or(Action::Continue, |stream| act(&stream.plugin, id))
}

/// Does something with the response of a callback; `only_metered`: if it is metered. What that returns says whether
/// it is so from now on.
fn of_response(id: u32, only_metered: bool, act: impl FnOnce(&Plugin, StreamId) -> bool) {
    let id = StreamId(id);
    let stream = stream_of(id).filter(|stream| stream.metered || !only_metered);
    if let Some(stream) = stream {
        let metered = act(&stream.plugin, id);
        if metered != stream.metered {
            CONTEXTS.with_borrow_mut(|all| {
                if let Some(stream) = all.streams.get_mut(id) {
                    stream.metered = metered;
                }
            });
        }
    }
}

// --- What Envoy calls before any callback.

/// The version of the ABI; the name declares it.
#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Allocates memory for a value that the host returns: see [`host::receive`].
#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    Box::into_raw(Box::<[u8]>::new_uninit_slice(size)).cast()
}

// --- Callbacks of roots, and the beginning and the end of every context.

/// The parent of a root.
const NO_ROOT: u32 = 0;

#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(context: u32, root: u32) {
    if root != NO_ROOT
        && let Some(plugin) = plugin_of(root)
    {
        let stream = Stream {
            plugin,
            metered: false,
        };
        CONTEXTS.with_borrow_mut(|all| all.streams.insert(StreamId(context), stream));
    }
}

/// Envoy deletes a context, for whatever reason.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(context: u32) {
    let id = StreamId(context);
    let removed = CONTEXTS.with_borrow_mut(|all| {
        let stream = all.streams.remove(id);
        let plugin = all.plugins.iter().position(|(root, _)| *root == context);
        (stream, plugin.map(|at| all.plugins.swap_remove(at)))
    });
    // A plugin lives as long as its requests do.
    if let (Some(stream), _) = removed {
        stream.plugin.on_gone(id);
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(root: u32, _size: usize) -> u32 {
    let Some(plugin) = configured(root) else {
        return 0;
    };
    let plugin = Rc::new(plugin);
    // What it replaces lives as long as its requests do.
    let replaced = CONTEXTS.with_borrow_mut(|all| {
        let at = all.plugins.iter().position(|(id, _)| *id == root);
        let replaced = at.map(|at| all.plugins.swap_remove(at));
        all.plugins.push((root, plugin));
        replaced
    });
    drop(replaced);
    1
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(root: u32) {
    if let Some(plugin) = plugin_of(root) {
        plugin.on_tick();
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(root: u32, queue: u32) {
    if let Some(plugin) = plugin_of(root) {
        plugin.on_queue_ready(queue);
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_http_call_response(
    root: u32,
    token: u32,
    headers: usize,
    body_len: usize,
    _trailers: usize,
) {
    if let Some(plugin) = plugin_of(root) {
        // Without headers the answer was cut short, and there is nothing to read.
        let answer = (headers > 0).then(|| Answer::read(body_len));
        let answer = answer.as_ref().map(|answer| answer as &dyn CallAnswer);
        plugin.on_answer(token, answer);
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_receive(root: u32, token: u32, size: usize) {
    if let Some(plugin) = plugin_of(root) {
        plugin.on_stream_event(token, StreamEvent::Message(size));
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_close(root: u32, token: u32, status: u32) {
    if let Some(plugin) = plugin_of(root) {
        plugin.on_stream_event(token, StreamEvent::Closed(status));
    }
}

// --- Callbacks of requests and their responses. `end`, 0 or 1: nothing follows.

/// What becomes of a request when its callback ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It continues, or was answered.
    Continue,
    /// It waits.
    Pause,
    /// It waits for its body, which the filter reads.
    PauseForBody,
}

// Statuses of callbacks, as in Envoy's filters.
const CONTINUE: u32 = 0;
/// Of a request whose headers stop so, the filter gets the body if Envoy's configuration has
/// `allow_on_headers_stop_iteration`, and Envoy buffers the body until it refuses the request with 413.
const STOP: u32 = 1;
/// Of a body: Envoy holds the client back once the buffer is full.
const STOP_AND_WATERMARK: u32 = 2;
/// Of headers: the body is not read, and Envoy holds the client back.
const STOP_ALL_AND_WATERMARK: u32 = 4;

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(stream: u32, _count: usize, end: u32) -> u32 {
    match of_request(stream, |plugin, id| plugin.on_request(id, end != 0)) {
        Action::Continue => CONTINUE,
        Action::Pause => STOP_ALL_AND_WATERMARK,
        Action::PauseForBody => STOP,
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_body(stream: u32, size: usize, end: u32) -> u32 {
    match of_request(stream, |plugin, id| {
        plugin.on_request_body(id, size, end != 0)
    }) {
        Action::Continue => CONTINUE,
        Action::Pause | Action::PauseForBody => STOP_AND_WATERMARK,
    }
}

/// They end the body.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_trailers(stream: u32, _count: usize) -> u32 {
    match of_request(stream, |plugin, id| plugin.on_request_body(id, 0, true)) {
        Action::Continue => CONTINUE,
        Action::Pause | Action::PauseForBody => STOP,
    }
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(stream: u32, _count: usize, end: u32) -> u32 {
    of_response(stream, false, |plugin, id| plugin.on_response(id, end != 0));
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_body(stream: u32, size: usize, end: u32) -> u32 {
    of_response(stream, true, |plugin, id| {
        plugin.on_response_body(id, size, end != 0)
    });
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_trailers(stream: u32, _count: usize) -> u32 {
    of_response(stream, true, |plugin, id| {
        plugin.on_response_trailers(id);
        false
    });
    CONTINUE
}

// --- Creates the plugin from its configuration.
//
// The module also runs on Envoy's main thread, which ticks but has no requests, and in a canary,
// which only validates the configuration. So nothing is shared or counted before the first tick or
// request.

/// The largest configuration that is read.
const MAX_CONFIGURATION: usize = 4 << 20;

/// The plugin that the configuration describes. If it is invalid, the filter logs why: Envoy itself
/// reports only that the filter refused it.
fn configured(root_id: u32) -> Option<Plugin> {
    match plugin(root_id) {
        Ok(plugin) => {
            plugin.start();
            Some(plugin)
        }
        Err(problems) => {
            log(
                LogLevel::Error,
                &format!("rate limiter: configuration:\n{problems}"),
            );
            None
        }
    }
}

fn plugin(root_id: u32) -> Result<Plugin, String> {
    let json = host::buffer(Buffer::Configuration, 0, MAX_CONFIGURATION);
    let config = Config::from_json(&json.unwrap_or_default());
    let config = config.map_err(|problems| problems.to_string())?;
    let random = host::random();
    let random = random.map_err(|error| format!("no random numbers: {error}"))?;
    let token = config.limiter.token_env.as_deref().and_then(token);
    // Envoy versions without `xds` have it as `node`.
    let node = host::property(b"xds\0node\0id").or_else(|_| host::property(b"node\0id"));
    let node = node.unwrap_or_default();
    let worker = Worker::new(config, token.as_deref(), random);
    let worker = worker.named(&String::from_utf8_lossy(&node));
    Ok(Plugin::new(root_id, worker))
}

/// The limiter's token, from the environment.
fn token(name: &str) -> Option<String> {
    let token = usable_token(host::variable(name));
    if token.is_none() {
        let text = format!(
            "rate limiter: no usable token in environment variable {name}; is it listed in the \
             VM's environment_variables?"
        );
        log(LogLevel::Warn, &text);
    }
    token
}
