//! Creates the plugin from its configuration.
//!
//! The module also runs on Envoy's main thread, which ticks but has no requests, and in a canary,
//! which only validates the configuration. So nothing is shared or counted before the first tick or
//! request.

use filter_core::{Config, Worker};
use proxy_wasm::{
    hostcalls,
    types::{BufferType, LogLevel},
};

use crate::{
    host::{environment, property},
    log::log,
    plugin::Plugin,
};

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
    let random = environment::random();
    let random = random.map_err(|error| format!("no random numbers: {error}"))?;
    let token = config.limiter.token_env.as_deref().and_then(token);
    // Envoy versions without `xds` have it as `node`.
    let node = property::get(b"xds\0node\0id").or_else(|_| property::get(b"node\0id"));
    let node = node.unwrap_or_default();
    let worker = Worker::new(config, token.as_deref(), random);
    let worker = worker.named(&String::from_utf8_lossy(&node));
    Ok(Plugin::new(root_id, worker))
}

/// The limiter's token, from the environment.
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
        log(LogLevel::Warn, &text);
    }
    token
}
