//! `rlctl rollback`.

use clap::Args;
use policy::{Name, Policy};
use store::{Change, HistoryEntry, Overrides, Stored};

use crate::{
    args::{Global, examples},
    bucket::parse_whole_number,
    changes::{self, FieldChange, LimitChange},
    edit::{EditArgs, Prepared, revision_of},
    error::Error,
    exit::Exit,
    history::HistoryChange,
    printer::Printer,
    prompt::{Yes, confirm},
    render::{self, diagnostics},
    revert::Reverted,
    session::{self, Session},
};

/// More edits than a history keeps.
const READ_MAX: usize = 10_000;

/// Roll back to an earlier revision.
///
/// A rollback is an edit with a revision of its own. It does not change usage.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl history                                  # find the revision"
    "rlctl rollback 17 --dry-run"
    "rlctl rollback 17 --limit per-user --reason 'too tight'"
))]
pub struct Rollback {
    /// The revision to roll back to.
    #[arg(value_parser = parse_whole_number, allow_negative_numbers = true)]
    revision: u64,

    /// Only this limit.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,

    #[command(flatten)]
    edit: EditArgs,

    #[command(flatten)]
    yes: Yes,
}

impl Rollback {
    /// Reverts the later edits, newest first, and writes the result as one edit.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let domain = session.domain().await?;
        let limit = self.limit.as_deref().map(|name| {
            name.parse::<Name>().map_err(|error| {
                Error::usage(format!("`{name}` cannot be a limit's name: {error}"))
            })
        });
        let limit = limit.transpose()?;
        let base = session.read(&domain, Overrides::None).await?;
        let history = session.store.history(&domain, READ_MAX).await;
        let history = history.map_err(|error| session.failed(&error))?;
        if history.is_empty() {
            return Err(session.no_domain(&domain).await);
        }
        let earlier = self.earlier(&domain, &base, &history, limit.as_ref())?;
        let policy = &earlier.policy;
        if let Some(name) = &limit {
            let known = base.policy().and_then(|base| base.limit(name.as_str()));
            known.map_or_else(|| session::find_limit(policy, name.as_str()), Ok)?;
        }
        let plan = session
            .plan_edit(base.policy(), policy, &earlier.overrides)
            .await?;
        if let Some(text) = plan.invalid_overrides_text() {
            return Err(invalid(&text));
        }
        let domain_changes = changes::of_domain(base.policy(), policy);
        self.ask(printer, &domain, &domain_changes, &plan.changes)
            .await?;
        let mut edit = self.edit.clone();
        if edit.reason.is_empty() {
            edit.reason = format!("rollback to revision {}", self.revision);
        }
        let prepared = Prepared {
            domain: &domain,
            base: &base,
            change: Change::Parts {
                limits: policy,
                overrides: &plan.overrides,
            },
            changes: plan.changes,
        };
        let report = session.edit(prepared, &edit).await;
        let report = report.map_err(|error| session.edit_failed(&error))?;
        session.finish(&report, &edit).await
    }

    async fn ask(
        &self,
        printer: &Printer,
        domain: &Name,
        domain_changes: &[FieldChange],
        changes: &[LimitChange],
    ) -> Result<(), Error> {
        let any = !domain_changes.is_empty() || changes::any(changes);
        if self.edit.dry_run || self.yes.yes || !any {
            return Ok(());
        }
        // Shows the changes before the user confirms them.
        let page = printer.page();
        let mut shown = render::changes::of_domain(domain.as_str(), domain_changes, page);
        shown.push_str(&render::changes::text(changes, page));
        printer.note(shown.trim_end());
        confirm(
            format!("roll domain {domain} back to revision {}", self.revision),
            &self.yes,
        )
        .await
    }

    /// The limits at the earlier revision.
    fn earlier(
        &self,
        domain: &Name,
        base: &Stored,
        history: &[HistoryEntry],
        limit: Option<&Name>,
    ) -> Result<Reverted, Error> {
        let newest = history.first().map_or(0, |entry| entry.revision.number);
        let current = revision_of(base).map_or(newest, |revision| revision.number);
        let later = |entry: &&HistoryEntry| {
            (self.revision.saturating_add(1)..=current).contains(&entry.revision.number)
        };
        let later: Vec<&HistoryEntry> = history.iter().filter(later).collect();
        let whole =
            u64::try_from(later.len()).is_ok_and(|n| n == current - self.revision.min(current));
        if self.revision == 0 || self.revision > current || !whole {
            let oldest = history.last().map_or(1, |entry| entry.revision.number);
            let back_to = oldest.saturating_sub(1).max(1);
            return Err(Error::not_found(format!(
                "there is no revision {} to roll back to",
                self.revision
            ))
            .hint(format!(
                "domain {domain} can be rolled back to any from {back_to} to {current}"
            )));
        }
        let policy = base.policy().cloned();
        let mut reverted = Reverted::new(policy.unwrap_or_else(|| Policy::empty(domain.clone())));
        for entry in later {
            let change = HistoryChange::parse(entry);
            let reverted = reverted.revert(&change, limit);
            reverted.ok_or_else(|| cannot_revert(entry, &change))?;
        }
        checked(reverted, base.policy())
    }
}

fn cannot_revert(entry: &HistoryEntry, change: &HistoryChange) -> Error {
    let number = entry.revision.number;
    let error = Error::new(
        Exit::Refused,
        format!("revision {number} cannot be rolled back"),
    );
    match change {
        HistoryChange::TooLarge => error
            .hint("it changed more than the history records; `rlctl apply -f` restores a backup"),
        _ => error.hint("this version of rlctl cannot read its history entry"),
    }
}

/// Checks that the resulting limits are valid together and that overrides fit them. Limits that are
/// new or have another `per` list their overrides.
fn checked(mut reverted: Reverted, base: Option<&Policy>) -> Result<Reverted, Error> {
    let policy = &mut reverted.policy;
    Policy::from_node(&policy.to_node()).map_err(|problems| invalid(&diagnostics(&problems)))?;
    for limit in &mut policy.limits {
        let Some(deltas) = reverted.overrides.get_mut(&limit.name) else {
            continue;
        };
        for found in deltas.values_mut().flatten() {
            let again = limit.read_override(&found.to_node(&limit.per));
            *found = again.map_err(|problems| invalid(&diagnostics(&problems)))?;
        }
        let old = base.and_then(|base| base.limit(limit.name.as_str()));
        if old.is_none_or(|old| old.per != limit.per) {
            limit.overrides = deltas.values().flatten().cloned().collect();
        }
    }
    Ok(reverted)
}

fn invalid(text: &str) -> Error {
    Error::usage(format!("the result would be invalid\n{text}"))
}
