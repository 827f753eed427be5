//! Where log lines go, and how they look.

use std::{
    fmt::{self, Write as _},
    io::{self, IsTerminal, Write},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use tracing_subscriber::{
    EnvFilter, Layer,
    filter::{ParseError, dynamic_filter_fn},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::LogFormat;

/// The minimum interval of the exporter's log lines: without its collector it would log every
/// batch.
const EXPORTER_EVERY: Duration = Duration::from_mins(1);
/// The target of its log lines.
const EXPORTER: &str = "opentelemetry";

/// The longest error that is logged or answered, in bytes: what it quotes may be of any length.
const TEXT_MAX: usize = 4096;

/// A text as logs and answers have it, cut where it is too long.
pub(crate) fn shortened(mut text: String) -> String {
    const CUT: &str = " …";
    if text.len() > TEXT_MAX {
        text.truncate(text.floor_char_boundary(TEXT_MAX - CUT.len()));
        text.push_str(CUT);
    }
    text
}

/// The start of some texts, a line each. What would be cut off is not written: each problem of a file
/// quotes a line, and to find it takes as long as the file is.
pub(crate) fn start_of(texts: &[impl fmt::Display]) -> String {
    let mut start = Start(String::new());
    for text in texts {
        if write!(start, "{text}")
            .and_then(|()| start.write_char('\n'))
            .is_err()
        {
            break;
        }
    }
    let end = start.0.trim_end().len();
    start.0.truncate(end);
    shortened(start.0)
}

/// Accepts little more than is shown.
struct Start(String);

impl fmt::Write for Start {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.push_str(text);
        if self.0.len() > TEXT_MAX {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

/// Sends log lines to standard error; standard output stays empty.
pub fn start(format: LogFormat, filter: &str) -> Result<(), ParseError> {
    let terminal = io::stderr().is_terminal();
    let json = match format {
        LogFormat::Auto => !terminal,
        LogFormat::Text => false,
        LogFormat::Json => true,
    };
    let lines = tracing_subscriber::fmt::layer().with_writer(|| Escaped(io::stderr()));
    let lines = if json {
        lines.json().flatten_event(true).boxed()
    } else {
        let colours = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        lines.with_ansi(terminal && colours).boxed()
    };
    let exporter = Rarely::default();
    let lines = lines.with_filter(dynamic_filter_fn(move |about, _| {
        !about.target().starts_with(EXPORTER) || exporter.now(Instant::now())
    }));
    tracing_subscriber::registry()
        .with(EnvFilter::try_new(filter)?)
        .with(lines)
        .init();
    Ok(())
}

/// Escapes control characters in each line, whatever the source of its text.
struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0
            .write_all(policy::printable_styled(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Allows one event per interval.
#[derive(Default)]
struct Rarely(Mutex<Option<Instant>>);

impl Rarely {
    fn now(&self, now: Instant) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let rested = |last: Instant| now.duration_since(last) >= EXPORTER_EVERY;
        let lets = last.is_none_or(rested);
        if lets {
            *last = Some(now);
        }
        lets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_cannot_command_a_terminal() {
        let mut written = Vec::new();
        let line = "\u{1b}[2mINFO\u{1b}[0m {\"error\":\"\u{9b}2J\u{1b}]0;x\u{7}\u{202e}\"}\n";
        Escaped(&mut written).write_all(line.as_bytes()).unwrap();
        assert_eq!(
            String::from_utf8(written).unwrap(),
            "\u{1b}[2mINFO\u{1b}[0m {\"error\":\"\\u009b2J\\u001b]0;x\\u0007\\u202e\"}\n"
        );
    }
}
