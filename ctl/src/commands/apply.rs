//! `rlctl apply`.

use clap::Args;
use policy::{Name, Policy};
use store::{Change, Overrides, Stored};

use crate::{
    changes::Action,
    cli::{Global, examples},
    edit::{EditArgs, Prepared, conflict, revision_of},
    error::Error,
    exit::Exit,
    input::{FileArg, Source},
    merge::{self, Merged},
    printer::Printer,
    prompt::{Yes, confirm},
    render::{counted, diagnostics},
    session::{Deltas, Outcome, Session, pauses},
};

/// Make a domain's limits those of a limits file.
///
/// Limits that the file does not have stay, unless --prune. A limit keeps the overrides that were
/// set live, unless the file lists some for it.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl apply -f limits.yaml"
    "rlctl apply -f limits.yaml --dry-run"
    "rlctl apply -f limits.yaml --prune --yes --reason \"$(git log -1 --format=%s)\""
))]
pub struct Apply {
    #[command(flatten)]
    file: FileArg,

    /// Delete the limits that the file does not have.
    #[arg(long, help_heading = "Edit options")]
    prune: bool,

    #[command(flatten)]
    edit: EditArgs,

    #[command(flatten)]
    yes: Yes,
}

impl Apply {
    /// Reads the file before anything is asked of Redis, writes it as one edit.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let file = read_file(self.file.path()).await?;
        let session = Session::open(global, printer)?;
        check_domain(&session, &file)?;
        let domain = file.domain.clone();
        let (base, merged, outcome) = plan(&session, file, self.prune).await?;
        tell(printer, &merged, &outcome);
        let deleted: Vec<&str> = outcome
            .changes
            .iter()
            .filter(|change| change.action == Action::Deleted)
            .map(|change| change.limit.as_str())
            .collect();
        if !deleted.is_empty() && !self.edit.dry_run {
            let limits = counted(deleted.len(), "limit");
            let names = deleted.join(", ");
            confirm(
                format!("delete {limits} of domain {domain} ({names})"),
                &self.yes,
            )
            .await?;
        }
        let prepared = Prepared {
            domain: &domain,
            base: &base,
            change: Change::Parts {
                limits: &merged.policy,
                overrides: &outcome.overrides,
            },
            changes: outcome.changes,
        };
        let report = session.edit(prepared, &self.edit).await;
        let report = report.map_err(|error| session.edit_failed(&error))?;
        printer.data(&report)?;
        if base.policy().is_none() {
            let warned = session.warn_of_new_domain().await;
            session.note_unread(warned);
        }
        session.follow_up_edit(&report, &self.edit).await
    }
}

/// A valid limits file, or everything that is wrong with it.
pub(super) async fn read_file(path: &str) -> Result<Policy, Error> {
    let source = Source::read(path).await?;
    source.policy().map_err(|problems| {
        let count = counted(problems.count(), "problem");
        let text = diagnostics(&problems);
        Error::new(Exit::No, format!("{} has {count}\n{text}", source.name))
            .hint("nothing was written")
    })
}

/// A file says itself which domain it is for.
pub(super) fn check_domain(session: &Session<'_>, file: &Policy) -> Result<(), Error> {
    let other = |named: &&Name| **named != file.domain;
    match session.named_domain().filter(other) {
        None => Ok(()),
        Some(named) => Err(Error::usage(format!(
            "the file is for domain {}, but --domain or RLCTL_DOMAIN says {named}",
            file.domain
        ))),
    }
}

/// How often a domain is read anew because it was edited in the middle of it.
const TRIES: usize = 5;

/// What the domain is, what it becomes, and how that differs.
pub(super) async fn plan(
    session: &Session<'_>,
    file: Policy,
    prune: bool,
) -> Result<(Stored, Merged, Outcome), Error> {
    for _ in 0..TRIES {
        let base = session.read(&file.domain, Overrides::None).await?;
        let merged = merge::merge(file.clone(), base.policy(), prune);
        let merged = merged.map_err(|problems| misfit(&diagnostics(&problems)))?;
        let outcome = session
            .outcome(base.policy(), &merged.policy, &Deltas::new())
            .await?;
        // Overrides were read page by page: of one and the same revision?
        let now = session.read(&file.domain, Overrides::None).await?;
        if revision_of(&now) == revision_of(&base) {
            return match outcome.misfit() {
                Some(text) => Err(misfit(&text)),
                None => Ok((base, merged, outcome)),
            };
        }
    }
    Err(conflict())
}

fn misfit(text: &str) -> Error {
    Error::new(
        Exit::No,
        format!("the file does not fit what is there already\n{text}"),
    )
    .hint("overrides set live stay, and so do limits that the file does not have")
}

fn tell(printer: &Printer, merged: &Merged, outcome: &Outcome) {
    if !merged.kept.is_empty() {
        let names: Vec<&str> = merged.kept.iter().map(Name::as_str).collect();
        printer.note(format_args!(
            "not in the file, and kept: {} (--prune deletes them)",
            names.join(", ")
        ));
    }
    for (name, pause) in &merged.still_paused {
        if let Some(paused) = pauses::in_words(Some(*pause)) {
            printer.warn(format_args!(
                "{name} stays {paused}, of which the file says nothing; `rlctl resume` ends that"
            ));
        }
    }
    let lost = |name: &&Name| outcome.overrides.contains_key(*name);
    for name in merged.split_otherwise.iter().filter(lost) {
        printer.warn(format_args!(
            "{name} is split by other entries now: its overrides are lost"
        ));
    }
}
