//! `rlctl pause` and `rlctl resume`.

use clap::Args;
use policy::{Name, Pause, Policy, parse_duration, parse_timestamp};
use store::{Overrides, Record};

use crate::{
    changes::LimitChange,
    cli::{Global, examples},
    edit::{EditArgs, Edited, end_after, not_a_time},
    error::{Error, Exit},
    printer::Printer,
    render::until,
    session::{self, Session},
};

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
        } else {
            let (domain, until) = (&policy.domain, until(pause.until_ms));
            let question = format!("let every request of domain {domain} pass{until}");
            self.edit.confirm(question).await?;
        }
        let limit = self.target.limit();
        let edited = set(&session, base, limit, Some(pause), &self.edit).await?;
        printer.data(&edited.report)?;
        if let Some(policy) = edited.base.policy().filter(|_| !self.edit.dry_run) {
            self.note_pause(printer, &policy.domain, pause);
        }
        session.follow_up_edit(&edited.report, &self.edit).await
    }

    fn note_pause(&self, printer: &Printer, domain: &Name, pause: Pause) {
        let (what, back) = match self.target.limit() {
            Some(limit) => (limit.to_owned(), format!("rlctl resume --limit {limit}")),
            None => (
                format!("every limit of {domain}"),
                "rlctl resume".to_owned(),
            ),
        };
        let until = until(pause.until_ms);
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
        let now_ms = crate::now_ms();
        if !paused.is_some_and(|pause| pause.holds(now_ms)) {
            let what = limit.map_or_else(|| format!("domain {}", policy.domain), str::to_owned);
            printer.note(format_args!("{what} was not paused"));
        }
        let edited = set(&session, base, limit, None, &self.edit).await?;
        printer.data(&edited.report)?;
        if let Some(policy) = edited.base.policy() {
            self.warn_of_other_pauses(printer, policy, now_ms);
        }
        session.follow_up_edit(&edited.report, &self.edit).await
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

/// Writes the pause of one limit, or that of the domain.
async fn set(
    session: &Session<'_>,
    base: Box<Record>,
    limit: Option<&str>,
    to: Option<Pause>,
    args: &EditArgs,
) -> Result<Edited, Error> {
    let paused = |policy: &Policy| match limit {
        Some(name) => policy.limit(name).and_then(|limit| limit.paused),
        None => policy.paused,
    };
    let pause = |policy: &mut Policy| {
        let Some(name) = limit else {
            policy.paused = to;
            return Ok(Vec::new());
        };
        let old = session::find_limit(policy, name)?.clone();
        let mut limits = policy.limits.iter_mut();
        let change = limits
            .find(|limit| limit.name == old.name)
            .and_then(|limit| {
                limit.paused = to;
                LimitChange::between(Some(&old), Some(limit))
            });
        Ok(change.into_iter().collect())
    };
    session.edit_fields(args, base, paused, pause).await
}

// --- When a pause ends.

/// When a pause ends by itself: without either, never.
#[derive(Debug, Args)]
struct PauseEnd {
    /// How long it lasts, as in 30m or 2h.
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<String>,

    /// When it ends, as in 2026-12-01T00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "lasts")]
    until: Option<String>,
}

impl PauseEnd {
    /// The pause. A duration counts from now by the store's clock: limiters are closer to it than
    /// to the clock of the user's machine.
    async fn pause(&self, session: &Session<'_>) -> Result<Pause, Error> {
        if let Some(until) = &self.until {
            return point(until, session.now_ms().await?);
        }
        let Some(lasts) = &self.lasts else {
            return Ok(Pause { until_ms: None });
        };
        let ms = match parse_duration(lasts) {
            Ok(0) => return Err(Error::usage("--for: expected more than 0")),
            Ok(ms) => ms,
            Err(error) => {
                return Err(Error::usage(format!("--for: {error}"))
                    .hint("to pause one limit, name it with --limit"));
            }
        };
        let now_ms = session.now_ms().await?;
        Ok(Pause {
            until_ms: Some(end_after("--for", lasts, ms, now_ms)?),
        })
    }
}

fn point(until: &str, now_ms: u64) -> Result<Pause, Error> {
    match parse_timestamp(until) {
        Some(ms) if ms > now_ms => Ok(Pause { until_ms: Some(ms) }),
        Some(_) => Err(Error::usage(format!("--until: {until} has passed"))
            .hint("a pause that is over pauses nothing; `rlctl resume` ends one")),
        None => Err(not_a_time("--until", until, "not a time")
            .hint("a time is like 2026-12-01T00:00Z; --for takes a while, like 30m")),
    }
}
