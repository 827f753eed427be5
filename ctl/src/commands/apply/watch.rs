//! `rlctl apply --watch`: applies limits files, and each change of them.

mod metrics;

use std::{fs::Metadata, os::unix::fs::MetadataExt, time::Duration};

use insight::findings::shell_word;
use policy::Policy;
use store::{HeadState, Origin};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::{
    Apply, check_domain, parse,
    writer::{Turn, Wanted, Writer},
};
use crate::{
    error::{Error, Exit},
    input::{FilesArg, Source, unreadable},
    serve::serve,
    session::Session,
};
use metrics::Metrics;

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
    let stamps = Stamps::read(&apply.files)?;
    for path in apply.files.list()? {
        can_be_watched(&path)?;
    }
    let cannot = |error| Error::new(Exit::Usage, format!("cannot wait for signals: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot)?;
    let metrics = Metrics::new();
    serve(apply.metrics_listen, &metrics.pages, session.printer).await?;
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

struct Watch<'w> {
    apply: &'w Apply,
    session: &'w Session<'w>,
    metrics: Metrics,
    /// The stamps of the files when they were last read.
    seen: Stamps,
    /// The stamps one turn ago. Files that still change may be half written.
    candidate: Stamps,
    /// The limits of the last valid files, a domain each.
    files: Vec<Wanted>,
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
        let message = error.plain();
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

// --- Reads the files after a change, once they no longer change.

impl Watch<'_> {
    /// Reads the files if they changed, and have been stable for one turn.
    pub(super) async fn look_at_files(&mut self) {
        let now = match Stamps::read(&self.apply.files) {
            Ok(now) => now,
            // A folder that has no file for a moment is being replaced.
            Err(error) => {
                self.refuse_files(&error);
                self.seen = Stamps::default();
                return;
            }
        };
        if now == self.seen {
            return;
        }
        if now != self.candidate {
            self.candidate = now;
            return;
        }
        let sources = self.apply.files.read().await;
        if Stamps::read(&self.apply.files).ok().as_ref() != Some(&now) {
            // The files changed during the read.
            return;
        }
        let read = match sources {
            Ok(sources) => {
                self.seen = now;
                self.parse(sources).await
            }
            // Tried again: a lack of file descriptors, or a disk's fault, ends without other stamps.
            Err(error) => {
                self.seen = Stamps::default();
                Err(error)
            }
        };
        match read {
            Ok(policies) => self.take_files(policies),
            Err(error) => self.refuse_files(&error),
        }
    }

    async fn parse(&self, sources: Vec<Source>) -> Result<Vec<Policy>, Error> {
        let policies = parse(sources, self.session).await?;
        for policy in &policies {
            check_domain(self.session, policy)?;
        }
        Ok(policies)
    }

    fn refuse_files(&mut self, error: &Error) {
        // The error of files that cannot be read is met each turn.
        if self.invalid.as_ref() == Some(&error.plain()) {
            return;
        }
        self.metrics.failed(error.exit());
        self.session.printer.error(error);
        if !self.files.is_empty() {
            self.session
                .printer
                .note("the limits that were applied last stay in force");
        }
        self.invalid = Some(error.plain());
    }

    fn take_files(&mut self, policies: Vec<Policy>) {
        self.invalid = None;
        // The failure belongs to the previous files.
        self.failure = None;
        let printer = self.session.printer;
        for file in std::mem::take(&mut self.files) {
            let domain = &file.policy.domain;
            if !policies.iter().any(|policy| policy.domain == *domain) {
                printer.warn(format_args!(
                    "no file has domain {domain} any more; it stays as it is"
                ));
                let word = shell_word(domain.as_str());
                printer.hint(format_args!("`rlctl delete-domain {word}` deletes it"));
                self.metrics.forget(domain);
            }
        }
        self.files = policies.into_iter().map(Wanted::new).collect();
    }
}

fn can_be_watched(path: &str) -> Result<(), Error> {
    let found = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?;
    if found.is_file() {
        return Ok(());
    }
    let what = format!("--watch cannot watch {path}, which is no regular file");
    Err(Error::usage(what).hint("a pipe gives its bytes once: name a file or a folder"))
}

// --- Whether limits files changed, without reading them.

/// Distinguishes two states of the files: their names, and each one's inode, size and times. A
/// mounted ConfigMap swaps a symbolic link, so every change brings new files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Stamps(Vec<(String, Option<Stamp>)>);

type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Stamps {
    /// The files as they are now.
    pub(super) fn read(files: &FilesArg) -> Result<Self, Error> {
        let stamped = |path: String| {
            let stamp = std::fs::metadata(&path).ok().map(|file| stamp(&file));
            (path, stamp)
        };
        Ok(Self(files.list()?.into_iter().map(stamped).collect()))
    }
}

fn stamp(file: &Metadata) -> Stamp {
    let modified = (file.mtime(), file.mtime_nsec());
    let changed = (file.ctime(), file.ctime_nsec());
    (file.dev(), file.ino(), file.size(), modified, changed)
}

// --- Brings each domain to what its file says.

impl Watch<'_> {
    /// Compares each file with its domain if either changed. An error in one domain does not stop
    /// the comparison of others.
    async fn compare_all(&mut self) -> Result<(), Error> {
        if self.files.is_empty() {
            return Ok(());
        }
        let writer = Writer {
            session: self.session,
            edit: &self.apply.edit,
            origin: Origin::Files,
            owner: None,
            prune: self.apply.prune,
            prune_max: Some(self.apply.prune_max),
        };
        let heads = self.session.call(self.session.store.heads()).await?;
        let mut failed = Ok(());
        for file in &mut self.files {
            let domain = file.policy.domain.clone();
            let head = heads.iter().find(|head| head.domain == domain);
            let state = head.map_or(&HeadState::Missing, |head| &head.state);
            match writer.bring(file, state).await {
                Ok(Turn::Edited) => self.metrics.edited(&domain),
                Ok(_) => {}
                Err(error) => failed = Err(error.into_error()),
            }
            if let Some(compared) = &file.compared {
                let drift = compared.drift.len();
                self.metrics
                    .compared(&domain, compared.revision.as_ref(), drift);
            }
        }
        failed
    }
}

#[cfg(test)]
mod tests {
    use super::can_be_watched;

    #[test]
    fn what_gives_its_bytes_once_cannot_be_watched() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(can_be_watched(&file.path().to_string_lossy()).is_ok());
        let (pipe, _writer) = std::io::pipe().unwrap();
        let pipe = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe));
        let error = can_be_watched(&pipe).unwrap_err();
        assert!(
            error.to_string().contains("cannot watch /dev/fd/"),
            "{error}"
        );
        assert!(error.hints().any(|hint| hint.starts_with("a pipe gives")));
        let gone = can_be_watched("/nonexistent").unwrap_err();
        assert!(gone.hints().any(|hint| hint.contains("current folder")));
    }
}
