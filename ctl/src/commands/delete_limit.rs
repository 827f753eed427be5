//! `rlctl delete-limit` and `rlctl delete-domain`.

use clap::Args;
use policy::{AmountText, Limit, Name, Override, Policy};
use store::{LimitOf, Overrides, StoreError, Stored};

use super::set_limit::between;
use crate::{
    bucket::{self, Pair},
    changes::{Action, LimitChange},
    cli::{Global, examples},
    edit::{EditArgs, Edited, Planned, PlannedWrite},
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
}

impl DeleteLimit {
    /// Confirms, deletes and shows what was deleted.
    pub async fn run(&self, global: &Global, printer: &Printer) -> Result<Exit, Error> {
        let session = Session::open(global, printer)?;
        let edited = if self.bucket.is_empty() {
            let record = session.record(Overrides::None).await?;
            self.delete_limit(&session, Stored::Live(record)).await?
        } else {
            let record = session.record_for(&self.name).await?;
            self.delete_override(&session, Stored::Live(record)).await?
        };
        session.finish(&edited.report, &self.edit).await
    }

    async fn delete_limit(&self, session: &Session<'_>, base: Stored) -> Result<Edited, Error> {
        let policy = base.policy().ok_or_else(conflict)?;
        let domain = policy.domain.clone();
        let confirmed = session::find_limit(policy, &self.name)?;
        let overrides = match session.override_count(&domain, confirmed).await? {
            0 => String::new(),
            n => format!(", {}", session::deletion_summary(n)),
        };
        let rate = AmountText(confirmed.quota.parameters());
        let name = &self.name;
        let question = format!("delete limit {name} of domain {domain} ({rate}{overrides})");
        self.edit.confirm(question).await?;
        // An edit of one of the limit's overrides raises its generation, too.
        let about = async |base: &Stored| {
            let limit = base.policy().and_then(|policy| policy.limit(name));
            limit.cloned().ok_or_else(conflict)
        };
        let plan = async |base: &Stored, limit: &Limit| {
            let before = base.policy().ok_or_else(conflict)?;
            let after = without(before, name)?;
            let plan = session
                .plan_edit(Some(before), &after, &Deltas::new())
                .await?;
            let mut changes = plan.changes;
            changes.retain(|change| change.limit == limit.name.as_str());
            Ok(Planned {
                write: PlannedWrite::Parts(after, plan.overrides),
                changes,
            })
        };
        session.edit(&self.edit, &domain, base, about, plan).await
    }

    async fn delete_override(&self, session: &Session<'_>, base: Stored) -> Result<Edited, Error> {
        let policy = base.policy().ok_or_else(conflict)?;
        let domain = policy.domain.clone();
        let limit = session::find_limit(policy, &self.name)?.clone();
        // A file may have set one for what is no bucket.
        let mut values = bucket::bucket(&limit, &self.bucket, &[])?;
        if !session.has_override(&domain, &limit, &values).await? {
            let pairs = session.as_proxies_have(&domain, &self.bucket).await?;
            values = bucket::bucket(&limit, &pairs, &[])?;
        }
        let shown = bucket::display(&limit.per, &values);
        let name = &limit.name;
        if !session.has_override(&domain, &limit, &values).await? {
            return Err(
                Error::not_found(format!("limit {name} has no override for {shown}"))
                    .hint(format!("`rlctl get-limit {name}` shows those it has")),
            );
        }
        let question = format!("delete the override of {shown} in limit {name} of domain {domain}");
        self.edit.confirm(question).await?;
        let about = async |_: &Stored| {
            let of = LimitOf {
                domain: &domain,
                limit: &limit,
            };
            match session.store.read_override(&of, &values).await {
                // A corrupt override can still be deleted, which makes the limit readable again.
                Err(StoreError::Corrupt(_)) => Ok(None),
                found => found.map_err(|error| session.failed(&error)),
            }
        };
        let plan = async |_: &Stored, before: &Option<Override>| {
            Ok(Planned {
                write: PlannedWrite::Override(name.clone(), values.clone(), None),
                changes: vec![LimitChange {
                    action: Action::Changed,
                    ..between(&limit, before.as_ref(), None)
                }],
            })
        };
        session.edit(&self.edit, &domain, base, about, plan).await
    }
}

/// The other limits; an error if one refers to the deleted limit.
fn without(policy: &Policy, name: &str) -> Result<Policy, Error> {
    limits_file::edit::without_limit(policy, name).map_err(|problems| {
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
        let Some(policy) = base.policy() else {
            return Err(session.no_domain(&domain).await);
        };
        if !self.edit.dry_run {
            let overrides = session.override_counts(policy).await?.iter().sum::<u64>();
            let limits = counted(policy.limits.len(), "limit");
            let overrides = counted(overrides, "override");
            let question = format!("delete domain {domain} ({limits}, {overrides})");
            self.edit.confirm(question).await?;
        }
        let nothing = Policy::empty(domain.clone());
        let plan = session
            .plan_edit(Some(policy), &nothing, &Deltas::new())
            .await?;
        let planned = Planned {
            write: PlannedWrite::Delete(plan.overrides),
            changes: plan.changes,
        };
        // Somebody else's edit in the meantime was not confirmed.
        let edited = session.write(&self.edit, &domain, base, planned).await;
        let edited = edited.map_err(|error| session.edit_failed(&error))?;
        session.finish(&edited.report, &self.edit).await
    }
}
