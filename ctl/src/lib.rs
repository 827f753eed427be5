//! `rlctl`, the control plane: edits limits, inspects and resets buckets.
//!
//! The command line ([`cli`]) lists the commands; global options become settings ([`settings`]), a command
//! ([`commands`], a file for each or for a family) fetches and decides, and a view ([`render`]) says how its
//! result looks in each output format. A [`printer::Printer`] is handed to every command: data goes to
//! stdout, everything else to stderr.
//!
//! All commands that write go one way ([`edit`]): they read the record once, confirm, plan, write and report.
#![expect(
    clippy::doc_markdown,
    reason = "the doc comments of arguments are the help text, where backticks would show"
)]

pub mod bucket;
pub mod cases;
pub mod cli;
pub mod commands;
pub mod edit;
pub mod error;
pub mod input;
pub mod log;
pub mod printer;
pub mod render;
pub mod replay;
pub mod serve;
pub mod session;
pub mod settings;
pub mod simulate;
pub mod suggest;

use std::{
    ffi::OsString,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::FromArgMatches;
pub use insight::{changes, history};

use cli::Cli;
use error::{Error, Exit};
use printer::Printer;

/// Runs one command line and returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    cli::color_choice(&arguments).write_global();
    let parsed = cli::command()
        .try_get_matches_from(arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let printer = Printer::new(&cli.global);
    match block_on(cli, &printer) {
        Ok(exit) => exit,
        Err(error) => {
            printer.error(&error);
            error.exit()
        }
    }
}

/// Prints clap's message. Help and version go to stdout and are no errors; the rest are.
fn usage(error: &clap::Error) -> Exit {
    // A closed pipe is no error here.
    let _ = error.print();
    if error.use_stderr() {
        Exit::Usage
    } else {
        Exit::Done
    }
}

fn block_on(cli: Cli, printer: &Printer) -> Result<Exit, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::new(Exit::Usage, format!("cannot start: {error}")))?;
    let result = runtime.block_on(async {
        if cli.command.handles_interrupt() {
            return cli.command.run(&cli.global, printer).await;
        }
        tokio::select! {
            biased;
            interrupted = tokio::signal::ctrl_c() => match interrupted {
                Ok(()) => Err(printer.interrupted()),
                Err(error) => Err(Error::new(Exit::Usage, format!("cannot wait for Ctrl-C: {error}"))),
            },
            result = cli.command.run(&cli.global, printer) => result,
        }
    });
    // Does not wait for a thread that still reads an answer from the terminal.
    runtime.shutdown_background();
    result
}

// --- This machine's clock, for times that people type and read. Decisions use the store's clock.

/// Milliseconds since the epoch.
pub fn now_ms() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
