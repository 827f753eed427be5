//! Envoy's log.

use filter_core::Level;
use proxy_wasm::{hostcalls, types::LogLevel};

/// Writes to Envoy's log. Escapes what a terminal would interpret.
pub fn log(level: LogLevel, text: &str) {
    let _ = hostcalls::log(level, &filter_core::printable(text));
}

/// The SDK's level of a message.
pub fn log_level(level: Level) -> LogLevel {
    match level {
        Level::Info => LogLevel::Info,
        Level::Warn => LogLevel::Warn,
    }
}
