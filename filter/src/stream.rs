//! One request.

use std::rc::Rc;

use filter_core::StreamId;
use proxy_wasm::{
    traits::{Context, HttpContext},
    types::Action,
};

use crate::plugin::Plugin;

/// The context of one request.
pub struct Stream {
    id: StreamId,
    plugin: Option<Rc<Plugin>>,
}

impl Stream {
    /// A request of a plugin; one whose configuration was refused lets everything pass.
    pub fn new(context_id: u32, plugin: Option<Rc<Plugin>>) -> Self {
        Self {
            id: StreamId(context_id),
            plugin,
        }
    }
}

impl Context for Stream {
    fn on_done(&mut self) -> bool {
        if let Some(plugin) = &self.plugin {
            plugin.on_gone(self.id);
        }
        true
    }
}

impl HttpContext for Stream {
    fn on_http_request_headers(&mut self, _num_headers: usize, _end_of_stream: bool) -> Action {
        match &self.plugin {
            Some(plugin) => plugin.on_request(self.id),
            None => Action::Continue,
        }
    }

    fn on_http_response_headers(&mut self, _num_headers: usize, _end_of_stream: bool) -> Action {
        if let Some(plugin) = &self.plugin {
            plugin.on_response(self.id);
        }
        Action::Continue
    }
}
