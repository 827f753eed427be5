//! The plugin's root context: configuration, ticks, and the answers to calls.

use std::rc::Rc;

use filter_core::{CallAnswer, Config, Worker};
use proxy_wasm::{
    traits::{Context, HttpContext, RootContext},
    types::ContextType,
};

use crate::{
    host::{
        buffers::{self, Buffer},
        environment,
        headers::{self, Map},
        log::{self, Level},
    },
    plugin::Plugin,
    stream::Stream,
};

/// The largest configuration that is read.
const MAX_CONFIGURATION: usize = 4 << 20;

/// One plugin in one worker's VM. The same module also runs on Envoy's main thread, which ticks
/// but is never given a request, and (only to see whether it accepts its configuration) in a
/// canary: so nothing is taken or counted before a tick or a request asks for it.
pub struct Root {
    id: u32,
    plugin: Option<Rc<Plugin>>,
}

impl Root {
    pub fn new(id: u32) -> Self {
        Self { id, plugin: None }
    }

    /// Makes a plugin of the configuration, or says everything that is wrong with it.
    fn configure(&self) -> Result<Plugin, String> {
        let json = buffers::get(Buffer::PluginConfiguration, MAX_CONFIGURATION);
        let config = Config::from_json(&json.unwrap_or_default());
        let config = config.map_err(|problems| problems.to_string())?;
        let random = environment::random();
        let random = random.map_err(|error| format!("no random numbers: {error}"))?;
        let token = config.limiter.token_env.as_deref().and_then(token);
        let worker = Worker::new(config, token.as_deref(), random);
        Ok(Plugin::new(self.id, worker))
    }
}

/// The limiter's token, out of the environment.
fn token(name: &str) -> Option<String> {
    let value = environment::variable(name).filter(|value| !value.is_empty());
    let text = value.and_then(|bytes| String::from_utf8(bytes).ok());
    // It becomes a header, where a line break would be another header.
    let token = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    if token.is_none() {
        let text = format!(
            "rate limiter: no usable token in environment variable {name}; is it listed in the \
             VM's environment_variables?"
        );
        log::write(Level::Warn, &text);
    }
    token
}

impl Context for Root {
    fn on_http_call_response(
        &mut self,
        token: u32,
        num_headers: usize,
        body_size: usize,
        _num_trailers: usize,
    ) {
        if let Some(plugin) = &self.plugin {
            // Without headers the answer was cut short, and there is nothing to read.
            let answer = (num_headers > 0).then_some(Answer { body_size });
            plugin.on_answer(token, answer.as_ref());
        }
    }
}

impl RootContext for Root {
    fn on_configure(&mut self, _size: usize) -> bool {
        match self.configure() {
            Ok(plugin) => {
                plugin.start();
                self.plugin = Some(Rc::new(plugin));
                true
            }
            Err(problems) => {
                log::write(
                    Level::Error,
                    &format!("rate limiter: configuration:\n{problems}"),
                );
                false
            }
        }
    }

    fn on_tick(&mut self) {
        if let Some(plugin) = &self.plugin {
            plugin.on_tick();
        }
    }

    fn get_type(&self) -> Option<ContextType> {
        Some(ContextType::HttpContext)
    }

    fn create_http_context(&self, context_id: u32) -> Option<Box<dyn HttpContext>> {
        Some(Box::new(Stream::new(context_id, self.plugin.clone())))
    }
}

/// The answer to the call whose callback is running.
struct Answer {
    body_size: usize,
}

impl CallAnswer for Answer {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        headers::get(Map::CalloutAnswer, name)
    }

    fn body(&self, max_len: usize) -> Option<Vec<u8>> {
        if self.body_size > max_len {
            return None;
        }
        // An empty body is not found rather than empty.
        Some(buffers::get(Buffer::CalloutAnswer, self.body_size).unwrap_or_default())
    }
}
