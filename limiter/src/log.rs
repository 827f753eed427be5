//! Where log lines go, and how they look.

use std::io::{self, IsTerminal};

use tracing_subscriber::{EnvFilter, filter::ParseError};

use crate::LogFormat;

/// Sends log lines to standard error; standard output stays empty.
pub fn start(format: LogFormat, filter: &str) -> Result<(), ParseError> {
    let terminal = io::stderr().is_terminal();
    let json = match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_new(filter)?)
        .with_writer(io::stderr);
    if json {
        lines.json().flatten_event(true).init();
    } else {
        lines
            .with_ansi(terminal && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()))
            .init();
    }
    Ok(())
}
