//! `rlctl delete-limit`.

use clap::Args;
use policy::{AmountText, Limit, Name, Override, Policy};
use store::{Change, LimitOf, Overrides, StoreError, Stored};

use super::set_limit::between;
use crate::{
    bucket::{self, Pair},
    changes::{Action, LimitChange},
    cli::{Global, examples},
    edit::{EditArgs, EditReport, Prepared, Yes, confirm},
    error::{Error, Exit},
    printer::Printer,
    render::counted,
    session::{self, Deltas, Session, conflict},
};

/// Delete a limit, or the override of one bucket.
#[derive(Debug, Args)]
#[command(after_help = examples!(
    "rlctl delete-limit exports"
    "rlctl delete-limit exports --yes --reason 'the route is gone'"
    "rlctl delete-limit per-user --for user=alice        # alice has the limit's numbers again"
))]
pub struct DeleteLimit {
    /// The limit.
    name: String,

    /// Delete the override of this bucket only; name every entry of `per`.
    #[arg(long = "for", value_name = "KEY=VALUE")]
    bucket: Vec<Pair>,

    #[command(flatten)]
    edit: EditArgs,

    #[command(flatten)]
    yes: Yes,
}

impl DeleteLimit {
    /// Confirms, deletes and shows what was deleted.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let report = if self.bucket.is_empty() {
            self.delete_limit(&session).await?
        } else {
            self.delete_override(&session).await?
        };
        session.finish(&report, &self.edit).await
    }

    async fn ask(&self, question: String) -> Result<(), Error> {
        if self.edit.dry_run {
            return Ok(());
        }
        confirm(question, &self.yes).await
    }

    async fn delete_limit(&self, session: &Session<'_>) -> Result<EditReport, Error> {
        let record = session.record(Overrides::None).await?;
        let policy = &record.policy;
        let (confirmed, domain) = (session::find_limit(policy, &self.name)?, &policy.domain);
        let overrides = match session.override_count(domain, confirmed).await? {
            0 => String::new(),
            n => format!(", {}", session::deletion_summary(n)),
        };
        let (name, rate) = (&confirmed.name, AmountText(confirmed.quota.parameters()));
        self.ask(format!(
            "delete limit {name} of domain {domain} ({rate}{overrides})"
        ))
        .await?;
        let limit_in = async |base: &Stored| {
            let limit = base.policy().and_then(|policy| policy.limit(name.as_str()));
            // Only what was confirmed is deleted. An edit of one of the limit's overrides raises
            // its generation, too.
            limit
                .filter(|limit| *limit == confirmed)
                .cloned()
                .ok_or_else(conflict)
        };
        let attempt = async |base: &Stored, limit: &Limit| {
            let before = base.policy().ok_or_else(conflict)?;
            let after = without(before, limit.name.as_str())?;
            let plan = session
                .plan_edit(Some(before), &after, &Deltas::new())
                .await?;
            let mut changes = plan.changes;
            changes.retain(|change| change.limit == limit.name.as_str());
            let prepared = Prepared {
                domain,
                base,
                change: Change::Parts {
                    limits: &after,
                    overrides: &plan.overrides,
                },
                changes,
            };
            Ok(session.edit(prepared, &self.edit).await)
        };
        let base = Stored::Live(record.clone());
        session
            .edit_with_retry(domain, base, limit_in, attempt)
            .await
    }

    async fn delete_override(&self, session: &Session<'_>) -> Result<EditReport, Error> {
        let record = session.record(Overrides::None).await?;
        let policy = &record.policy;
        let (limit, domain) = (session::find_limit(policy, &self.name)?, &policy.domain);
        // A file may have set one for what is no bucket.
        let mut values = bucket::bucket(limit, &self.bucket, &[])?;
        if !session.has_override(domain, limit, &values).await? {
            let pairs = session.as_proxies_have(domain, &self.bucket).await?;
            values = bucket::bucket(limit, &pairs, &[])?;
        }
        let shown = bucket::display(&limit.per, &values);
        let name = &limit.name;
        if !session.has_override(domain, limit, &values).await? {
            return Err(
                Error::not_found(format!("limit {name} has no override for {shown}"))
                    .hint(format!("`rlctl get-limit {name}` shows those it has")),
            );
        }
        self.ask(format!(
            "delete the override of {shown} in limit {name} of domain {domain}"
        ))
        .await?;
        let override_in = async |_: &Stored| {
            let of = LimitOf { domain, limit };
            match session.store.read_override(&of, &values).await {
                // A corrupt override can still be deleted, which makes the limit readable again.
                Err(StoreError::Corrupt(_)) => Ok(None),
                found => found.map_err(|error| session.failed(&error)),
            }
        };
        let attempt = async |base: &Stored, before: &Option<Override>| {
            let prepared = Prepared {
                domain,
                base,
                change: Change::Override {
                    limit: name,
                    values: &values,
                    to: None,
                },
                changes: vec![LimitChange {
                    action: Action::Changed,
                    ..between(limit, before.as_ref(), None)
                }],
            };
            Ok(session.edit(prepared, &self.edit).await)
        };
        let base = Stored::Live(record.clone());
        session
            .edit_with_retry(domain, base, override_in, attempt)
            .await
    }
}

/// The other limits; an error if one refers to the deleted limit.
fn without(policy: &Policy, name: &str) -> Result<Policy, Error> {
    policy.without_limit(name).map_err(|problems| {
        let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
        Error::usage(format!(
            "limit {name} cannot be deleted: {}",
            problems.join("; ")
        ))
        .hint("change the limits that refer to it first")
    })
}

// --- `rlctl delete-domain`.

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
