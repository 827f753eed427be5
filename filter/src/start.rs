//! From a configuration to a plugin.
//!
//! The module also runs on Envoy's main thread, which ticks but is never given
//! a request, and (only to see whether it accepts its configuration) in a
//! canary: so nothing is shared or counted before a tick or a request asks for
//! it.

use filter_core::{Config, Worker};

use crate::{
    host::{
        buffers::{self, Buffer},
        environment,
        log::{self, Level},
        properties,
    },
    plugin::Plugin,
};

/// The largest configuration that is read.
const MAX_CONFIGURATION: usize = 4 << 20;

/// The plugin that the configuration describes. If it does not describe one, the log says why:
/// Envoy tells those who configure it no more than that it was refused.
pub fn configured(root_id: u32) -> Option<Plugin> {
    match plugin(root_id) {
        Ok(plugin) => {
            plugin.start();
            Some(plugin)
        }
        Err(problems) => {
            log::write(
                Level::Error,
                &format!("rate limiter: configuration:\n{problems}"),
            );
            None
        }
    }
}

fn plugin(root_id: u32) -> Result<Plugin, String> {
    let json = buffers::get(Buffer::PluginConfiguration, MAX_CONFIGURATION);
    let config = Config::from_json(&json.unwrap_or_default());
    let config = config.map_err(|problems| problems.to_string())?;
    let random = environment::random();
    let random = random.map_err(|error| format!("no random numbers: {error}"))?;
    let token = config.limiter.token_env.as_deref().and_then(token);
    // The second is where earlier Envoys have it.
    let node = properties::get(b"xds\0node\0id").or_else(|_| properties::get(b"node\0id"));
    let node = node.unwrap_or_default();
    let worker = Worker::new(config, token.as_deref(), random);
    let worker = worker.named(&String::from_utf8_lossy(&node));
    Ok(Plugin::new(root_id, worker))
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
