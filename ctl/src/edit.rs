//! The one way to edit: a command confirms, plans what it writes, writes it and reports it. Here are the
//! steps that all edits share, and the wait until the fleet has an edit.

use std::{
    fmt::Write as _,
    io::{self, BufRead, IsTerminal, Write},
    time::{Duration, Instant},
};

use clap::Args;
use insight::findings::shell_word;
pub use insight::{findings::is_current, limiter_name, proxy_name};
use policy::{Name, Override, Policy, Revision};
use serde::Serialize;
use store::{
    Change, Edit, EditError, Fleet, LimiterStatus, OverrideEdits, Overrides, ProxyStatus, Record,
    Signature, StoreError, Stored,
};
use tokio::time::sleep;

use crate::{
    bucket::Values,
    changes::{self, FieldChange, LimitChange},
    cli::Wait,
    error::{self, Error, Exit},
    printer::Pending,
    render::{self, Page, View, counted, duration},
    session::{Session, conflict},
};

/// When it ends what lasts this long from now, for an option with this text. In whole seconds, which read better; rounded up,
/// so that nothing ends earlier than requested.
pub fn end_after(option: &str, text: &str, ms: u64, now_ms: u64) -> Result<u64, Error> {
    let end_ms = now_ms
        .saturating_add(ms)
        .div_ceil(1000)
        .saturating_mul(1000);
    // What is stored must be read again: a record with another time is unreadable as a whole.
    let can_be_read = policy::parse_timestamp(&policy::format_timestamp(end_ms)).is_some();
    can_be_read
        .then_some(end_ms)
        .ok_or_else(|| after_9999(option, text))
}

/// The error of a text that is no time; `otherwise` is what it is not.
pub fn not_a_time(option: &str, text: &str, otherwise: &str) -> Error {
    let is_year = |year: &str| year.len() > 4 && year.bytes().all(|byte| byte.is_ascii_digit());
    if text.split_once('-').is_some_and(|(year, _)| is_year(year)) {
        return after_9999(option, text);
    }
    Error::usage(format!("{option}: `{text}` is {otherwise}"))
}

fn after_9999(option: &str, text: &str) -> Error {
    Error::usage(format!("{option}: {text} is after the year 9999"))
        .hint("without an end it lasts until somebody ends it")
}

/// What an edit writes, and its effect on each limit.
#[derive(Debug)]
pub struct Planned {
    /// What is written.
    pub write: PlannedWrite,
    /// The effect.
    pub changes: Vec<LimitChange>,
}

/// What an edit writes.
#[derive(Debug)]
pub enum PlannedWrite {
    /// The fields of limits and of the domain; overrides stay.
    Fields(Policy),
    /// Limits, and these overrides of them.
    Parts(Policy, OverrideEdits),
    /// The override of one bucket; `None` deletes it.
    Override(Name, Values, Option<Override>),
    /// A deletion of the domain, with these overrides.
    Delete(OverrideEdits),
}

impl PlannedWrite {
    fn change(&self) -> Change<'_> {
        match self {
            Self::Fields(policy) => Change::Fields(policy),
            Self::Parts(limits, overrides) => Change::Parts { limits, overrides },
            Self::Override(limit, values, to) => Change::Override {
                limit,
                values,
                to: to.as_ref(),
            },
            Self::Delete(overrides) => Change::Delete(overrides),
        }
    }

    /// The limits afterwards, if they are written as a whole.
    pub fn policy(&self) -> Option<&Policy> {
        match self {
            Self::Fields(policy) | Self::Parts(policy, _) => Some(policy),
            Self::Override(..) | Self::Delete(_) => None,
        }
    }
}

/// An edit that was made, or would be.
#[derive(Debug)]
pub struct Edited {
    /// What it did.
    pub report: EditReport,
    /// The record that it was based on.
    pub base: Stored,
    /// What it wrote.
    pub write: PlannedWrite,
}

impl Edited {
    /// The limits stored afterwards.
    pub fn policy(&self) -> Option<&Policy> {
        let written = self.write.policy().filter(|_| !self.report.dry_run);
        written.or(self.base.policy())
    }
}

/// Attempts to write an edit on top of concurrent edits of something else.
const TRIES: usize = 10;

impl Session<'_> {
    /// Makes an edit of a domain that was read as `base`, without overrides. If another edit was
    /// written since, reads the domain again, plans again and retries. It is a conflict only if the other
    /// edit changed what this edit is `about`: that is what was confirmed.
    pub async fn edit<T: PartialEq>(
        &self,
        args: &EditArgs,
        domain: &Name,
        mut base: Stored,
        about: impl AsyncFn(&Stored) -> Result<T, Error>,
        plan: impl AsyncFn(&Stored, &T) -> Result<Planned, Error>,
    ) -> Result<Edited, Error> {
        let mut first = None;
        for _ in 0..TRIES {
            let seen = about(&base).await?;
            if first.as_ref().is_some_and(|first| *first != seen) {
                break;
            }
            let planned = plan(&base, &seen).await?;
            first.get_or_insert(seen);
            match self.write(args, domain, base, planned).await {
                Err(EditError::Conflict { .. }) => {
                    base = self.read(domain, Overrides::None).await?;
                }
                written => return written.map_err(|error| self.edit_failed(&error)),
            }
        }
        Err(conflict())
    }

    /// As [`Session::edit`], of the fields of limits or of the domain that `about` picks; `change` changes the limits, and
    /// returns what that is of each.
    pub async fn edit_fields<T: PartialEq>(
        &self,
        args: &EditArgs,
        base: Box<Record>,
        about: impl Fn(&Policy) -> T,
        change: impl Fn(&mut Policy) -> Result<Vec<LimitChange>, Error>,
    ) -> Result<Edited, Error> {
        let domain = base.policy.domain.clone();
        let about = async |base: &Stored| Ok(base.policy().map(&about));
        let plan = async |base: &Stored, _: &Option<T>| {
            let Some(before) = base.policy() else {
                return Err(self.no_domain(&domain).await);
            };
            let mut after = before.clone();
            let changes = change(&mut after)?;
            let write = PlannedWrite::Fields(after);
            Ok(Planned { write, changes })
        };
        let base = Stored::Live(base);
        self.edit(args, &domain, base, about, plan).await
    }

    /// Writes an edit, unless it changes nothing or is a dry run. Another edit in the meantime is a conflict.
    pub async fn write(
        &self,
        args: &EditArgs,
        domain: &Name,
        base: Stored,
        planned: Planned,
    ) -> Result<Edited, EditError> {
        let Planned { write, changes } = planned;
        let previous_revision = revision_of(&base).map(|revision| revision.number);
        let mut revision = previous_revision;
        let domain_changes = write.policy();
        let domain_changes = domain_changes.map(|after| changes::of_domain(base.policy(), after));
        let domain_changes = domain_changes.unwrap_or_default();
        let any = !domain_changes.is_empty()
            || changes::any(&changes)
            || matches!(write, PlannedWrite::Delete(_));
        self.warn_if_irreversible(&changes);
        if any && !args.dry_run {
            let edit = Edit {
                domain,
                base: &base,
                change: write.change(),
                by: &args.signature(),
            };
            let write = self.store.write(&edit);
            let written = self.printer.while_pending(Pending::Edit, write).await?;
            revision = Some(written.number);
        }
        let report = EditReport {
            domain: domain.clone(),
            previous_revision,
            revision,
            dry_run: args.dry_run,
            domain_changes,
            changes,
        };
        Ok(Edited {
            report,
            base,
            write,
        })
    }

    /// Warns of deletions that the history does not record: rollback cannot restore them.
    fn warn_if_irreversible(&self, changes: &[LimitChange]) {
        let counts = changes.iter().map(|change| change.overrides_unrecorded);
        let count: u64 = counts.sum();
        if count > 0 {
            self.printer.warn(format_args!(
                "{count} overrides are deleted, more than the history records: rollback cannot restore \
                 them, a file of `rlctl export` can"
            ));
        }
    }
}

/// The revision of a record, if the record exists.
pub fn revision_of(stored: &Stored) -> Option<&Revision> {
    stored.policy().map(|policy| &policy.revision)
}

// --- What every edit takes on the command line.

/// The longest reason and author, in bytes: the history has them once more for each edit.
const REASON_MAX: usize = 1024;
const AUTHOR_MAX: usize = 256;

fn within(text: &str, max: usize) -> Result<String, String> {
    match text.len() {
        bytes if bytes > max => Err(format!("{bytes} bytes; at most {max} are kept")),
        _ => Ok(text.to_owned()),
    }
}

/// What every edit takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Edit options")]
pub struct EditArgs {
    /// Show what would change, without changing it.
    #[arg(long)]
    pub dry_run: bool,

    /// The reason, for the history.
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        value_parser = |text: &str| within(text, REASON_MAX)
    )]
    pub reason: String,

    /// The author, for the history [default: the user at this machine].
    #[arg(
        long,
        value_name = "NAME",
        env = "RLCTL_AUTHOR",
        hide_env_values = true,
        value_parser = |text: &str| within(text, AUTHOR_MAX)
    )]
    pub author: Option<String>,

    #[command(flatten)]
    wait: Wait,

    /// Do it without asking.
    // Of all edits, also those that never ask: a script passes the same options to each.
    #[arg(short, long)]
    pub yes: bool,
}

impl EditArgs {
    /// Goes on if the user agrees: `--yes`, or an answer at the terminal. A dry run needs no consent.
    ///
    /// `question` names what would be deleted. Without a terminal, `--yes` is required.
    pub async fn confirm(&self, question: String) -> Result<(), Error> {
        if self.dry_run || self.yes {
            return Ok(());
        }
        confirm(question).await
    }

    /// Who edits, and why.
    pub fn signature(&self) -> Signature {
        Signature {
            author: self
                .author
                .clone()
                .filter(|name| !name.is_empty())
                .unwrap_or_else(user_at_host),
            reason: self.reason.clone(),
        }
    }
}

fn user_at_host() -> String {
    let name = |variable| std::env::var(variable).ok().filter(|name| !name.is_empty());
    let user = name("USER")
        .or_else(|| name("LOGNAME"))
        .unwrap_or_else(|| "unknown".to_owned());
    format!("{user}@{}", gethostname::gethostname().to_string_lossy())
}

// --- What an edit reports.

/// An edit that was made, or would be.
#[derive(Debug, Serialize)]
pub struct EditReport {
    /// The domain.
    pub domain: Name,
    /// Its revision before; `None` if the domain did not exist.
    pub previous_revision: Option<u64>,
    /// Its revision after; the same as before if nothing changed.
    pub revision: Option<u64>,
    /// Whether nothing was written because of `--dry-run`.
    pub dry_run: bool,
    /// What changed about the domain itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domain_changes: Vec<FieldChange>,
    /// What changed.
    pub changes: Vec<LimitChange>,
}

impl View for EditReport {
    fn text(&self, page: Page) -> String {
        let Self {
            domain,
            domain_changes,
            changes,
            ..
        } = self;
        let mut text = render::changes_text(domain, domain_changes, changes, page);
        let summary = render::changes_summary(domain_changes, changes);
        let _ = write!(text, "{domain}: {summary}");
        let _ = match (self.previous_revision, self.revision) {
            _ if self.dry_run => write!(text, "; dry run, nothing was written"),
            (Some(before), Some(after)) if before != after => {
                write!(text, "; revision {before} {} {after}", render::arrow(page))
            }
            (None, Some(after)) => write!(text, "; revision {after}"),
            (Some(same), _) => write!(text, "; still at revision {same}"),
            (None, None) => Ok(()),
        };
        text.push('\n');
        text
    }

    /// The limits that changed.
    fn names(&self) -> Vec<String> {
        changes::names(&self.changes)
    }
}

// --- Confirmation before something is deleted.

async fn confirm(question: String) -> Result<(), Error> {
    if !can_ask() {
        return Err(
            Error::new(Exit::Declined, format!("{question}: not confirmed"))
                .hint("there is no terminal to ask at; add --yes if this is meant"),
        );
    }
    // On a thread of its own, so that Ctrl-C ends the question.
    let answer = tokio::task::spawn_blocking(move || {
        ask(&question, &mut io::stdin().lock(), &mut io::stderr().lock())
    });
    let why = match answer.await.map_err(io::Error::other).flatten() {
        Ok(true) => return Ok(()),
        Ok(false) => "declined; nothing was changed".to_owned(),
        Err(error) => format!("cannot ask at the terminal: {error}"),
    };
    Err(Error::new(Exit::Declined, why))
}

/// Whether stdin and stderr are a terminal.
pub fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks until the answer is yes or no. The end of the input counts as no.
fn ask(question: &str, input: &mut impl BufRead, output: &mut impl Write) -> io::Result<bool> {
    loop {
        write!(output, "{question}? [y/N] ")?;
        output.flush()?;
        let mut answer = String::new();
        if input.read_line(&mut answer)? == 0 {
            writeln!(output)?;
            return Ok(false);
        }
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => return Ok(true),
            "" | "n" | "no" => return Ok(false),
            _ => writeln!(output, "please answer y or n")?,
        }
    }
}

// --- Which limiters and proxies have an edit, and waiting until all of them do.

/// The time between two reads of the fleet while an edit spreads. Limiters report once a second.
pub const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A proxy contacts its limiter several times a second. One without a call for this long has most
/// likely stopped, and `--wait` does not wait for it.
pub const SILENT_AFTER_MS: u64 = 3000;

/// The most names in one message.
const NAMED_MAX: usize = 5;

/// A limiter or proxy that does not have an edit yet.
#[derive(Debug)]
struct Behind {
    name: String,
    revision: Option<u64>,
    ago_ms: u64,
}

impl Session<'_> {
    /// Shows an edit and follows it up.
    pub async fn finish(&self, report: &EditReport, args: &EditArgs) -> Result<Exit, Error> {
        self.printer.data(report)?;
        self.follow_up_edit(report, args).await
    }

    /// See [`Session::follow_up`].
    pub async fn follow_up_edit(
        &self,
        report: &EditReport,
        args: &EditArgs,
    ) -> Result<Exit, Error> {
        let revision = report.revision.filter(|_| !args.dry_run);
        self.follow_up(&report.domain, revision, args).await
    }

    /// Follows up an edit: warns if no proxy polls the domain, and waits for the fleet if `args`
    /// ask for that. `revision` is `None` if there was nothing to write.
    pub async fn follow_up(
        &self,
        domain: &Name,
        revision: Option<u64>,
        args: &EditArgs,
    ) -> Result<Exit, Error> {
        let wait_ms = args.wait.ms;
        let fleet = match self.store.fleet().await {
            Ok(fleet) => fleet,
            // The edit is made; the fleet is needed for warnings only.
            Err(_) if wait_ms.is_none() || revision.is_none() => return Ok(Exit::Done),
            Err(_) => Fleet::default(),
        };
        self.warn_if_unused(domain, &fleet);
        match (wait_ms, revision) {
            (Some(wait_ms), Some(revision)) => self.wait(domain, revision, wait_ms).await,
            _ => Ok(Exit::Done),
        }
    }

    /// Warns if no proxy polls the domain: its name is probably a typo.
    fn warn_if_unused(&self, domain: &Name, fleet: &Fleet) {
        if fleet.proxies.contains_key(domain) || fleet.proxies.is_empty() {
            return;
        }
        let polled = render::truncated_list(fleet.proxies.keys(), NAMED_MAX);
        self.printer.warn(format_args!(
            "no proxy polls domain {domain}; proxies poll {polled}"
        ));
        let known = fleet.proxies.keys().map(Name::as_str);
        if let Some(meant) = error::closest(domain.as_str(), known) {
            self.printer
                .hint(format_args!("did you mean --domain {}?", shell_word(meant)));
        }
    }

    async fn wait(&self, domain: &Name, revision: u64, wait_ms: u64) -> Result<Exit, Error> {
        let started = Instant::now();
        let elapsed_ms = || u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        loop {
            let fleet = match self.store.fleet().await {
                Ok(fleet) => fleet,
                Err(_) if elapsed_ms() < wait_ms => {
                    sleep(POLL_INTERVAL).await;
                    continue;
                }
                Err(error) => return Err(self.fleet_unreadable(revision, &error)),
            };
            let (behind, silent) = behind(&fleet, domain, revision);
            if behind.is_empty() {
                self.note_rollout(domain, revision, &fleet, elapsed_ms());
                if !silent.is_empty() {
                    let names = describe(&silent);
                    self.printer.warn(format_args!(
                        "not waited for, no report in the last 3 s: {names}"
                    ));
                }
                return Ok(Exit::Done);
            }
            if elapsed_ms() >= wait_ms {
                let message = format!(
                    "revision {revision} is written, but after {} not every limiter and proxy has it",
                    duration(wait_ms)
                );
                return Err(Error::new(Exit::Behind, message)
                    .hint(describe(&behind))
                    .hint("`rlctl list-proxies` shows the revision of each limiter and proxy"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The edit is written, but the fleet cannot be read.
    fn fleet_unreadable(&self, revision: u64, error: &StoreError) -> Error {
        let message = format!(
            "revision {revision} is written; which limiters and proxies have it cannot be read"
        );
        Error::new(Exit::Behind, message)
            .hint(self.failed(error).to_string())
            .hint("`rlctl list-proxies` shows the revision of each limiter and proxy")
    }

    /// Notes that a read for warnings failed after an edit. The edit itself succeeded.
    pub fn note_read_failure(&self, read: Result<(), Error>) {
        if let Err(error) = read {
            self.printer.note(format_args!(
                "the edit above is made; a read after it failed: {error}"
            ));
        }
    }

    fn note_rollout(&self, domain: &Name, revision: u64, fleet: &Fleet, took_ms: u64) {
        let alive = |ago_ms: u64| ago_ms <= SILENT_AFTER_MS;
        let proxies = fleet.proxies.get(domain).into_iter().flatten();
        let proxies = proxies.filter(|proxy| alive(proxy.ago_ms)).count();
        let limiters = fleet.limiters.iter().filter(|l| alive(l.ago_ms)).count();
        if proxies + limiters == 0 {
            let nobody = "no limiter or proxy has reported in the last 3 s: nothing to wait for";
            return self.printer.warn(nobody);
        }
        let plural = if proxies == 1 { "proxy" } else { "proxies" };
        self.printer.note(format_args!(
            "{} and {proxies} {plural} have revision {revision}, after {}",
            counted(limiters, "limiter"),
            duration(took_ms)
        ));
    }
}

/// Limiters and proxies that lack a revision: those that report, and those that are silent.
fn behind(fleet: &Fleet, domain: &Name, revision: u64) -> (Vec<Behind>, Vec<Behind>) {
    let limiter = |limiter: &LimiterStatus| Behind {
        name: format!("limiter {}", limiter_name(&limiter.id)),
        revision: limiter.revisions.get(domain).map(|r| r.number),
        ago_ms: limiter.ago_ms,
    };
    let proxy = |proxy: &ProxyStatus| Behind {
        name: format!("proxy {}", proxy_name(proxy)),
        revision: proxy.revision.as_ref().map(|r| r.number),
        ago_ms: proxy.ago_ms,
    };
    let proxies = fleet.proxies.get(domain).into_iter().flatten().map(proxy);
    let all = fleet.limiters.iter().map(limiter).chain(proxies);
    // One that has a later edit has this one too.
    let lack = all.filter(|who| who.revision.is_none_or(|has| has < revision));
    lack.partition(|who| who.ago_ms <= SILENT_AFTER_MS)
}

fn describe(all: &[Behind]) -> String {
    let one = |who: &Behind| match who.revision {
        Some(revision) => format!("{} has revision {revision}", who.name),
        None => format!("{} has none", who.name),
    };
    let mut names: Vec<String> = all.iter().take(NAMED_MAX).map(one).collect();
    if all.len() > NAMED_MAX {
        names.push(format!("{} more", all.len() - NAMED_MAX));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod prompt_tests {
    use super::*;

    fn answer(typed: &str) -> (bool, String) {
        let mut shown = Vec::new();
        let yes = ask("delete it", &mut typed.as_bytes(), &mut shown).unwrap();
        (yes, String::from_utf8(shown).unwrap())
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        assert_eq!(answer("y\n"), (true, "delete it? [y/N] ".into()));
        assert!(answer(" YES \n").0);
        assert!(!answer("\n").0);
        assert!(!answer("no\n").0);
    }

    #[test]
    fn the_end_of_the_input_is_a_no() {
        assert_eq!(answer(""), (false, "delete it? [y/N] \n".into()));
    }

    #[test]
    fn anything_else_is_asked_again() {
        let (yes, shown) = answer("per-user\ny\n");
        assert!(yes);
        assert_eq!(shown.matches("[y/N]").count(), 2);
    }
}
