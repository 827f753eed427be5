//! `rlctl apply` and `rlctl diff`.

mod watch;
pub mod writer;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
};

use clap::Args;
use limits_file::ToNode as _;
use policy::{Limit, Name, Node, Pause, Policy, Problems};
use serde::Serialize;
use store::{HeadState, Overrides, Stored};

use crate::{
    changes::{self, Action, FieldChange, LimitChange},
    cli::{Global, examples},
    commands::replay::{BeforeEdit, with_overrides},
    edit::{EditArgs, Planned, PlannedWrite, revision_of},
    error::{Error, Exit},
    input::{FilesArg, Source},
    printer::Printer,
    render::{self, OneOrMore, Page, View, counted, diagnostics, pause_state, truncated_list},
    session::{Deltas, EditPlan, LiveEntries, Session, conflict, sort_overrides},
};

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
/// it lists some. Several files are applied one after the other, each as one edit, once all are
/// checked and confirmed.
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
    "rlctl apply -f limits.yaml --replay access.log.gz --fail-above 0.1%"
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
        value_parser = crate::serve::address,
        requires = "watch"
    )]
    metrics_listen: Option<SocketAddr>,

    #[command(flatten)]
    before: BeforeEdit,

    #[command(flatten)]
    edit: EditArgs,
}

impl Apply {
    /// Reads all files, plans and confirms the edit of each, then writes them.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        if self.watch {
            if self.before.any() {
                return Err(Error::usage(
                    "--watch applies every change, and cannot replay a log first",
                ));
            }
            return watch::run(self, &session).await;
        }
        let files = read(&self.files, &session).await?;
        for file in &files {
            check_domain(&session, file)?;
        }
        if self.before.reads_stdin() && (files.len() > 1 || self.files.has_stdin()) {
            return Err(Error::usage(
                "--replay - reads stdin, which can be read for one limits file only",
            )
            .hint("save the log, and name its file"));
        }
        // What refuses one file refuses all: nothing is written before that is known.
        let mut edits = Vec::with_capacity(files.len());
        for file in files {
            edits.push(self.plan(&session, file).await?);
        }
        let mut reports = OneOrMore::default();
        let mut failed = None;
        for (domain, base, planned) in edits {
            let written = session.write(&self.edit, &domain, base, planned).await;
            match written.map_err(|error| session.edit_failed(&error)) {
                Ok(edited) => reports.0.push(edited.report),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if !reports.0.is_empty() {
            printer.data(&reports)?;
        }
        // What failed first decides, and what was written is waited for all the same.
        let mut exit = failed.map(|error| print_error(printer, &error));
        for report in &reports.0 {
            if report.previous_revision.is_none() {
                let warned = session.warn_of_new_domain().await;
                session.note_read_failure(warned);
            }
            let followed = session.follow_up_edit(report, &self.edit).await;
            let followed = followed.unwrap_or_else(|error| print_error(printer, &error));
            exit = exit.or(Some(followed).filter(|exit| *exit != Exit::Done));
        }
        Ok(exit.unwrap_or(Exit::Done))
    }

    /// The edit of a file's domain, shown and confirmed.
    async fn plan(
        &self,
        session: &Session<'_>,
        file: Policy,
    ) -> Result<(Name, Stored, Planned), Error> {
        let domain = file.domain.clone();
        let (base, merged, plan) = plan_file(session, file, self.prune).await?;
        note_merged(session.printer, &merged, &plan);
        let as_merged = |before: &Policy| with_overrides(merged.policy.clone(), before);
        self.before
            .show(session, &domain, &self.edit, as_merged)
            .await?;
        if let Some(question) = question(&merged, &plan) {
            self.edit.confirm(question).await?;
        }
        Ok((domain, base, merged.planned(plan)))
    }
}

/// Prints an error of one file of several; returns its exit code.
fn print_error(printer: &Printer, error: &Error) -> Exit {
    printer.error(error);
    error.exit()
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
            truncated_list(merged.kept.iter().map(Name::as_str), NAMED_MAX)
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
    let lost = |name: &&Name| plan.overrides.contains_key(*name);
    for name in merged.split_otherwise.iter().filter(lost) {
        printer.warn(format_args!(
            "the `per` of {name} changes: its overrides are deleted"
        ));
    }
}

// --- The limits files of `apply` and `diff`: all are valid, and each is for a different domain.

/// The limits in all files; an error in any of them ends the command before it changes anything.
pub(super) async fn read(files: &FilesArg, session: &Session<'_>) -> Result<Vec<Policy>, Error> {
    parse(files.read().await?, session).await
}

async fn parse(sources: Vec<Source>, session: &Session<'_>) -> Result<Vec<Policy>, Error> {
    let printer = session.printer;
    // Without it some warnings are missing; the edit reports errors of Redis.
    let live = session.live_entries().await.unwrap_or_default();
    let mut policies: Vec<(String, Policy)> = Vec::with_capacity(sources.len());
    let mut wrong: Option<Error> = None;
    for source in sources {
        match policy(&source, &live, printer) {
            Ok(policy) => policies.push((source.name, policy)),
            Err(error) => {
                if let Some(earlier) = wrong.replace(error) {
                    printer.error(&earlier);
                }
            }
        }
    }
    if let Some(error) = wrong {
        return Err(error.hint("nothing was written"));
    }
    check_twice(&policies)?;
    Ok(policies.into_iter().map(|(_, policy)| policy).collect())
}

/// The limits in one file; warnings about them are printed.
fn policy(source: &Source, live: &LiveEntries, printer: &Printer) -> Result<Policy, Error> {
    let (policy, warnings) = source
        .policy(|domain| live.supply(domain))
        .map_err(|problems| source.invalid(&problems))?;
    if let Some(warnings) = warnings {
        printer.warn_of(&warnings);
    }
    Ok(policy)
}

/// With --prune each of two files would delete the other's limits.
fn check_twice(policies: &[(String, Policy)]) -> Result<(), Error> {
    for (n, (file, policy)) in policies.iter().enumerate() {
        let mut earlier = policies.iter().take(n);
        if let Some((first, _)) = earlier.find(|(_, other)| other.domain == policy.domain) {
            let domain = &policy.domain;
            return Err(
                Error::usage(format!("{first} and {file} are both for domain {domain}"))
                    .hint("a domain belongs in one file"),
            );
        }
    }
    Ok(())
}

/// The file's domain must be the one named on the command line.
pub(super) fn check_domain(session: &Session<'_>, file: &Policy) -> Result<(), Error> {
    match session
        .named_domain()
        .filter(|named| **named != file.domain)
    {
        None => Ok(()),
        Some(named) => Err(Error::usage(format!(
            "the file is for domain {}, but --domain or RLCTL_DOMAIN is {named}",
            file.domain
        ))),
    }
}

// --- The plan of applying a limits file.

/// Attempts to read all pages of a domain at one revision.
const TRIES: usize = 5;

/// Lines of conflicts that are shown.
const LINES_MAX: usize = 5;

/// What an edit may delete.
#[derive(Clone, Copy, Debug)]
pub struct Pruning {
    /// Overrides that are not listed, of limits that list some.
    pub unlisted_overrides: bool,
    /// All overrides of a limit whose `per` changes.
    pub split_otherwise: bool,
}

/// The domain as stored, the merged limits, and the plan of the edit.
pub(super) async fn plan_file(
    session: &Session<'_>,
    file: Policy,
    prune: bool,
) -> Result<(Stored, Merged, EditPlan), Error> {
    let domain = file.domain.clone();
    let merged = |base: &Stored| merge(file.clone(), base.policy(), prune);
    let pruning = Pruning {
        unlisted_overrides: prune,
        split_otherwise: prune,
    };
    plan(session, &domain, merged, pruning).await
}

/// As `plan_file`, with the limits that `merge` makes of the domain.
pub async fn plan(
    session: &Session<'_>,
    domain: &Name,
    merge: impl Fn(&Stored) -> Result<Merged, Problems>,
    pruning: Pruning,
) -> Result<(Stored, Merged, EditPlan), Error> {
    for _ in 0..TRIES {
        let base = session.read(domain, Overrides::None).await?;
        let mut merged = merge(&base).map_err(|problems| does_not_fit(&diagnostics(&problems)))?;
        let mut lines = Vec::new();
        if let Some(before) = base.policy().filter(|_| !pruning.unlisted_overrides) {
            let kept = session.keep_unlisted(before, &mut merged.policy).await?;
            merged.overrides_kept = kept.by_limit;
            lines = kept.problems;
        }
        let plan = session
            .plan_edit(base.policy(), &merged.policy, &Deltas::new())
            .await?;
        let pages_read = plan.overrides_read || !lines.is_empty();
        if !pages_read || unchanged(session, &base, domain).await? {
            if !lines.is_empty() {
                return Err(does_not_fit(&bounded(&lines)));
            }
            if let Some(text) = plan.invalid_overrides_text() {
                return Err(does_not_fit(&text));
            }
            if !pruning.split_otherwise {
                check_no_override_lost(&merged.split_otherwise, &plan)?;
            }
            return Ok((base, merged, plan));
        }
    }
    Err(conflict())
}

/// Whether the domain is still at the same revision: overrides are read page by page, and all pages
/// must be of one revision. The record itself is not read again.
async fn unchanged(session: &Session<'_>, base: &Stored, domain: &Name) -> Result<bool, Error> {
    let heads = session.call(session.store.heads()).await?;
    let head = heads.into_iter().find(|head| head.domain == *domain);
    Ok(match head.map(|head| head.state) {
        Some(HeadState::Live(revision)) => Some(&revision) == revision_of(base),
        _ => base.policy().is_none(),
    })
}

fn bounded(lines: &[String]) -> String {
    let mut shown: Vec<&str> = lines.iter().take(LINES_MAX).map(String::as_str).collect();
    let more = format!("… and {} more", lines.len().saturating_sub(LINES_MAX));
    if lines.len() > LINES_MAX {
        shown.push(&more);
    }
    shown.join("\n")
}

fn does_not_fit(text: &str) -> Error {
    Error::new(
        Exit::No,
        format!("the file conflicts with what is stored\n{text}"),
    )
    .hint("apply keeps overrides that were set live, and limits that are not in the file")
}

/// A limit with another `per` leaves its overrides without a bucket.
fn check_no_override_lost(split_otherwise: &[Name], plan: &EditPlan) -> Result<(), Error> {
    let mut lost = split_otherwise.iter();
    match lost.find(|name| plan.overrides.contains_key(*name)) {
        None => Ok(()),
        Some(name) => Err(Error::new(
            Exit::No,
            format!("the `per` of {name} would change, and its overrides would be deleted"),
        )
        .hint("nothing was written; --prune allows it")),
    }
}

// --- Merging a limits file into a domain.

/// The limits of a file laid over those of a domain.
#[derive(Debug)]
pub struct Merged {
    /// The merged limits. A limit lists overrides only if the file lists some for it.
    pub policy: Policy,
    /// Limits that are not in the file and stay.
    pub kept: Vec<Name>,
    /// Pauses that the file does not mention and that stay: of limits, and of the domain.
    pub still_paused: Vec<(Name, Pause)>,
    /// Limits whose overrides, if they have any, are lost because their `per` changed.
    pub split_otherwise: Vec<Name>,
    /// How many overrides stay although the file does not list them, by limit.
    pub overrides_kept: Vec<(Name, usize)>,
}

impl Merged {
    /// The edit that writes them.
    fn planned(self, plan: EditPlan) -> Planned {
        Planned {
            write: PlannedWrite::Parts(self.policy, plan.overrides),
            changes: plan.changes,
        }
    }
}

/// Merges `file` into `live`, whose overrides need not be loaded. Limits and exemptions
/// that only `live` has stay, unless `prune`.
pub fn merge(file: Policy, live: Option<&Policy>, prune: bool) -> Result<Merged, Problems> {
    let domain_pause = live.and_then(|policy| policy.paused);
    let mut exempt = file.exempt;
    if !prune {
        let live = live.map_or(&[][..], |policy| &policy.exempt).iter();
        let listed: BTreeSet<Name> = exempt.iter().map(|one| one.name.clone()).collect();
        exempt.extend(live.filter(|one| !listed.contains(&one.name)).cloned());
    }
    let live = live.map_or(&[][..], |policy| &policy.limits);
    let by_name: BTreeMap<&Name, &Limit> = live.iter().map(|limit| (&limit.name, limit)).collect();
    let (mut split_otherwise, mut still_paused) = (Vec::new(), Vec::new());
    let of_file: BTreeSet<Name> = { file.limits.iter() }
        .map(|limit| limit.name.clone())
        .collect();
    let all = beside(file.limits, live, |_| !prune);
    let (mut limits, mut kept) = (Vec::with_capacity(all.len()), Vec::new());
    for limit in &all {
        let mut node = limits_file::node_without_overrides(limit);
        if of_file.contains(&limit.name) {
            let old = by_name.get(&limit.name).copied();
            if limit.overrides.is_empty() && old.is_some_and(|old| old.per != limit.per) {
                split_otherwise.push(limit.name.clone());
            }
            let stays = keep_pause(&mut node, limit.paused, old.and_then(|old| old.paused));
            still_paused.extend(stays.map(|pause| (limit.name.clone(), pause)));
        } else {
            kept.push(limit.name.clone());
        }
        limits.push(node);
    }
    let mut document = Node::map([
        ("domain", Node::text(file.domain.as_str())),
        ("exempt", limits_file::exemptions_node(&exempt)),
        ("limits", Node::list(limits)),
    ]);
    let stays = keep_pause(&mut document, file.paused, domain_pause);
    still_paused.extend(stays.map(|pause| (file.domain.clone(), pause)));
    let mut policy = limits_file::policy_from_node(&document)?;
    let listed = policy.limits.iter_mut().zip(all);
    for (limit, listed) in listed.filter(|(limit, _)| of_file.contains(&limit.name)) {
        limit.overrides = listed.overrides;
    }
    sort_overrides(&mut policy);
    Ok(Merged {
        policy,
        kept,
        still_paused,
        split_otherwise,
        overrides_kept: Vec::new(),
    })
}

/// Limits in their order, and each of those that only `live` has, and that stays, behind the one that it follows there.
pub fn beside(limits: Vec<Limit>, live: &[Limit], stays: impl Fn(&Limit) -> bool) -> Vec<Limit> {
    let own: BTreeSet<&Name> = limits.iter().map(|limit| &limit.name).collect();
    let (mut behind, mut last) = (BTreeMap::<_, Vec<Limit>>::new(), None);
    for limit in live {
        if own.contains(&limit.name) {
            last = Some(limit.name.clone());
        } else if stays(limit) {
            behind.entry(last.clone()).or_default().push(limit.clone());
        }
    }
    let mut all = behind.remove(&None).unwrap_or_default();
    for limit in limits {
        let others = behind.remove(&Some(limit.name.clone()));
        all.push(limit);
        all.extend(others.into_iter().flatten());
    }
    all
}

/// Keeps a live pause if the file does not mention one: the next deployment must not undo the kill
/// switch. Returns the pause that it kept.
fn keep_pause(node: &mut Node, file: Option<Pause>, live: Option<Pause>) -> Option<Pause> {
    match file.or(live) {
        Some(pause) if pause != Pause::OVER => node.set("paused", pause.to_node()),
        _ => {
            node.unset("paused");
        }
    }
    live.filter(|_| file.is_none())
}

// --- `rlctl diff`.

/// Show how a limits file differs from what is in Redis.
///
/// The differences are what `apply --prune` would change. Overrides that were set live do not count,
/// unless the file lists some for that limit.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl diff -f limits.yaml"
    "rlctl diff -f limits/                    # every file of a folder"
    "rlctl diff -f limits.yaml -o name        # only the limits that differ"
))]
pub struct Diff {
    #[command(flatten)]
    files: FilesArg,
}

impl Diff {
    /// Compares.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let files = read(&self.files, &session).await?;
        for file in &files {
            check_domain(&session, file)?;
        }
        let mut reports = OneOrMore::default();
        for file in files {
            reports.0.push(report(&session, file).await?);
        }
        printer.data(&reports)?;
        Ok(if reports.0.iter().any(|report| report.differs) {
            Exit::No
        } else {
            Exit::Done
        })
    }
}

async fn report(session: &Session<'_>, file: Policy) -> Result<Report, Error> {
    let domain = file.domain.clone();
    let (base, merged, plan) = plan_file(session, file, true).await?;
    let changes = plan.changes;
    let domain_changes = changes::of_domain(base.policy(), &merged.policy);
    let differs = !domain_changes.is_empty() || changes::any(&changes);
    if base.policy().is_none() {
        session
            .printer
            .note(format_args!("there is no domain {domain} yet"));
    }
    Ok(Report {
        domain,
        differs,
        domain_changes,
        changes,
    })
}

#[derive(Serialize)]
struct Report {
    domain: Name,
    differs: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    domain_changes: Vec<FieldChange>,
    changes: Vec<LimitChange>,
}

impl View for Report {
    fn text(&self, page: Page) -> String {
        let (own, limits) = (&self.domain_changes, &self.changes);
        let changes = render::changes_text(&self.domain, own, limits, page);
        if self.differs {
            let summary = render::changes_summary(own, limits);
            format!(
                "{changes}{}: with `apply --prune`, {summary}\n",
                self.domain
            )
        } else {
            format!("{changes}{}: no difference\n", self.domain)
        }
    }

    fn names(&self) -> Vec<String> {
        changes::names(&self.changes)
    }
}

#[cfg(test)]
mod tests;
