//! Envoy's callbacks. `cargo xtask wasm` keeps only the exports of these, so that Envoy does not enter
//! the VM for logs.

use std::rc::Rc;

use filter_core::{CallAnswer, StreamId};
use proxy_wasm::{
    traits::{Context, HttpContext, RootContext},
    types::{Action, ContextType},
};

use crate::{answer::Answer, grpc_events, plugin::Plugin, start};

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
        let plugin = start::configured(self.id);
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
            match grpc_events::take() {
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
