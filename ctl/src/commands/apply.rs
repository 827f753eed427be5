//! `rlctl apply`.

mod files;
mod plan;
mod watch;

use std::net::SocketAddr;

use clap::Args;
use policy::Policy;
use store::Change;

use crate::{
    args::{Global, examples},
    changes::Action,
    edit::{EditArgs, EditReport, Prepared},
    error::Error,
    exit::Exit,
    input::FilesArg,
    merge::Merged,
    printer::Printer,
    prompt::{Yes, confirm},
    render::{OneOrMore, counted, pause_state, truncated_list},
    session::{EditPlan, Session},
};

pub(super) use files::{check_domain, read};
pub(super) use plan::plan_file;

/// The most names in one question.
const NAMED_MAX: usize = 10;

/// The default of `--prune-max`.
const PRUNE_MAX: u8 = 50;

/// A share, with or without the percent sign.
fn percent(text: &str) -> Result<u8, String> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<u8>().ok();
    let share = number.filter(|share| *share <= 100);
    share.ok_or_else(|| "expected a share from 0% to 100%".to_owned())
}

/// Apply a limits file to its domain.
///
/// Limits that are not in the file stay, and so do overrides that were set live. With --prune, limits
/// that are not in the file are deleted, and so are overrides that are not in it, of limits for which
/// it lists some. Several files are applied one after the other, each as one edit.
///
/// With --watch it goes on: it applies each change of the files within two seconds, until SIGTERM or
/// Ctrl-C. Invalid files change nothing. It writes a limit only when the file changes that limit, so
/// what rlctl edits meanwhile stays, across restarts, and counts as drift. With --prune, a limit that
/// leaves the files is deleted; one that never was in them is not. A change that deletes more than half
/// of a domain's limits, or all, needs --prune-max.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl apply -f limits.yaml"
    "rlctl apply -f limits.yaml --dry-run"
    "rlctl apply -f shop.yaml -f admin.yaml"
    "rlctl apply -f limits/                 # every file of a folder"
    "rlctl apply -f limits.yaml --prune --yes --reason \"$(git log -1 --format=%s)\""
    "rlctl apply -f limits/ --watch --metrics-listen 127.0.0.1:8094"
))]
pub struct Apply {
    #[command(flatten)]
    files: FilesArg,

    /// Delete limits that are not in the file, and overrides that are not in it, of limits for which
    /// it lists some.
    #[arg(long, help_heading = "Edit options")]
    prune: bool,

    /// Go on: apply each change of the files, until stopped.
    #[arg(long, help_heading = "Watch options", conflicts_with_all = ["dry_run", "wait"])]
    watch: bool,

    /// With --watch --prune: how many of the limits of a domain that were in the files one change of
    /// them may delete, in percent. More, or all of them, is refused until the files are right again.
    #[arg(
        long,
        help_heading = "Watch options",
        value_name = "PERCENT",
        requires_all = ["watch", "prune"],
        default_value_t = PRUNE_MAX,
        value_parser = percent
    )]
    prune_max: u8,

    /// Where --watch serves /metrics, /healthz and /readyz.
    #[arg(
        long,
        help_heading = "Watch options",
        value_name = "ADDRESS:PORT",
        requires = "watch"
    )]
    metrics_listen: Option<SocketAddr>,

    #[command(flatten)]
    edit: EditArgs,

    #[command(flatten)]
    yes: Yes,
}

impl Apply {
    /// Reads all files, then writes each as one edit.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        if self.watch {
            return watch::run(self, &session).await;
        }
        let files = read(&self.files, &session).await?;
        for file in &files {
            check_domain(&session, file)?;
        }
        let mut reports = OneOrMore::default();
        let mut failed = None;
        for file in files {
            match self.apply(&session, file).await {
                Ok(report) => reports.0.push(report),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if !reports.0.is_empty() {
            printer.data(&reports)?;
        }
        let mut exit = Exit::Done;
        for report in &reports.0 {
            if report.previous_revision.is_none() {
                let warned = session.warn_of_new_domain().await;
                session.note_read_failure(warned);
            }
            let followed = session.follow_up_edit(report, &self.edit).await?;
            exit = if followed == Exit::Done {
                exit
            } else {
                followed
            };
        }
        failed.map_or(Ok(exit), Err)
    }

    async fn apply(&self, session: &Session<'_>, file: Policy) -> Result<EditReport, Error> {
        let domain = file.domain.clone();
        let (base, merged, plan) = plan_file(session, file, self.prune).await?;
        note_merged(session.printer, &merged, &plan);
        if !self.edit.dry_run
            && let Some(question) = question(&merged, &plan)
        {
            confirm(question, &self.yes).await?;
        }
        let prepared = Prepared {
            domain: &domain,
            base: &base,
            change: Change::Parts {
                limits: &merged.policy,
                overrides: &plan.overrides,
            },
            changes: plan.changes,
        };
        let report = session.edit(prepared, &self.edit).await;
        report.map_err(|error| session.edit_failed(&error))
    }
}

/// The confirmation of deletions; `None` if there are none.
fn question(merged: &Merged, plan: &EditPlan) -> Option<String> {
    let changes = plan.changes.iter();
    let deleted: Vec<&str> = changes
        .filter(|change| change.action == Action::Deleted)
        .map(|change| change.limit.as_str())
        .collect();
    let domain = &merged.policy.domain;
    let overrides = plan.overrides_gone();
    let of_others = counted(overrides, "override");
    if deleted.is_empty() {
        return (overrides > 0).then(|| format!("delete {of_others} in domain {domain}"));
    }
    let limits = counted(deleted.len(), "limit");
    let names = truncated_list(deleted, NAMED_MAX);
    let and = if overrides > 0 {
        format!(" and {of_others}")
    } else {
        String::new()
    };
    Some(format!("delete {limits}{and} of domain {domain} ({names})"))
}

fn note_merged(printer: &Printer, merged: &Merged, plan: &EditPlan) {
    if !merged.kept.is_empty() {
        printer.note(format_args!(
            "not in the file, and kept: {} (--prune deletes them)",
            truncated_list(merged.kept.iter().map(policy::Name::as_str), NAMED_MAX)
        ));
    }
    if !merged.overrides_kept.is_empty() {
        let of = merged.overrides_kept.iter();
        let of = of.map(|(limit, count)| format!("{} of {limit}", counted(*count, "override")));
        printer.note(format_args!(
            "not in the file, and kept: {} (--prune deletes them)",
            truncated_list(of, NAMED_MAX)
        ));
    }
    for (name, pause) in &merged.still_paused {
        if let Some(paused) = pause_state(Some(*pause)) {
            printer.warn(format_args!(
                "{name} stays {paused}, which the file does not mention; `rlctl resume` ends the pause"
            ));
        }
    }
    let lost = |name: &&policy::Name| plan.overrides.contains_key(*name);
    for name in merged.split_otherwise.iter().filter(lost) {
        printer.warn(format_args!(
            "the `per` of {name} changes: its overrides are deleted"
        ));
    }
}
