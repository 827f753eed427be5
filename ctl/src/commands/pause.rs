//! `rlctl pause` and `rlctl resume`.

mod end;

use clap::Args;
use policy::{Limit, Name, Pause, Policy, format_timestamp};
use store::{Change, Overrides, Record, Stored};

use crate::{
    args::{Global, examples},
    changes::LimitChange,
    clock,
    edit::{EditArgs, EditReport, Prepared},
    error::Error,
    exit::Exit,
    printer::Printer,
    prompt::{Yes, confirm},
    session::{self, Session},
};

use end::PauseEnd;

/// Pause a limit, or every limit of a domain: the kill switch.
///
/// Requests pass as if the limit were not there, at every proxy within a second. The limit and its
/// usage stay stored; `rlctl resume` ends the pause. With --for it ends by itself.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl pause --limit per-user --reason 'denies everybody'"
    "rlctl pause --limit per-user --for 30m     # ends by itself"
    "rlctl pause --yes --for 1h                 # the whole domain"
))]
pub struct PauseCommand {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    ends: PauseEnd,

    #[command(flatten)]
    edit: EditArgs,

    #[command(flatten)]
    yes: Yes,
}

/// End the pause of a limit, or of the domain.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl resume --limit per-user"
    "rlctl resume                       # the domain; limits with a pause of their own stay paused"
))]
pub struct Resume {
    #[command(flatten)]
    target: Target,

    #[command(flatten)]
    edit: EditArgs,
}

#[derive(Debug, Args)]
struct Target {
    /// Only this limit [default: every limit of the domain].
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,

    /// What --limit is for, without it.
    #[arg(hide = true, conflicts_with = "limit")]
    name: Option<String>,
}

impl Target {
    fn limit(&self) -> Option<&str> {
        self.limit.as_deref().or(self.name.as_deref())
    }
}

impl PauseCommand {
    /// Confirms before it pauses a whole domain.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let base = session.record(Overrides::None).await?;
        let policy = &base.policy;
        let pause = self.ends.pause(&session).await?;
        if let Some(name) = self.target.limit() {
            session::find_limit(policy, name)?;
        } else if !self.edit.dry_run {
            let (domain, until) = (&policy.domain, until(pause));
            let question = format!("let every request of domain {domain} pass{until}");
            confirm(question, &self.yes).await?;
        }
        let report = set(
            &session,
            &base,
            self.target.limit(),
            Some(pause),
            &self.edit,
        )
        .await?;
        printer.data(&report)?;
        if !self.edit.dry_run {
            self.note_pause(printer, &policy.domain, pause);
        }
        session.follow_up_edit(&report, &self.edit).await
    }

    fn note_pause(&self, printer: &Printer, domain: &Name, pause: Pause) {
        let (what, back) = match self.target.limit() {
            Some(limit) => (limit.to_owned(), format!("rlctl resume --limit {limit}")),
            None => (
                format!("every limit of {domain}"),
                "rlctl resume".to_owned(),
            ),
        };
        let until = until(pause);
        printer.note(format_args!("{what} is paused{until}; `{back}` ends that"));
    }
}

impl Resume {
    /// A limit or domain that was not paused stays as it is, which is no error.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let base = session.record(Overrides::None).await?;
        let policy = &base.policy;
        let limit = self.target.limit();
        let paused = match limit {
            Some(name) => session::find_limit(policy, name)?.paused,
            None => policy.paused,
        };
        let now_ms = clock::now_ms();
        if !paused.is_some_and(|pause| pause.holds(now_ms)) {
            let what = limit.map_or_else(|| format!("domain {}", policy.domain), str::to_owned);
            printer.note(format_args!("{what} was not paused"));
        }
        let report = set(&session, &base, limit, None, &self.edit).await?;
        printer.data(&report)?;
        self.warn_of_other_pauses(printer, policy, now_ms);
        session.follow_up_edit(&report, &self.edit).await
    }

    /// Warns of pauses that still let requests pass after this one has ended.
    fn warn_of_other_pauses(&self, printer: &Printer, policy: &Policy, now_ms: u64) {
        let holds = |pause: Option<Pause>| pause.is_some_and(|pause| pause.holds(now_ms));
        if self.target.limit().is_some() {
            if holds(policy.paused) {
                printer.warn(format_args!(
                    "domain {} is paused as a whole; `rlctl resume` ends that",
                    policy.domain
                ));
            }
            return;
        }
        let paused = policy.limits.iter().filter(|limit| holds(limit.paused));
        for limit in paused {
            let name = &limit.name;
            printer.warn(format_args!(
                "{name} itself stays paused; `rlctl resume --limit {name}` ends that"
            ));
        }
    }
}

/// ` until 2026-12-01T00:00:00Z`.
fn until(pause: Pause) -> String {
    pause
        .until_ms
        .map_or_else(String::new, |ms| format!(" until {}", format_timestamp(ms)))
}

/// Writes the pause of one limit, or that of the domain.
async fn set(
    session: &Session<'_>,
    base: &Record,
    limit: Option<&str>,
    to: Option<Pause>,
    args: &EditArgs,
) -> Result<EditReport, Error> {
    let domain = &base.policy.domain;
    let pause_in = async |base: &Stored| match limit {
        Some(name) => Ok(session.limit_in(base, domain, name).await?.paused),
        None => Ok(base.policy().and_then(|policy| policy.paused)),
    };
    let attempt = async |base: &Stored, _: &Option<Pause>| {
        let Some(before) = base.policy() else {
            return Err(session.no_domain(domain).await);
        };
        let mut after = before.clone();
        let mut changes = Vec::new();
        match limit {
            None => after.paused = to,
            Some(name) => {
                let old = session::find_limit(before, name)?;
                let paused = Limit {
                    paused: to,
                    ..old.clone()
                };
                changes.extend(LimitChange::between(Some(old), Some(&paused)));
                let mut limits = after.limits.iter_mut();
                if let Some(limit) = limits.find(|limit| limit.name == paused.name) {
                    *limit = paused;
                }
            }
        }
        let prepared = Prepared {
            domain,
            base,
            change: Change::Fields(&after),
            changes,
        };
        Ok(session.edit(prepared, args).await)
    };
    session
        .edit_with_retry(
            domain,
            Stored::Live(Box::new(base.clone())),
            pause_in,
            attempt,
        )
        .await
}
