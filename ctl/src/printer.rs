//! Output: data on stdout, messages on stderr. Both are escaped here, whatever their source: only
//! line breaks, tabs, colours and weights reach a terminal.

use std::{
    cell::Cell,
    fmt,
    io::{self, ErrorKind, IsTerminal as _, Write},
    pin::pin,
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use policy::Problems;

use crate::{
    cli::{Format, Global},
    error::{Error, Exit},
    render::{Page, View},
};

/// Of the word that begins an error.
pub const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Of that of a warning.
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
/// Of that of what is neither.
pub const HINT: Style = AnsiColor::Cyan.on_default();

/// Writes a command's result and messages.
#[derive(Debug)]
pub struct Printer {
    format: Format,
    quiet: bool,
    page: Page,
    /// The reader of stdout has closed it (`| head`).
    closed: Cell<bool>,
    /// The request that was sent and not answered yet.
    pending: Cell<Option<Pending>>,
    /// Whether one was done.
    written: Cell<bool>,
    /// Whether the last message was a note that was not printed; its hints are not, either.
    silent: Cell<bool>,
}

/// A write that was sent to Redis and may have happened when the command is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// An edit of limits.
    Edit,
    /// A credit or a reset of one bucket, which the history shows only once it is complete.
    Bucket,
    /// A reset of all buckets of a limit.
    Reset,
}

impl Printer {
    /// A printer with the format, quietness and width of the global options.
    pub fn new(global: &Global) -> Self {
        Self {
            format: global.output,
            quiet: global.quiet,
            page: Page {
                width: width(),
                wide: global.output == Format::Wide,
                unicode: unicode(),
            },
            closed: Cell::new(false),
            pending: Cell::new(None),
            written: Cell::new(false),
            silent: Cell::new(global.quiet),
        }
    }

    /// How results are to be written.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Whether only warnings and errors are printed.
    pub fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// The page that tables are laid out for.
    pub fn page(&self) -> Page {
        self.page
    }

    /// Awaits a write; an interruption meanwhile says what may have been done, and an error of stdout
    /// afterwards, that it is.
    pub async fn while_pending<T, E>(
        &self,
        pending: Pending,
        write: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.pending.set(Some(pending));
        let done = write.await;
        self.pending.set(None);
        self.written.set(self.written.get() || done.is_ok());
        done
    }

    /// The error that ends a command at Ctrl-C.
    pub fn interrupted(&self) -> Error {
        let interrupted = Error::new(Exit::Interrupted, "interrupted");
        interrupted.maybe_hint(self.pending.get().map(|pending| match pending {
            Pending::Edit => "an edit was under way; `rlctl history` shows whether it was made",
            Pending::Bucket => {
                "the bucket may have been changed, though the history does not show it; `rlctl inspect` shows what is left"
            }
            Pending::Reset => {
                "some of the buckets are reset, others may not be; the same command resets the rest"
            }
        }))
    }

    /// Writes a result to stdout, as `--output` says.
    pub fn data(&self, view: &impl View) -> Result<(), Error> {
        let text = match self.format {
            Format::Table | Format::Wide => view.text(self.page),
            Format::Json => json(view)?,
            Format::Yaml => crate::render::yaml_of(view)?,
            Format::Name => lines(&view.names()),
        };
        self.raw(&text)
    }

    /// Writes text to stdout, with the characters escaped that would control a terminal.
    pub fn raw(&self, text: &str) -> Result<(), Error> {
        if self.closed.get() {
            return Ok(());
        }
        let text = policy::printable_styled(text);
        let mut out = anstream::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed.set(true);
                Ok(())
            }
            Err(error) => {
                let error = Error::new(Exit::Usage, format!("cannot write to stdout: {error}"));
                let written = self.written.get();
                Err(error.maybe_hint(
                    written
                        .then_some("the edit is made all the same; `rlctl history -n 1` shows it"),
                ))
            }
        }
    }

    /// Whether the reader of stdout has closed it.
    pub fn is_closed(&self) -> bool {
        self.closed.get()
    }

    /// Prints a note on stderr, unless `--quiet`.
    pub fn note(&self, text: impl fmt::Display) {
        self.silent.set(self.quiet);
        if !self.quiet {
            to_stderr(format_args!("{text}"));
        }
    }

    /// Prints a warning on stderr.
    pub fn warn(&self, text: impl fmt::Display) {
        self.silent.set(false);
        to_stderr(format_args!("{WARNING}warning{WARNING:#}: {text}"));
    }

    /// Prints the warnings about a document.
    pub fn warn_of(&self, warnings: &Problems) {
        self.silent.set(false);
        to_stderr(format_args!("{}", crate::render::diagnostics(warnings)));
    }

    /// Prints a hint: what the user can do about what was printed last.
    pub fn hint(&self, text: impl fmt::Display) {
        if !self.silent.get() {
            to_stderr(format_args!("  {HINT}hint{HINT:#}: {text}"));
        }
    }

    /// Prints the error that ends the command, with its hints.
    pub fn error(&self, error: &Error) {
        self.silent.set(false);
        to_stderr(format_args!("{ERROR}error{ERROR:#}: {error}"));
        for hint in error.hints() {
            self.hint(hint);
        }
    }
}

fn lines(names: &[String]) -> String {
    names.iter().flat_map(|name| [name, "\n"]).collect()
}

fn json(view: &impl View) -> Result<String, Error> {
    serde_json::to_string_pretty(view)
        .map(|text| text + "\n")
        .map_err(|error| Error::new(Exit::Refused, format!("cannot write JSON: {error}")))
}

/// Errors of stderr are ignored: there is nowhere else to report them.
fn to_stderr(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let text = policy::printable_styled(&text);
    let _ = writeln!(anstream::stderr().lock(), "{text}");
}

// --- How far a command is, drawn on a terminal over and over.

/// The time between two drawings. What ends sooner shows none.
const DRAWN_EVERY: Duration = Duration::from_millis(200);

/// Takes the last drawing back when what is drawn has ended, also by Ctrl-C.
#[derive(Default)]
struct Drawing {
    drawn: bool,
}

impl Drop for Drawing {
    fn drop(&mut self) {
        if self.drawn {
            draw("");
        }
    }
}

impl Printer {
    /// Whether somebody sees drawings.
    pub fn draws(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }

    /// Awaits work, and draws meanwhile how far it is.
    pub async fn drawing<T>(&self, work: impl Future<Output = T>, text: impl Fn() -> String) -> T {
        let mut work = pin!(work);
        let mut ticks = tokio::time::interval(DRAWN_EVERY);
        ticks.tick().await;
        let mut drawing = Drawing::default();
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = ticks.tick(), if self.draws() => {
                    drawing.drawn = true;
                    draw(&text());
                }
            }
        }
    }
}

/// Replaces the last drawing on stderr. Write errors are ignored.
fn draw(text: &str) {
    let columns = terminal_size::terminal_size_of(io::stderr()).map(|(width, _)| width.0);
    let mut terminal = anstream::stderr().lock();
    let _ = write!(terminal, "\r\x1b[K{}", in_one_line(text, columns));
    let _ = terminal.flush();
}

/// As much of a text as a line has room for: only the last line of what wraps would be replaced.
fn in_one_line(text: &str, columns: Option<u16>) -> &str {
    let room = columns.map_or(usize::MAX, |columns| usize::from(columns.saturating_sub(1)));
    let end = text
        .char_indices()
        .nth(room)
        .map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or_default()
}

/// The terminal's columns; `None` in a pipe, where lines have no limit.
fn width() -> Option<u16> {
    let columns = std::env::var("COLUMNS").ok();
    let columns = columns.and_then(|text| text.parse().ok());
    let terminal = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0);
    columns
        .filter(|&columns: &u16| columns > 0)
        .or_else(terminal)
}

/// Whether the locale's encoding is UTF-8.
fn unicode() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            value.contains("utf-8") || value.contains("utf8")
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_is_one_line() {
        for (columns, shown) in [
            (None, "██░ 1 MiB"),
            (Some(80), "██░ 1 MiB"),
            (Some(5), "██░ "),
            (Some(0), ""),
        ] {
            assert_eq!(in_one_line("██░ 1 MiB", columns), shown);
        }
    }
}
