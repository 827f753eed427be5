//! Envoy's callbacks. `cargo xtask wasm` keeps only the exports of these, so that Envoy does not enter
//! the VM for logs.

use std::rc::Rc;

use filter_core::{CallAnswer, Config, StreamId, Worker, usable_token};
use proxy_wasm::{
    hostcalls,
    traits::{Context, HttpContext, RootContext},
    types::{Action, BufferType, ContextType, LogLevel},
};

use crate::{
    host::{self, log},
    http::Answer,
    plugin::Plugin,
};

/// One plugin of this VM; it has none before its first valid configuration.
pub struct Root {
    id: u32,
    plugin: Option<Rc<Plugin>>,
}

impl Root {
    pub fn new(id: u32) -> Self {
        Self { id, plugin: None }
    }
}

impl Context for Root {
    fn on_http_call_response(
        &mut self,
        token: u32,
        headers: usize,
        body_len: usize,
        _trailers: usize,
    ) {
        if let Some(plugin) = &self.plugin {
            // Without headers the answer was cut short, and there is nothing to read.
            let answer = (headers > 0).then(|| Answer::read(body_len));
            let answer = answer.as_ref().map(|answer| answer as &dyn CallAnswer);
            plugin.on_answer(token, answer);
        }
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        let plugin = configured(self.id);
        let accepted = plugin.is_some();
        if let Some(plugin) = plugin {
            self.plugin = Some(Rc::new(plugin));
        }
        accepted
    }

    fn on_tick(&mut self) {
        if let Some(plugin) = &self.plugin {
            plugin.on_tick();
        }
    }

    fn on_queue_ready(&mut self, queue_id: u32) {
        if let Some(plugin) = &self.plugin {
            match super::exports::take_grpc_event() {
                Some(event) => plugin.on_stream_event(event),
                None => plugin.on_queue_ready(queue_id),
            }
        }
    }

    fn create_http_context(&self, context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream {
            id: StreamId(context_id),
            metered: false,
            plugin: self.plugin.clone(),
        }))
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }
}

/// One request and its response.
struct Stream {
    id: StreamId,
    /// Whether the rest of the response determines what the request costs.
    metered: bool,
    plugin: Option<Rc<Plugin>>,
}

impl Context for Stream {}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _count: usize, end: bool) -> Action {
        // A plugin without a valid configuration limits nothing.
        let plugin = self.plugin.as_ref();
        plugin.map_or(Action::Continue, |plugin| plugin.on_request(self.id, end))
    }

    fn on_http_request_body(&mut self, size: usize, end: bool) -> Action {
        let plugin = self.plugin.as_ref();
        plugin.map_or(Action::Continue, |plugin| {
            plugin.on_request_body(self.id, size, end)
        })
    }

    fn on_http_request_trailers(&mut self, _count: usize) -> Action {
        // They end the body.
        self.on_http_request_body(0, true)
    }

    fn on_http_response_headers(&mut self, _count: usize, end: bool) -> Action {
        if let Some(plugin) = &self.plugin {
            self.metered = plugin.on_response(self.id, end);
        }
        Action::Continue
    }

    fn on_http_response_body(&mut self, size: usize, end: bool) -> Action {
        if let (true, Some(plugin)) = (self.metered, &self.plugin) {
            self.metered = plugin.on_response_body(self.id, size, end);
        }
        Action::Continue
    }

    fn on_http_response_trailers(&mut self, _count: usize) -> Action {
        if let (true, Some(plugin)) = (self.metered, &self.plugin) {
            self.metered = false;
            plugin.on_response_trailers(self.id);
        }
        Action::Continue
    }
}

/// The SDK drops a stream when Envoy deletes it, for whatever reason.
impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(plugin) = &self.plugin {
            plugin.on_gone(self.id);
        }
    }
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
pub fn configured(root_id: u32) -> Option<Plugin> {
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
    let buffer = BufferType::PluginConfiguration;
    let json = hostcalls::get_buffer(buffer, 0, MAX_CONFIGURATION);
    let config = Config::from_json(&json.ok().flatten().unwrap_or_default());
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
