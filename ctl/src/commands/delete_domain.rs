//! `rlctl delete-domain`.

use clap::Args;
use policy::{Name, Policy};
use store::{Change, Overrides, Stored};

use crate::{
    args::{Global, examples},
    edit::{EditArgs, Prepared},
    error::Error,
    exit::Exit,
    printer::Printer,
    prompt::{Yes, confirm},
    render::counted,
    session::{Deltas, Session, conflict},
};

/// Delete all limits of a domain.
///
/// Its history stays, and `rlctl rollback` restores the limits. Until then every request of the
/// domain passes. Usage stays until it expires.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl delete-domain staging"
    "rlctl delete-domain --domain staging"
    "rlctl delete-domain staging --yes --reason 'moved to prod'"
    "rlctl delete-domain staging --dry-run"
))]
pub struct DeleteDomain {
    /// The domain; required, here or as --domain, even if there is only one.
    name: Option<String>,

    #[command(flatten)]
    edit: EditArgs,

    #[command(flatten)]
    yes: Yes,
}

impl DeleteDomain {
    /// Confirms, and deletes exactly the revision that was confirmed.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        // RLCTL_DOMAIN is not enough: it may be set for something else.
        let Some(name) = self.name.as_ref().or(global.domain.as_ref()) else {
            return Err(Error::usage("which domain? name the one to delete")
                .hint("as in `rlctl delete-domain staging`; `rlctl list-domains` shows them"));
        };
        let domain: Name = Name::domain(name).map_err(|error| {
            Error::usage(format!("`{name}` cannot be a domain's name: {error}"))
        })?;
        let session = Session::open(global, printer)?;
        if let Some(named) = session.named_domain().filter(|named| **named != domain) {
            return Err(Error::usage(format!(
                "the argument is {domain}, but --domain or RLCTL_DOMAIN is {named}"
            )));
        }
        let base = session.read(&domain, Overrides::None).await?;
        let Stored::Live(record) = &base else {
            return Err(session.no_domain(&domain).await);
        };
        let policy = &record.policy;
        if !self.edit.dry_run {
            let overrides = session.override_counts(policy).await?.iter().sum::<u64>();
            let limits = counted(policy.limits.len(), "limit");
            let overrides = counted(overrides, "override");
            let question = format!("delete domain {domain} ({limits}, {overrides})");
            confirm(question, &self.yes).await?;
        }
        let nothing = Policy::empty(domain.clone());
        let plan = session
            .plan_edit(Some(policy), &nothing, &Deltas::new())
            .await?;
        let prepared = Prepared {
            domain: &domain,
            base: &base,
            change: Change::Delete(&plan.overrides),
            changes: plan.changes,
        };
        // Somebody else's edit in the meantime was not confirmed.
        let report = session
            .edit(prepared, &self.edit)
            .await
            .map_err(|error| match error {
                store::EditError::Conflict { .. } => conflict(),
                error => session.edit_failed(&error),
            })?;
        session.finish(&report, &self.edit).await
    }
}
