//! `rlctl apply --watch`: applies limits files, and each change of them.
//!
//! A limit is written only when the files change that limit: live edits stay, and are reported as
//! drift. A domain that the store lost is written whole.

mod applied;
mod compare;
mod metrics;
mod read_files;
mod serve;
mod stamps;

use std::{sync::Arc, time::Duration};

use policy::{Policy, Revision};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::Apply;
use crate::{error::Error, exit::Exit, session::Session};

use applied::Applied;
use metrics::Metrics;
use stamps::Stamps;

/// The time between two looks at the files and the store.
const TURN: Duration = Duration::from_secs(1);
/// The longest pause after failures in a row; the first is one turn.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Applies the files until SIGTERM.
pub(super) async fn run(apply: &Apply, session: &Session<'_>) -> Result<Exit, Error> {
    if apply.files.has_stdin() {
        return Err(Error::usage("--watch cannot watch stdin").hint("name a file or a folder"));
    }
    // A typo ends the command; it does not wait for the file to appear.
    let stamps = Stamps::of(&apply.files)?;
    for path in apply.files.list()? {
        if let Err(error) = std::fs::metadata(&path) {
            return Err(Error::usage(format!("cannot read {path}: {error}")));
        }
    }
    let cannot = |error| Error::new(Exit::Usage, format!("cannot wait for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let metrics = Arc::new(Metrics::new());
    if let Some(at) = apply.metrics_listen {
        let at = serve::serve(at, Arc::clone(&metrics)).await?;
        session
            .printer
            .note(format_args!("metrics at http://{at}/metrics"));
    }
    let mut watch = Watch {
        apply,
        session,
        metrics,
        seen: Stamps::default(),
        candidate: stamps,
        files: Vec::new(),
        invalid: Some("the files are not read yet".to_owned()),
        failure: None,
    };
    loop {
        watch.turn().await;
        tokio::select! {
            biased;
            _ = terminate.recv() => {
                session.printer.note("stopped");
                return Ok(Exit::Done);
            }
            () = sleep(TURN) => {}
        }
    }
}

/// The message without colours, for a page.
fn plain(error: &Error) -> String {
    anstream::adapter::strip_str(&error.to_string()).to_string()
}

struct Watch<'w> {
    apply: &'w Apply,
    session: &'w Session<'w>,
    metrics: Arc<Metrics>,
    /// The stamps of the files when they were last read.
    seen: Stamps,
    /// The stamps one turn ago. Files that still change may be half written.
    candidate: Stamps,
    /// The limits of the last valid files, a domain each.
    files: Vec<File>,
    /// The error in the current files.
    invalid: Option<String>,
    failure: Option<Failure>,
}

/// A failure of the store, or of an edit.
struct Failure {
    message: String,
    pause: Duration,
    until: Instant,
}

/// A valid file.
struct File {
    policy: Policy,
    digests: Applied,
    /// The record at the last comparison; `None` before the first.
    compared: Option<Compared>,
}

/// What a comparison found.
#[derive(PartialEq, Eq)]
struct Compared {
    /// The revision of the domain.
    revision: Option<Revision>,
    /// The limits that differ.
    drift: Vec<String>,
}

impl Watch<'_> {
    async fn turn(&mut self) {
        self.look_at_files().await;
        let waits = |failure: &Failure| Instant::now() < failure.until;
        if !self.failure.as_ref().is_some_and(waits) {
            match self.compare_all().await {
                Ok(()) => {
                    if self.failure.take().is_some() {
                        self.session.printer.note("the store answers again");
                    }
                }
                Err(error) => self.note_failure(&error),
            }
        }
        let failure = self.failure.as_ref().map(|failure| &failure.message);
        self.metrics
            .turned(self.invalid.as_ref().or(failure).cloned());
    }

    fn note_failure(&mut self, error: &Error) {
        self.metrics.failed(error.exit());
        let message = plain(error);
        let last = self.failure.take();
        let same = last.as_ref().is_some_and(|last| last.message == message);
        let pause = last.map_or(TURN, |last| (last.pause * 2).min(BACKOFF_MAX));
        if !same {
            self.session.printer.error(error);
            self.session
                .printer
                .note("trying again, with pauses of up to 30 s");
        }
        self.failure = Some(Failure {
            message,
            pause,
            until: Instant::now() + pause,
        });
    }
}
