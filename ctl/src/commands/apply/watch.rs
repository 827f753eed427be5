//! `rlctl apply --watch`: applies limits files, and each change of them.
//!
//! A limit is written when the files change that limit, and at no other time: what was edited live
//! stays, and is reported as drift. A domain that the store lost is written whole.

mod applied;
mod metrics;
mod serve;
mod stamps;

use std::{sync::Arc, time::Duration};

use policy::{Name, Policy, Revision};
use store::{Change, EditError, HeadState};
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, sleep},
};

use super::{
    Apply, check_domain, note_merged,
    plan::{self, Pruning},
    plan_file, read,
};
use crate::{
    changes,
    edit::{EditArgs, Prepared},
    error::Error,
    exit::Exit,
    merge,
    render::{counted, truncated_list},
    session::{Session, conflict},
};

use applied::Applied;
use metrics::Metrics;
use stamps::Stamps;

/// Between two looks at the files and the store.
const TURN: Duration = Duration::from_secs(1);
/// The longest pause after failures in a row; the first is one turn.
const BACKOFF_MAX: Duration = Duration::from_secs(30);
/// Attempts to write on top of concurrent edits.
const TRIES: usize = 10;
/// Limits that one message names.
const NAMED_MAX: usize = 10;

/// Applies the files until SIGTERM.
pub(super) async fn run(apply: &Apply, session: &Session<'_>) -> Result<Exit, Error> {
    if apply.files.has_stdin() {
        return Err(Error::usage("--watch cannot watch stdin").hint("name a file or a folder"));
    }
    // A typo should end the command, and not wait for a file to appear.
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
    /// The files when they were read last.
    seen: Stamps,
    /// The files a turn ago. Files that change still may be half written.
    candidate: Stamps,
    /// What the last valid files say, a domain each.
    files: Vec<File>,
    /// What is wrong with the files as they are now.
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
    /// The record that it was compared with last; `None`: not yet.
    compared: Option<Compared>,
}

/// What a comparison found.
#[derive(PartialEq, Eq)]
struct Compared {
    /// The revision that was there.
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

    /// Reads the files if they changed, and have not changed for a turn since.
    async fn look_at_files(&mut self) {
        let now = match Stamps::of(&self.apply.files) {
            Ok(now) => now,
            // A folder without a file for a moment is being replaced.
            Err(error) => {
                if self.invalid.as_ref() != Some(&plain(&error)) {
                    self.refuse_files(&error);
                }
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
        let read = self.read_files().await;
        if Stamps::of(&self.apply.files).ok().as_ref() != Some(&now) {
            // It changed while it was read.
            return;
        }
        self.seen = now;
        match read {
            Ok(policies) => self.take_files(policies),
            Err(error) => self.refuse_files(&error),
        }
    }

    async fn read_files(&self) -> Result<Vec<Policy>, Error> {
        let policies = read(&self.apply.files, self.session).await?;
        for policy in &policies {
            check_domain(self.session, policy)?;
        }
        Ok(policies)
    }

    fn refuse_files(&mut self, error: &Error) {
        self.metrics.failed(error.exit());
        self.session.printer.error(error);
        if !self.files.is_empty() {
            self.session
                .printer
                .note("the limits that were applied last stay in force");
        }
        self.invalid = Some(plain(error));
    }

    fn take_files(&mut self, policies: Vec<Policy>) {
        self.invalid = None;
        // A failure was of the last files.
        self.failure = None;
        let printer = self.session.printer;
        for file in std::mem::take(&mut self.files) {
            let domain = &file.policy.domain;
            if !policies.iter().any(|policy| policy.domain == *domain) {
                printer.warn(format_args!(
                    "no file has domain {domain} any more; it stays as it is"
                ));
                printer.hint(format_args!("`rlctl delete-domain {domain}` deletes it"));
                self.metrics.forget(domain);
            }
        }
        let file = |policy: Policy| File {
            digests: Applied::of(&policy),
            policy,
            compared: None,
        };
        self.files = policies.into_iter().map(file).collect();
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

    /// Compares each file with its domain, where either changed. What is wrong with one domain keeps
    /// no other from being compared.
    async fn compare_all(&mut self) -> Result<(), Error> {
        if self.files.is_empty() {
            return Ok(());
        }
        let heads = self.session.store.heads().await;
        let heads = heads.map_err(|error| self.session.failed(&error))?;
        let mut failed = Ok(());
        for mut file in std::mem::take(&mut self.files) {
            let mut found = heads.iter();
            let head = found.find(|head| head.domain == file.policy.domain);
            let state = head.map_or(&HeadState::Missing, |head| &head.state);
            if let Err(error) = self.compare(&mut file, state).await {
                failed = Err(error);
            }
            self.files.push(file);
        }
        failed
    }

    async fn compare(&self, file: &mut File, state: &HeadState) -> Result<(), Error> {
        let revision = match state {
            HeadState::Live(revision) | HeadState::Deleted(revision) => Some(revision.clone()),
            // The edit says what is wrong with the record.
            HeadState::Missing | HeadState::Unreadable(_) => None,
        };
        let known = file.compared.as_ref();
        if known.is_some_and(|known| known.revision == revision) {
            return Ok(());
        }
        if known.is_some_and(|known| known.revision.is_some()) && revision.is_none() {
            self.session.printer.warn(format_args!(
                "the store has lost domain {}; it is written again",
                file.policy.domain
            ));
        }
        let last = self.last_applied(&file.policy.domain, state).await?;
        if last.as_ref() != Some(&file.digests) {
            self.write(file, &last.unwrap_or_default()).await?;
            let domain = &file.policy.domain;
            let record = file.digests.to_record();
            let recorded = self.session.store.record_applied(domain, &record).await;
            recorded.map_err(|error| self.session.failed(&error))?;
        }
        self.measure_drift(file, revision).await
    }

    /// What was applied last to a domain as it is; `None`: nothing of it is left.
    async fn last_applied(
        &self,
        domain: &Name,
        state: &HeadState,
    ) -> Result<Option<Applied>, Error> {
        if matches!(state, HeadState::Missing) {
            return Ok(None);
        }
        let record = self.session.store.applied(domain).await;
        let record = record.map_err(|error| self.session.failed(&error))?;
        Ok(record.map(|record| Applied::read(Some(&record))))
    }

    /// Writes what the file changes since `last` was applied.
    async fn write(&self, file: &File, last: &Applied) -> Result<(), Error> {
        let session = self.session;
        let domain = &file.policy.domain;
        let nothing = Applied::default();
        for _ in 0..TRIES {
            let merge = |base: &store::Stored| {
                let live = base.policy();
                // Of a deleted domain there is nothing to keep.
                let last = if live.is_some() { last } else { &nothing };
                let target = last.target(&file.policy, &file.digests, live, self.apply.prune);
                merge::merge(target, live, true)
            };
            let pruning = Pruning {
                unlisted_overrides: false,
                split_otherwise: self.apply.prune,
            };
            let (base, merged, plan) = plan::plan(session, domain, merge, pruning).await?;
            let any = changes::any(&plan.changes)
                || !changes::of_domain(base.policy(), &merged.policy).is_empty();
            if !any {
                session
                    .printer
                    .note(format_args!("{domain}: as in the files"));
                return Ok(());
            }
            note_merged(session.printer, &merged, &plan);
            let prepared = Prepared {
                domain,
                base: &base,
                change: Change::Parts {
                    limits: &merged.policy,
                    overrides: &plan.overrides,
                },
                changes: plan.changes,
            };
            match session.edit(prepared, self.edit_args()).await {
                Ok(report) => {
                    self.metrics.edited(domain);
                    return session.printer.data(&report);
                }
                Err(EditError::Conflict { .. }) => {}
                Err(error) => return Err(session.edit_failed(&error)),
            }
        }
        Err(conflict())
    }

    fn edit_args(&self) -> &EditArgs {
        &self.apply.edit
    }

    /// Compares the domain with its file, as `rlctl diff` does.
    async fn measure_drift(&self, file: &mut File, seen: Option<Revision>) -> Result<(), Error> {
        let (base, merged, plan) = plan_file(self.session, file.policy.clone(), true).await?;
        let domain = &file.policy.domain;
        let mut drift = changes::names(&plan.changes);
        let paused = merged.still_paused.iter().map(|(name, _)| name.to_string());
        drift.extend(paused.map(|name| format!("{name} (paused)")));
        if !changes::of_domain(base.policy(), &merged.policy).is_empty() {
            drift.push("the domain itself".to_owned());
        }
        // A deleted domain has a revision, too.
        let revision = crate::edit::revision_of(&base).cloned().or(seen);
        self.metrics
            .compared(domain, revision.as_ref(), drift.len());
        let known = file.compared.as_ref().map(|known| &known.drift);
        if known.map_or(!drift.is_empty(), |known| *known != drift) {
            self.tell_drift(domain, &drift);
        }
        file.compared = Some(Compared { revision, drift });
        Ok(())
    }

    fn tell_drift(&self, domain: &Name, drift: &[String]) {
        let printer = self.session.printer;
        if drift.is_empty() {
            printer.note(format_args!("{domain}: no drift any more"));
            return;
        }
        printer.warn(format_args!(
            "{domain}: {} from the files, until the files change there: {}",
            counted(drift.len(), "difference"),
            truncated_list(drift, NAMED_MAX)
        ));
        printer
            .hint("`rlctl diff` shows the differences, `rlctl export` prints a file that has them");
    }
}
